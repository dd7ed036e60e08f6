r"""DP-SRM: recursive momentum on batches (Wang, Jayaraman, Evans & Gu, UAI 2023).

.. math::
    v_1 = \nabla f_{B_1}(x_0) + \xi, \qquad
    v_r = \gamma \nabla f_B(x_{r-1}) + (1 - \gamma) \left( \nabla f_B(x_{r-1}) - \nabla f_B(x_{r-2}) + v_{r-1} \right)
    + \xi

with a fresh batch of b records, drawn without replacement, in every round. Gradients are clipped to :math:`C_1` and
differences to the *constant* :math:`C_2`, so a record in the batch moves the release by at most
:math:`2 ((1 - \gamma) C_2 + \gamma C_1) / b`. The noise is calibrated numerically; the paper's closed form holds under
conditions that realistic sizes do not meet.

The paper's step, at most ``max_step_norm`` long, is ``NormalizedDescent(learning_rate, max_step_norm=...)``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from .._validate import at_least
from .._vectors import State, Vector, zeros
from ..errors import InvalidArgument
from ..questions import DIFFERENCE, GRADIENT, Batch, Estimate, Population, Question, Round
from ..routines import Routine
from .base import Algorithm


@dataclass(frozen=True)
class DPSRM(Algorithm):
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
    radii: ClassVar[tuple[str, ...]] = ("clip_gradient", "clip_difference")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("batch_size", self.batch_size, 1)
        for name, value in (("gain", self.gain), ("first_share", self.first_share)):
            if not 0 < value < 1:
                raise InvalidArgument(f"expected {name} between 0 and 1, got {name}={value!r}")

    def questions(self, round: int, population: Population) -> Iterable[Question]:
        # The same round and step draw the same batch: gradient and difference are of the same records.
        batch = Batch(size=self.batch_size)
        yield Question.gradient(self.clip_gradient, GRADIENT if round == 1 else DIFFERENCE, batch=batch)
        if round > 1:
            yield Question.difference(self.clip_difference, batch=batch)

    def shares(self) -> Mapping[str, float]:
        return {GRADIENT: self.first_share, DIFFERENCE: 1 - self.first_share}

    def init(self, params: Vector, population: Population) -> State:
        return {"previous_params": params.clone(), "estimate": zeros(params), "variance": 0.0}

    def estimate(self, state: State, round: Round) -> tuple[Estimate, State]:
        gradient = round.ask(round.questions[0], round.params)
        if round.number == 1:
            released = round.release(gradient)
            value, variance = released.value, released.variance
        else:
            keep = 1 - self.gain
            difference = round.ask(round.questions[1], round.params, state["previous_params"])
            released = round.release((self.gain, gradient), (keep, difference))
            value = keep * state["estimate"] + released.value
            variance = keep**2 * state["variance"] + released.variance
        return Estimate(value, variance), {"previous_params": round.params, "estimate": value, "variance": variance}
