"""The contract that every algorithm and routine keeps, for those of other packages too.

Our own go through the same functions. Each trains a small network a few times on made-up records, and raises an
``AssertionError`` that says what does not hold:

>>> import diff2, diff2.testing
>>> diff2.testing.check_algorithm(diff2.DPGD(4, 1.0, diff2.GradientDescent(0.1)))  # doctest: +SKIP
"""

import math
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .algorithms import ALGORITHMS, DPGD, Algorithm
from .errors import GradientFallbackWarning, PrivacyLeakWarning, WeakDeltaWarning
from .models.mlp import mlp
from .privacy import BoundedMean, Budget, Mechanism, Released
from .privacy.mechanism import reach
from .privacy.release import ADD_OR_REMOVE_ONE, NONE
from .routines import Routine
from .training.build import prepare
from .training.loop import RoundInfo, Training, TrainState
from .training.result import TrainResult

SIZES = (24, 20, 28)
BUDGET = Budget(epsilon=2.0, delta=1e-3)
SEED = 7
Clients = list[tuple[torch.Tensor, torch.Tensor]]


def check_algorithm(algorithm: Algorithm, **settings: Any) -> None:
    """Check the whole contract of an algorithm.

    Args:
        settings: of the run, as for :func:`diff2.prepare`, for example ``unit="client"``.
    """
    with _quiet():
        releases_what_it_declares(algorithm, **settings)
        is_moved_by_one_record_no_further_than_stated(algorithm, **settings)
        adds_no_noise_without_a_budget(algorithm, **settings)
        resumes_to_the_same_bytes(algorithm, **settings)
        gives_the_same_bytes_at_sites(algorithm, **settings)


def check_routine(routine: Routine) -> None:
    """Check a routine: driven by DP-GD, it resumes to the same bytes, and all it asks for was declared."""
    with _quiet():
        algorithm = DPGD(rounds=6, clip_gradient=1.0, routine=routine)
        releases_what_it_declares(algorithm)
        resumes_to_the_same_bytes(algorithm)


def releases_what_it_declares(algorithm: Algorithm, **settings: Any) -> None:
    """The ledger holds the planned releases, no others, and costs no more than the budget."""
    result = _prepared(algorithm, made_up_clients(), **settings).run(progress=False)
    planned = result.plan.releases
    _require(len(planned) == len(result.ledger), f"{len(planned)} releases were planned, {len(result.ledger)} made")
    for expected, found in zip(planned, result.ledger.releases, strict=True):
        for name in ("label", "sampling", "rate", "members", "leaves"):
            mine, theirs = getattr(expected, name), getattr(found, name)
            _require(mine == theirs, f"{expected.label}: {name} was planned as {mine}, and released as {theirs}")
        _require(found.multiplier >= expected.multiplier, f"{expected.label}: less noise than planned")
        bound = expected.sensitivity * found.clip
        _require(
            math.isclose(found.sensitivity, bound, rel_tol=1e-9),
            f"{expected.label}: sensitivity {found.sensitivity} with radius {found.clip}, planned {bound}",
        )
    _require(result.epsilon <= BUDGET.epsilon, f"it costs {result.epsilon}, the budget is {BUDGET.epsilon}")


def is_moved_by_one_record_no_further_than_stated(algorithm: Algorithm, **settings: Any) -> None:
    """Replacing one record, by an extreme one, moves no mean by more than its sensitivity."""
    clients = made_up_clients()
    first = _Memory(_prepared(algorithm, clients, **settings))
    first.run(progress=False)
    for client, row in ((0, 0), (1, 7), (2, 27)):
        changed = [(inputs.clone(), targets.clone()) for inputs, targets in clients]
        changed[client][0][row] *= -50
        changed[client][1][row] += 1000
        _Memory(_prepared(algorithm, changed, **settings), first.means).run(progress=False)


def adds_no_noise_without_a_budget(algorithm: Algorithm, **settings: Any) -> None:
    """With epsilon infinite every release says that it has no noise."""
    result = _prepared(algorithm, made_up_clients(), Budget(math.inf, BUDGET.delta), **settings).run(progress=False)
    noisy = [release.label for release in result.ledger.releases if release.mechanism != NONE and release.sensitivity]
    _require(not noisy, f"epsilon=inf, and these carry noise: {noisy}")


def resumes_to_the_same_bytes(algorithm: Algorithm, **settings: Any) -> None:
    """A run that is killed after every round and resumed gives the parameters and the ledger of one that is not."""
    whole = _prepared(algorithm, made_up_clients(), **settings).run(progress=False)

    def kill(state: TrainState, info: RoundInfo) -> None:
        raise KeyboardInterrupt

    with tempfile.TemporaryDirectory() as folder:
        for _ in range(algorithm.rounds + 1):
            training = _prepared(algorithm, made_up_clients(), directory=folder, resume=True, **settings)
            try:
                result = training.run(callbacks=[_saving(training), kill], progress=False)
            except KeyboardInterrupt:
                continue
        _same(whole, result, "after it was killed and resumed")


