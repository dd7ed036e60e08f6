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
    """Draw the paper's figure for each accounting and epsilon: each metric against rounds, one deviation as a band."""
    paths: list[Path] = []
    for condition in conditions(found):
        shown = rows_at(rows, condition)
        panels = [
            Panel(
                f"{metric.title}{_tested(shown, metric)}",
                metric.unit,
                [band(row["label"], tuned_at(found, condition, row["method"]), metric) for row in shown],
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
                + _legend(found.seeds)
                + (" p: DIFF2-GD better than DP-GD." if "(p = " in panels[0].title else ""),
                warning="Not private: settings tuned on exact losses, exact metrics",
            )
    return paths


def _legend(seeds: int) -> str:
    return "One seed." if seeds == 1 else f"Lines: mean over {seeds} seeds; bands: one deviation, not beyond the seeds."


def _tested(rows: Sequence[Row], metric: Metric) -> str:
    found = [row["metrics"][metric.name]["p_value"] for row in rows if row["method"] == ADVOCATED]
    return "".join(f"  (p = {value:.2g})" for value in found if value is not None)


def band(label: str, tuned: Sequence[Tuned], metric: Metric) -> Band:
    """Return mean and one deviation either way, at every round some seed was measured at; NaN unless all were."""
    runs = [getattr(one, metric.by) for one in tuned]
    rounds = sorted({number for run in runs for number in run["rounds"]})
    curves = [dict(zip(run["rounds"], run[metric.name], strict=True)) for run in runs]
    values = np.array([[curve.get(number) for number in rounds] for curve in curves], dtype=float)  # None becomes NaN
    mean, deviation = values.mean(0), values.std(0, ddof=1) if len(runs) > 1 else np.zeros(len(rounds))
    low, high = np.fmax(mean - deviation, values.min(0)), np.fmin(mean + deviation, values.max(0))
    return Band(label, rounds, mean.tolist(), low.tolist(), high.tolist())
