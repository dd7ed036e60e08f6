"""Successive halving: a grid too large to be trained to the end is thinned out after some of the rounds.

Every setting is tried with the learning-rate search as always, but only up to a number of rounds, under the noise of
the whole run; then the best go on, by train loss and, as many, by squared gradient norm (or by one of them), each the
least over the rounds so far. Whatever goes on starts again from round 1, so its full runs are those of the full grid,
to the bit. The rule is written down in ``[halving]`` before anything runs, and is the same for all methods. The first
seed decides for all seeds, or, as in the paper, each seed for itself (``each_seed``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from diff2.data.loading import EncodedClients

from .grids import Grid, Point
from .learning_rates import Halving
from .store import Run
from .trials import Report, unreported
from .tuning import Candidate, attempts_made, tune

Case = TypeVar("Case", bound=Hashable)  # a method, a budget, a seed
CandidatesOf = Callable[[Case, Grid, int], list[Candidate]]  # of the points of a grid, in order, up to so many rounds


def halved(
    grids: Mapping[Case, Grid],
    halving: Halving,
    candidates_of: CandidatesOf[Case],
    tables: EncodedClients,
    directory: Path,
    *,
    jobs: int = 1,
    report: Report = unreported,
) -> dict[Case, Grid]:
    """Return the grid of each case with those settings only that are worth all rounds; small ones are left as they are.

    What all cases try up to a number of rounds is trained together, so that no job waits for the last one of a case.
    """
    found = dict(grids)
    for rounds, keep in zip(halving.rounds, halving.keep, strict=True):
        tried = {case: candidates_of(case, grid, rounds) for case, grid in found.items() if len(grid.points) > keep}
        wanted = {one.attempts[0].key: one for some in tried.values() for one in some}
        runs, _ = tune(list(wanted.values()), tables, directory, jobs=jobs, report=report)
        for case, candidates in tried.items():
            reached = [_reached(one, runs) for one in candidates]
            found[case] = replace(found[case], points=best_points(found[case].points, reached, keep, halving.by))
    return found


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
