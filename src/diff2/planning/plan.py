r"""The plan of a run: how much noise, and what it costs. Touches no data.

>>> from diff2 import Budget, Diff2, GradientDescent, plan
>>> algorithm = Diff2(rounds=2000, restart_interval=20, clip_gradient=3.0, clip_smoothness=10.0,
...                   routine=GradientDescent(learning_rate=0.125))
>>> noise = plan(algorithm, Budget(epsilon=3.0, delta=1e-5), client_sizes=[1651] * 10)
>>> round(noise.sigma_1, 9), round(noise.sigma_2, 9), noise.sigma_3, len(noise.releases)
(0.001883381, 0.016418932, None, 2000)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from ..algorithms import Algorithm
from ..errors import InvalidArgument, WeakDeltaWarning
from ..privacy import Budget, Kind, ReleaseEntry, Spend, calibrate, total_epsilon
from ..privacy.calibration import Profile
from ..privacy.composition import FULL, by_exposure, gaussian_mu, profiles
from ..privacy.mechanism import REPLACE_ONE
from ..questions.population import Exposure, Population
from ..questions.round import DIFFERENCE, GRADIENT, LOCAL, SCALING, Planned

LOCAL_SHARE = 1 / 3  # of the budget, for a routine that makes releases of its own


class Opening(NamedTuple):
    """A release about all records that was made before the first round, and is part of the run."""

    share: float  # of the budget's mu^2 that was planned for it
    entry: ReleaseEntry  # its ledger line


class PlannedRelease(NamedTuple):
    """A release to come."""

    round: int
    purpose: str
    multiplier: float  # noise deviation / sensitivity
    exposure: Exposure  # how a unit shows in it

    @property
    def spend(self) -> Spend:
        """The release as the accountant sees it."""
        return Spend(self.multiplier, self.exposure.sampling, self.exposure.rate, self.exposure.members)


@dataclass(frozen=True)
class Plan:
    """Noise multipliers of a run, and what follows from them."""

    algorithm: Algorithm
    budget: Budget
    population: Population
    accounting: str
    multipliers: Mapping[str, float]
    opening_share: float | None = None  # of mu^2, for a release before the first round

    @property
    def client_sizes(self) -> tuple[int, ...]:
        return self.population.sizes

    @property
    def weighting(self) -> str:
        return self.population.weighting

    @cached_property
    def releases(self) -> tuple[PlannedRelease, ...]:
        """Every release, in order. Where noise is chosen on the way: as it would be with regular restarts."""
        return tuple(
            PlannedRelease(r, planned.purpose, self.multipliers[planned.purpose] * planned.factor, planned.exposure)
            for r, planned in _planned(self.algorithm, self.population, self.opening_share)
        )

    @cached_property
    def epsilon(self) -> float:
        """What the releases cost together, at ``budget.delta``."""
        return total_epsilon((release.spend for release in self.releases), self.budget.delta)

    @cached_property
    def mu(self) -> float:
        """The GDP parameter of the full Gaussian releases, for whoever is exposed most; infinity without noise."""
        spends = [release.spend for release in self.releases if release.exposure.sampling == FULL]
        return max(gaussian_mu(profile) for profile in profiles(spends))

    @property
    def allowance(self) -> float:
        """The sum of 1/z^2 of the full releases but the opening one, for whoever is exposed most."""
        if self.opening_share is None or not self.budget.private:
            return self.mu**2
        return self.mu**2 - self.multipliers[SCALING] ** -2

    @property
    def sigma_1(self) -> float | None:
        """Noise deviation of a gradient, in units of C_1; None where no gradient is released."""
        return self._sigma(GRADIENT)

    @property
    def sigma_2(self) -> float | None:
        """Noise deviation of a difference, in units of its radius; None where no difference is released."""
        return self._sigma(DIFFERENCE)

    @property
    def sigma_3(self) -> float | None:
        """Noise deviation of a local step, in units of its radius; None where there is none."""
        return self._sigma(LOCAL)

    def _sigma(self, purpose: str) -> float | None:
        if purpose not in self.multipliers:
            return None
        widest = max(release.exposure.sensitivity for release in self.releases if release.purpose == purpose)
        return self.multipliers[purpose] * widest


def plan(
    algorithm: Algorithm,
    budget: Budget,
    client_sizes: Sequence[int],
    *,
    weighting: str = "clients",
    accounting: str = "exact",
    unit: str = "record",
    clients_per_round: int | None = None,
    client_order: str = "round_robin",
    opening_share: float | None = None,
) -> Plan:
    """Return the noise that makes ``algorithm`` keep ``budget`` on clients of these sizes.

    Args:
        client_sizes: the number of records of each client.
        weighting: ``"clients"``, the mean of the clients' means; ``"records"``, the mean over all records.
        accounting: ``"exact"``, or ``"paper"`` for the closed forms of the paper, which need more noise.
        unit: what is protected: a ``"record"``, an ``"owner"`` of several records, a ``"client"`` with all its records.
        clients_per_round: how many clients take part in a round; None: all.
        client_order: ``"round_robin"`` in a shuffled public order, or, for ``unit="client"``, ``"random"``.
        opening_share: the share of mu^2 for one release about all records before the first round.
    """
    if not isinstance(budget, Budget):
        raise InvalidArgument(f"expected budget to be a diff2.Budget, got {type(budget).__name__}")
    if not hasattr(algorithm, "estimate"):
        raise InvalidArgument(f"expected algorithm to be one of diff2's algorithms, got {type(algorithm).__name__}")
    sizes = tuple(int(size) for size in client_sizes)
    population = Population(sizes, weighting, unit, clients_per_round, client_order, algorithm.adjacency)
    algorithm.check(population, budget.private)
    algorithm.routine.check(population, budget.private)
    if budget.private and budget.delta > 1 / population.units:
        warnings.warn(
            f"delta={budget.delta:g} is larger than 1/{population.units}, one over the number of {unit}s: the "
            f"guarantee would allow to publish a {unit} chosen at random. Choose a smaller delta",
            WeakDeltaWarning,
            stacklevel=2,
        )
    if opening_share is not None:
        _check_opening(opening_share, population)
    found = _profiles(algorithm, population, opening_share)
    multipliers = calibrate(found, _shares(algorithm, found, opening_share), budget, accounting)
    return Plan(algorithm, budget, population, accounting, multipliers, opening_share)


def opening_exposure(population: Population) -> Exposure:
    """Return how a unit shows in the release before the first round, in which all clients take part."""
    return replace(population, clients_per_round=None, client_order="round_robin").exposure(1)


def _check_opening(share: float, population: Population) -> None:
    if not 0 < share < 1:
        raise InvalidArgument(f"expected opening_share between 0 and 1, got opening_share={share!r}")
    if population.adjacency != REPLACE_ONE or population.unit == "owner":
        raise InvalidArgument(
            "a release before the first round is priced for replacing a record or a client; Poisson batches are priced "
            "for adding or removing one, and owners of several records are not bounded in it. Use sampling='fixed', or "
            "scale by public bounds"
        )


def _shares(algorithm: Algorithm, profiles: Sequence[Profile], opening_share: float | None) -> dict[str, float]:
    """Return the shares of all purposes; a routine that makes releases gets a third, if the algorithm does not say."""
    shares = dict(algorithm.shares())
    if LOCAL not in shares:
        rest = (1 - LOCAL_SHARE) / sum(shares.values())
        shares = {**{purpose: share * rest for purpose, share in shares.items()}, LOCAL: LOCAL_SHARE}
    if opening_share is not None:
        used = {kind.purpose for profile in profiles for kind in profile} - {SCALING}
        shares[SCALING] = opening_share / (1 - opening_share) * sum(shares[purpose] for purpose in used)
    return shares


def _planned(
    algorithm: Algorithm, population: Population, opening_share: float | None
) -> Iterator[tuple[int, Planned]]:
    if opening_share is not None:
        yield 0, Planned(SCALING, opening_exposure(population))
    for r in range(1, algorithm.rounds + 1):
        for planned in algorithm.releases(r, population):
            yield r, planned
        for planned in algorithm.routine.releases(r, population):
            yield r, planned


def _profiles(algorithm: Algorithm, population: Population, opening_share: float | None) -> list[Profile]:
    """Return what units are exposed to: one profile for all, or one for each client or part where they differ."""
    found = by_exposure(
        (
            Kind(planned.purpose, planned.exposure.sampling, 1.0, planned.factor, planned.padding),
            planned.exposure.rate,
            planned.exposure.members,
        )
        for _, planned in _planned(algorithm, population, opening_share)
    )
    return [{kind._replace(rate=rate): count for (kind, rate), count in profile.items()} for profile in found]
