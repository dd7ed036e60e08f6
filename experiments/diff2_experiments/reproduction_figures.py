"""The paper's figures: every metric of a reproduction against rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .figures import Band, Panel, draw_grid
from .findings import ADVOCATED, Metric, Row, conditions, metrics_of, rows_at, tuned_at
from .formatting import counted
from .reproduced import Reproduced, Tuned


def draw_figures(found: Reproduced, rows: Sequence[Row], suffixes: Sequence[str] = (".png", ".svg")) -> list[Path]:
    """Draw the paper's figure for each accounting and epsilon: each metric against rounds, mean and every seed."""
    paths: list[Path] = []
    for condition in conditions(found):
        shown = rows_at(rows, condition)
        panels = [
            Panel(
                f"{metric.title}{_tested(shown, metric)}",
                metric.unit,
                [band(row, tuned_at(found, condition, row["method"]), metric) for row in shown],
                log=metric.log,
                rising=metric.sign < 0,
            )
            for metric in metrics_of(found)
            if shown
        ]
        if panels:
            paths += draw_grid(
                panels,
                [found.directory / f"figure-{condition.slug}{suffix}" for suffix in suffixes],
                title=f"{found.title}, {condition}",
                subtitle=f"delta {found.delta:g}, {found.records:,} records, {counted(found.clients, 'client')}. "
                + _legend(found.seeds, any(band.published is not None for panel in panels for band in panel.bands))
                + (" p: DIFF2-GD better than DP-GD." if "(p = " in panels[0].title else ""),
                warning="Not private: settings tuned on exact losses, exact metrics",
            )
    return paths


def _legend(seeds: int, published: bool) -> str:
    lines = "One seed." if seeds == 1 else f"Mean over {seeds} seeds; thin: each seed."
    return f"{lines} Triangles: published." if published else lines


def _tested(rows: Sequence[Row], metric: Metric) -> str:
    found = [row["metrics"][metric.name]["p_value"] for row in rows if row["method"] == ADVOCATED]
    return "".join(f"  (p = {value:.2g})" for value in found if value is not None)


def band(row: Row, tuned: Sequence[Tuned], metric: Metric) -> Band:
    """Return the mean and all seeds, at every round some seed was measured at; no mean unless all were."""
    runs = [getattr(one, metric.by) for one in tuned]
    rounds = sorted({number for run in runs for number in run["rounds"]})
    curves = [dict(zip(run["rounds"], run[metric.name], strict=True)) for run in runs]
    values = np.array([[curve.get(number) for number in rounds] for curve in curves], dtype=float)  # None becomes NaN
    low, high = values.min(0).tolist(), values.max(0).tolist()
    published = row["metrics"][metric.name]["published"]
    seeds = values.tolist() if len(runs) > 1 else ()
    return Band(row["label"], rounds, values.mean(0).tolist(), low, high, seeds, published)
