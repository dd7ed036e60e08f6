r"""BVR-L-SGD-Routine (Algorithm 4): one client takes further small noisy steps of its own.

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

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from .._validate import at_least, one_of, positive
from .._vectors import State, Vector, moved
from ..errors import InvalidArgument
from ..questions import LOCAL, Batch, Estimate, Population, Question, Round, Smoothness
from .base import SCHEDULES, Routine, scheduled


@dataclass(frozen=True)
class BVRLocalSGD(Routine):
    """Bias-variance reduced local SGD at one client per round.

    Args:
        learning_rate: eta, of every step.
        local_steps: K; 1 is gradient descent.
        batch_size: b, at most the records of the smallest client.
        local_clip_smoothness: C_3; a difference is clipped to C_3 times the distance between the two local iterates.
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

    def questions(self, round: int, population: Population) -> Iterable[Question]:
        client, rule = round % len(population.sizes), Smoothness(self.local_clip_smoothness)
        batch = Batch(clients=(client,), size=self.batch_size)
        for k in range(2, self.local_steps + 1):
            yield Question.difference(rule, LOCAL, batch=batch, step=k)

    def check(self, population: Population, private: bool) -> None:
        if self.local_steps > 1:
            for p in range(len(population.sizes)):
                population.check(Batch(clients=(p,), size=self.batch_size))
            if private and math.isinf(self.local_clip_smoothness):
                raise InvalidArgument(
                    "expected local_clip_smoothness to be finite in a private run, got inf; choose a radius"
                )

    def overcount(self) -> dict[str, float]:
        # The paper counts K steps where K - 1 are noisy.
        return {LOCAL: self.local_steps / (self.local_steps - 1)} if self.local_steps > 1 else {}

    def step(self, state: State, params: Vector, estimate: Estimate, round: Round) -> tuple[Vector, State]:
        rate = scheduled(self.learning_rate, self.schedule, round.number, round.total)
        value, before, now = estimate.value, params, moved(params, rate * estimate.value)
        round.visit(0, params)
        for question in round.routine_questions:
            round.visit(question.step - 1, now)
            # Noise first, then the sum: see the estimator.
            value = value + round.release(round.ask(question, now, before)).value
            before, now = now, moved(now, rate * value)
        return now, state
