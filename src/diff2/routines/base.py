"""What a routine does: move the parameters, given a private estimate of the gradient.

Most routines see released values only, so whatever they do costs no privacy; they inherit :class:`PostProcessing`. A
routine that asks the cohort for more (local steps) says in ``releases`` what that will be.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from .._types import Vector
from ..questions.population import Population
from ..questions.round import Estimate, Planned, Round


class Routine(Protocol):
    """A frozen dataclass of settings with a pure ``init`` and ``step``."""

    @property
    def name(self) -> str: ...

    @property
    def local_steps(self) -> int:
        """K: points visited in a round; 1 for a routine that moves once."""
        ...

    def init(self, params: Vector) -> dict[str, Any]:
        """Return the state before the first round: tensors and numbers by name."""
        ...

    def step(
        self, state: dict[str, Any], params: Vector, estimate: Estimate, round: Round
    ) -> tuple[Vector, dict[str, Any]]:
        """Return the next parameters, at which gradients will be asked for, and the next state."""
        ...

    def output(self, state: dict[str, Any], params: Vector) -> Vector:
        """Return the model that the run has reached."""
        ...

    def releases(self, round: int, population: Population) -> Iterable[Planned]:
        """Return what the routine itself will release in a round."""
        ...

    def check(self, population: Population, private: bool) -> None:
        """Raise where the routine cannot work with these clients, or, in a private run, has an infinite radius."""
        ...


class PostProcessing:
    """A routine that asks for nothing: moves once in a round, releases nothing."""

    local_steps = 1

    def init(self, params: Vector) -> dict[str, Any]:
        return {}

    def output(self, state: dict[str, Any], params: Vector) -> Vector:
        return params

    def releases(self, round: int, population: Population) -> Iterable[Planned]:
        return ()

    def check(self, population: Population, private: bool) -> None:
        pass
