r"""Steps whose length is known beforehand.

.. math::
    x_r &= x_{r-1} - \eta_r \tilde v_r / \lVert \tilde v_r \rVert
        & \text{without } \texttt{longest}                                                                       \\
    x_r &= x_{r-1} - \min\{\texttt{longest} / \lVert \tilde v_r \rVert,\ \eta_r\}\, \tilde v_r
        & \text{with it (the rule of DP-SRM, Wang et al. 2023)}

Variance-reduced estimators add noise in proportion to the last step, so one long step spoils the estimates after it; a
bound on the step is a bound on that noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from .._types import Vector
from .._validate import positive
from ..questions.round import Estimate, Round
from .base import PostProcessing
from .schedule import check_schedule, scheduled


@dataclass(frozen=True)
class NormalizedDescent(PostProcessing):
    """Gradient descent with steps of a given length, or of a given length at most.

    Args:
        learning_rate: eta: the length of a step; with ``longest``, the factor of the estimate.
        longest: steps of ``learning_rate`` times the estimate, shortened to this length where they are longer.
        schedule: how eta changes over the rounds: ``"constant"``, ``"cosine"`` or ``"inverse_root"``.
    """

    learning_rate: float
    longest: float | None = None
    schedule: str = "constant"
    name: ClassVar[str] = "normalized_descent"

    def __post_init__(self) -> None:
        check_schedule(self.learning_rate, self.schedule)
        if self.longest is not None:
            positive("longest", self.longest)

    def step_length(self, round: Round) -> float:
        """Return a length that the step of a round never exceeds, whatever the estimate (but for rounding)."""
        return scheduled(self.learning_rate, self.schedule, round) if self.longest is None else self.longest

    def step(
        self, state: dict[str, Any], params: Vector, estimate: Estimate, round: Round
    ) -> tuple[Vector, dict[str, Any]]:
        norm = float(torch.linalg.vector_norm(estimate.value))
        if norm == 0:  # no direction to go in
            return params, state
        factor = self.step_length(round) / norm
        if self.longest is not None:
            factor = min(factor, scheduled(self.learning_rate, self.schedule, round))
        return (params.double() - factor * estimate.value).to(params.dtype), state
