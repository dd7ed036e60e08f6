r"""Momentum: heavy ball (Polyak 1964), and Nesterov's.

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

from .._vectors import State, Vector, moved, zeros
from ..questions import Estimate, Round
from .base import PostProcessing, fraction
from .schedule import check_schedule, scheduled


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