def gives_the_same_bytes_at_sites(algorithm: Algorithm, **settings: Any) -> None:
    """Sites in this process answer with the bytes of a run that asks every client by itself."""
    if algorithm.name not in ALGORITHMS:
        raise AssertionError(
            f"{algorithm.name!r} is not registered, so no site knows it: diff2.ALGORITHMS.register(...)"
        )
    from .cohorts.clients import Client, as_groups
    from .data.scaling import Encoding, Scaling
    from .federation.agreement import Agreement
    from .federation.server.run import prepare_at_sites
    from .federation.site.policy import Policy
    from .federation.site.records import SiteRecords
    from .federation.site.site import Site
    from .federation.wire.transport import InProcessTransport
    from .runfile.reader import ModelSettings, PrivacySettings, RunSettings

    clients, options = made_up_clients(), dict(settings)
    groups, unit = options.pop("groups", None), options.pop("unit", "record")
    local = _prepared(algorithm, clients, by_client=True, engine="portable", **settings).run(progress=False)
    agreement = Agreement(
        algorithm,
        ModelSettings(hidden=(4,), seed=SEED),
        PrivacySettings(BUDGET.epsilon, BUDGET.delta, unit=unit),
        RunSettings(dtype="float64", seed=SEED, **options),
        Encoding({f"x{i}": Scaling() for i in range(3)}, "y", Scaling(), None),
        tuple(f"site-{p}" for p in range(len(clients))),
        None if groups is None else "group",
    )
    with tempfile.TemporaryDirectory() as folder:
        sites = {}
        for p, pair in enumerate(clients):
            client = Client(*pair)
            records = SiteRecords(client, None if groups is None else as_groups([groups[p]], [client])[0])
            place = Path(folder) / f"site-{p}"
            policy = Policy(epsilon=math.inf, reported_size=_public_size(algorithm))
            sites[f"site-{p}"] = Site(f"site-{p}", partial(_given, records), policy, place)
            sites[f"site-{p}"].approve(agreement)
        transport = InProcessTransport({name: site.answer for name, site in sites.items()})
        training = prepare_at_sites(agreement, transport, list(sites), directory=Path(folder) / "server")
        _same(local, training.run(progress=False), "at sites")


def made_up_clients() -> Clients:
    """Return the records of three clients: three inputs, one target, in double precision."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(sum(SIZES), 3, generator=generator, dtype=torch.float64)
    noise = torch.randn(sum(SIZES), 1, generator=generator, dtype=torch.float64)
    targets = inputs.sum(1, keepdim=True) + noise
    return list(zip(inputs.split(SIZES), targets.split(SIZES), strict=True))


class _Memory(Mechanism):
    """Releases what another run released, and compares the means behind it, so that both runs see the same iterates."""

    def __init__(self, training: Training, before: dict[Any, tuple[BoundedMean, Released]] | None = None):
        super().__init__(training.mechanism.ledger, training.mechanism.noise)
        self._before = before
        self._training = replace(training, mechanism=self)
        self.means: dict[Any, tuple[BoundedMean, Released]] = {}

    def run(self, *, progress: bool) -> TrainResult:
        return self._training.run(progress=progress)

    def release(self, mean: BoundedMean, multiplier: float) -> Released:
        released = super().release(mean, multiplier)
        label = released.release.label
        self.means[label] = (mean, released)
        length = 0.0 if mean.value is None else float(np.linalg.norm(mean.value))
        _require(length <= reach(mean) * (1 + 1e-9), f"{label}: a mean is {length} long, its radius says {reach(mean)}")
        if self._before is None:
            return released
        other, kept = self._before[label]
        if mean.value is not None and other.value is not None:
            apart = float(np.linalg.norm(mean.value - other.value))
            # A record that is replaced is one that is removed and one that is added.
            times = 2 if mean.adjacency == ADD_OR_REMOVE_ONE else 1
            bound = times * mean.release.sensitivity * (1 + mean.rounding)
            _require(apart <= bound * (1 + 1e-12), f"{label}: one record moves the mean by {apart}, stated is {bound}")
        return kept


def _prepared(algorithm: Algorithm, clients: Clients, budget: Budget = BUDGET, **settings: Any) -> Training:
    model = mlp(3, 1, hidden=(4,), seed=SEED).double()
    settings.setdefault("public_sizes", _public_size(algorithm))
    return prepare(model, "squared", clients, algorithm, budget, seed=SEED, **settings)


def _public_size(algorithm: Algorithm) -> int | None:
    """Return the number of slots of each client, where the exact number of records must not be used."""
    return max(SIZES) + 3 if algorithm.adjacency == ADD_OR_REMOVE_ONE else None


def _given(records: Any, agreement: Any) -> Any:
    return records


def _saving(training: Training) -> Any:
    """Return a callback that keeps a checkpoint after every round."""
    history: list[dict[str, Any]] = (
        [] if training.directory.resumed is None else list(training.directory.resumed.history)
    )

    def save(state: TrainState, info: RoundInfo) -> None:
        row = info._asdict()
        history.append({**row, **row.pop("metrics")})
        training.directory.save(state._asdict(), history)

    return save


def _same(one: TrainResult, other: TrainResult, when: str) -> None:
    _require(torch.equal(one.params, other.params), f"the parameters are other ones {when}")
    _require(one.ledger.releases == other.ledger.releases, f"the ledger holds other releases {when}")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        for category in (PrivacyLeakWarning, WeakDeltaWarning, GradientFallbackWarning):
            warnings.simplefilter("ignore", category)
        yield
