"""report.html: one file that shows a reproduction, with interactive curves, and asks nothing of any network.

The tables are plain HTML; curves and maps of the settings are drawn by a script in the page from data in the page. The
page forbids itself to load anything (Content-Security-Policy), so it is the same from a disk, a mail or a server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from diff2._version import __version__

from .figures import choose_styles
from .findings import Condition, Metric, Row, conditions, distinct, metrics_of, notes, rows_at
from .formatting import spread_text
from .landscape import landscapes
from .reproduced import Reproduced, Run, Tuned
from .tabulation import CHOSEN, DASH, SYMBOLS, epsilon_text, number_text, p_text, settings_text, value_text

DIGITS = 5  # of the values in the page


def write_page(found: Reproduced, rows: Sequence[Row], all_runs: Sequence[Run] = ()) -> Path:
    """Write report.html into the directory of the reproduction.

    Args:
        found: the reproduction.
        rows: of :func:`diff2_experiments.findings.summaries`.
        all_runs: everything tuning trained; without it the page does not show what was tried.
    """
    found.directory.mkdir(parents=True, exist_ok=True)
    path = found.directory / "report.html"
    path.write_text(page(found, rows, all_runs), encoding="utf-8")
    return path


def page(found: Reproduced, rows: Sequence[Row], all_runs: Sequence[Run] = ()) -> str:
    """Return the page as text."""
    first, *others = notes(found)
    shown = [condition for condition in conditions(found) if rows_at(rows, condition)]
    parts = {
        "title": escape(f"{found.title}: the paper's experiment"),
        "style": _asset("report_page.css"),
        "script": _asset("report_page.js") + _asset("report_page_tables.js"),
        "warning": escape(first),
        "facts": "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in _facts(found)),
        "notes": "".join(f"<li>{escape(note)}</li>" for note in others),
        "command": escape(found.command),
        "summaries": "".join(_summary_table(found, condition, rows_at(rows, condition)) for condition in shown),
        "settings": "".join(_settings_table(condition, rows_at(rows, condition)) for condition in shown),
        "tuning": "" if all_runs else " hidden",
        "version": escape(__version__),
        "data": embedded(page_data(found, rows, all_runs)),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("report_page.html"))


def page_data(found: Reproduced, rows: Sequence[Row], all_runs: Sequence[Run] = ()) -> dict[str, Any]:
    """Return what the script draws."""
    metrics, labels = metrics_of(found), [label for _, label in found.methods]
    styles = choose_styles(labels)
    return {
        "metrics": [metric._asdict() for metric in metrics],
        "methods": [
            {"name": name, "label": label, "color": styles[label]["color"],
             "dash": dash_array(styles[label]["linestyle"])}
            for name, label in found.methods
        ],
        "conditions": [condition._asdict() for condition in conditions(found) if rows_at(rows, condition)],
        "p_values": [
            {"accounting": row["accounting"], "epsilon": row["budget"], "method": row["method"], "metric": metric.name,
             "text": _p_sentence(row["metrics"][metric.name]["p_value"]),
             "published": row["metrics"][metric.name]["published"]}
            for row in rows
            for metric in metrics
        ],
        "curves": [curve for tuned in distinct(found) for curve in _curves(tuned, metrics)],
        "symbols": SYMBOLS,
        "landscapes": landscapes(found, all_runs),
    }  # fmt: skip


def embedded(data: Any) -> str:
    r"""Return JSON that can stand inside a script element: nothing in it closes the element or opens a comment.

    >>> embedded({"label": "</script>"})
    '{"label":"\\u003c/script>"}'
    """
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def dash_array(linestyle: Any) -> str:
    """Return the dashes of a line as SVG writes them, for lines two wide.

    >>> dash_array("-"), dash_array((0, (4, 2)))
    ('', '8 4')
    """
    named = {"-": (), "-.": (6.4, 1.6, 1, 1.6)}
    pattern = named[linestyle] if isinstance(linestyle, str) else linestyle[1]
    return " ".join(f"{2 * length:g}" for length in pattern)


def _curves(tuned: Tuned, metrics: Sequence[Metric]) -> Iterator[dict[str, Any]]:
    for metric in metrics:
        run = getattr(tuned, metric.by)
        yield {
            "method": tuned.method,
            "accounting": None if tuned.budget is None else tuned.accounting,
            "epsilon": tuned.budget,
            "seed": tuned.seed,
            "metric": metric.name,
            "rounds": _steps(run["rounds"]),
            "values": [None if value is None else _short(value) for value in run[metric.name]],
        }


def _steps(rounds: Sequence[int]) -> list[int] | dict[str, int]:
    """Return first round, step and count where the rounds are evenly spaced, as they mostly are; otherwise all."""
    if len(rounds) > 1 and list(rounds) == list(range(rounds[0], rounds[-1] + 1, rounds[1] - rounds[0])):
        return {"first": rounds[0], "step": rounds[1] - rounds[0], "count": len(rounds)}
    return list(rounds)


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _facts(found: Reproduced) -> Iterator[tuple[str, str]]:
    minutes = found.seconds / 60
    yield "data set", found.name
    yield "task", found.task
    yield "records", f"{found.records:,} of {found.clients} clients, {found.held_out:,} held out"
    yield "rounds", f"{found.rounds:,}"
    yield "seeds", f"{found.seeds}"
    yield "grid", f"{found.grid}; {sum(tuned.tried for tuned in distinct(found)):,} runs tried"
    yield "this time", f"{found.trained:,} runs trained, {minutes:,.1f} minutes"


def _summary_table(found: Reproduced, condition: Condition, rows: Sequence[Row]) -> str:
    groups = [(metric, _columns(rows, metric)) for metric in metrics_of(found)]
    over = "".join(
        f'<th colspan="{len(columns)}" scope="colgroup">{escape(metric.title)}</th>' for metric, columns in groups
    )
    under = "".join(_sortable(title) for _, columns in groups for title in columns)
    lines = "".join(
        f'<tr data-method="{escape(row["method"])}"><th scope="row">{escape(row["label"])}</th>'
        + "".join(cell for metric, columns in groups for cell in _metric_cells(rows, row, metric, columns))
        + _cell(epsilon_text(row), row["epsilon"])
        + _cell(f"{row['tried']:,}", row["tried"])
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(str(condition))}"><table class="sortable">'
        f"<caption>{escape(str(condition))}</caption><thead><tr><td></td>{over}<td colspan=2></td></tr>"
        f"<tr>{_sortable('method')}{under}{_sortable('epsilon spent')}{_sortable('runs tried')}</tr></thead>"
        f"<tbody>{lines}</tbody></table></div>"
    )


def _columns(rows: Sequence[Row], metric: Metric) -> dict[str, str]:
    """Return the titles of a metric's columns, with the key each shows; p only where there is any."""
    tested = any(
        row["metrics"][metric.name][key] is not None for row in rows for key in ("p_value", "published_p_value")
    )
    return {"last round": "final", "best round": "best", **({"p": "p_value"} if tested else {})}


