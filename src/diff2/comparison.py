"""A comparison: several algorithms on the same records, budgets and seeds.

Seed s draws both the noise and the starting point of the model. Every run is a line of ``runs.jsonl`` as soon as it is
finished, under a key that tells data and settings; what is there already is not trained again, so a comparison that was
interrupted goes on with the same command.

Everything shown is exact (losses and gradient norms of the records themselves) and of settings somebody chose by such
numbers. So a comparison is **not private**, and says so; it is for public data.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ._validate import at_least
from ._version import __version__
from .data import EncodedClients, load_clients
from .errors import GradientFallbackWarning, InvalidArgument, PrivacyLeakWarning, WeakDeltaWarning, leak
from .estimators import Algorithm
from .figures import require_matplotlib
from .methods import Method, choose_methods
from .models import mlp
from .plans import plan
from .preparation import prepare
from .privacy import Budget
from .runfile import CompareFile
from .training import Training

FORMAT = 2  # of a line of runs.jsonl; another number trains everything again
CURVE_POINTS = 50
EXACT = ("train_loss", "test_loss", "squared_gradient_norm")
NOT_PRIVATE = "not private: exact metrics, tuned settings"

Report = Callable[[int, int], None]  # runs finished, runs in all
Row = dict[str, Any]  # a line of runs.jsonl


class Task(NamedTuple):
    """One run."""

    key: str
    algorithm: Algorithm
    epsilon: float  # of the budget; infinite for the reference
    seed: int


@dataclass(frozen=True)
class Comparison:
    """All runs of a comparison, by method and epsilon."""

    file: CompareFile
    directory: Path
    tables: EncodedClients
    methods: list[Method]
    epsilons: list[float]
    seeds: int
    runs: Mapping[tuple[str, float], list[Row]]
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
    if directory.exists() and not directory.is_dir():
        raise InvalidArgument(f"{directory} is a file; give a directory for the comparison")
    tables = _load(file)
    tasks = _tasks(file, tables, methods, budgets, seeds)
    path = directory / "runs.jsonl"
    done = read_runs(path)
    wanted = {task.key: task for tasks_of in tasks.values() for task in tasks_of}
    # Seed by seed, so that a comparison that is cut short has something of every method.
    pending = sorted((task for key, task in wanted.items() if key not in done), key=lambda task: task.seed)
    _check_plans(file, tables, pending)
    directory.mkdir(parents=True, exist_ok=True)
    report(0, len(pending))
    for count, row in enumerate(_train_all(file, tables, pending, jobs)):
        done[row["key"]] = append_run(path, row)
        report(count + 1, len(pending))
    runs = {place: [done[task.key] for task in tasks_of] for place, tasks_of in tasks.items()}
    return Comparison(file, directory, tables, methods, budgets, seeds, runs, len(pending))


def read_runs(path: Path) -> dict[str, Row]:
    """Return the finished runs by their keys; a line that was cut off by a crash does not count."""
    rows: dict[str, Row] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
            rows[row["key"]] = row
        except (ValueError, KeyError, TypeError):
            continue
    return rows


def append_run(path: Path, row: Row) -> Row:
    """Write a run at once, on a line of its own even if the one before was cut off; return it as it will be read."""
    row = _plain(row)
    whole = not path.exists() or path.read_bytes()[-1:] in (b"", b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write(("" if whole else "\n") + json.dumps(row, allow_nan=False) + "\n")
    return row


def _load(file: CompareFile) -> EncodedClients:
    """Read the records, and say once and for all what leaks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)  # named below
        tables = load_clients(file.data, strict=file.privacy.strict)
    named = ["exact losses and gradient norms of the records", "settings tuned on such numbers", *tables.leaks]
    leak(
        f"A COMPARISON IS NOT PRIVATE. It shows {', '.join(named)}, and its noise is seeded. Use public data.",
        strict=file.privacy.strict,
        stacklevel=4,
    )
    return tables


def _tasks(
    file: CompareFile, tables: EncodedClients, methods: Sequence[Method], budgets: Sequence[float], seeds: int
) -> dict[tuple[str, float], list[Task]]:
    digest = _digest(tables)
    tasks = {}
    for epsilon in budgets:
        for method in methods:
            algorithm, budget = method.algorithms[epsilon], epsilon if method.private else math.inf
            keys = [_key(file, digest, algorithm, budget, seed) for seed in range(seeds)]
            tasks[method.name, epsilon] = [Task(key, algorithm, budget, seed) for seed, key in enumerate(keys)]
    return tasks


