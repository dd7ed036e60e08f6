r"""Adam without the noise in its second moment (DP-AdamBC).

Adam divides each coordinate of the averaged estimate by the root of its averaged square. The square of a private
estimate is that of the gradient plus the variance of the noise, and the noise is usually the larger part; then all
coordinates are divided by about the same number, and Adam is gradient descent with momentum. The variance
:math:`s_r^2` of the noise is known exactly, so its average can be taken off again, without bias and at no cost:

.. math::
    m_r &= \beta_1 m_{r-1} + (1 - \beta_1) \tilde v_r,          & \hat m_r &= m_r / (1 - \beta_1^r)        \\
    q_r &= \beta_2 q_{r-1} + (1 - \beta_2) \tilde v_r^2,        & \hat q_r &= q_r / (1 - \beta_2^r)        \\
    \phi_r &= \beta_2 \phi_{r-1} + (1 - \beta_2) s_r^2,         & \hat \phi_r &= \phi_r / (1 - \beta_2^r)  \\
    x_r &= x_{r-1} - \eta_r \hat m_r / \sqrt{\max(\hat q_r - \hat \phi_r,\ \text{floor}^2)}

Tang, Shpilevskiy and Lecuyer, DP-AdamBC (AAAI 2024), do this for DP-SGD, where :math:`s_r^2` is the same in all rounds.
In DIFF2 it grows from a restart to the next with every difference that is added, and :math:`\phi` follows it. There the
noise of a difference is in proportion to the step before, and Adam's steps may be long: ``max_step_norm`` bounds them.
"""

from dataclasses import dataclass
from typing import ClassVar

from .._validate import positive
from .._vectors import State, Vector, moved, norm, zeros
from ..errors import InvalidArgument
from ..questions import Estimate, Round
from .base import PostProcessing, check_schedule, fraction, scheduled


@dataclass(frozen=True)
class Adam(PostProcessing):
    """Adam, corrected for the noise of its estimates.

    Args:
        learning_rate: eta.
        beta1: weight of the past in the average of the estimates, in [0, 1).
        beta2: weight of the past in the average of their squares, in [0, 1).
        floor: the least denominator, in units of the gradient. A coordinate whose signal is below the noise moves by
            ``learning_rate / floor`` times the averaged estimate: too small a floor lets the noise take long steps.
        correct_noise: ``False`` keeps the noise in the second moment; with a tiny ``floor`` that is plain Adam.
        schedule: how eta changes over the rounds: ``"constant"``, ``"cosine"`` or ``"inverse_root"``.
        max_step_norm: steps longer than this are shortened to it; for estimators whose noise follows the step.
    """

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    floor: float = 0.02
    correct_noise: bool = True
    schedule: str = "constant"
    max_step_norm: float | None = None
    name: ClassVar[str] = "adam"

    def __post_init__(self) -> None:
        check_schedule(self.learning_rate, self.schedule)
        fraction("beta1", self.beta1)
        fraction("beta2", self.beta2)
        positive("floor", self.floor)
        positive("max_step_norm", self.max_step_norm, optional=True)
        if not isinstance(self.correct_noise, bool):
            raise InvalidArgument(
                f"expected correct_noise to be True or False, got correct_noise={self.correct_noise!r}"
            )

    def init(self, params: Vector) -> State:
        return {"steps": 0, "first_moment": zeros(params), "second_moment": zeros(params), "noise_moment": 0.0}

    def step(self, state: State, params: Vector, estimate: Estimate, round: Round) -> tuple[Vector, State]:
        state = self._next(state, estimate)
        first = state["first_moment"] / (1 - self.beta1 ** state["steps"])
        learning_rate = scheduled(self.learning_rate, self.schedule, round.number, round.total)
        step = learning_rate * first / self.denominator(state)
        if self.max_step_norm is not None:
            step = step * (self.max_step_norm / max(norm(step), self.max_step_norm))
        return moved(params, step), state

    def denominator(self, state: State) -> Vector:
        """Return what the last averaged estimate was divided by: at least ``floor`` in each coordinate."""
        signal = state["second_moment"]
        if self.correct_noise:
            signal = signal - state["noise_moment"]
        signal = signal / (1 - self.beta2 ** state["steps"])
        # The floor after the root: the square of a tiny one would be zero.
        return signal.clamp(min=0).sqrt().clamp(min=self.floor)

    def _next(self, state: State, estimate: Estimate) -> State:
        b1, b2, v = self.beta1, self.beta2, estimate.value
        return {
            "steps": state["steps"] + 1,
            "first_moment": b1 * state["first_moment"] + (1 - b1) * v,
            "second_moment": b2 * state["second_moment"] + (1 - b2) * v.square(),
            "noise_moment": b2 * state["noise_moment"] + (1 - b2) * estimate.variance,
        }
