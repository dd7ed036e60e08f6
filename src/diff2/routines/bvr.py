r"""BVR-L-SGD-Routine (Algorithm 4): one client goes on with small noisy steps of its own.

Step 1 uses the estimate of the round. Then client :math:`p_r = 1 + r \bmod P` makes K - 1 steps, k = 2, ..., K, each on
a batch of b of its records, drawn without replacement:

.. math::
    \tilde v_k = \tilde v_{k-1} + \text{noisy clipped difference } x_{k-2} \to x_{k-1}, \qquad
    x_k = x_{k-1} - \eta \tilde v_k, \qquad C_{3,k} = C_3 \lVert x_{k-1} - x_{k-2} \rVert .

The sensitivity is :math:`2 C_{3,k} / b`, for the records of that client alone, and each of them is in the batch with
probability :math:`b/n_p`: a client meets this at most :math:`(K-1) \lceil R/P \rceil` times. All local iterates count
as released.

With ``output="uniform"`` the run returns :math:`x_{\hat k - 1, \hat r - 1}`, round and step uniform.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from .._types import Vector
from .._validate import at_least, one_of, positive
from ..errors import InvalidArgument
from ..questions.population import Batch, Population
from ..questions.round import LOCAL, Estimate, Planned, Round
from .schedule import SCHEDULES, scheduled


@dataclass(frozen=True)
class BVRLocalSGD:
    """Bias-variance reduced local SGD at one client a round.

    Args:
        learning_rate: eta, of every step.
        local_steps: K; 1 is gradient descent.
        batch_size: b, at most the records of the smallest client.
        local_clip_smoothness: C_3; a difference is clipped to C_3 times the distance of the two local iterates.
        schedule: of the learning rate.
    """

    learning_rate: float
    local_steps: int
    batch_size: int
    local_clip_smoothness: float
    schedule: str = "constant"
    name: ClassVar[str] = "bvr_local_sgd"

    def __post_init__(self) -> None:
        positive("learning_rate", self.learning_rate)
        at_least("local_steps", self.local_steps, 1)
        at_least("batch_size", self.batch_size, 1)
        positive("local_clip_smoothness", self.local_clip_smoothness, infinite=True)
        one_of("schedule", self.schedule, SCHEDULES)

    def init(self, params: Vector) -> dict[str, Any]:
        return {}

    def output(self, state: dict[str, Any], params: Vector) -> Vector:
        return params

    def releases(self, round: int, population: Population) -> Iterable[Planned]:
        if self.local_steps > 1:
            exposure = population.exposure(round, self._batch(round, len(population.sizes)))
            # The paper counts K steps where K - 1 are noisy.
            planned = Planned(LOCAL, exposure, padding=self.local_steps / (self.local_steps - 1))
            yield from [planned] * (self.local_steps - 1)

    def check(self, population: Population, private: bool) -> None:
        if self.local_steps > 1:
            for p in range(len(population.sizes)):
                population.check(Batch(clients=(p,), size=self.batch_size))
            if private and math.isinf(self.local_clip_smoothness):
                raise InvalidArgument(
                    "expected local_clip_smoothness to be finite in a private run, got inf; choose a radius"
                )

    def step(
        self, state: dict[str, Any], params: Vector, estimate: Estimate, round: Round
    ) -> tuple[Vector, dict[str, Any]]:
        rate = scheduled(self.learning_rate, self.schedule, round)
        batch = self._batch(round.number, len(round.cohort.population.sizes))
        value, before, now = estimate.value, params, _moved(params, rate, estimate.value)
        round.visit(0, params)
        for k in range(2, self.local_steps + 1):
            round.visit(k - 1, now)
            apart = float(torch.linalg.vector_norm(now.double() - before.double()))
            radius = self.local_clip_smoothness * apart if apart > 0 else 0.0
            mean = round.cohort.clipped_difference(now, before, radius, round=round.number, batch=batch, step=k)
            # Noise first, then the sum: see the estimator.
            value = value + round.release(mean, LOCAL, step=k).value
            before, now = now, _moved(now, rate, value)
        return now, state

    def _batch(self, round: int, clients: int) -> Batch:
        return Batch(clients=(round % clients,), size=self.batch_size)


def _moved(params: Vector, rate: float, value: Vector) -> Vector:
    return (params.double() - rate * value).to(params.dtype)
