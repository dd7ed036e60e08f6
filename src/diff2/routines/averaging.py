r"""Return an average of the last iterates instead of the last one.

Around a minimum the iterates jump with the noise, and their mean lies closer to it than any of them (Polyak and
Juditsky 1992). Where gradients are asked for does not change, and neither does the cost in privacy.

.. math::
    \bar x_k = \bar x_{k-1} + w_k (x_k - \bar x_{k-1}), \qquad
    w_k = \begin{cases} 1 / k & \text{mean} \\ (1 - \beta) / (1 - \beta^k) & \text{moving average} \end{cases}

for k = 1, 2, ... counted from the first round after ``start``, with :math:`\beta` the ``decay``. The second is the
exponential moving average :math:`\beta \bar x + (1 - \beta) x_k` with its bias towards zero divided out.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from .._vectors import State, Vector, zeros
from ..questions import Estimate, Population, Question, Round
from .base import Routine, fraction
from .given import as_routine


@dataclass(frozen=True)
class Averaging(Routine):
    """Another routine, with the average of its iterates as the output.

    Args:
        routine: moves the parameters.
        start: share of the rounds, in [0, 1), after which averaging starts; until then the output is the routine's.
        decay: weight of the past in an exponential moving average, in [0, 1); None: the plain mean over rounds.
    """

    routine: Routine
    start: float = 0.5
    decay: float | None = None
    name: ClassVar[str] = "averaging"

    def __post_init__(self) -> None:
        object.__setattr__(self, "routine", as_routine(self.routine))
        fraction("start", self.start)
        if self.decay is not None:
            fraction("decay", self.decay)

    @property
    def local_steps(self) -> int:  # type: ignore[override]
        return self.routine.local_steps

    def init(self, params: Vector) -> State:
        return {"routine": self.routine.init(params), "count": 0, "mean": zeros(params)}

    def step(self, state: State, params: Vector, estimate: Estimate, round: Round) -> tuple[Vector, State]:
        params, inner = self.routine.step(state["routine"], params, estimate, round)
        count, mean = state["count"], state["mean"]
        if round.number > self.start * round.total:
            count += 1
            mean = mean + self._weight(count) * (self.routine.output(inner, params).double() - mean)
        return params, {"routine": inner, "count": count, "mean": mean}

    def output(self, state: State, params: Vector) -> Vector:
        if state["count"] == 0:
            return self.routine.output(state["routine"], params)
        mean: Vector = state["mean"]
        return mean.to(params.dtype)

    def questions(self, round: int, population: Population) -> Iterable[Question]:
        return self.routine.questions(round, population)

    def check(self, population: Population, private: bool) -> None:
        self.routine.check(population, private)

    def overcount(self) -> dict[str, float]:
        return self.routine.overcount()

    def _weight(self, count: int) -> float:
        return 1 / count if self.decay is None else (1 - self.decay) / (1 - self.decay**count)
