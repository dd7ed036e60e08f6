"""What a routine does: move the parameters, given a private estimate of the gradient.

A routine sees released values only, so whatever it does costs no privacy.
"""

from __future__ import annotations

from typing import Any, Protocol

from .._types import Vector


class Routine(Protocol):
    """A frozen dataclass of settings with a pure ``init`` and ``step``."""

    @property
    def name(self) -> str: ...

    def init(self, params: Vector) -> dict[str, Any]:
        """Return the state before the first round: tensors and numbers by name."""
        ...

    def step(self, state: dict[str, Any], params: Vector, estimate: Vector) -> tuple[Vector, dict[str, Any]]:
        """Return the next parameters and the next state."""
        ...
