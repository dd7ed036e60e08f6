"""Tuning: every setting of a grid, each with the learning-rate search, for every budget and seed.

The unit of work is a candidate: one setting at one budget and seed, trained with smaller and smaller learning rates
until a run survives. Every finished run goes into the store at once, so the same command resumes what was killed, and
several processes may fill one store. Candidates are spread with joblib, one thread each, by whichever backend the
caller has chosen (``joblib.parallel_config(backend="dask")`` and so on); where the machines of a backend do not share a
disk, finished runs come back with the candidate and are kept here.

Tuning looks at exact losses of the records again and again. It is **not private**; tune on public data.
"""

from __future__ import annotations

import functools
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from diff2.data.loading import EncodedClients

from .files import Setup
from .grids import Grid
from .learning_rates import EarlyStopping, RateSearch
from .store import Run, RunStore
from .trials import Report, Trial, check_plans, in_parallel, train_trial, trial_key, unreported

TOKEN = "store-id"
FOREVER = 10**9  # evaluations


class Attempt(NamedTuple):
    """One run of a candidate, with its learning rate among the settings."""

    key: str
    settings: Mapping[str, Any]
    trial: Trial


class Candidate(NamedTuple):
    """One setting, budget and seed, and its attempts in the order in which they are made."""

    method: str
    setup: Setup
    search: RateSearch
    attempts: Sequence[Attempt]
    until: int | None = None  # rounds that are enough for now; None: all of them


class SharedStore(NamedTuple):
    """Where finished runs are kept, and by which token a worker sees whether it shares the disk."""

    directory: Path
    token: str


def candidates_of(
    grid: Grid,
    setup: Setup,
    search: RateSearch,
    digest: str,
    *,
    epsilon: float,
    accounting: str,
    seed: int,
    until: int | None = None,
) -> list[Candidate]:
    """Return the candidates of one method for a budget and a seed, to the end or until so many rounds."""
    if not grid.private:
        epsilon, accounting = math.inf, "exact"  # whatever the others get
    if not grid.rate_search:
        search = replace(search, patience=FOREVER)  # nothing else would be tried in its place
    setup = setup._replace(privacy=replace(setup.privacy, accounting=accounting))
    candidates = []
    for point in grid.points:
        rates = search.values() if grid.rate_search else []
        tried = [({**point.settings, "learning_rate": rate}, point.at(rate)) for rate in rates]
        attempts = []
        for settings, algorithm in tried or [(dict(point.settings), point.algorithm)]:
            trial = Trial(algorithm, epsilon, seed, search.every)
            key = trial_key(setup, digest, trial, patience=search.patience, tolerance=search.tolerance)
            attempts.append(Attempt(key, settings, trial))
        candidates.append(Candidate(grid.name, setup, search, attempts, until))
    return candidates


def tune(
    candidates: Sequence[Candidate],
    tables: EncodedClients,
    directory: Path,
    *,
    jobs: int = 1,
    report: Report = unreported,
) -> tuple[dict[str, Run], int]:
    """Train what the store does not hold yet; return all its runs by their keys, and how many are new."""
    store = RunStore(directory)
    known = store.runs()
    pending = [candidate for candidate in candidates if attempts_made(candidate, known) is None]
    for setup in dict.fromkeys(candidate.setup for candidate in pending):
        check_plans(setup, tables, [one.attempts[0].trial for one in pending if one.setup == setup])
    shared = _share(directory)
    work = ((candidate, tables, _of(candidate, known), shared) for candidate in pending)
    report(0, len(pending))
    for count, new in enumerate(in_parallel(_try, work, jobs)):
        for run in new:
            store.add(run)
        report(count + 1, len(pending))
    runs = store.runs()
    return runs, len(runs) - len(known)


def attempts_made(candidate: Candidate, runs: Mapping[str, Run]) -> list[Run] | None:
    """Return the runs of a candidate up to the one that survived, or None where some are missing."""
    found = []
    for attempt in candidate.attempts:
        run = _known(candidate, attempt, runs)
        if run is None:
            return None
        found.append(run)
        if found[-1]["survived"]:
            break
    return found


def _of(candidate: Candidate, runs: Mapping[str, Run]) -> dict[str, Run]:
    keys = [key for attempt in candidate.attempts for key in (attempt.key, _short_key(candidate, attempt))]
    return {key: runs[key] for key in keys if key in runs}


def _known(candidate: Candidate, attempt: Attempt, runs: Mapping[str, Run]) -> Run | None:
    """Return the run of an attempt, if there is one. What failed in time has the same run whatever ``until`` is."""
    run, until = runs.get(attempt.key), candidate.until
    if until is None or (run is not None and not run["survived"] and run["stopped_at"] <= until):
        return run
    return runs.get(_short_key(candidate, attempt))


def _short_key(candidate: Candidate, attempt: Attempt) -> str:
    return attempt.key if candidate.until is None else f"{attempt.key}@{candidate.until}"


def _try(candidate: Candidate, tables: EncodedClients, known: Mapping[str, Run], shared: SharedStore) -> list[Run]:
    """Make one attempt after the other until a run survives; return the runs that were not known."""
    store, runs = _joined(shared), []
    looks = None if candidate.until is None else max(candidate.until // candidate.search.every, 1)
    for attempt in candidate.attempts:
        run = _known(candidate, attempt, known)
        if run is None:
            stopping = EarlyStopping(candidate.search, looks)
            run = train_trial(candidate.setup, tables, attempt.trial, stopping)
            key = attempt.key if stopping.stopped else _short_key(candidate, attempt)
            run = {"key": key, "method": candidate.method, "settings": dict(attempt.settings), **run}
            run["survived"] = not stopping.stopped
            runs.append(run if store is None else store.add(run))
        if run["survived"]:
            break
    return runs


def _share(directory: Path) -> SharedStore:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / TOKEN
    if not path.exists():
        path.write_text(secrets.token_hex(8), encoding="utf-8")
    return SharedStore(directory.resolve(), path.read_text(encoding="utf-8"))


@functools.lru_cache(maxsize=1)
def _joined(shared: SharedStore) -> RunStore | None:
    """Return the store, if this process sees the same disk."""
    path = shared.directory / TOKEN
    same = path.exists() and path.read_text(encoding="utf-8") == shared.token
    return RunStore(shared.directory) if same else None
