"""The figure and the table of which algorithm, when: what ``which_algorithm`` stored, one point per seed.

python -m diff2_experiments.which_figure STORE --figure which-algorithm.png --table which-algorithm.csv

A table that is there already keeps the rows that the store has nothing to say about.
"""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from .formatting import markdown_line
from .store import Run, RunStore
from .which_algorithm import INTERVALS, MEASURES, METHODS, TUNING_SEED, chosen
from .which_problems import PROBLEMS

LINES = {
    ("dpgd", "constant"): ("DP-GD, constant step", "#d55e00", "o-"),
    ("diff2", "constant"): ("DIFF2, constant step", "#009e73", "o-"),
    ("diff2_early", "constant"): ("DIFF2, early restarts, constant", "#56b4e9", "o-"),
    ("dpgd", "cosine"): ("DP-GD, cosine", "#d55e00", "s:"),
    ("diff2", "cosine"): ("DIFF2, cosine", "#009e73", "s:"),
    ("adam", "cosine"): ("DP-GD + Adam, cosine", "#0072b2", "^:"),
    ("diff2_adam", "cosine"): ("DIFF2 + Adam, cosine", "#cc79a7", "v:"),
    ("dpsgd", "cosine"): ("DP-SGD, cosine", "#000000", "D:"),
    ("bvr", "constant"): ("DIFF2-BVR-L-SGD, constant", "#e69f00", "x-"),
}
FIELDS = ("problem", "measure", "method", "schedule", "size", "rate", "interval", "seed", "value")


def measured(runs: list[Run]) -> list[dict[str, Any]]:
    """Return the fresh seeds of the settings that were chosen by each measure, one row per seed."""
    found, intervals = [], {method: INTERVALS.get(method, (1,)) for method in METHODS}
    tried = [run for run in runs if run["seed"] == TUNING_SEED and run["interval"] in intervals[run["method"]]]
    fresh = [run for run in runs if run["seed"] != TUNING_SEED]
    for measure in MEASURES:
        for best in chosen(tried, measure):
            names = ("problem", "method", "schedule", "size", "rate", "interval")
            for run in fresh:
                if all(run[name] == best[name] for name in names):
                    found.append({**{name: run[name] for name in FIELDS[:-1] if name in run}, "measure": measure,
                                  "value": run[measure]})  # fmt: skip
    return found


def read(table: Path) -> list[dict[str, Any]]:
    """Return the rows of a table that was written before; none where there is none."""
    if not table.exists():
        return []
    with table.open(newline="", encoding="utf-8") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    numbers = {"size": float, "rate": float, "interval": int, "seed": int, "value": float}
    return [row | {name: kind(row[name]) if row[name] else None for name, kind in numbers.items()} for row in rows]


def merged(before: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return both; where a problem, measure, method, schedule and size is in both, the new rows."""

    def place(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in FIELDS[:5])

    known = {place(row) for row in new}
    return [row for row in before if place(row) not in known] + new


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw loss and squared gradient norm against N mu / d, for each problem."""
    import matplotlib.pyplot as plt

    problems = [name for name in PROBLEMS if any(row["problem"] == name for row in rows)]
    figure, axes = plt.subplots(len(problems), 2, figsize=(10, 3.6 * len(problems)), squeeze=False)
    for (problem, measure), axis in zip([(p, m) for p in problems for m in MEASURES], axes.flat, strict=True):
        for key, (label, colour, style) in LINES.items():
            values: dict[float, list[float]] = defaultdict(list)
            for row in rows:
                if (row["problem"], row["measure"], row["method"], row["schedule"]) == (problem, measure, *key):
                    values[row["size"]] += [row["value"]] if row["value"] is not None else []
            sizes = sorted(size for size in values if values[size])
            places = [size / PROBLEMS[problem].dimension for size in sizes]
            axis.plot(places, [statistics.fmean(values[size]) for size in sizes], style, color=colour, label=label)
            for place, size in zip(places, sizes, strict=True):
                axis.plot([place] * len(values[size]), values[size], ".", color=colour, markersize=3)
        axis.set(xscale="log", yscale="log", title=f"{PROBLEMS[problem].label}: {measure.replace('_', ' ')}")
        axis.set_xlabel("N mu / d: records times budget, for each parameter")
        axis.grid(alpha=0.3)
    axes[0, 0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def means(rows: list[dict[str, Any]], measure: str) -> Iterator[str]:
    """Yield the lines of a table of means over the seeds; the least of a problem and size is bold."""
    yield markdown_line([measure.replace("_", " "), "N mu", *(label for label, _, _ in LINES.values())])
    yield markdown_line(["---"] * (2 + len(LINES)))
    for name, problem in PROBLEMS.items():
        some = [row for row in rows if (row["problem"], row["measure"]) == (name, measure)]
        for size in sorted({row["size"] for row in some}):
            found = {}
            for key in LINES:
                values = [row["value"] for row in some if (row["method"], row["schedule"], row["size"]) == (*key, size)]
                if values and None not in values:
                    found[key] = statistics.fmean(values)
            shown = {key: f"{value:.3g}" for key, value in found.items()}
            best = shown[min(found, key=found.__getitem__)]
            cells = (f"**{shown[key]}**" if shown.get(key) == best else shown.get(key, "") for key in LINES)
            yield markdown_line([problem.label, f"{size:,.0f}", *cells])


def main(
    store: Annotated[Path, typer.Argument(help="Where which_algorithm stored its runs.")],
    figure: Annotated[Path, typer.Option()] = Path("which-algorithm.png"),
    table: Annotated[Path, typer.Option()] = Path("which-algorithm.csv"),
) -> None:
    """Draw what was stored, write one line per seed, and print the means."""
    rows = merged(read(table), measured(list(RunStore(store).runs().values())))
    draw(rows, figure)
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    for measure in MEASURES:
        print("\n".join(means(rows, measure)), end="\n\n")


if __name__ == "__main__":
    typer.run(main)
