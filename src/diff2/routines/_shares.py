"""A check that several routines share: factors such as a momentum, at least 0 and below 1."""

from __future__ import annotations

from numbers import Real
from typing import Any

from ..errors import InvalidArgument


def share(name: str, value: Any) -> None:
    """Require a number of [0, 1).

    >>> share("momentum", 1.0)
    Traceback (most recent call last):
    diff2.errors.InvalidArgument: expected momentum to be at least 0 and below 1, got momentum=1.0
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < 1:
        raise InvalidArgument(f"expected {name} to be at least 0 and below 1, got {name}={value!r}")
