"""What an algorithm is: what it releases in which round, and how it makes an estimate of the gradient from it.

An algorithm is a frozen dataclass that inherits :class:`Estimator`. To add one, write its file beside ``diff2.py`` and
list it in ``__init__.py``; calibration, ledger, checkpoints, command line and cohorts then know it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Protocol

import torch

from .._types import Vector
from ..errors import InvalidArgument
from ..privacy.mechanism import REPLACE_ONE
from ..questions.population import Population
from ..questions.round import Estimate, Planned, Round
from ..routines import Routine


class Algorithm(Protocol):
    """Settings, and what the loop and the planner need to know."""

    @property
    def name(self) -> str: ...

    @property
    def rounds(self) -> int: ...

    @property
    def routine(self) -> Routine: ...

    @property
    def adjacency(self) -> str:
        """For which neighbouring data sets its releases can be priced."""
        ...

    @property
    def adaptive(self) -> bool:
        """Whether noise is chosen on the way, from released values; a filter then bounds the total."""
        ...

    def releases(self, round: int, population: Population) -> Iterable[Planned]:
        """Return what the algorithm will release in a round."""
        ...

    def shares(self) -> Mapping[str, float]:
        """Return the share of the budget that goes to each purpose; only their proportions matter."""
        ...

    def check(self, population: Population, private: bool) -> None:
        """Raise where the settings do not fit these clients, or, in a private run, a radius is infinite."""
        ...

    def init(self, params: Vector, population: Population) -> dict[str, Any]:
        """Return the state before the first round: tensors and numbers by name."""
        ...

    def estimate(self, state: dict[str, Any], round: Round) -> tuple[Estimate, dict[str, Any]]:
        """Return the estimate of the gradient at ``round.params``, and the next state."""
        ...


class Estimator:
    """What most algorithms have in common."""

    adjacency: ClassVar[str] = REPLACE_ONE
    adaptive: ClassVar[bool] = False

    def check(self, population: Population, private: bool) -> None:
        pass

    def init(self, params: Vector, population: Population) -> dict[str, Any]:
        return {}


def require_finite(name: str, value: float) -> None:
    """Refuse an infinite radius in a private run."""
    if math.isinf(value):
        raise InvalidArgument(
            f"expected {name} to be finite in a private run, got {name}={value!r}; without clipping no noise hides a "
            "record. Choose a radius, or Budget(epsilon=math.inf)"
        )


def distance(params: Vector, previous: Vector) -> float:
    """Return how far two iterates are apart, in double precision: in single, close ones could seem equal."""
    return float(torch.linalg.vector_norm(params.double() - previous.double()))


def difference_radius(params: Vector, previous: Vector, smoothness: float, cap: float) -> float:
    """Return C_{2,r}: ``smoothness`` times the distance of the iterates, at most ``cap``; 0 where they are equal."""
    apart = distance(params, previous)
    return min(smoothness * apart, cap) if apart > 0 else 0.0
