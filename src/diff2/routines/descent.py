r"""GD-Routine (Algorithm 3): :math:`x_r = x_{r-1} - \eta_r \tilde v_r`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .._types import Vector
from ..questions.round import Estimate, Round
from .base import PostProcessing
from .schedule import check_schedule, scheduled


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

    def step(
        self, state: dict[str, Any], params: Vector, estimate: Estimate, round: Round
    ) -> tuple[Vector, dict[str, Any]]:
        learning_rate = scheduled(self.learning_rate, self.schedule, round)
        # In double precision: a single-precision product would lose the small end of the estimate.
        return (params.double() - learning_rate * estimate.value).to(params.dtype), state
