"""Checks of arguments, each with a message that names argument, value and remedy.

>>> at_least("restart_interval", 0, 1)
Traceback (most recent call last):
diff2.errors.InvalidArgument: expected restart_interval >= 1, got restart_interval=0
"""

import difflib
import importlib.util
import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from .errors import InvalidArgument


def at_least(name: str, value: Any, least: int, *, optional: bool = False) -> None:
    """Require a whole number, ``least`` or more; None only where it is ``optional``."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidArgument(f"expected {name} to be a whole number >= {least}, got {name}={value!r}")
    if int(value) < least:
        raise InvalidArgument(f"expected {name} >= {least}, got {name}={value!r}")


def positive(name: str, value: Any, *, infinite: bool = False, optional: bool = False) -> None:
    """Require a number above zero; infinity, and None, only where that is said."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidArgument(f"expected {name} to be a number > 0, got {name}={value!r}")
    if not float(value) > 0:  # false for NaN too
        raise InvalidArgument(f"expected {name} > 0, got {name}={value!r}")
    if math.isinf(value) and not infinite:
        raise InvalidArgument(f"expected {name} to be finite, got {name}={value!r}")


def one_of(name: str, value: Any, allowed: Iterable[str]) -> None:
    """Require one of the named choices, and suggest the nearest where it is none."""
    choices = list(allowed)
    if value not in choices:
        raise InvalidArgument(f"expected {name} to be one of {choices}, got {name}={value!r}{nearest(value, choices)}")


def torch_installed(what: str) -> None:
    """Require PyTorch, which the core does without."""
    if importlib.util.find_spec("torch") is None:
        raise InvalidArgument(f"{what} needs PyTorch, which is not installed; install it: pip install 'diff2[torch]'")


def nearest(value: Any, choices: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest choice, or nothing."""
    close = difflib.get_close_matches(str(value), list(choices), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
