"""Frozen dataclasses from the tables of a TOML file, with errors that name table, key, value and remedy.

The keys of a table are the fields of its dataclass, and their types its annotations; so a new algorithm or routine can
be written in a run file as soon as its class exists.
"""

import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from functools import partial
from typing import Any, TypeVar

from ._validate import gathering, nearest
from .errors import InvalidArgument

T = TypeVar("T")

ABSENT = type("Absent", (), {"__repr__": lambda self: "(absent)"})()  # stands for a value that is missing or wrong
PLAIN: dict[Any, str] = {int: "a whole number", bool: "true or false", str: "text in quotes"}


class Problems:
    """Gathers what is wrong with a file, so that all of it is said at once.

    >>> problems = Problems()
    >>> problems.trying(lambda: convert("[run] seed", "x", int))
    >>> problems.trying(lambda: convert("[run] dtype", 3, str))
    >>> problems.refuse()
    Traceback (most recent call last):
    diff2.errors.InvalidArgument: 2 things are wrong:
    - [run] seed: expected a whole number, got 'x'
    - [run] dtype: expected text in quotes, got 3
    """

    def __init__(self) -> None:
        self.found: list[InvalidArgument] = []

    def trying(self, make: Callable[[], T], otherwise: T | None = None) -> T | None:
        """Return what is made; where that is not possible, note it and return ``otherwise``."""
        try:
            return make()
        except InvalidArgument as error:
            self.found += getattr(error, "parts", [error])
            return otherwise

    def refuse(self) -> None:
        """Raise what was noted, if anything: one error as it is, several as a list."""
        if len(self.found) == 1:
            raise self.found[0] from None
        if self.found:
            error = InvalidArgument("\n- ".join([f"{len(self.found)} things are wrong:", *map(str, self.found)]))
            error.parts = list(self.found)  # type: ignore[attr-defined]
            raise error from None


def from_table(cls: type[T], name: str, table: Mapping[str, Any], **given: Any) -> T:
    """Return ``cls`` built from a table; fields in ``given`` come from elsewhere and are not keys.

    >>> from diff2.runfile.reader import PrivacySettings
    >>> from_table(PrivacySettings, "privacy", {"epsilon": 0, "unit": "people", "strit": True})
    Traceback (most recent call last):
    diff2.errors.InvalidArgument: 4 things are wrong:
    - [privacy] has no key 'strit'; did you mean 'strict'? (known keys: epsilon, delta, accounting, unit, strict, ...)
    - [privacy] needs the key 'delta'; add a line: delta = ...
    - [privacy] expected unit to be one of ['record', 'client'], got unit='people'
    - [privacy] expected epsilon > 0, got epsilon=0.0
    """
    known = {field.name: field for field in fields(cls) if field.init and field.name not in given}  # type: ignore[arg-type]
    problems, meant = Problems(), set[str]()
    for key in table:
        if key not in known:
            hint = nearest(key, known)
            meant |= {other for other in known if repr(other) in hint}  # not missing as well
            problems.found.append(InvalidArgument(f"[{name}] has no key {key!r}{hint}{_choices(known)}"))
    hints, values = typing.get_type_hints(cls), dict[str, Any]()
    for key, field in known.items():
        if key in table:
            values[key] = problems.trying(partial(convert, f"[{name}] {key}", table[key], hints[key]), ABSENT)
        elif _required(field):
            values[key] = ABSENT
            if key not in meant:
                problems.found.append(InvalidArgument(f"[{name}] needs the key {key!r}; add a line: {key} = ..."))
    found = list(problems.found)
    with gathering(found):
        built = cls(**values, **given)
    known_wrong = len(problems.found)  # if there are any, messages about their stand-ins say nothing new
    said = [error for error in found[known_wrong:] if not (known_wrong and repr(ABSENT) in str(error))]
    problems.found += [type(error)(f"[{name}] {error}") for error in said]
    problems.refuse()
    return built


def convert(where: str, value: Any, hint: Any) -> Any:
    """Return a TOML value as the annotated type, or say what was expected; ``"inf"`` is a number.

    >>> convert("[algorithm] budget_split", [3, 3], float | tuple[float, float] | str)
    (3.0, 3.0)
    >>> convert("[algorithm] budget_split", [3, 3, 3], float | tuple[float, float] | str)
    Traceback (most recent call last):
    diff2.errors.InvalidArgument: [algorithm] budget_split: expected a number, a list of 2 values or text in quotes, \
got [3, 3, 3]
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _convert_choice(where, value, hint)
    if origin is tuple:
        return _convert_list(where, value, hint)
    if _is_mapping(origin):
        if not isinstance(value, dict):
            raise _wrong(where, hint, value)
        problems = Problems()
        found = {key: problems.trying(partial(convert, f"{where}.{key}", item, args[1])) for key, item in value.items()}
        problems.refuse()
        return found
    if hint is float:
        if value in ("inf", "-inf"):
            return math.inf if value == "inf" else -math.inf
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong(where, hint, value)
        return float(value)
    if hint in PLAIN and (not isinstance(value, hint) or (hint is int and isinstance(value, bool))):
        raise _wrong(where, hint, value)
    if origin is type:  # a class cannot be written in a file
        raise _wrong(where, hint, value)
    return value


def _convert_choice(where: str, value: Any, hint: Any) -> Any:
    """Return the value as the first of several types that it fits."""
    options = [option for option in typing.get_args(hint) if option is not type(None)]
    if len(options) == 1:
        return convert(where, value, options[0])
    for option in options:
        try:
            return convert(where, value, option)
        except InvalidArgument:
            continue
    raise _wrong(where, hint, value)


def _convert_list(where: str, value: Any, hint: Any) -> tuple[Any, ...]:
    args = typing.get_args(hint)
    if not isinstance(value, list):
        raise _wrong(where, hint, value)
    if len(args) == 2 and args[1] is Ellipsis:
        args = args[:1] * len(value)
    if len(value) != len(args):
        raise _wrong(where, hint, value)
    problems, pairs = Problems(), enumerate(zip(value, args, strict=True))
    found = tuple([problems.trying(partial(convert, f"{where}[{i}]", item, part)) for i, (item, part) in pairs])
    problems.refuse()
    return found


def _expected(hint: Any) -> str:
    """Say in words what a type looks like in a file."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        options = [option for option in args if option is not type(None) and typing.get_origin(option) is not type]
        words = [_expected(option) for option in options]
        return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
    if origin is tuple:
        return "a list [...]" if args[-1] is Ellipsis else f"a list of {len(args)} values"
    if _is_mapping(origin):
        return "a table { name = ... }"
    return "a number" if hint is float else PLAIN.get(hint, "another value")


def _is_mapping(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _wrong(where: str, hint: Any, value: Any) -> InvalidArgument:
    return InvalidArgument(f"{where}: expected {_expected(hint)}, got {value!r}")


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _choices(known: Mapping[str, Any]) -> str:
    return f" (known keys: {', '.join(known)})" if known else " (it takes no keys)"