def _metric_cells(rows: Sequence[Row], row: Row, metric: Metric, columns: Mapping[str, str]) -> Iterator[str]:
    cell = row["metrics"][metric.name]
    for key in columns.values():
        if key == "p_value":
            yield _cell(p_text(cell[key]), cell[key], published=_paper(cell["published_p_value"], p_text))
            continue
        means = [one["metrics"][metric.name][key]["mean"] for one in rows if one["private"]]
        best = min((metric.sign * mean for mean in means if mean is not None), default=None)
        mean = cell[key]["mean"]
        winner = row["private"] and mean is not None and metric.sign * mean == best
        published = _paper(cell["published"], value_text) if key == "final" else ""
        yield _cell(spread_text(cell[key]), mean, kind="best" if winner else "", published=published)


def _paper(value: float | None, text: Callable[[float | None], str]) -> str:
    return "" if value is None else f"paper {text(value)}"


def _cell(text: str, value: float | None, *, kind: str = "", published: str = "") -> str:
    """Return a cell that sorts by its value, last without one; what the paper has stands below."""
    sort = "" if value is None else f' data-value="{value!r}"'
    below = f"<small>{escape(published)}</small>" if published else ""
    return f"<td{sort}{f' class={kind}' if kind else ''}>{escape(text)}{below}</td>"


def _sortable(title: str) -> str:
    return f'<th scope="col"><button type="button">{escape(title)}</button></th>'


def _settings_table(condition: Condition, rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        for by, metric in CHOSEN.items():
            usual = row["usual"][by]
            names = list(dict.fromkeys(name for one in row["settings"][by] for name in one))
            header = "".join(f'<th scope="col">{escape(SYMBOLS.get(name, name))}</th>' for name in names)
            seeds = "".join(
                f"<tr><td>{seed}</td>"
                + "".join(f"<td>{escape(number_text(one.get(name, DASH)))}</td>" for name in names)
                + f"<td class=text><code>{escape(algorithm)}</code></td></tr>"
                for seed, one, algorithm in zip(row["seeds"], row["settings"][by], row["algorithms"][by], strict=True)
            )
            lines.append(
                f"<details><summary><b>{escape(row['label'])}</b> by {escape(metric)}: "
                f"{escape(settings_text(usual['settings']))} ({usual['seeds']} of {len(row['seeds'])} seeds)</summary>"
                f'<div class="wide"><table><thead><tr><th scope="col">seed</th>{header}<th scope="col">algorithm</th>'
                f"</tr></thead><tbody>{seeds}</tbody></table></div></details>"
            )
    return f"<details><summary>{escape(str(condition))}</summary>{''.join(lines)}</details>"


def _p_sentence(value: float | None) -> str | None:
    text = p_text(value)
    return None if value is None else text if text.startswith("<") else f"= {text}"


def _asset(name: str) -> str:
    return resources.files("diff2_experiments").joinpath(name).read_text(encoding="utf-8")
