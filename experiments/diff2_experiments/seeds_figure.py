"""The figures of docs/reproduction.md: what every seed reached on the paper's tables.

python -m diff2_experiments.seeds_figure STAGE ... --figure reproduction.png

A stage is a folder of ``docs/reproduction`` that ``reproduction_page`` has filled; its table.csv is all that is read.
Published values are drawn where the noise is that of the paper.
"""

from __future__ import annotations

import csv
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .figures import choose_styles, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES = {
    "california_housing": "California Housing", "gas_turbine": "Gas Turbine", "covertype": "Cover Type",
    "kddcup99": "KDD Cup 99", "blog_feedback": "BlogFeedback",
}  # fmt: skip
METRICS = {"train_loss": "train loss", "test_loss": "test loss", "squared_gradient_norm": "squared gradient norm"}

Rows = list[dict[str, str]]


def read_rows(docs: Path, stage: str) -> Rows:
    """Return the rows of a stage's table."""
    with (docs / "reproduction" / stage / "table.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def draw_metric(axes: Axes, rows: Rows) -> None:
    """Draw a dot for each seed, a bar for their mean and a triangle for what was published; a row is a method."""
    labels = [row["label"] for row in rows]
    styles = choose_styles(labels)
    for place, row in enumerate(rows):
        values, colour = [float(value) for value in row["best_by_seed"].split()], styles[row["label"]]["color"]
        spread = [place + 0.08 * (index - (len(values) - 1) / 2) for index in range(len(values))]
        axes.plot(spread, values, "o", color=colour, markersize=3.5, alpha=0.8)
        axes.hlines(statistics.fmean(values), place - 0.28, place + 0.28, color=colour, linewidth=1.6)
        if row["published"] and row["accounting"] == "paper":
            axes.plot(place + 0.38, float(row["published"]), "<", color="black", markersize=5)
    low, high = axes.get_ylim()
    if high > 5 * low:
        axes.set_yscale("log")
    else:
        axes.ticklabel_format(axis="y", useOffset=False)
    axes.set_xlim(-0.5, len(labels) - 0.4)
    axes.set_xticks(range(len(labels)), labels, fontsize=8)
    if len(labels) > 4:
        for label in axes.get_xticklabels():
            label.set(rotation=60, ha="right", rotation_mode="anchor")
    axes.grid(axis="y", which="both", alpha=0.25)
    axes.tick_params(axis="y", which="both", labelsize=7)


def draw(docs: Path, stages: list[str], figure_name: str) -> Path:
    """Draw a column for each stage and a row for each metric."""
    tables = [read_rows(docs, stage) for stage in stages]
    conditions = {(row["compared_at_epsilon"], row["accounting"]) for rows in tables for row in rows}
    said = "; ".join(f"epsilon {float(epsilon):g}, {rule} accounting" for epsilon, rule in sorted(conditions))
    published = ", and what was published (triangle)" if any(rule == "paper" for _, rule in conditions) else ""
    methods = max(len({row["label"] for row in rows}) for rows in tables)
    figure = new_figure(0.6 + max(2.6, 0.33 * methods) * len(stages), 7.2 if methods < 5 else 9.6)
    places = figure.subplots(len(METRICS), len(stages), squeeze=False)
    for column, rows in enumerate(tables):
        for line, (metric, title) in enumerate(METRICS.items()):
            axes = places[line][column]
            draw_metric(axes, [row for row in rows if row["metric"] == metric])
            if not column:
                axes.set_ylabel(title, fontsize=9)
            if line < len(METRICS) - 1 and methods > 4:
                axes.set_xticklabels([])
        name, first_seed = TITLES.get(rows[0]["data"], rows[0]["data"]), stages[column].partition("-from-")[2]
        places[0][column].set_title(f"{name}, seeds {first_seed} on" if first_seed else name, fontsize=10)
    text = f"Best round of each seed (dots), their mean (bar){published}; {said}. Not private."
    figure.suptitle(text, fontsize=9.5, x=0.01, ha="left")
    figure.tight_layout()
    return save_figure(figure, docs / "images" / figure_name)


def main(
    stages: Annotated[
        list[str], typer.Argument(help="What reproduction_page has filled, in the order of the columns.")
    ],
    figure: Annotated[str, typer.Option(help="Its name, among the images of the documentation.")] = "reproduction.png",
    docs: Annotated[Path, typer.Option(help="Directory of the documentation.")] = Path("docs"),
) -> None:
    """Draw every seed of every method."""
    print(draw(docs, stages, figure))


if __name__ == "__main__":
    typer.run(main)