def _key(file: CompareFile, digest: str, algorithm: Algorithm, epsilon: float, seed: int) -> str:
    """Return a hash of everything that the outcome of a run depends on."""
    settings = {
        "format": FORMAT,
        "library": __version__,
        "data": digest,
        "model": [file.model.hidden, file.model.activation],
        "algorithm": repr(algorithm),
        "budget": [repr(epsilon), file.privacy.delta],
        "privacy": [file.privacy.accounting, file.privacy.unit],
        "run": {name: value for name, value in asdict(file.run).items() if name != "seed"},
        "seed": seed,
    }
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def _digest(tables: EncodedClients) -> str:
    found = hashlib.sha256(repr((tables.encoding.loss, tables.encoding.outputs)).encode())
    pairs = [*tables.clients, *([tables.holdout] if tables.holdout else [])]
    owners = [np.unique(group, return_inverse=True)[1] for group in tables.groups or ()]
    for array in (*(part for pair in pairs for part in pair), *owners):
        found.update(repr((array.shape, array.dtype.str)).encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _check_plans(file: CompareFile, tables: EncodedClients, pending: Sequence[Task]) -> None:
    """Find out before anything runs whether each algorithm can keep its budget on these clients."""
    if tables.groups is not None and file.privacy.unit == "client":
        raise InvalidArgument("group_column protects owners, unit = 'client' whole clients; leave one of them out")
    run, privacy = file.run, file.privacy
    for algorithm, epsilon in {repr((task.algorithm, task.epsilon)): task[1:3] for task in pending}.values():
        plan(
            algorithm,
            Budget(epsilon, privacy.delta),
            [len(inputs) for inputs, _ in tables.clients],
            weighting=run.weighting,
            accounting=privacy.accounting,
            unit=privacy.unit if tables.groups is None else "owner",
            clients_per_round=run.clients_per_round,
            client_order=run.client_order,
        )


def _train_all(file: CompareFile, tables: EncodedClients, tasks: Sequence[Task], jobs: int) -> Iterator[Row]:
    """Yield the runs as they finish."""
    import joblib

    parallel = joblib.Parallel(n_jobs=min(jobs, max(len(tasks), 1)), return_as="generator_unordered")
    with _one_thread():
        yield from parallel(joblib.delayed(train_task)(file, tables, task) for task in tasks)


def train_task(file: CompareFile, tables: EncodedClients, task: Task) -> Row:
    """Train one run and measure it."""
    if multiprocessing.parent_process() is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for this one
    with _one_thread():
        training = _prepare(file, tables, task)
        result = training.run(progress=False)
        exact = training.metrics
        final = {} if exact is None else exact(0, result.params)
        final |= _accuracies(result.model, tables, getattr(torch, file.run.dtype))
    history = result.history
    measured = history[history["round"] % _every(file, task.algorithm) == 0]
    # A record whose gradient is not finite counts as zero; so without a finite loss the norm says nothing.
    norm = "squared_gradient_norm"
    curves = {
        name: measured[name].where(np.isfinite(measured["train_loss"])).tolist() for name in EXACT if name in measured
    }
    final[norm] = final[norm] if math.isfinite(final["train_loss"]) else math.nan
    smallest = min((value for value in (*curves[norm], final[norm]) if math.isfinite(value)), default=math.nan)
    return {
        "key": task.key,
        "algorithm": result.ledger.header["algorithm"],
        "budget": task.epsilon,
        "delta": file.privacy.delta,
        "seed": task.seed,
        "rounds": measured["round"].tolist(),
        **curves,
        "final": {**final, f"smallest_{norm}": smallest},
        "epsilon": result.epsilon,
        "seconds": float(history["seconds"].sum()),
    }


def _prepare(file: CompareFile, tables: EncodedClients, task: Task) -> Training:
    run, privacy, encoding = file.run, file.privacy, tables.encoding
    model = mlp(len(encoding.inputs), encoding.outputs, **{**asdict(file.model), "seed": task.seed})
    with warnings.catch_warnings():
        for category in (PrivacyLeakWarning, WeakDeltaWarning, GradientFallbackWarning):  # said before
            warnings.simplefilter("ignore", category)
        return prepare(
            model,
            encoding.loss,
            tables.clients,
            task.algorithm,
            Budget(task.epsilon, privacy.delta),
            seed=task.seed,
            output=run.output,
            weighting=run.weighting,
            accounting=privacy.accounting,
            unit=privacy.unit,
            groups=tables.groups,
            clients_per_round=run.clients_per_round,
            client_order=run.client_order,
            dtype=getattr(torch, run.dtype),
            metrics_every=_every(file, task.algorithm),
            holdout=tables.holdout,
            leaks=tables.leaks,
        )


def _every(file: CompareFile, algorithm: Algorithm) -> int:
    return file.run.metrics_every or max(1, algorithm.rounds // CURVE_POINTS)


def _accuracies(model: torch.nn.Module, tables: EncodedClients, dtype: torch.dtype) -> dict[str, float]:
    """Return the shares of records classified right, for a classification."""
    if tables.encoding.classes is None:
        return {}
    parts = {"train_accuracy": tables.clients}
    if tables.holdout is not None:
        parts["test_accuracy"] = [tables.holdout]
    found = {}
    for name, pairs in parts.items():
        with torch.no_grad():
            right = [model(torch.tensor(x, dtype=dtype)).argmax(1).numpy() == y for x, y in pairs]
        found[name] = float(np.concatenate(right).mean())
    return found


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread of PyTorch a run: sums then do not depend on how many runs there are at a time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _plain(value: Any) -> Any:
    """Return JSON values; a number that is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
