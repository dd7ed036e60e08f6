r"""The plan of a run: how much noise, and what it costs. Touches no data.

>>> from diff2 import Budget, Diff2, GradientDescent, plan
>>> algorithm = Diff2(rounds=2000, restart_interval=20, clip_gradient=3.0, clip_smoothness=10.0,
...                   routine=GradientDescent(learning_rate=0.125))
>>> noise = plan(algorithm, Budget(epsilon=3.0, delta=1e-5), client_sizes=[1651] * 10)
>>> round(noise.sigma_1, 9), round(noise.sigma_2, 9), noise.sigma_3, len(noise.releases)
(0.001883381, 0.016418932, None, 2000)
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ..algorithms import Algorithm
from ..algorithms.base import check_algorithm
from ..errors import InvalidArgument, WeakDeltaWarning
from ..privacy import Budget, Release, calibrate, total_epsilon
from ..privacy.release import FULL, REPLACE_ONE
from ..questions import DIFFERENCE, GRADIENT, LOCAL, SCALING, Population, Protection, Question
from ..routines.base import check_routine

LOCAL_SHARE = 1 / 3  # of the budget, for a routine that makes releases of its own


@dataclass(frozen=True)
class Plan:
    """Noise multipliers of a run, and what follows from them."""

    algorithm: Algorithm
    budget: Budget
    population: Population
    accounting: str
    multipliers: Mapping[str, float]
    releases: tuple[Release, ...] = field(repr=False)  # all of them, in order, for the radius one
    opening_share: float | None = None  # of mu^2, for a release before the first round

    @property
    def client_sizes(self) -> tuple[int, ...]:
        return self.population.sizes

    @cached_property
    def epsilon(self) -> float:
        """What the releases cost together, at ``budget.delta``."""
        return total_epsilon(self.releases, self.budget.delta)

    @property
    def sigma_1(self) -> float | None:
        """Standard deviation of the noise of a gradient, in units of C_1; None where no gradient is released."""
        return self._sigma(GRADIENT)

    @property
    def sigma_2(self) -> float | None:
        """Standard deviation of the noise of a difference, in units of its radius; None if none is released."""
        return self._sigma(DIFFERENCE)

    @property
    def sigma_3(self) -> float | None:
        """Standard deviation of the noise of a local step, in units of its radius; None where there is none."""
        return self._sigma(LOCAL)

    @property
    def sigmas(self) -> dict[str, float | None]:
        """All three by name."""
        return {"sigma_1": self.sigma_1, "sigma_2": self.sigma_2, "sigma_3": self.sigma_3}

    def _sigma(self, purpose: str) -> float | None:
        if purpose not in self.multipliers:
            return None
        widest = max(release.sensitivity for release in self.releases if release.purpose == purpose)
        return self.multipliers[purpose] * widest


def plan(
    algorithm: Algorithm,
    budget: Budget,
    client_sizes: Sequence[int],
    protection: Protection | None = None,
    *,
    dimension: int | None = None,
    opening_share: float | None = None,
    multipliers: Mapping[str, float] | None = None,
    **settings: Any,
) -> Plan:
    """Return the noise that makes ``algorithm`` keep ``budget`` on clients of these sizes.

    Args:
        client_sizes: the number of records of each client; for Poisson batches, a public upper bound.
        protection: what is protected, and how that is accounted; by default every record, exactly.
        dimension: the number of parameters of the model, from which some settings are chosen.
        opening_share: the share of mu^2 for one release about all records before the first round.
        multipliers: of each purpose, where they are known already; by default they are calibrated to the budget.
        settings: fields of :class:`diff2.Protection` by name, such as ``weighting="records"``.
    """
    protection = protected(protection, settings)
    if not isinstance(budget, Budget):
        raise InvalidArgument(f"expected budget to be a diff2.Budget, got {type(budget).__name__}")
    if not isinstance(algorithm, Algorithm):
        raise InvalidArgument(
            f"expected algorithm to be a diff2.Algorithm such as diff2.Diff2(...), got {type(algorithm).__name__}"
        )
    check_algorithm(type(algorithm))
    check_routine(type(algorithm.routine))
    algorithm = algorithm.settled(
        lambda other: plan(other, budget, client_sizes, protection, opening_share=opening_share).sigma_1 or 0.0,
        dimension,
    )
    population = protection.population(client_sizes, algorithm.adjacency)
    algorithm.check(population, budget.private)
    algorithm.routine.check(population, budget.private)
    budget.warn()
    if budget.private and budget.delta > 1 / population.units:
        warnings.warn(
            f"delta={budget.delta:g} is larger than 1/{population.units}, one over the number of {population.unit}s: "
            f"the guarantee would allow publishing a {population.unit} chosen at random. Choose a smaller delta",
            WeakDeltaWarning,
            stacklevel=2,
        )
    if opening_share is not None:
        _check_opening(opening_share, population)
    releases = list(_planned(algorithm, population, opening_share))
    if multipliers is None:
        shares = _shares(algorithm, {release.purpose for release in releases}, opening_share)
        multipliers = calibrate(releases, shares, budget, protection.accounting, algorithm.routine.overcount())
    priced = tuple(release._replace(multiplier=multipliers[release.purpose]) for release in releases)
    return Plan(algorithm, budget, population, protection.accounting, multipliers, priced, opening_share)


def protected(protection: Protection | None, settings: Mapping[str, Any]) -> Protection:
    """Return the protection with some of its fields changed by name."""
    found = Protection() if protection is None else protection
    for name in settings:
        if name not in Protection.__dataclass_fields__:
            known = ", ".join(Protection.__dataclass_fields__)
            raise InvalidArgument(f"unknown setting {name}={settings[name]!r}; what is protected is set by: {known}")
    return replace(found, **settings)


def opening_release(population: Population) -> Release:
    """Return how a unit shows in the release before the first round, in which all clients take part."""
    everyone = replace(population, clients_per_round=None, client_order="round_robin")
    return everyone.release(Question.gradient(1.0, SCALING), 0)


def _check_opening(share: float, population: Population) -> None:
    if not 0 < share < 1:
        raise InvalidArgument(f"expected opening_share between 0 and 1, got opening_share={share!r}")
    if population.adjacency != REPLACE_ONE or population.unit == "group":
        raise InvalidArgument(
            "a release before the first round is priced for replacing a record or a client; Poisson batches are priced "
            "for adding or removing one, and groups of records are not bounded in it. Use sampling='fixed', or "
            "scale by public bounds"
        )


def _shares(algorithm: Algorithm, purposes: set[str], opening_share: float | None) -> dict[str, float]:
    """Return the shares of all purposes; a routine that makes releases gets a third, by default."""
    shares = dict(algorithm.shares())
    if LOCAL not in shares:
        rest = (1 - LOCAL_SHARE) / sum(shares.values())
        shares = {**{purpose: share * rest for purpose, share in shares.items()}, LOCAL: LOCAL_SHARE}
    missing = sorted(purposes - set(shares) - {SCALING})
    if missing:
        raise InvalidArgument(
            f"{algorithm.name}: questions() asks for releases of purpose {missing[0]!r}, and shares() gives that no "
            f"share of the budget; it has {shares}"
        )
    if opening_share is not None:
        shares[SCALING] = opening_share / (1 - opening_share) * sum(shares[p] for p in purposes - {SCALING})
    return shares


def _planned(algorithm: Algorithm, population: Population, opening_share: float | None) -> Iterator[Release]:
    """Yield one release for all questions of a round that have the same purpose and step."""
    if opening_share is not None:
        yield opening_release(population)
    for r in range(1, algorithm.rounds + 1):
        known: dict[tuple[int, str, int], Release] = {}
        for question in algorithm.declared(r, population):
            release = population.release(question, r)
            if known.setdefault(release.label, release) != release:
                raise InvalidArgument(
                    f"{algorithm.name}: two questions of round {r} with purpose {question.purpose!r} and step "
                    f"{question.step} are about different records; give each its own step"
                )
        drawn = [release.step for release in known.values() if release.sampling != FULL]
        if len(set(drawn)) < len(drawn):
            raise InvalidArgument(
                f"{algorithm.name}: two releases of round {r} with the same step are about one draw of records, and "
                "would be priced as about two; give each its own step"
            )
        if not known:
            raise InvalidArgument(
                f"{algorithm.name}: questions() declares nothing for round {r}; every round asks once"
            )
        yield from known.values()
