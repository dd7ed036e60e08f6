"""What is made of named parts, as plain values and arrays that hold no code.

A part is a frozen dataclass or a named tuple that is listed. Its fields are numbers, texts, arrays, tuples and parts.
Reading builds the listed parts and no others, and checks each field against its declared type.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from ..errors import InvalidArgument

STATED = ("longest", "diameter", "sensitivity")  # what a class says of itself; nobody else can
Keep = Callable[[str, np.ndarray], str]  # puts the array at a place aside, and returns its name


class Parts:
    """The types that may be read."""

    def __init__(self, *parts: type):
        self._types = {part.__name__: part for part in parts}

    def __contains__(self, part: type) -> bool:
        return self._types.get(part.__name__) is part

    def to_plain(self, value: Any, place: str, keep: Keep) -> Any:
        """Return plain values; arrays are put aside."""
        if isinstance(value, np.ndarray):
            by_columns = value.ndim == 2 and value.flags.f_contiguous and not value.flags.c_contiguous
            name = keep(place, np.array(value.T if by_columns else value, order="C"))
            return {
                "array": name,
                "by_columns": by_columns,
            }  # sums of products may depend on the order, in the last bit
        if type(value) in self:
            found = {name: self.to_plain(getattr(value, name), f"{place}.{name}", keep) for name in _hints(type(value))}
            return {"part": type(value).__name__, **found}
        if isinstance(value, tuple):
            return [self.to_plain(one, f"{place}.{i}", keep) for i, one in enumerate(value)]
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise InvalidArgument(f"{place} is of type {type(value).__name__}, which no list of parts holds")

    def from_plain(self, found: Any, hint: Any, arrays: Mapping[str, np.ndarray], place: str) -> Any:
        """Return what plain values describe, if it is of the declared type; else raise ValueError or KeyError."""
        if isinstance(hint, types.UnionType) or get_origin(hint) is Union:
            hint = self._option(found, get_args(hint), place)
        if hint is Any:
            hint = self._types.get(found.get("part", ""), Any) if isinstance(found, dict) else type(found)
            if hint not in (bool, int, float, str) and hint not in self._types.values():
                raise ValueError(f"{place} is of no type that is possible there")
        if hint is np.ndarray:
            array = arrays[found["array"]]
            if array.dtype not in (np.float64, np.int64, np.bool_) or not np.isfinite(array).all():
                raise ValueError(f"{place} holds something else than finite numbers in double precision")
            return array.T if found["by_columns"] else array
        if get_origin(hint) is tuple:
            of = get_args(hint)
            kinds = [of[0]] * len(found) if of[1:] == (...,) else list(of)
            if not isinstance(found, list) or len(found) != len(kinds):
                raise ValueError(f"{place} is not a list of {len(kinds)}")
            pairs = enumerate(zip(found, kinds, strict=True))
            return tuple(self.from_plain(one, kind, arrays, f"{place}.{i}") for i, (one, kind) in pairs)
        if hint in self._types.values():
            return self._part(found, hint, arrays, place)
        if hint is float and found in ("inf", "-inf"):
            return float(found)
        if hint is float and type(found) is int:
            return float(found)
        if (type(found) is not hint and not (hint is types.NoneType and found is None)) or found != found:
            raise ValueError(f"{place} is not a {hint.__name__}")
        return found

    def within(self, value: Any) -> Iterator[Any]:
        """Yield a part and all parts within it."""
        if type(value) in self:
            yield value
            for name in _hints(type(value)):
                yield from self.within(getattr(value, name))
        elif isinstance(value, tuple):
            for one in value:
                yield from self.within(one)

    def _part(self, found: Any, hint: type, arrays: Mapping[str, np.ndarray], place: str) -> Any:
        part = self._types.get(str(found.get("part"))) if isinstance(found, dict) else None
        if part is None or not issubclass(part, hint) or set(found) != {"part", *_hints(part)}:
            raise ValueError(f"{place} is not a {hint.__name__}")
        declared = _hints(part)
        return part(
            **{name: self.from_plain(found[name], one, arrays, f"{place}.{name}") for name, one in declared.items()}
        )

    def _option(self, found: Any, options: tuple[Any, ...], place: str) -> Any:
        """Return the type among several that plain values are of."""
        if found is None:
            wanted: Any = types.NoneType
        elif isinstance(found, dict):
            wanted = np.ndarray if "array" in found else self._types.get(found.get("part", ""))
        else:
            wanted = float
        if wanted not in options:
            raise ValueError(f"{place} is of no type that is possible there")
        return wanted


def _hints(part: type) -> dict[str, Any]:
    """Return the declared type of each field, but for what the class states of itself."""
    hints = get_type_hints(part)
    if is_dataclass(part):
        names = [one.name for one in fields(part) if one.metadata.get("saved", True)]
    else:
        names = part._fields  # type: ignore[attr-defined]
    return {name: hints[name] for name in names if name not in STATED}
