"""Algorithms, routines and the like from plain values: the tables of a run file, of an agreement, of a ledger."""

import typing
from collections.abc import Mapping
from typing import Any

from .._fields import from_table
from .._validate import nearest
from ..errors import InvalidArgument
from ..routines import ROUTINES, Routine


def named(table: str, keys: Mapping[str, Any], classes: Mapping[str, type], **given: Any) -> Any:
    """Build the class that ``name`` chooses from the other keys; a routine inside is a table of the same kind."""
    keys = dict(keys)
    if "name" not in keys:
        raise InvalidArgument(f"[{table}] needs the key 'name', one of {sorted(classes)}")
    name = keys.pop("name")
    if not isinstance(name, str) or name not in classes:
        raise InvalidArgument(
            f"[{table}] name: expected one of {sorted(classes)}, got {name!r}{nearest(name, classes)}"
        )
    for key, hint in typing.get_type_hints(classes[name]).items():
        if hint is Routine and key not in given:
            inner = f"{table}.{key}"
            if not isinstance(keys.get(key), dict):
                raise InvalidArgument(f"[{table}] needs a routine; add a table: [{inner}] with name = ...")
            given[key] = named(inner, keys.pop(key), ROUTINES)
    return from_table(classes[name], table, keys, **given)


def without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of JSON without null values, as a TOML file would have it."""
    return {
        key: without_none(value) if isinstance(value, Mapping) else value
        for key, value in table.items()
        if value is not None
    }
