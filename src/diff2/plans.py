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
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ._validate import at_least
from .cohort import effective_records
from .errors import InvalidArgument, WeakDeltaWarning
from .estimators import DIFFERENCE, GRADIENT, Algorithm
from .privacy import Budget, ReleaseGroup, calibrate, epsilon_of

LOCAL = "local"  # purpose of a release of a local step; its sigma is the paper's sigma_3


class PlannedRelease(NamedTuple):
    """A release to come."""

    round: int
    purpose: str
    multiplier: float  # noise deviation / sensitivity


@dataclass(frozen=True)
class Plan:
    """Noise multipliers of a run, and what follows from them."""

    algorithm: Algorithm
    budget: Budget
    client_sizes: tuple[int, ...]
    weighting: str
    accounting: str
    multipliers: Mapping[str, float]

    @cached_property
    def releases(self) -> tuple[PlannedRelease, ...]:
        """Every release, in order."""
        return tuple(PlannedRelease(r, kind, self.multipliers[kind]) for r, kind in self.algorithm.schedule())

    @cached_property
    def epsilon(self) -> float:
        """What the releases cost together, at ``budget.delta``."""
        return epsilon_of((release.multiplier for release in self.releases), self.budget.delta)

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
        return 2 * self.multipliers[purpose] / effective_records(self.client_sizes, self.weighting)


def plan(
    algorithm: Algorithm,
    budget: Budget,
    client_sizes: Sequence[int],
    *,
    weighting: str = "clients",
    accounting: str = "exact",
) -> Plan:
    """Return the noise that makes ``algorithm`` keep ``budget`` on clients of these sizes.

    Args:
        client_sizes: the number of records of each client.
        weighting: ``"clients"``, the mean of the clients' means; ``"records"``, the mean over all records.
        accounting: ``"exact"``, or ``"paper"`` for the closed forms of the paper, which need more noise.
    """
    if not isinstance(budget, Budget):
        raise InvalidArgument(f"expected budget to be a diff2.Budget, got {type(budget).__name__}")
    sizes = tuple(int(size) for size in client_sizes)
    at_least("number of clients", len(sizes), 1)
    for p, size in enumerate(sizes):
        at_least(f"client_sizes[{p}]", size, 1)
    effective_records(sizes, weighting)
    if budget.private:
        algorithm.check_bounded()
        if budget.delta > 1 / sum(sizes):
            warnings.warn(
                f"delta={budget.delta:g} is larger than 1/{sum(sizes)}, one over the number of records: the guarantee "
                "would allow to publish a record chosen at random. Choose a smaller delta",
                WeakDeltaWarning,
                stacklevel=2,
            )
    counts = Counter(purpose for _, purpose in algorithm.schedule())
    groups = [ReleaseGroup(purpose, counts[purpose], share) for purpose, share in algorithm.shares().items()]
    return Plan(algorithm, budget, sizes, weighting, accounting, calibrate(groups, budget, accounting))
