"""Successive halving: a grid too large to be trained to the end is thinned out after some of the rounds.

Every setting is climbed with the learning-rate ladder as always, but only up to a number of rounds, under the noise of
the whole run; then the best go on, by train loss and, as many, by squared gradient norm, each the least over the rounds
so far. Whatever goes on starts again from round 1, so its full runs are those of the full grid, to the bit. The rule is
written down in ``[halving]`` before anything runs, and is the same for all methods. One seed decides for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ..data import EncodedClients
from ..ladder import Halving
from .grids import Grid, Point
from .store import Run
from .tuning import Climb, Report, climb_all, ended

CRITERIA = ("train_loss", "squared_gradient_norm")

ClimbsOf = Callable[[Grid, int], list[Climb]]  # of the points of a grid, in their order, up to so many rounds


def halved(
    grid: Grid,
    halving: Halving,
    climbs_of: ClimbsOf,
    tables: EncodedClients,
    directory: Path,
    *,
    jobs: int = 1,
    report: Report = lambda done, total: None,
) -> Grid:
    """Return the grid with those settings only that are worth all rounds; a small one is left as it is."""
    for rounds, keep in zip(halving.rounds, halving.keep, strict=True):
        if len(grid.points) <= keep:
            continue
        climbs = climbs_of(grid, rounds)
        runs, _ = climb_all(climbs, tables, directory, jobs=jobs, report=report)
        grid = replace(grid, points=best_points(grid.points, [_reached(climb, runs) for climb in climbs], keep))
    return grid


def best_points(points: Sequence[Point], reached: Sequence[Run | None], keep: int) -> list[Point]:
    """Return, in their order, the ``keep`` best by each criterion of those with a run that survived."""
    chosen: set[int] = set()
    for name in CRITERIA:
        values = {i: least(run, name) for i, run in enumerate(reached) if run is not None}
        chosen.update(sorted(values, key=values.__getitem__)[:keep])
    return [point for i, point in enumerate(points) if i in chosen]


def least(run: Run, name: str) -> float:
    """Return the least value of a metric over the rounds that were measured."""
    return min((value for value in run[name] if value is not None), default=math.inf)


def _reached(climb: Climb, runs: dict[str, Run]) -> Run | None:
    survivors = [run for run in ended(climb, runs) or () if run["survived"]]
    return survivors[0] if survivors else None
