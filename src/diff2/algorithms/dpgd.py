"""The plain estimators: a fresh gradient every round, with noise (DP-GD) or without (GD)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from .._validate import at_least, positive
from ..errors import BudgetExceeded
from ..questions.population import Population
from ..questions.round import GRADIENT, Estimate, Planned, Round
from ..routines import Routine
from .base import Estimator, require_finite


@dataclass(frozen=True)
class DPGD(Estimator):
    """DP-GD: the clipped mean gradient with noise, every round. ``Diff2`` with ``restart_interval=1``, bit for bit."""

    rounds: int
    clip_gradient: float
    routine: Routine
    name: ClassVar[str] = "dpgd"

    def __post_init__(self) -> None:
        at_least("rounds", self.rounds, 1)
        positive("clip_gradient", self.clip_gradient, infinite=True)

    def releases(self, round: int, population: Population) -> Iterable[Planned]:
        yield Planned(GRADIENT, population.exposure(round))

    def shares(self) -> Mapping[str, float]:
        return {GRADIENT: 1.0}

    def check(self, population: Population, private: bool) -> None:
        if private:
            require_finite("clip_gradient", self.clip_gradient)

    def estimate(self, state: dict[str, Any], round: Round) -> tuple[Estimate, dict[str, Any]]:
        mean = round.cohort.clipped_gradient(round.params, self.clip_gradient, round=round.number)
        release = round.release(mean, GRADIENT)
        return Estimate(release.value, release.variance), state


@dataclass(frozen=True)
class GD(Estimator):
    """Gradient descent without clipping and without noise: a reference, never private."""

    rounds: int
    routine: Routine
    name: ClassVar[str] = "gd"

    def __post_init__(self) -> None:
        at_least("rounds", self.rounds, 1)

    def releases(self, round: int, population: Population) -> Iterable[Planned]:
        yield Planned(GRADIENT, population.exposure(round))

    def shares(self) -> Mapping[str, float]:
        return {GRADIENT: 1.0}

    def check(self, population: Population, private: bool) -> None:
        if private:
            raise BudgetExceeded(
                "GD adds no noise, so it exceeds every finite epsilon; use DPGD or Diff2, or Budget(epsilon=math.inf)"
            )

    def estimate(self, state: dict[str, Any], round: Round) -> tuple[Estimate, dict[str, Any]]:
        mean = round.cohort.clipped_gradient(round.params, float("inf"), round=round.number)
        return Estimate(round.release(mean, GRADIENT).value, 0.0), state
