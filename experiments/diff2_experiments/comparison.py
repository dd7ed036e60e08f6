"""A comparison: several algorithms on the same records, budgets and seeds.

Every run is kept in a store as soon as it is finished, under a key of its data and settings; a run that is there is not
trained again, so the same command resumes a comparison that was interrupted.

Everything shown is exact (losses and gradient norms of the records themselves), and settings are chosen by such
numbers. So a comparison is **not private**, and says so; it is for public data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from diff2._validate import at_least
from diff2.data.loading import EncodedClients
from diff2.privacy import Budget

from .figures import require_matplotlib
from .files import CompareFile, Setup, load_public
from .methods import Method, choose_methods
from .store import Run, RunStore
from .trials import Report, Trial, check_plans, digest_of, in_parallel, train_trial, trial_key, unreported

CURVE_POINTS = 50


class Task(NamedTuple):
    """A trial, and the key under which it is kept."""

    key: str
    trial: Trial


@dataclass(frozen=True)
class Comparison:
    """All runs of a comparison, by method and epsilon."""

    file: CompareFile
    directory: Path
    tables: EncodedClients
    methods: list[Method]
    epsilons: list[float]
    seeds: int
    runs: Mapping[tuple[str, float], list[Run]]
    trained: int  # runs that were not there before


def compare(
    file: CompareFile,
    directory: Path,
    *,
    names: Sequence[str] | None = None,
    epsilons: Sequence[float] | None = None,
    seeds: int = 5,
    jobs: int = 1,
    report: Report = unreported,
) -> Comparison:
    """Train every method for every epsilon and seed, unless ``directory`` holds the run already.

    Args:
        names: of the methods; by default all ``[compare.NAME]`` tables of the file.
        epsilons: budgets; by default the one of ``[privacy]``.
        seeds: how many; they are 0, 1, ...
        jobs: runs at the same time, each in a process of its own with one thread.
        report: called before the first run and after each.
    """
    at_least("seeds", seeds, 1)
    at_least("jobs", jobs, 1)
    budgets = budgets_of(file, epsilons)
    methods = choose_methods(file, names, budgets)
    require_matplotlib()
    store, tables = RunStore(directory), load_public(file, "A COMPARISON")
    tasks = _tasks(file, tables, methods, budgets, seeds)
    done = store.runs()
    wanted = {task.key: task for tasks_of in tasks.values() for task in tasks_of}
    # Seed by seed, so that a comparison that is cut short has something of every method.
    pending = sorted((task for key, task in wanted.items() if key not in done), key=lambda task: task.trial.seed)
    check_plans(file.setup, tables, [task.trial for task in pending])
    directory.mkdir(parents=True, exist_ok=True)
    report(0, len(pending))
    for count, run in enumerate(in_parallel(_train, [(file.setup, tables, task) for task in pending], jobs)):
        done[run["key"]] = store.add(run)
        report(count + 1, len(pending))
    runs = {place: [done[task.key] for task in tasks_of] for place, tasks_of in tasks.items()}
    return Comparison(file, directory, tables, methods, budgets, seeds, runs, len(pending))


def budgets_of(file: CompareFile, epsilons: Sequence[float] | None) -> list[float]:
    """Return the epsilons that were asked for, each once, or the file's; all checked."""
    wanted = epsilons or [file.privacy.epsilon]
    return list(dict.fromkeys(Budget(epsilon, file.privacy.delta).epsilon for epsilon in wanted))


def _tasks(
    file: CompareFile, tables: EncodedClients, methods: Sequence[Method], budgets: Sequence[float], seeds: int
) -> dict[tuple[str, float], list[Task]]:
    digest, tasks = digest_of(tables), {}
    for epsilon in budgets:
        for method in methods:
            algorithm, budget = method.algorithms[epsilon], epsilon if method.private else math.inf
            every = file.run.metrics_every or max(1, algorithm.rounds // CURVE_POINTS)
            trials = [Trial(algorithm, budget, seed, every) for seed in range(seeds)]
            tasks[method.name, epsilon] = [Task(trial_key(file.setup, digest, trial), trial) for trial in trials]
    return tasks


def _train(setup: Setup, tables: EncodedClients, task: Task) -> Run:
    return {"key": task.key, **train_trial(setup, tables, task.trial)}
