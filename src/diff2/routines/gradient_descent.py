r"""GD-Routine (Algorithm 3): :math:`x_r = x_{r-1} - \eta \tilde v_r`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .._types import Vector
from .._validate import positive


@dataclass(frozen=True)
class GradientDescent:
    """One step of length ``learning_rate`` against the estimate."""

    learning_rate: float
    name: ClassVar[str] = "gradient_descent"

    def __post_init__(self) -> None:
        positive("learning_rate", self.learning_rate)

    def init(self, params: Vector) -> dict[str, Any]:
        return {}

    def step(self, state: dict[str, Any], params: Vector, estimate: Vector) -> tuple[Vector, dict[str, Any]]:
        # In double precision: a single-precision product would lose the small end of the estimate.
        return (params.double() - self.learning_rate * estimate).to(params.dtype), state
