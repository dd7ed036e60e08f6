"""Checks of arguments, each with a message that names argument, value and remedy.

>>> at_least("restart_interval", 0, 1)
Traceback (most recent call last):
diff2.errors.InvalidArgument: expected restart_interval >= 1, got restart_interval=0

Where a file is read, all that is wrong with it is said at once:

>>> found = []
>>> with gathering(found):
...     at_least("rounds", 0, 1)
...     positive("epsilon", -1)
>>> [str(one) for one in found]
['expected rounds >= 1, got rounds=0', 'expected epsilon > 0, got epsilon=-1']
"""

import difflib
import importlib.util
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Integral, Real
from typing import Any

from .errors import InvalidArgument

_FOUND: ContextVar[list[InvalidArgument] | None] = ContextVar("found", default=None)


def wrong(text: str) -> None:
    """Raise :class:`InvalidArgument`; inside :func:`gathering`, note it and let the checks that follow speak too."""
    error, found = InvalidArgument(text), _FOUND.get()
    if found is None:
        raise error
    found.append(error)


@contextmanager
def gathering(found: list[InvalidArgument]) -> Iterator[None]:
    """Add to a list what checks find wrong; what is made inside is of no use if there is anything in it."""
    token = _FOUND.set(found)
    try:
        yield
    except InvalidArgument as error:
        found.append(error)
    except (TypeError, ValueError, AttributeError):
        if not found:  # otherwise it stems from a value that is known to be wrong
            raise
    finally:
        _FOUND.reset(token)


def at_least(name: str, value: Any, least: int, *, optional: bool = False) -> None:
    """Require a whole number, ``least`` or more; None only where it is ``optional``."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Integral):
        wrong(f"expected {name} to be a whole number >= {least}, got {name}={value!r}")
    elif int(value) < least:
        wrong(f"expected {name} >= {least}, got {name}={value!r}")


def positive(name: str, value: Any, *, infinite: bool = False, optional: bool = False) -> None:
    """Require a number above zero; infinity, and None, only where that is said."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Real):
        wrong(f"expected {name} to be a number > 0, got {name}={value!r}")
    elif not float(value) > 0:  # false for NaN too
        wrong(f"expected {name} > 0, got {name}={value!r}")
    elif math.isinf(value) and not infinite:
        wrong(f"expected {name} to be finite, got {name}={value!r}")


def one_of(name: str, value: Any, allowed: Iterable[str]) -> None:
    """Require one of the named choices, and suggest the nearest where it is none."""
    choices = list(allowed)
    if value not in choices:
        wrong(f"expected {name} to be one of {choices}, got {name}={value!r}{nearest(value, choices)}")


def torch_installed(what: str) -> None:
    """Require PyTorch, which the core does without."""
    if importlib.util.find_spec("torch") is None:
        raise InvalidArgument(f"{what} needs PyTorch, which is not installed; install it: pip install 'diff2[torch]'")


def nearest(value: Any, choices: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest choice, or nothing."""
    close = difflib.get_close_matches(str(value), list(choices), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
