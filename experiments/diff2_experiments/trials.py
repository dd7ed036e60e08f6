"""One measured training run of an experiment: what comparisons and tuning are made of.

Seed s draws both the noise and the starting point of the model. What is measured is exact, so a trial is **not
private**; trials are for public data.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from diff2._version import __version__
from diff2.algorithms import Algorithm
from diff2.cohorts import LocalCohort
from diff2.data.loading import EncodedClients
from diff2.errors import GradientFallbackWarning, InvalidArgument, PrivacyLeakWarning, WeakDeltaWarning
from diff2.models.mlp import mlp
from diff2.planning.plan import plan
from diff2.privacy import Budget
from diff2.runfile.reader import protection_of
from diff2.training.build import prepare
from diff2.training.loop import RoundInfo, Training, TrainState

from .files import Setup
from .store import Run

FORMAT = 3  # of a stored trial; another number trains everything again
CURVES = ("train_loss", "test_loss", "squared_gradient_norm", "train_accuracy", "test_accuracy")

T = TypeVar("T")
Stop = Callable[[float], bool]  # given the train loss whenever it is measured; True ends the run
Report = Callable[[int, int], None]  # done, in all


def unreported(done: int, total: int) -> None:
    """Report nothing."""


class Trial(NamedTuple):
    """One run: what differs between the runs of an experiment."""

    algorithm: Algorithm
    epsilon: float  # of the budget; infinite for a reference without privacy
    seed: int
    every: int  # rounds from one measurement to the next


def trial_key(setup: Setup, digest: str, trial: Trial, **rules: Any) -> str:
    """Return a hash of everything that the outcome of a trial depends on.

    Args:
        setup: what it shares with the others.
        digest: of the records, from :func:`digest_of`.
        trial: the run.
        rules: what else decides how it goes, such as when it is stopped.
    """
    settings = {
        "format": FORMAT,
        "library": __version__,
        "data": digest,
        "model": [setup.model.hidden, setup.model.activation],
        "algorithm": repr(trial.algorithm),
        "budget": [repr(trial.epsilon), setup.privacy.delta],
        "privacy": [setup.privacy.accounting, setup.privacy.unit],
        "run": {name: value for name, value in asdict(setup.run).items() if name not in ("seed", "metrics_every")},
        "seed": trial.seed,
        "every": trial.every,
        "rules": rules,
    }
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def digest_of(tables: EncodedClients) -> str:
    """Return a hash of the records as they are trained on."""
    found = hashlib.sha256(repr((tables.encoding.loss, tables.encoding.outputs)).encode())
    pairs = [*tables.clients, *([tables.holdout] if tables.holdout else [])]
    owners = [np.unique(group, return_inverse=True)[1] for group in tables.groups or ()]
    for array in (*(part for pair in pairs for part in pair), *owners):
        found.update(repr((array.shape, array.dtype.str)).encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def check_plans(setup: Setup, tables: EncodedClients, trials: Sequence[Trial]) -> None:
    """Find out before anything runs whether each algorithm can keep its budget on these clients."""
    run, privacy = setup.run, setup.privacy
    if tables.groups is not None and privacy.unit == "client":
        raise InvalidArgument(
            "group_column protects groups of records, unit = 'client' whole clients; leave one of them out"
        )
    for algorithm, epsilon in {repr(trial[:2]): trial[:2] for trial in trials}.values():
        plan(
            algorithm,
            Budget(epsilon, privacy.delta),
            [len(inputs) for inputs, _ in tables.clients],
            protection_of(privacy, run, grouped=tables.groups is not None),
        )


def train_trial(setup: Setup, tables: EncodedClients, trial: Trial, stop: Stop | None = None) -> Run:
    """Train and measure one run, in one thread."""
    if multiprocessing.parent_process() is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for this one

    def callback(state: TrainState, info: RoundInfo) -> bool:
        return stop is not None and "train_loss" in info.metrics and stop(info.metrics["train_loss"])

    with one_thread():
        training = prepare_trial(setup, tables, trial)
        result = training.run(progress=False, callbacks=[callback])
        exact = training.metrics
        final = {} if exact is None else exact(0, result.params)
    seconds, measured = result.history["seconds"], result.history["round"] % trial.every == 0
    history = {name: column[measured] for name, column in result.history.items()}
    # A record whose gradient is not finite counts as zero; so without a finite loss the other numbers say nothing.
    finite = np.isfinite(history["train_loss"])
    curves = {name: np.where(finite, history[name], math.nan).tolist() for name in CURVES if name in history}
    if not math.isfinite(final["train_loss"]):
        final = dict.fromkeys(final, math.nan)
    norms = (*curves["squared_gradient_norm"], final["squared_gradient_norm"])
    final["smallest_squared_gradient_norm"] = min(filter(math.isfinite, norms), default=math.nan)
    return {
        "algorithm": result.ledger.header["algorithm"],
        "budget": trial.epsilon,
        "delta": setup.privacy.delta,
        "accounting": setup.privacy.accounting,
        "seed": trial.seed,
        "rounds": history["round"].tolist(),
        **curves,
        "final": final,
        "stopped_at": len(seconds),
        "epsilon": result.epsilon,
        "seconds": float(seconds.sum()),
    }


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread of PyTorch per run: sums then do not depend on how many runs there are at a time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_parallel(function: Callable[..., T], arguments: Iterable[tuple[Any, ...]], jobs: int) -> Iterator[T]:
    """Yield results as they are ready, from so many processes of one thread or the caller's joblib backend."""
    import joblib

    parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1, pre_dispatch="2*n_jobs")
    with one_thread():
        yield from parallel(joblib.delayed(function)(*given) for given in arguments)


def model_of(setup: Setup, tables: EncodedClients, seed: int) -> torch.nn.Module:
    """Return the network of an experiment where a seed starts it."""
    encoding = tables.encoding
    return mlp(len(encoding.inputs), encoding.outputs, **{**asdict(setup.model), "seed": seed})


def prepare_trial(setup: Setup, tables: EncodedClients, trial: Trial) -> Training:
    """Build a run; what it leaks has been said when its records were read."""
    run, privacy = setup.run, setup.privacy
    with warnings.catch_warnings():
        for category in (PrivacyLeakWarning, WeakDeltaWarning, GradientFallbackWarning):
            warnings.simplefilter("ignore", category)
        training = prepare(
            model_of(setup, tables, trial.seed),
            tables.encoding.loss,
            tables.clients,
            trial.algorithm,
            Budget(trial.epsilon, privacy.delta),
            seed=trial.seed,
            output=run.output,
            protection=protection_of(privacy, run, grouped=tables.groups is not None),
            groups=tables.groups,
            dtype=getattr(torch, run.dtype),
            metrics_every=trial.every,
            holdout=tables.holdout,
            leaks=tables.leaks,
        )
    if isinstance(training.cohort, LocalCohort) and tables.groups is None:
        training.cohort.merge_copies()
    return training
