r"""Nesterov's accelerated gradient: ask for the gradient a little ahead of where the last step led.

.. math::
    x_r &= y_{r-1} - \eta_r \tilde v_r               \\
    y_r &= x_r + \beta (x_r - x_{r-1}),  \qquad y_0 = x_0

The estimate :math:`\tilde v_r` is of the gradient at :math:`y_{r-1}`, so the parameters handed on are the y's; the
radius to which DIFF2 clips differences is then a multiple of the distance between query points, as it must be. The run
returns :math:`x_r`, the point that was reached. With a constant learning rate the y's are the parameters of
``torch.optim.SGD(momentum=beta, nesterov=True)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .._types import Vector
from ..questions.round import Estimate, Round
from ._shares import share
from .base import PostProcessing
from .schedule import check_schedule, scheduled


@dataclass(frozen=True)
class Nesterov(PostProcessing):
    """Gradient descent with Nesterov's momentum.

    Args:
        learning_rate: eta.
        momentum: beta of [0, 1); 0 is gradient descent.
        schedule: how eta changes over the rounds: ``"constant"``, ``"cosine"`` or ``"inverse_root"``.
    """

    learning_rate: float
    momentum: float = 0.9
    schedule: str = "constant"
    name: ClassVar[str] = "nesterov"

    def __post_init__(self) -> None:
        check_schedule(self.learning_rate, self.schedule)
        share("momentum", self.momentum)

    def init(self, params: Vector) -> dict[str, Any]:
        return {"reached": params.double().clone()}

    def step(
        self, state: dict[str, Any], params: Vector, estimate: Estimate, round: Round
    ) -> tuple[Vector, dict[str, Any]]:
        learning_rate = scheduled(self.learning_rate, self.schedule, round)
        reached = params.double() - learning_rate * estimate.value
        ahead = reached + self.momentum * (reached - state["reached"])
        return ahead.to(params.dtype), {"reached": reached}

    def output(self, state: dict[str, Any], params: Vector) -> Vector:
        reached: Vector = state["reached"]
        return reached.to(params.dtype)
