"""Frozen dataclasses from the tables of a TOML file, with errors that name table, key, value and remedy.

The keys of a table are the fields of its dataclass, and their types its annotations; so a new algorithm or routine can
be written in a run file as soon as its class exists.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

from ._validate import nearest
from .errors import InvalidArgument

T = TypeVar("T")


def from_table(cls: type[T], name: str, table: Mapping[str, Any], **given: Any) -> T:
    """Return ``cls`` built from a table; fields in ``given`` come from elsewhere and are not keys.

    Args:
        cls: a dataclass.
        name: of the table, for messages.
        table: what the file says.
    """
    known = {field.name: field for field in fields(cls) if field.init and field.name not in given}  # type: ignore[arg-type]
    for key in table:
        if key not in known:
            raise InvalidArgument(f"[{name}] has no key {key!r}{nearest(key, known)}{_choices(known)}")
    for key, field in known.items():
        if key not in table and _required(field):
            raise InvalidArgument(f"[{name}] needs the key {key!r}; add a line: {key} = ...")
    hints = typing.get_type_hints(cls)
    values = {key: convert(f"[{name}] {key}", value, hints[key]) for key, value in table.items()}
    try:
        return cls(**values, **given)
    except InvalidArgument as error:
        raise type(error)(f"[{name}] {error}") from None


def convert(where: str, value: Any, hint: Any) -> Any:
    """Return a TOML value as the annotated type, or say what was expected; ``"inf"`` is a number."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        options = [option for option in args if option is not type(None)]
        return convert(where, value, options[0]) if len(options) == 1 else value
    if origin is tuple:
        return _convert_list(where, value, args)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise _wrong(where, "a table { name = ... }", value)
        return {key: convert(f"{where}.{key}", item, args[1]) for key, item in value.items()}
    if hint is float:
        if value in ("inf", "-inf"):
            return math.inf if value == "inf" else -math.inf
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong(where, "a number", value)
        return float(value)
    plain = {int: "a whole number", bool: "true or false", str: "text in quotes"}
    if hint in plain and (not isinstance(value, hint) or (hint is int and isinstance(value, bool))):
        raise _wrong(where, plain[hint], value)
    return value


def _convert_list(where: str, value: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _wrong(where, "a list [...]", value)
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(convert(f"{where}[{i}]", item, args[0]) for i, item in enumerate(value))
    if len(value) != len(args):
        raise _wrong(where, f"a list of {len(args)} values", value)
    return tuple(convert(f"{where}[{i}]", item, hint) for i, (item, hint) in enumerate(zip(value, args, strict=True)))


def _wrong(where: str, expected: str, value: Any) -> InvalidArgument:
    return InvalidArgument(f"{where}: expected {expected}, got {value!r}")


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _choices(known: Mapping[str, Any]) -> str:
    return f" (known keys: {', '.join(known)})" if known else " (it takes no keys)"
