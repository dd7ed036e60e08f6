r"""DP-SRM: recursive momentum on batches (Wang, Jayaraman, Evans & Gu, UAI 2023).

.. math::
    v_1 = \nabla f_{B_1}(x_0) + \xi, \qquad
    v_r = \gamma \nabla f_B(x_{r-1}) + (1 - \gamma) \left( \nabla f_B(x_{r-1}) - \nabla f_B(x_{r-2}) + v_{r-1} \right)
    + \xi

with a fresh batch of b records, drawn without replacement, in every round. Gradients are clipped to :math:`C_1` and
differences to the *constant* :math:`C_2`, so a record in the batch moves the release by at most
:math:`2 ((1 - \gamma) C_2 + \gamma C_1) / b`. The noise is calibrated numerically; the paper's closed form holds under
conditions that realistic sizes do not meet.

The paper's step, at most ``longest`` long, is ``NormalizedDescent(learning_rate, longest=...)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from .._types import Vector
from .._validate import at_least, positive
from ..errors import InvalidArgument
from ..privacy import combined
from ..questions.population import Batch, Population
from ..questions.round import DIFFERENCE, GRADIENT, Estimate, Planned, Round
from ..routines import Routine
from .base import Estimator, require_finite


@dataclass(frozen=True)
class DPSRM(Estimator):
    """DP-SRM with any routine.

    Args:
        batch_size: b, of all clients together.
        clip_gradient: C_1.
        clip_difference: C_2, the radius of a difference, the same in every round.
        gain: gamma, the weight of the fresh gradient.
        first_share: share of the budget for the gradient of the first round.
    """

    rounds: int
    batch_size: int
    clip_gradient: float
    clip_difference: float
    gain: float
    routine: Routine
    first_share: float = 0.05
    name: ClassVar[str] = "dpsrm"

    def __post_init__(self) -> None:
        at_least("rounds", self.rounds, 1)
        at_least("batch_size", self.batch_size, 1)
        positive("clip_gradient", self.clip_gradient, infinite=True)
        positive("clip_difference", self.clip_difference, infinite=True)
        for name, value in (("gain", self.gain), ("first_share", self.first_share)):
            if not 0 < value < 1:
                raise InvalidArgument(f"expected {name} between 0 and 1, got {name}={value!r}")

    def releases(self, round: int, population: Population) -> Iterable[Planned]:
        yield Planned(GRADIENT if round == 1 else DIFFERENCE, population.exposure(round, self._batch))

    def shares(self) -> Mapping[str, float]:
        return {GRADIENT: self.first_share, DIFFERENCE: 1 - self.first_share}

    def check(self, population: Population, private: bool) -> None:
        population.check(self._batch)
        if private:
            require_finite("clip_gradient", self.clip_gradient)
            require_finite("clip_difference", self.clip_difference)

    def init(self, params: Vector, population: Population) -> dict[str, Any]:
        return {
            "previous_params": params.clone(),
            "estimate": torch.zeros_like(params, dtype=torch.float64),
            "variance": 0.0,
        }

    def estimate(self, state: dict[str, Any], round: Round) -> tuple[Estimate, dict[str, Any]]:
        r, params, cohort = round.number, round.params, round.cohort
        # The same round and step draw the same batch: gradient and difference are of the same records.
        gradient = cohort.clipped_gradient(params, self.clip_gradient, round=r, batch=self._batch)
        if r == 1:
            release = round.release(gradient, GRADIENT)
            value, variance = release.value, release.variance
        else:
            keep = 1 - self.gain
            previous = state["previous_params"]
            difference = cohort.clipped_difference(
                params, previous, self.clip_difference, round=r, batch=self._batch
            )  # fmt: skip
            release = round.release(combined([(self.gain, gradient), (keep, difference)]), DIFFERENCE)
            value = keep * state["estimate"] + release.value
            variance = keep**2 * state["variance"] + release.variance
        return Estimate(value, variance), {"previous_params": params, "estimate": value, "variance": variance}

    @property
    def _batch(self) -> Batch:
        return Batch(size=self.batch_size)
