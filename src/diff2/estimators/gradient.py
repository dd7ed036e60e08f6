"""The plain estimators: a fresh gradient every round, with noise (DP-GD) or without (GD)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from .._types import Vector
from .._validate import at_least, positive
from ..errors import BudgetExceeded
from ..privacy import Release
from ..routines import Routine
from .base import GRADIENT, Request
from .diff2 import require_finite


@dataclass(frozen=True)
class DPGD:
    """DP-GD: the clipped mean gradient with noise, every round. ``Diff2`` with ``restart_interval=1``, bit for bit."""

    rounds: int
    clip_gradient: float
    routine: Routine
    name: ClassVar[str] = "dpgd"

    def __post_init__(self) -> None:
        at_least("rounds", self.rounds, 1)
        positive("clip_gradient", self.clip_gradient, infinite=True)

    def schedule(self) -> Iterator[tuple[int, str]]:
        return ((r, GRADIENT) for r in range(1, self.rounds + 1))

    def shares(self) -> Mapping[str, float]:
        return {GRADIENT: 1.0}

    def check_bounded(self) -> None:
        require_finite("clip_gradient", self.clip_gradient)

    def init(self, params: Vector) -> dict[str, Any]:
        return {}

    def estimate(self, state: dict[str, Any], request: Request) -> tuple[Vector, dict[str, Any], Release]:
        r = request.round
        mean = request.cohort.clipped_gradient(request.params, self.clip_gradient, round=r, remember=False)
        release = request.mechanism.gaussian(mean, request.multipliers[GRADIENT], round=r, purpose=GRADIENT)
        return release.value, state, release


@dataclass(frozen=True)
class GD:
    """Gradient descent without clipping and without noise: a reference, never private."""

    rounds: int
    routine: Routine
    name: ClassVar[str] = "gd"

    def __post_init__(self) -> None:
        at_least("rounds", self.rounds, 1)

    def schedule(self) -> Iterator[tuple[int, str]]:
        return ((r, GRADIENT) for r in range(1, self.rounds + 1))

    def shares(self) -> Mapping[str, float]:
        return {GRADIENT: 1.0}

    def check_bounded(self) -> None:
        raise BudgetExceeded(
            "GD adds no noise, so it exceeds every finite epsilon; use DPGD or Diff2, or Budget(epsilon=math.inf)"
        )

    def init(self, params: Vector) -> dict[str, Any]:
        return {}

    def estimate(self, state: dict[str, Any], request: Request) -> tuple[Vector, dict[str, Any], Release]:
        r = request.round
        mean = request.cohort.clipped_gradient(request.params, float("inf"), round=r, remember=False)
        release = request.mechanism.gaussian(mean, request.multipliers[GRADIENT], round=r, purpose=GRADIENT)
        return release.value, state, release
