"""What an algorithm is: what it releases in which round, and how it makes an estimate of the gradient from it.

An algorithm is a frozen dataclass. To add one, write its file beside ``diff2.py`` and list it in ``__init__.py``;
calibration, ledger, checkpoints, command line and cohorts then know it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from .._types import Vector
from ..cohort import Cohort
from ..privacy import Mechanism, Release
from ..routines import Routine

GRADIENT = "gradient"  # purpose of a release of the mean gradient; its sigma is the paper's sigma_1
DIFFERENCE = "difference"  # purpose of a release of the mean difference; sigma_2


class Request(NamedTuple):
    """What an algorithm gets to make its estimate of round r."""

    round: int  # r, from 1
    params: Vector  # x_{r-1}
    cohort: Cohort
    mechanism: Mechanism
    multipliers: Mapping[str, float]  # noise multiplier of each purpose, as calibrated


class Algorithm(Protocol):
    """Settings, and the four things the loop and the planner need to know."""

    @property
    def name(self) -> str: ...

    @property
    def rounds(self) -> int: ...

    @property
    def routine(self) -> Routine: ...

    def schedule(self) -> Iterator[tuple[int, str]]:
        """Yield (round, purpose) of every release, in order."""
        ...

    def shares(self) -> Mapping[str, float]:
        """Return the share of the budget that goes to each purpose; only their proportions matter."""
        ...

    def check_bounded(self) -> None:
        """Raise where a radius is infinite, so that no noise could make the releases private."""
        ...

    def init(self, params: Vector) -> dict[str, Any]:
        """Return the state before the first round: tensors and numbers by name."""
        ...

    def estimate(self, state: dict[str, Any], request: Request) -> tuple[Vector, dict[str, Any], Release]:
        """Return v_r, the next state, and the release that made v_r public."""
        ...
