"""What tuning tried: for every point of a grid, how well its learning rate did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from .findings import METRICS, best_value
from .reproduced import Reproduced, Run

RATE = "learning_rate"  # found for each point of the grid


def landscapes(found: Reproduced, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the grid of each method, accounting and budget that has runs, with the mean over the seeds at each point.

    A landscape has ``axes`` (name and values of each setting but the learning rate) and ``points``: the index ``at``
    every axis, ``train_loss`` and ``squared_gradient_norm`` (least over the rounds, mean over the seeds whose run
    survived; None if none did), how many ``survived`` of how many ``seeds``, the learning ``rates`` and their counts
    (none without a rate search), and how many runs were ``tried``.
    """
    order = [name for name, _ in found.methods]
    groups: dict[tuple[str, str | None, float | None], list[Run]] = {}
    for run in runs:
        if run["method"] in order:
            accounting = None if run["budget"] is None else run["accounting"]
            groups.setdefault((run["method"], accounting, run["budget"]), []).append(run)
    return [
        {"method": method, "accounting": accounting, "budget": budget, **_landscape(group)}
        for (method, accounting, budget), group in sorted(groups.items(), key=lambda item: order.index(item[0][0]))
    ]


def _landscape(runs: Sequence[Run]) -> dict[str, Any]:
    names = [name for name in dict.fromkeys(name for run in runs for name in run["settings"]) if name != RATE]
    axes = {name: sorted({run["settings"].get(name) for run in runs}, key=_order) for name in names}
    points: dict[tuple[int, ...], dict[str, Run]] = {}
    for run in runs:
        at = tuple(values.index(run["settings"].get(name)) for name, values in axes.items())
        points.setdefault(at, {})[run["key"]] = run
    return {
        "axes": [{"name": name, "values": values} for name, values in axes.items()],
        "points": [{"at": list(at), **_point(list(points[at].values()))} for at in sorted(points)],
    }


def _point(runs: Sequence[Run]) -> dict[str, Any]:
    surviving: dict[int, Run] = {}
    for run in runs:  # of several rates that survived, the best
        best = surviving.get(run["seed"])
        if run["survived"] and (best is None or _loss(run) < _loss(best)):
            surviving[run["seed"]] = run
    rates = Counter(run["settings"][RATE] for run in surviving.values() if RATE in run["settings"])
    return {
        **{metric.name: _mean([best_value(run, metric) for run in surviving.values()]) for metric in METRICS[:2]},
        "survived": len(surviving),
        "seeds": len({run["seed"] for run in runs}),
        "rates": sorted(rates.items(), key=lambda item: _order(item[0])),
        "tried": len(runs),
    }


def _loss(run: Run) -> float:
    return best_value(run, METRICS[0])


def _mean(values: Sequence[float]) -> float | None:
    return float(f"{np.mean(values):.5g}") if values and np.isfinite(values).all() else None


def _order(value: Any) -> tuple[bool, Any]:
    """Numbers by size, then whatever else there is."""
    number = isinstance(value, int | float)
    return not number, value if number else str(value)
