"""The figure of docs/reproduction.md: what every seed reached on the paper's tables, beside what was published.

python -m diff2_experiments.published_figure STAGE ... --docs docs

A stage is a folder of ``docs/reproduction`` that ``reproduction_page`` has filled; its table.csv is all that is read.
"""

from __future__ import annotations

import csv
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .figures import STYLES, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES = {
    "california_housing": "California Housing", "gas_turbine": "Gas Turbine", "covertype": "Cover Type",
    "kddcup99": "KDD Cup 99", "blog_feedback": "BlogFeedback",
}  # fmt: skip
METHODS = ("GD", "DP-GD", "DIFF2-GD")
METRICS = {"train_loss": "train loss", "test_loss": "test loss", "squared_gradient_norm": "squared gradient norm"}
NAME = "reproduction.png"

Rows = list[dict[str, str]]


def read_rows(docs: Path, stage: str) -> Rows:
    """Return the rows of a stage's table."""
    with (docs / "reproduction" / stage / "table.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def draw_metric(axes: Axes, rows: Rows, metric: str) -> None:
    """Draw a dot for each seed, a bar for their mean and a triangle for what was published, method by method."""
    for place, label in enumerate(METHODS):
        for row in rows:
            if (row["label"], row["metric"]) != (label, metric):
                continue
            values, colour = [float(value) for value in row["best_by_seed"].split()], STYLES[label]["color"]
            spread = [place + 0.08 * (index - (len(values) - 1) / 2) for index in range(len(values))]
            axes.plot(spread, values, "o", color=colour, markersize=3.5, alpha=0.8)
            axes.hlines(statistics.fmean(values), place - 0.28, place + 0.28, color=colour, linewidth=1.6)
            if row["published"]:
                axes.plot(place + 0.38, float(row["published"]), "<", color="black", markersize=5)
    low, high = axes.get_ylim()
    if high > 5 * low:
        axes.set_yscale("log")
    else:
        axes.ticklabel_format(axis="y", useOffset=False)
    axes.set_xlim(-0.5, len(METHODS) - 0.4)
    axes.set_xticks(range(len(METHODS)), METHODS, fontsize=8)
    axes.grid(axis="y", which="both", alpha=0.25)
    axes.tick_params(axis="y", which="both", labelsize=7)


def draw(docs: Path, stages: list[str]) -> Path:
    """Draw a column for each stage and a row for each metric."""
    figure = new_figure(0.6 + 2.6 * len(stages), 7.2)
    places = figure.subplots(len(METRICS), len(stages), squeeze=False)
    for column, stage in enumerate(stages):
        rows = read_rows(docs, stage)
        for line, (metric, title) in enumerate(METRICS.items()):
            draw_metric(places[line][column], rows, metric)
            if not column:
                places[line][column].set_ylabel(title, fontsize=9)
        places[0][column].set_title(TITLES[rows[0]["data"]], fontsize=10)
    figure.suptitle(
        "Best round of each seed (dots), their mean (bar), and what was published (triangle); epsilon 3, paper "
        "accounting. Not private.",
        fontsize=9.5, x=0.01, ha="left",
    )  # fmt: skip
    figure.tight_layout()
    return save_figure(figure, docs / "images" / NAME)


def main(
    stages: Annotated[
        list[str], typer.Argument(help="What reproduction_page has filled, in the order of the columns.")
    ],
    docs: Annotated[Path, typer.Option(help="Directory of the documentation.")] = Path("docs"),
) -> None:
    """Draw ours beside the published."""
    print(draw(docs, stages))


if __name__ == "__main__":
    typer.run(main)
