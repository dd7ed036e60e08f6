r"""Fused restarts: a restart does not throw the running estimate away, it is weighed against it.

Every round r > 1 releases the difference; every T rounds the gradient as well. The noise in the running estimate has
the exactly known variance P (a coordinate), that of a fresh gradient :math:`s_g^2`, and the two are independent:

.. math::
    P \leftarrow P + s_d^2, \qquad \kappa = \frac{P}{P + s_g^2}, \qquad
    \tilde v \leftarrow \tilde v + \kappa (\tilde g - \tilde v), \qquad P \leftarrow (1 - \kappa) P .

This is the best linear combination, and P never exceeds what a restart would leave. It is post-processing of released
values, so it costs nothing beyond the releases.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from .._types import Vector
from .._validate import at_least, one_of, positive
from ..errors import InvalidArgument
from ..questions.population import Population
from ..questions.round import DIFFERENCE, GRADIENT, Estimate, Planned, Round
from ..routines import Routine
from .base import Estimator, difference_radius, require_finite
from .diff2 import CLIPPINGS, split_shares


@dataclass(frozen=True)
class FusedDiff2(Estimator):
    """DIFF2 whose restarts are combined with the running estimate by inverse variance.

    Args:
        restart_interval: T: a gradient is released every T rounds, beside the difference.
        budget_split: u: gradients get the share 1/u.
        Others: as in :class:`Diff2`.
    """

    rounds: int
    restart_interval: int
    clip_gradient: float
    clip_smoothness: float
    routine: Routine
    budget_split: float = 2.0
    clipping: str = "separate"
    name: ClassVar[str] = "fused_diff2"

    def __post_init__(self) -> None:
        at_least("rounds", self.rounds, 1)
        at_least("restart_interval", self.restart_interval, 1)
        positive("clip_gradient", self.clip_gradient, infinite=True)
        positive("clip_smoothness", self.clip_smoothness, infinite=True)
        positive("budget_split", self.budget_split)
        one_of("clipping", self.clipping, CLIPPINGS)
        if self.budget_split <= 1:
            raise InvalidArgument(
                f"expected budget_split > 1 (gradients get 1/budget_split), got {self.budget_split!r}"
            )

    def releases(self, round: int, population: Population) -> Iterable[Planned]:
        exposure = population.exposure(round)
        if round > 1:
            yield Planned(DIFFERENCE, exposure)
        if self._fuses(round):
            yield Planned(GRADIENT, exposure)

    def shares(self) -> Mapping[str, float]:
        return split_shares(self.budget_split)

    def check(self, population: Population, private: bool) -> None:
        if private:
            require_finite("clip_gradient", self.clip_gradient)

    def init(self, params: Vector, population: Population) -> dict[str, Any]:
        return {
            "previous_params": params.clone(),
            "estimate": torch.zeros_like(params, dtype=torch.float64),
            "variance": math.inf,  # nothing is known before the first gradient
        }

    def estimate(self, state: dict[str, Any], round: Round) -> tuple[Estimate, dict[str, Any]]:
        r, params = round.number, round.params
        value, variance = state["estimate"], state["variance"]
        if r > 1:
            previous = state["previous_params"]
            radius = difference_radius(params, previous, self.clip_smoothness, 2 * self.clip_gradient)
            inner = self.clip_gradient if self.clipping == "telescoped" else math.inf
            mean = round.cohort.clipped_difference(params, previous, radius, round=r, inner=inner)
            difference = round.release(mean, DIFFERENCE)
            value, variance = value + difference.value, variance + difference.variance
        if self._fuses(r):
            # A release of its own, hence with clients drawn for it alone, where they are drawn.
            mean = round.cohort.clipped_gradient(params, self.clip_gradient, round=r, step=1, remember=True)
            gradient = round.release(mean, GRADIENT)
            gain = fusion_gain(variance, gradient.variance)
            value = value + gain * (gradient.value - value)
            variance = gradient.variance if gain == 1 else (1 - gain) * variance
        return Estimate(value, variance), {"previous_params": params, "estimate": value, "variance": variance}

    def _fuses(self, r: int) -> bool:
        return (r - 1) % self.restart_interval == 0


def fusion_gain(running: float, fresh: float) -> float:
    """Return kappa, the weight of a fresh value beside a running one; without noise the fresh one is taken.

    >>> fusion_gain(3.0, 1.0), fusion_gain(float("inf"), 1.0), fusion_gain(0.0, 0.0)
    (0.75, 1.0, 1.0)
    """
    return 1.0 if math.isinf(running) or running + fresh == 0 else running / (running + fresh)
