r"""Steps along the estimate: GD-Routine (Algorithm 3), and steps whose length is known beforehand.

.. math::
    x_r &= x_{r-1} - \eta_r \tilde v_r                                                   & \text{gradient descent} \\
    x_r &= x_{r-1} - \eta_r \tilde v_r / \lVert \tilde v_r \rVert                        & \text{normalised}       \\
    x_r &= x_{r-1} - \min\{\texttt{max_step_norm} / \lVert \tilde v_r \rVert,\ \eta_r\}\, \tilde v_r
        & \text{bounded (the rule of DP-SRM, Wang et al. 2023)}

Variance-reduced estimators add noise in proportion to the last step, so one long step spoils the estimates after it; a
bound on the step is a bound on that noise.

Momentum: heavy ball (Polyak 1964), and Nesterov's.

.. math::
    m_r &= \beta m_{r-1} + \tilde v_r,               & x_r &= x_{r-1} - \eta_r m_r, \quad m_0 = 0 \\
    x_r &= y_{r-1} - \eta_r \tilde v_r,              & y_r &= x_r + \beta (x_r - x_{r-1})

The first is ``torch.optim.SGD(momentum=beta)``; its sum averages out noise that is fresh in each round, and makes steps
up to :math:`1 / (1 - \beta)` times as long as without momentum: choose a smaller learning rate. With DIFF2, longer
steps widen the radius to which differences are clipped, and so add noise.

Nesterov's estimate is of the gradient at :math:`y_{r-1}`, so the parameters handed on are the y's; the radius to which
DIFF2 clips differences is then a multiple of the distance between query points, as it must be. The run returns
:math:`x_r`, the point that was reached. With a constant learning rate the y's are the parameters of
``torch.optim.SGD(momentum=beta, nesterov=True)``.
"""

from dataclasses import dataclass
from typing import ClassVar

from .._validate import positive
from .._vectors import State, Vector, moved, norm, zeros
from ..questions import Estimate, Round
from .base import PostProcessing, check_schedule, fraction, scheduled


@dataclass(frozen=True)
class GradientDescent(PostProcessing):
    """One step against the estimate.

    Args:
        learning_rate: eta.
        schedule: how eta changes over the rounds: ``"constant"`` (the paper), ``"cosine"`` or ``"inverse_root"``.
    """

    learning_rate: float
    schedule: str = "constant"
    name: ClassVar[str] = "gradient_descent"

    def __post_init__(self) -> None:
        check_schedule(self.learning_rate, self.schedule)

    def step(self, state: State, params: Vector, estimate: Estimate, round: Round) -> tuple[Vector, State]:
        rate = scheduled(self.learning_rate, self.schedule, round.number, round.total)
        return moved(params, rate * estimate.value), state


@dataclass(frozen=True)
class NormalizedDescent(PostProcessing):
    """Gradient descent with steps of a given length, or of a given length at most.

    Args:
        learning_rate: eta: the length of a step; with ``max_step_norm``, the factor of the estimate.
        max_step_norm: steps of ``learning_rate`` times the estimate, shortened to this length where they are longer.
        schedule: how eta changes over the rounds: ``"constant"``, ``"cosine"`` or ``"inverse_root"``.
    """

    learning_rate: float
    max_step_norm: float | None = None
    schedule: str = "constant"
    name: ClassVar[str] = "normalized_descent"

    def __post_init__(self) -> None:
        check_schedule(self.learning_rate, self.schedule)
        positive("max_step_norm", self.max_step_norm, optional=True)

    def step_length(self, number: int, total: int) -> float:
        """Return a length that the step of a round never exceeds, whatever the estimate (up to rounding)."""
        if self.max_step_norm is not None:
            return self.max_step_norm
        return scheduled(self.learning_rate, self.schedule, number, total)

    def step(self, state: State, params: Vector, estimate: Estimate, round: Round) -> tuple[Vector, State]:
        length = norm(estimate.value)
        if length == 0:  # no direction to go in
            return params, state
        factor = self.step_length(round.number, round.total) / length
        if self.max_step_norm is not None:
            factor = min(factor, scheduled(self.learning_rate, self.schedule, round.number, round.total))
        return moved(params, factor * estimate.value), state


@dataclass(frozen=True)
class Momentum(PostProcessing):
    """Gradient descent with momentum.

    Args:
        learning_rate: eta.
        momentum: beta, in [0, 1); 0 is gradient descent.
        schedule: how eta changes over the rounds: ``"constant"``, ``"cosine"`` or ``"inverse_root"``.
    """

    learning_rate: float
    momentum: float = 0.9
    schedule: str = "constant"
    name: ClassVar[str] = "momentum"

    def __post_init__(self) -> None:
        check_schedule(self.learning_rate, self.schedule)
        fraction("momentum", self.momentum)

    def init(self, params: Vector) -> State:
        return {"momentum": zeros(params)}

    def step(self, state: State, params: Vector, estimate: Estimate, round: Round) -> tuple[Vector, State]:
        momentum = self.momentum * state["momentum"] + estimate.value
        rate = scheduled(self.learning_rate, self.schedule, round.number, round.total)
        return moved(params, rate * momentum), {"momentum": momentum}


@dataclass(frozen=True)
class Nesterov(Momentum):
    """Gradient descent with Nesterov's momentum. Settings as ``Momentum``."""

    name: ClassVar[str] = "nesterov"

    def init(self, params: Vector) -> State:
        return {"reached": params.double().clone()}

    def step(self, state: State, params: Vector, estimate: Estimate, round: Round) -> tuple[Vector, State]:
        rate = scheduled(self.learning_rate, self.schedule, round.number, round.total)
        reached = params.double() - rate * estimate.value
        ahead = reached + self.momentum * (reached - state["reached"])
        return ahead.to(params.dtype), {"reached": reached}

    def output(self, state: State, params: Vector) -> Vector:
        reached: Vector = state["reached"]
        return reached.to(params.dtype)
