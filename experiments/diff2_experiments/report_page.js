"use strict";
// Curves of a reproduction: state, switches and charts. Everything is drawn from the data element of the page.
const data = JSON.parse(document.getElementById("data").textContent);
const unique = (values) => [...new Set(values)];
const state = {
  metric: "all",
  epsilon: data.conditions.length ? data.conditions[0].epsilon : null,
  accounting: data.conditions.length ? data.conditions[0].accounting : null,
  scale: "usual",
  tuned: "train_loss",
  bands: true,
  seeds: false,
  published: false,
  whole: false,
  hidden: new Set(),
  round: null,
};

// Elements: html(tag, attributes, ...children), svg(tag, attributes, ...children). Text is always text.
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, item] of Object.entries(value)) element.style.setProperty(key, item);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}
const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

function show(value, digits = 4) {
  if (value === null || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e6) return value.toExponential(digits - 2).replace("e+", "e");
  return String(Number(value.toPrecision(digits)));
}

// Mean and deviation, with as many decimals as two digits of the deviation need.
function spread(mean, sd) {
  if (mean === null || !sd || Math.abs(mean) < 1e-3 || Math.abs(mean) >= 1e6)
    return show(mean) + (sd ? ` ± ${sd.toExponential(1)}` : "");
  const decimals = Math.min(6, Math.max(0, 1 - Math.floor(Math.log10(sd))));
  return `${mean.toFixed(decimals)} ± ${sd.toFixed(decimals)}`;
}

// A group of radio buttons or check boxes that set a key of the state and draw again.
function choices(title, key, options, redraw) {
  return html("fieldset", {}, html("legend", {}, title), ...options.map(([value, text]) =>
    html("label", { class: "choice" },
      html("input", {
        type: "radio", name: key, value, checked: state[key] === value,
        onchange: () => { state[key] = value; redraw(); },
      }),
      html("span", {}, text))));
}
function checks(options, redraw) {
  return html("fieldset", {}, html("legend", {}, "show"), ...options.map(([key, text]) =>
    html("label", { class: "choice" },
      html("input", { type: "checkbox", checked: state[key], onchange: (event) => { state[key] = event.target.checked; redraw(); } }),
      html("span", {}, text))));
}

function rounds(curve) {
  if (Array.isArray(curve.rounds)) return curve.rounds;
  return Array.from({ length: curve.rounds.count }, (_, index) => curve.rounds.first + index * curve.rounds.step);
}

// The seeds of each method under the chosen condition, with mean and band at every round that all of them have.
function series(metric) {
  return data.methods.map((method) => {
    const curves = data.curves.filter((curve) => curve.method === method.name && curve.metric === metric.name
      && (curve.epsilon === null || (curve.epsilon === state.epsilon && curve.accounting === state.accounting)));
    const seeds = curves.map((curve) => new Map(rounds(curve).map((round, index) => [round, curve.values[index]])));
    const all = unique(seeds.flatMap((seed) => [...seed.keys()])).sort((a, b) => a - b);
    const points = all.map((round) => {
      const values = seeds.map((seed) => seed.get(round)).filter((value) => value !== null && value !== undefined);
      if (values.length < seeds.length || !values.length) return { round, mean: null, low: null, high: null, sd: null };
      const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
      const sd = values.length > 1
        ? Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (values.length - 1)) : null;
      const low = Math.max(mean - (sd || 0), Math.min(...values)), high = Math.min(mean + (sd || 0), Math.max(...values));
      return { round, mean, low, high, sd };
    });
    return { method, points, seeds };
  }).filter((one) => one.points.length && !state.hidden.has(one.method.name));
}

// Where most methods are for most of their rounds; the first rounds may leave the picture, unless the whole is asked for.
function limits(found, metric, log) {
  const usable = (value) => value !== null && (!log || value > 0);
  const sign = metric.sign, rising = (a, b) => a - b;
  const each = (one, key) => one.points.map((point) => point[key]).filter(usable).map((value) => sign * value).sort(rising);
  const curves = found.map((one) => each(one, "mean")).filter((curve) => curve.length);
  if (!curves.length) return log ? [0.1, 1] : [0, 1];
  const edges = found.flatMap((one) => each(one, sign > 0 ? "low" : "high"));
  const best = edges.reduce((a, b) => Math.min(a, b)), worst = Math.max(...curves.map((curve) => curve[curve.length - 1]));
  const ends = found.map((one) => one.points[one.points.length - 1].mean).filter(usable).map((value) => sign * value).sort(rising);
  const reached = curves.map((curve) => curve[Math.floor(0.85 * (curve.length - 1))]).sort(rising);
  const most = ends.length ? ends[Math.floor(3 * ends.length / 4)] : worst;
  if (log) {
    const [low, high] = [sign * best, sign * worst].sort(rising);
    if (state.whole || sign < 0) return [low / 1.1, high * 1.1];
    return [low / 1.5, 1.5 * Math.min(high, 1e3 * Math.max(most, low))];
  }
  const gap = Math.max(most - best, 0.01 * Math.abs(best)), reach = reached[Math.floor(3 * reached.length / 4)] - best;
  const cap = Math.max(8 * gap, 0.25 * Math.abs(best));
  let far = state.whole ? worst : Math.min(worst, best + Math.max(3 * gap, Math.min(reach, cap)));
  if (far <= best) far = best + (Math.abs(best) || 1) * 0.05;
  return [sign * (best - 0.06 * (far - best)), sign * (far + 0.03 * (far - best))].sort(rising);
}

