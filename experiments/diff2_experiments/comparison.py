"""A comparison: several algorithms on the same records, budgets and seeds.

Every run is kept in a store as soon as it is finished, under a key that tells data and settings; what is there already
is not trained again, so a comparison that was interrupted goes on with the same command.

Everything shown is exact (losses and gradient norms of the records themselves) and of settings somebody chose by such
numbers. So a comparison is **not private**, and says so; it is for public data.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from diff2._validate import at_least
from diff2.algorithms import Algorithm
from diff2.data import EncodedClients, load_clients
from diff2.errors import PrivacyLeakWarning, leak
from diff2.figures import require_matplotlib
from diff2.privacy import Budget
from diff2.runfile.reader import CompareFile, TuneFile

from .methods import Method, choose_methods
from .store import Run, RunStore
from .trials import Setup, Trial, check_plans, digest_of, one_thread, train_trial, trial_key

CURVE_POINTS = 50
NOT_PRIVATE = "not private: exact metrics, tuned settings"

Report = Callable[[int, int], None]  # runs finished, runs in all


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

    @property
    def name(self) -> str:
        """What it was made on."""
        data = self.file.data
        return getattr(data, "builtin", None) or self.file.path.stem


def compare(
    file: CompareFile,
    directory: Path,
    *,
    names: Sequence[str] | None = None,
    epsilons: Sequence[float] | None = None,
    seeds: int = 5,
    jobs: int = 1,
    report: Report = lambda done, total: None,
) -> Comparison:
    """Train every method for every epsilon and seed, unless ``directory`` holds the run already.

    Args:
        names: of the methods; by default all ``[compare.NAME]`` tables of the file.
        epsilons: budgets; by default the one of ``[privacy]``.
        seeds: how many; they are 0, 1, ...
        jobs: runs at the same time, each in a process of its own with one thread.
        report: told before the first run and after each.
    """
    at_least("seeds", seeds, 1)
    at_least("jobs", jobs, 1)
    budgets = [Budget(epsilon, file.privacy.delta).epsilon for epsilon in epsilons or [file.privacy.epsilon]]
    budgets = list(dict.fromkeys(budgets))
    methods = choose_methods(file, names, budgets)
    require_matplotlib()
    store, setup = RunStore(directory), Setup(file.model, file.privacy, file.run)
    tables = load_public(file, "A COMPARISON")
    tasks = _tasks(file, tables, methods, budgets, seeds)
    done = store.runs()
    wanted = {task.key: task for tasks_of in tasks.values() for task in tasks_of}
    # Seed by seed, so that a comparison that is cut short has something of every method.
    pending = sorted((task for key, task in wanted.items() if key not in done), key=lambda task: task.trial.seed)
    check_plans(setup, tables, [task.trial for task in pending])
    directory.mkdir(parents=True, exist_ok=True)
    report(0, len(pending))
    for count, run in enumerate(_train_all(setup, tables, pending, jobs)):
        done[run["key"]] = store.add(run)
        report(count + 1, len(pending))
    runs = {place: [done[task.key] for task in tasks_of] for place, tasks_of in tasks.items()}
    return Comparison(file, directory, tables, methods, budgets, seeds, runs, len(pending))


def load_public(file: CompareFile | TuneFile, what: str) -> EncodedClients:
    """Read the records of an experiment, and say once and for all what leaks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)  # named below
        tables = load_clients(file.data, strict=file.privacy.strict)
    named = ["exact losses and gradient norms of the records", "settings tuned on such numbers", *tables.leaks]
    leak(
        f"{what} IS NOT PRIVATE. It shows {', '.join(named)}, and its noise is seeded. Use public data.",
        strict=file.privacy.strict,
        stacklevel=4,
    )
    return tables


def _tasks(
    file: CompareFile, tables: EncodedClients, methods: Sequence[Method], budgets: Sequence[float], seeds: int
) -> dict[tuple[str, float], list[Task]]:
    digest, setup = digest_of(tables), Setup(file.model, file.privacy, file.run)
    tasks = {}
    for epsilon in budgets:
        for method in methods:
            algorithm, budget = method.algorithms[epsilon], epsilon if method.private else math.inf
            trials = [Trial(algorithm, budget, seed, _every(file, algorithm)) for seed in range(seeds)]
            tasks[method.name, epsilon] = [Task(trial_key(setup, digest, trial), trial) for trial in trials]
    return tasks


def _train_all(setup: Setup, tables: EncodedClients, tasks: Sequence[Task], jobs: int) -> Iterator[Run]:
    """Yield the runs as they finish."""
    import joblib

    parallel = joblib.Parallel(n_jobs=min(jobs, max(len(tasks), 1)), return_as="generator_unordered")
    with one_thread():
        yield from parallel(joblib.delayed(_train)(setup, tables, task) for task in tasks)


def _train(setup: Setup, tables: EncodedClients, task: Task) -> Run:
    return {"key": task.key, **train_trial(setup, tables, task.trial)}


def _every(file: CompareFile, algorithm: Algorithm) -> int:
    return file.run.metrics_every or max(1, algorithm.rounds // CURVE_POINTS)
