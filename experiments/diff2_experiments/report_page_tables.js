// Switches, tables that can be sorted, and what tuning tried.
function drawControls() {
  const epsilons = unique(data.conditions.map((one) => one.epsilon));
  const accountings = unique(data.conditions.map((one) => one.accounting));
  const redraw = () => { drawCharts(); drawLandscapes(); };
  const publishes = data.p_values.some((one) => one.published !== null);
  document.getElementById("controls").replaceChildren(html("div", { class: "controls" },
    choices("metric", "metric", [["all", "all"], ...data.metrics.map((metric) => [metric.name, metric.title])], drawCharts),
    choices("epsilon", "epsilon", epsilons.map((epsilon) => [epsilon, String(epsilon)]), redraw),
    choices("accounting", "accounting", accountings.map((name) => [name, name]), redraw),
    choices("scale", "scale", [["usual", "usual"], ["log", "log"], ["linear", "linear"]], drawCharts),
    checks([["bands", "bands"], ["seeds", "single seeds"], ["whole", "whole range"],
      ...(publishes ? [["published", "published values ◇"]] : [])], drawCharts)));
  document.getElementById("tuning-controls").replaceChildren(html("div", { class: "controls" },
    choices("metric", "tuned", data.metrics.slice(0, 2).map((metric) => [metric.name, metric.title]), drawLandscapes),
    html("span", { id: "tuning-condition", class: "condition" })));
}

// Sort by a column: ascending, descending, as it was. Cells without a value stay last.
function makeSortable(table) {
  const body = table.tBodies[0], before = [...body.rows];
  const titles = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  titles.forEach((title, column) => title.querySelector("button").addEventListener("click", () => {
    const order = { ascending: "descending", descending: null }[title.getAttribute("aria-sort")];
    const next = order === undefined ? "ascending" : order;
    titles.forEach((one) => one.removeAttribute("aria-sort"));
    if (next === null) return body.append(...before);
    title.setAttribute("aria-sort", next);
    const turn = next === "ascending" ? 1 : -1;
    const key = (row) => {
      const cell = row.cells[column];
      if (column === 0) return cell.textContent;
      return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
    };
    return body.append(...[...before].sort((first, second) => {
      const [a, b] = [key(first), key(second)];
      if (a === null || b === null) return (a === null) - (b === null);
      return turn * (typeof a === "string" ? a.localeCompare(b) : a - b);
    }));
  }));
}

const chosenSlices = new Map();  // of each landscape: the values of the settings that are neither rows nor columns

function drawLandscapes() {
  document.getElementById("tuning-condition").textContent = `at epsilon ${state.epsilon}, ${state.accounting} accounting, as chosen above`;
  document.getElementById("landscapes").replaceChildren(...data.landscapes
    .filter((one) => one.budget === null || (one.budget === state.epsilon && one.accounting === state.accounting))
    .map(landscape));
}