function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const found = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high * (1 + 1e-12) + 1e-12; index += 1) found.push(index * step + 0);
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9) + (step / power === 2.5 ? 1 : 0));
  return found.map((value) => [value, high < 1e-3 && low > -1e-3 ? show(value, 3) : value.toFixed(Math.min(decimals, 8))]);
}
function logTicks(low, high, count) {
  const raised = (power) => "10" + [...String(power)].map((digit) => ({ "-": "⁻" })[digit] || "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("");
  const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
  if (last - first < 1) return ticks(low, high, count).filter(([value]) => value > 0).map(([value]) => [value, show(value, 3)]);
  const step = Math.ceil((last - first + 1) / (count + 2)), found = [];
  for (let power = first; power <= last; power += step) found.push([10 ** power, raised(power)]);
  return found;
}

let repaint = [];  // what to do in each chart when the round pointed at changes

function chart(metric, width, height) {
  const found = series(metric);
  const log = state.scale === "log" || (state.scale === "usual" && metric.log);
  const [low, high] = limits(found, metric, log);
  const box = { left: 62, right: width - 12, top: 8, bottom: height - 38 };
  const last = Math.max(1, ...found.flatMap((one) => one.points.map((point) => point.round)));
  const x = (round) => box.left + (box.right - box.left) * round / last;
  const share = log ? (value) => Math.log(value / low) / Math.log(high / low) : (value) => (value - low) / (high - low);
  // Far outside is as good as outside, and keeps the coordinates small.
  const y = (value) => box.bottom - (box.bottom - box.top) * Math.min(9, Math.max(-9, log && value <= 0 ? -9 : share(value)));
  const path = (points, key) => {
    let drawn = "", pen = "M";
    for (const point of points) {
      const value = point[key];
      if (value === null || value === undefined) { pen = "M"; continue; }
      drawn += `${pen}${x(point.round).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = "L";
    }
    return drawn;
  };
  const clip = `clip-${metric.name}`;
  const lines = svg("g", { "clip-path": `url(#${clip})` });
  const cursor = svg("g", {});
  const style = (method) => ({ "--color": method.color });
  for (const { method, points, seeds } of found) {
    const group = svg("g", { class: "method", style: style(method) });
    const whole = points.filter((point) => point.mean !== null);
    if (state.bands && seeds.length > 1 && whole.length)
      group.append(svg("path", { class: "band", d: `${path(whole, "high")}${path([...whole].reverse(), "low").replace("M", "L")}Z` }));
    if (state.seeds) for (const seed of seeds)
      group.append(svg("path", { class: "seed", d: path([...seed].map(([round, value]) => ({ round, value })), "value") }));
    group.append(svg("path", { class: "line", d: path(points, "mean"), "stroke-dasharray": method.dash || null }));
    lines.append(group);
  }
  const marks = svg("g", {});
  let above = 0;
  for (const { method, points } of found) {
    const end = points[points.length - 1].mean;
    if (end === null || end > high || end < low) {
      const text = end === null ? `${method.label} diverged` : `${method.label} ${end > high ? "↑" : "↓"} ${show(end, 3)}`;
      marks.append(svg("g", { class: "method", style: style(method) },
        svg("text", { class: "absent", x: box.right - 4, y: box.top + 14 + 16 * above, "text-anchor": "end" }, text)));
      above += 1;
    }
    const published = test(metric, method).published;
    if (state.published && published !== null && published >= low && published <= high)
      marks.append(svg("g", { class: "method", style: style(method) }, svg("path", {
        class: "published", d: `M${x(last) - 6} ${y(published)}l6 -6 6 6 -6 6z`,
      }, svg("title", {}, `${method.label}, published: ${show(published)}`))));
  }
  const axis = svg("g", {});
  for (const [value, text] of (log ? logTicks : ticks)(low, high, Math.max(4, Math.floor(height / 42)))) {
    if (y(value) < box.top - 1 || y(value) > box.bottom + 1) continue;
    axis.append(svg("line", { class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) }),
      svg("text", { x: box.left - 6, y: y(value) + 4, "text-anchor": "end" }, text));
  }
  for (const [value] of ticks(0, last, Math.max(2, Math.floor(width / 90)))) axis.append(
    svg("line", { class: "axis", x1: x(value), x2: x(value), y1: box.bottom, y2: box.bottom + 4 }),
    svg("text", { x: x(value), y: box.bottom + 17, "text-anchor": value === last ? "end" : "middle" }, value.toLocaleString("en")));
  axis.append(svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    svg("text", { x: (box.left + box.right) / 2, y: height - 4, "text-anchor": "middle" }, "round"));
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${height}`, height, tabindex: 0, role: "img",
    "aria-label": `${metric.title} against rounds. In the last round: ` + found.map((one) =>
      `${one.method.label} ${show(one.points[one.points.length - 1].mean)}`).join(", "),
  }, svg("clipPath", { id: clip }, svg("rect", { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top })),
  axis, lines, marks, cursor);
  const tip = html("div", { class: "tip", role: "status", hidden: true });
  const all = unique(found.flatMap((one) => one.points.map((point) => point.round))).sort((a, b) => a - b);
  let pointed = false;

  const point = (round, here = true) => { pointed = here && round !== null; state.round = round; repaint.forEach((paint) => paint()); pointed = false; };
  const paint = () => {
    cursor.replaceChildren();
    tip.hidden = true;
    if (state.round === null || !all.length) return;
    cursor.append(svg("line", { class: "cursor", x1: x(state.round), x2: x(state.round), y1: box.top, y2: box.bottom }));
    const rows = [];
    for (const { method, points } of found) {
      const at = points.find((one) => one.round === state.round);
      const value = at ? at.mean : null;
      if (value !== null && value >= low && value <= high) cursor.append(svg("g", { class: "method", style: style(method) },
        svg("circle", { class: "dot", cx: x(state.round), cy: y(value), r: 4.5 })));
      rows.push([value, html("tr", {}, html("td", { class: "method", style: style(method) }, "● "), html("td", {}, method.label),
        html("td", {}, spread(value, at ? at.sd : null)))]);
    }
    if (!pointed) return;
    rows.sort((a, b) => (b[0] === null ? -Infinity : b[0]) - (a[0] === null ? -Infinity : a[0]));
    tip.replaceChildren(html("b", {}, `round ${state.round.toLocaleString("en")}`), html("table", {}, ...rows.map((row) => row[1])));
    tip.hidden = false;
    const right = x(state.round) > (box.left + box.right) / 2;
    const place = right ? x(state.round) - tip.offsetWidth - 12 : x(state.round) + 12;
    tip.style.left = `${Math.max(0, Math.min(width - tip.offsetWidth, place))}px`;
    tip.style.top = `${picture.getBoundingClientRect().top - picture.parentElement.getBoundingClientRect().top + box.top + 4}px`;
  };
  const nearest = (event) => {
    const outline = picture.getBoundingClientRect();
    const round = ((event.clientX - outline.left) * width / outline.width - box.left) * last / (box.right - box.left);
    return all.length ? all.reduce((best, one) => Math.abs(one - round) < Math.abs(best - round) ? one : best) : null;
  };
  picture.addEventListener("pointermove", (event) => point(nearest(event)));
  picture.addEventListener("pointerdown", (event) => point(nearest(event)));
  picture.addEventListener("pointerleave", () => point(null));
  picture.addEventListener("blur", () => point(null));
  picture.addEventListener("keydown", (event) => {
    const now = all.indexOf(state.round), end = all.length - 1;
    const move = { ArrowLeft: now < 0 ? end : now - 1, ArrowRight: now + 1, Home: 0, End: end }[event.key];
    if (event.key === "Escape") point(null);
    if (move === undefined || !all.length) return;
    event.preventDefault();
    point(all[Math.max(0, Math.min(end, move))]);
  });
  repaint.push(paint);
  const tested = test(metric, { name: "diff2" }).text;
  return html("figure", { class: "chart" },
    html("figcaption", {}, metric.title, html("small", {}, metric.unit),
      tested ? html("span", { class: "p", title: "DIFF2-GD better than DP-GD" }, `p ${tested}`) : null),
    picture, tip);
}

function test(metric, method) {
  const found = data.p_values.find((one) => one.metric === metric.name && one.method === method.name
    && one.epsilon === state.epsilon && one.accounting === state.accounting);
  return found || { text: null, published: null };
}

function drawCharts() {
  const host = document.getElementById("charts");
  const chosen = data.metrics.filter((metric) => state.metric === "all" || metric.name === state.metric);
  const gap = 20, room = host.clientWidth;
  const columns = Math.max(1, Math.min(chosen.length, 3, Math.floor((room + gap) / (310 + gap))));
  const width = Math.floor((room - (columns - 1) * gap) / columns);
  const height = columns === 1 ? Math.round(Math.max(250, Math.min(480, width * 0.5))) : 290;
  host.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
  repaint = [];
  state.round = null;
  host.replaceChildren(...chosen.map((metric) => chart(metric, Math.max(width, 240), height)));
}

function drawLegend() {
  document.getElementById("legend").replaceChildren(...data.methods.map((method) => html("button", {
    type: "button", "aria-pressed": String(!state.hidden.has(method.name)), title: "hide or show",
    onclick: (event) => {
      if (!state.hidden.delete(method.name)) state.hidden.add(method.name);
      event.currentTarget.setAttribute("aria-pressed", String(!state.hidden.has(method.name)));
      drawCharts();
    },
  }, svg("svg", { width: 34, height: 10, class: "method", style: { "--color": method.color }, "aria-hidden": "true" },
    svg("line", { x1: 0, x2: 34, y1: 5, y2: 5, stroke: "currentColor", "stroke-width": 2.5, "stroke-dasharray": method.dash || null })),
  method.label)));
}
