"""Tuning: every setting of a grid, each with the learning-rate ladder, for every budget and seed.

The unit of work is a climb: the runs of one setting, from the largest learning rate down to the first that survives.
Every finished run goes into the store at once, so what is killed goes on where it was; several processes may fill one
store. Climbs are spread with joblib, one thread each, by whichever backend the caller has chosen
(``joblib.parallel_config(backend="dask")`` and so on); where the machines of a backend do not share a disk, finished
runs come back with the climb and are kept here.

Tuning looks at exact losses of the records again and again. It is **not private**; tune on public data.
"""

from __future__ import annotations

import functools
import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ..data import EncodedClients
from ..estimators import Algorithm
from ..ladder import Ladder, Watch
from .grids import Grid, Point
from .store import Run, RunStore
from .trials import Setup, Trial, check_plans, one_thread, train_trial, trial_key

TOKEN = "store-id"
FOREVER = 10**9  # evaluations

Report = Callable[[int, int], None]  # climbs finished, climbs in all


class Rung(NamedTuple):
    """One run of a climb."""

    key: str
    settings: Mapping[str, Any]
    trial: Trial


class Climb(NamedTuple):
    """The runs of one setting, budget and seed, in the order in which they are tried."""

    method: str
    setup: Setup
    ladder: Ladder
    rungs: Sequence[Rung]
    until: int | None = None  # rounds that are enough for now; None: all of them


class Place(NamedTuple):
    """Where finished runs are kept, told so that a worker can see whether it shares the disk."""

    directory: Path
    token: str


def climbs_of(
    grid: Grid,
    setup: Setup,
    ladder: Ladder,
    digest: str,
    *,
    epsilon: float,
    accounting: str,
    seed: int,
    until: int | None = None,
) -> list[Climb]:
    """Return the climbs of one method for a budget and a seed, to the end or until so many rounds."""
    if not grid.private:
        epsilon, accounting = math.inf, "exact"  # whatever the others get
    if not grid.ladder:
        ladder = replace(ladder, patience=FOREVER)  # nothing else would be tried in its place
    setup = setup._replace(privacy=replace(setup.privacy, accounting=accounting))

    def rung(settings: Mapping[str, Any], algorithm: Algorithm) -> Rung:
        trial = Trial(algorithm, epsilon, seed, ladder.every)
        return Rung(
            trial_key(setup, digest, trial, patience=ladder.patience, tolerance=ladder.tolerance), settings, trial
        )

    return [
        Climb(grid.name, setup, ladder, [rung(*step) for step in _steps(grid, ladder, point)], until)
        for point in grid.points
    ]


def climb_all(
    climbs: Sequence[Climb],
    tables: EncodedClients,
    directory: Path,
    *,
    jobs: int = 1,
    report: Report = lambda done, total: None,
) -> tuple[dict[str, Run], int]:
    """Run what the store does not hold yet; return all its runs by their keys, and how many are new."""
    store = RunStore(directory)
    known = store.runs()
    pending = [climb for climb in climbs if ended(climb, known) is None]
    for setup in dict.fromkeys(climb.setup for climb in pending):
        check_plans(setup, tables, [climb.rungs[0].trial for climb in pending if climb.setup == setup])
    place = _shared_place(directory)
    report(0, len(pending))
    for count, new in enumerate(_spread(pending, tables, known, place, jobs)):
        for run in new:
            store.add(run)
        report(count + 1, len(pending))
    runs = store.runs()
    return runs, len(runs) - len(known)


def ended(climb: Climb, runs: Mapping[str, Run]) -> list[Run] | None:
    """Return the runs of a climb that is over, or None where some are missing."""
    found = []
    for rung in climb.rungs:
        run = _known(climb, rung, runs)
        if run is None:
            return None
        found.append(run)
        if found[-1]["survived"]:
            break
    return found


def _steps(grid: Grid, ladder: Ladder, point: Point) -> Iterator[tuple[Mapping[str, Any], Algorithm]]:
    if not grid.ladder:
        yield point.settings, point.algorithm
        return
    for rate in ladder.steps():
        yield {**point.settings, "learning_rate": rate}, point.at(rate)


def _spread(
    climbs: Sequence[Climb],
    tables: EncodedClients,
    known: Mapping[str, Run],
    place: Place,
    jobs: int,
) -> Iterator[list[Run]]:
    """Yield the new runs of each climb as it ends."""
    import joblib

    parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1, pre_dispatch="2*n_jobs")
    with one_thread():
        yield from parallel(joblib.delayed(_climb)(climb, tables, _of(climb, known), place) for climb in climbs)


def _of(climb: Climb, runs: Mapping[str, Run]) -> dict[str, Run]:
    keys = [key for rung in climb.rungs for key in (rung.key, _short_key(climb, rung))]
    return {key: runs[key] for key in keys if key in runs}


def _known(climb: Climb, rung: Rung, runs: Mapping[str, Run]) -> Run | None:
    """Return the run of a rung, if there is one. What failed in time has the same run whatever ``until`` is."""
    run = runs.get(rung.key)
    if climb.until is None or (run is not None and not run["survived"] and run["stopped_at"] <= climb.until):
        return run
    return runs.get(_short_key(climb, rung))


def _short_key(climb: Climb, rung: Rung) -> str:
    return rung.key if climb.until is None else f"{rung.key}@{climb.until}"


def _climb(climb: Climb, tables: EncodedClients, known: Mapping[str, Run], place: Place) -> list[Run]:
    """Try one rung after the other until one holds; return the runs that were not known."""
    store, runs = _joined(place), []
    for rung in climb.rungs:
        run = _known(climb, rung, known)
        if run is None:
            watch = Watch(climb.ladder, None if climb.until is None else max(climb.until // climb.ladder.every, 1))
            run = train_trial(climb.setup, tables, rung.trial, watch)
            key = rung.key if watch.stopped else _short_key(climb, rung)
            run = {"key": key, "method": climb.method, "settings": dict(rung.settings), **run}
            run["survived"] = not watch.stopped
            runs.append(run if store is None else store.add(run))
        if run["survived"]:
            break
    return runs


def _shared_place(directory: Path) -> Place:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / TOKEN
    if not path.exists():
        path.write_text(secrets.token_hex(8), encoding="utf-8")
    return Place(directory.resolve(), path.read_text(encoding="utf-8"))


@functools.lru_cache(maxsize=1)
def _joined(place: Place) -> RunStore | None:
    """Return the store, if this process sees the same disk."""
    path = place.directory / TOKEN
    same = path.exists() and path.read_text(encoding="utf-8") == place.token
    return RunStore(place.directory) if same else None
