"""Successive halving: a grid too large to be trained to the end is thinned out after some of the rounds.

Every setting is tried with the learning-rate search as always, but only up to a number of rounds, under the noise of
the whole run; then the best go on, by train loss and, as many, by squared gradient norm (or by one of them), each the
least over the rounds so far. Whatever goes on starts again from round 1, so its full runs are those of the full grid,
to the bit. The rule is written down in ``[halving]`` before anything runs, and is the same for all methods. Seed 0
decides for all seeds, or, as in the paper, each seed for itself (``each_seed``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from diff2.data.loading import EncodedClients

from .grids import Grid, Point
from .learning_rates import Halving
from .store import Run
from .trials import Report, unreported
from .tuning import Candidate, attempts_made, tune

CandidatesOf = Callable[[Grid, int], list[Candidate]]  # of the points of a grid, in their order, up to so many rounds


def halved(
    grid: Grid,
    halving: Halving,
    candidates_of: CandidatesOf,
    tables: EncodedClients,
    directory: Path,
    *,
    jobs: int = 1,
    report: Report = unreported,
) -> Grid:
    """Return the grid with those settings only that are worth all rounds; a small one is left as it is."""
    for rounds, keep in zip(halving.rounds, halving.keep, strict=True):
        if len(grid.points) <= keep:
            continue
        candidates = candidates_of(grid, rounds)
        runs, _ = tune(candidates, tables, directory, jobs=jobs, report=report)
        grid = replace(
            grid, points=best_points(grid.points, [_reached(one, runs) for one in candidates], keep, halving.by)
        )
    return grid


def best_points(points: Sequence[Point], reached: Sequence[Run | None], keep: int, by: Sequence[str]) -> list[Point]:
    """Return, in their order, the ``keep`` best by each metric of those with a run that survived."""
    chosen: set[int] = set()
    for name in by:
        values = {i: least(run, name) for i, run in enumerate(reached) if run is not None}
        chosen.update(sorted(values, key=values.__getitem__)[:keep])
    return [point for i, point in enumerate(points) if i in chosen]


def least(run: Run, name: str) -> float:
    """Return the least value of a metric over the rounds that were measured."""
    return min((value for value in run[name] if value is not None), default=math.inf)


def _reached(candidate: Candidate, runs: dict[str, Run]) -> Run | None:
    survivors = [run for run in attempts_made(candidate, runs) or () if run["survived"]]
    return survivors[0] if survivors else None