function landscape(one) {
  const method = data.methods.find((found) => found.name === one.method);
  const symbol = (axis) => data.symbols[axis.name] || axis.name;
  const value = (point) => point[state.tuned];
  const surviving = one.points.filter((point) => value(point) !== null);
  const best = surviving.reduce((found, point) => (found === null || value(point) < value(found) ? point : found), null);
  // The first two settings make rows and columns, the others are chosen by buttons.
  const axes = one.axes.map((axis, index) => ({ ...axis, index }));
  const wide = axes.slice(0, 2), others = axes.slice(2);
  const name = `${one.method}|${one.accounting}|${one.budget}`;
  const slice = chosenSlices.get(name) || (best ? best.at.slice(2) : others.map(() => 0));
  const shown = one.points.filter((point) => others.every((axis, number) => point.at[axis.index] === slice[number]));
  const tried = one.points.reduce((sum, point) => sum + point.tried, 0);
  const part = html("div", { class: "landscape" }, html("h3", {}, html("span", { class: "method", style: { "--color": method.color } }, "■ "),
    `${method.label}: ${one.points.length} ${one.points.length === 1 ? "setting" : "settings"}, ${tried.toLocaleString("en")} runs`));
  if (others.length) part.append(html("div", { class: "controls" }, ...others.map((axis, number) =>
    html("fieldset", {}, html("legend", {}, symbol(axis)), ...axis.values.map((item, index) => html("label", { class: "choice" },
      html("input", { type: "radio", name: `${name}|${axis.name}`, checked: slice[number] === index, onchange: () => {
        chosenSlices.set(name, slice.map((old, place) => (place === number ? index : old)));
        const next = landscape(one);
        part.replaceWith(next);
        next.querySelectorAll("fieldset")[number].querySelectorAll("input")[index].focus();
      } }), html("span", {}, `${item}${best && best.at[axis.index] === index ? " ★" : ""}`)))))));
  // Strong where good: from the least value to the ninth of ten.
  const sorted = surviving.map(value).sort((a, b) => a - b);
  const low = Math.log(sorted[0]), high = Math.log(sorted[Math.floor(0.9 * (sorted.length - 1))]);
  const strength = (found) => (high > low ? Math.max(0, Math.min(1, (high - Math.log(found)) / (high - low))) : 1);
  const fixed = (found) => (found < 1e-3 || found >= 1e4 ? found.toExponential(2) : found.toPrecision(4));
  const said = html("p", { class: "hint" });
  const rows = wide[0] ? wide[0].values : [""], columns = wide[1] ? wide[1].values : [""];
  const cell = (row, column) => {
    const point = shown.find((found) => (!wide[0] || found.at[0] === row) && (!wide[1] || found.at[1] === column));
    if (!point) return html("td", { class: "none" }, "");
    const where = axes.map((axis) => `${symbol(axis)} ${axis.values[point.at[axis.index]]}`).join(", ");
    const rates = point.rates.map(([rate, count]) => `${rate} (${count} ${count === 1 ? "seed" : "seeds"})`).join(", ");
    const survived = rates ? `learning rate ${rates}` : point.survived ? `${point.survived} of ${point.seeds} seeds survived` : "none survived";
    const text = `${where}${where ? ": " : ""}${survived}; ${point.tried} ${point.tried === 1 ? "run" : "runs"}`;
    const tell = () => { said.textContent = text; };
    if (point === best || !said.textContent) tell();
    const common = { tabindex: 0, "aria-description": text, onfocus: tell, onpointerenter: tell };
    if (value(point) === null) return html("td", { class: "none", ...common }, "none survived");
    return html("td", { class: point === best ? "least" : null, ...common, style: { "--share": `${Math.round(60 * strength(value(point)))}%` } },
      fixed(value(point)), point.survived < point.seeds ? html("small", {}, ` ${point.survived}/${point.seeds}`) : null);
  };
  part.append(html("div", { class: "wide" }, html("table", {},
    wide[1] ? html("thead", {}, html("tr", {}, html("th", {}, `${symbol(wide[0])} \\ ${symbol(wide[1])}`),
      ...columns.map((item) => html("th", { scope: "col" }, String(item))))) : html("thead", {}),
    html("tbody", {}, ...rows.map((item, row) => html("tr", {},
      html("th", { scope: "row" }, wide[1] || !wide[0] ? String(item) : `${symbol(wide[0])} ${item}`),
      ...columns.map((_, column) => cell(row, column))))))), said);
  return part;
}

drawControls();
drawLegend();
drawCharts();
drawLandscapes();
document.querySelectorAll("table.sortable").forEach(makeSortable);
let drawnAt = document.getElementById("charts").clientWidth;
new ResizeObserver(() => {
  const width = document.getElementById("charts").clientWidth;
  if (width !== drawnAt) { drawnAt = width; drawCharts(); }
}).observe(document.getElementById("charts"));
