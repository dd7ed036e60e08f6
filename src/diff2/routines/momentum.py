r"""Heavy ball (Polyak 1964): steps along a fading sum of the estimates.

.. math::
    m_r = \beta m_{r-1} + \tilde v_r, \qquad x_r = x_{r-1} - \eta_r m_r, \qquad m_0 = 0

As ``torch.optim.SGD(momentum=beta)``. The sum averages out noise that is fresh in each round, and makes steps up to
:math:`1 / (1 - \beta)` times as long as without momentum: choose a smaller learning rate. With DIFF2, longer steps
widen the radius to which differences are clipped, and so add noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from .._types import Vector
from ..questions.round import Estimate, Round
from ._shares import share
from .base import PostProcessing
from .schedule import check_schedule, scheduled


@dataclass(frozen=True)
class Momentum(PostProcessing):
    """Gradient descent with momentum.

    Args:
        learning_rate: eta.
        momentum: beta of [0, 1); 0 is gradient descent.
        schedule: how eta changes over the rounds: ``"constant"``, ``"cosine"`` or ``"inverse_root"``.
    """

    learning_rate: float
    momentum: float = 0.9
    schedule: str = "constant"
    name: ClassVar[str] = "momentum"

    def __post_init__(self) -> None:
        check_schedule(self.learning_rate, self.schedule)
        share("momentum", self.momentum)

    def init(self, params: Vector) -> dict[str, Any]:
        return {"momentum": torch.zeros_like(params, dtype=torch.float64)}

    def step(
        self, state: dict[str, Any], params: Vector, estimate: Estimate, round: Round
    ) -> tuple[Vector, dict[str, Any]]:
        momentum = self.momentum * state["momentum"] + estimate.value
        learning_rate = scheduled(self.learning_rate, self.schedule, round)
        return (params.double() - learning_rate * momentum).to(params.dtype), {"momentum": momentum}
