"""Names under which algorithms, routines and the like are known: our own, and those of other packages.

A package announces its classes as entry points (``[project.entry-points."diff2.algorithms"]``); they are loaded when
a name that is none of ours is looked up for the first time, or all are listed. ``register`` adds a class by hand.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Generic, TypeVar

from .errors import InvalidArgument

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """A mapping from names to classes that finds those of other packages when it is first read."""

    def __init__(self, group: str, own: Iterable[T], check: Callable[[T], str]):
        """``check`` returns the name of a class, and raises where something is missing in it."""
        self._group = group
        self._check = check
        self._known: dict[str, T] = {check(one): one for one in own}
        self._loaded = False

    def register(self, one: T) -> T:
        """Make a class known by its name; usable as a decorator."""
        self._known[self._check(one)] = one
        return one

    def __getitem__(self, name: str) -> T:
        known = self._known.get(name)
        return self._all()[name] if known is None else known

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[str, T]:
        if not self._loaded:
            from importlib.metadata import entry_points  # takes a while to import

            self._loaded = True
            for point in entry_points(group=self._group):
                self.register(point.load())
        return self._known


def require_kind(what: str, kind: Any, base: type, parts: Sequence[str], fields: Sequence[str] = ()) -> str:
    """Return the name of a class of settings; say what is missing where it cannot be one.

    Args:
        what: it is meant to be, for messages: ``"algorithm"``.
        base: the class of diff2 that it must inherit.
        parts: methods of that class which it must define itself.
        fields: that it must have.
    """
    missing = ""
    if not isinstance(kind, type) or not issubclass(kind, base):
        missing = f"it must be a class that inherits diff2.{base.__name__}"
    elif not isinstance(getattr(kind, "name", None), str):
        missing = "it must have a class attribute name, a text by which run files know it"
    elif lacking := [part for part in parts if getattr(kind, part) is getattr(base, part)]:
        missing = f"it must define {lacking[0]}(...)"
    elif not is_dataclass(kind) or not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        missing = "it must be a frozen dataclass: put @dataclass(frozen=True) above it"
    elif not set(fields) <= set(kind.__dataclass_fields__):
        missing = f"its fields must include {' and '.join(fields)}"
    if missing:
        called = getattr(kind, "__name__", repr(kind))
        raise InvalidArgument(f"{what} {called}: {missing}; see help(diff2.{base.__name__})")
    return str(kind.name)
