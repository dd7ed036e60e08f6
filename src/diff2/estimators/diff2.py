r"""The DIFF2 gradient estimator: a private running sum of gradient differences (Algorithm 1).

.. math::
    \tilde v_r &= \text{noisy clipped gradient at } x_{r-1}                                  & (r-1) \bmod T = 0 \\
    \tilde v_r &= \tilde v_{r-1} + \text{noisy clipped difference } x_{r-2} \to x_{r-1}      & \text{otherwise}

A difference is clipped to :math:`C_2 \lVert x_{r-1} - x_{r-2} \rVert`, and with ``cap`` to :math:`2 C_1` where that is
smaller (two gradients of norm at most :math:`C_1` differ by no more). The radius depends on released iterates alone,
hence costs no privacy. The noise is added to the increment first and the sum to the previous estimate afterwards: in
floating point the other order would round before the noise is there to hide it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from .._types import Vector
from .._validate import at_least, positive
from ..errors import InvalidArgument
from ..privacy import Release
from ..routines import Routine
from .base import DIFFERENCE, GRADIENT, Request


@dataclass(frozen=True)
class Diff2:
    """DIFF2 with any routine; with ``GradientDescent`` it is DIFF2-GD.

    Args:
        rounds: R.
        restart_interval: T. A fresh gradient every T rounds; 1 is DP-GD.
        clip_gradient: C_1, the radius for a record's gradient.
        clip_smoothness: C_2; a record's difference is clipped to C_2 times the distance of the two iterates.
        routine: what to do with the estimate.
        budget_split: u > 1. Restarts get the share 1/u of the budget, differences the rest.
        cap: clip differences to at most 2 C_1. ``False`` is the paper.
    """

    rounds: int
    restart_interval: int
    clip_gradient: float
    clip_smoothness: float
    routine: Routine
    budget_split: float = 1.25
    cap: bool = True
    name: ClassVar[str] = "diff2"

    def __post_init__(self) -> None:
        at_least("rounds", self.rounds, 1)
        at_least("restart_interval", self.restart_interval, 1)
        positive("clip_gradient", self.clip_gradient, infinite=True)
        positive("clip_smoothness", self.clip_smoothness, infinite=True)
        positive("budget_split", self.budget_split)
        if self.budget_split <= 1:
            raise InvalidArgument(
                f"expected budget_split > 1 (restarts get the share 1/budget_split), got {self.budget_split!r}"
            )

    def schedule(self) -> Iterator[tuple[int, str]]:
        for r in range(1, self.rounds + 1):
            yield r, GRADIENT if self._restarts(r) else DIFFERENCE

    def shares(self) -> Mapping[str, float]:
        return {GRADIENT: 1 / self.budget_split, DIFFERENCE: 1 - 1 / self.budget_split}

    def check_bounded(self) -> None:
        require_finite("clip_gradient", self.clip_gradient)
        if self.restart_interval > 1 and not self.cap:
            require_finite("clip_smoothness", self.clip_smoothness)

    def init(self, params: Vector) -> dict[str, Any]:
        # x_{-1} and v_0 are never used: round 1 is a restart.
        return {"previous_params": params.clone(), "estimate": torch.zeros_like(params, dtype=torch.float64)}

    def estimate(self, state: dict[str, Any], request: Request) -> tuple[Vector, dict[str, Any], Release]:
        r, params, cohort = request.round, request.params, request.cohort
        if self._restarts(r):
            mean = cohort.clipped_gradient(
                params, self.clip_gradient, round=r, remember=not self._restarts(r + 1) and r < self.rounds
            )
            base, purpose = 0.0, GRADIENT
        else:
            previous = state["previous_params"]
            radius = self._difference_radius(params, previous)
            mean = cohort.clipped_difference(params, previous, radius, round=r)
            base, purpose = state["estimate"], DIFFERENCE
        release = request.mechanism.gaussian(mean, request.multipliers[purpose], round=r, purpose=purpose)
        estimate = base + release.value
        return estimate, {"previous_params": params, "estimate": estimate}, release

    def _restarts(self, r: int) -> bool:
        return (r - 1) % self.restart_interval == 0

    def _difference_radius(self, params: Vector, previous: Vector) -> float:
        """C_{2,r}, computed in double precision: in single precision close iterates could seem equal."""
        distance = float(torch.linalg.vector_norm(params.double() - previous.double()))
        if distance == 0:
            return 0.0
        radius = self.clip_smoothness * distance
        return min(radius, 2 * self.clip_gradient) if self.cap else radius


def require_finite(name: str, value: float) -> None:
    """Refuse an infinite radius in a private run."""
    if math.isinf(value):
        raise InvalidArgument(
            f"expected {name} to be finite in a private run, got {name}={value!r}; without clipping no noise hides a "
            "record. Choose a radius, or Budget(epsilon=math.inf)"
        )
