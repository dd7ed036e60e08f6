"""The methods of an experiment: from the base settings of a file and the table of a method to algorithms.

For each method, in this order, the later winning: the fields of its class that ``[algorithm]`` names and whose value
fits; its own table; in a comparison, the table for an epsilon inside it. A ``routine`` table with a ``name`` replaces
the routine so far (at first ``[routine]``); one without changes some of its keys.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from diff2._fields import convert
from diff2._validate import nearest
from diff2.algorithms import ALGORITHMS, GD, Algorithm
from diff2.algorithms.named import named
from diff2.errors import InvalidArgument

from .files import CompareFile

LABELS = {
    "gd": "GD",
    "dpgd": "DP-GD",
    "dpsgd": "DP-SGD",
    "dpsrm": "DP-SRM",
    "srnsgd": "SRN-SGD",
    "dpfedavg": "DP-FedAvg",
    "dpscaffold": "DP-SCAFFOLD",
    "diff2": "DIFF2-GD",
    "recursive_diff2": "DIFF2 recursive",
}


@dataclass(frozen=True)
class Method:
    """One line of a comparison."""

    name: str
    label: str
    algorithms: Mapping[float, Algorithm]  # by the epsilon of the budget

    @property
    def private(self) -> bool:
        """Whether it takes a budget; GD is the reference without one."""
        return not any(isinstance(algorithm, GD) for algorithm in self.algorithms.values())


def choose_methods(file: CompareFile, names: Sequence[str] | None, epsilons: Sequence[float]) -> list[Method]:
    """Return the methods of these names, or of all ``[compare.NAME]`` tables, with everything checked.

    Args:
        names: of ``[compare.NAME]`` tables, or of algorithms that need no table beside ``[algorithm]``.
        epsilons: the budgets for which they will be trained.
    """
    try:
        _check_base(file.algorithm)
        chosen = choose_names("compare", names, file.methods, ALGORITHMS)
        methods = [_method(file, name, epsilons) for name in chosen]
        labels = [method.label for method in methods]
        for label in labels:
            if labels.count(label) > 1:
                raise InvalidArgument(f"two methods have the label {label!r}; give each its own: label = ...")
        return methods
    except InvalidArgument as error:
        raise type(error)(f"{file.path}: {error}") from None


def choose_names(kind: str, names: Sequence[str] | None, tables: Mapping[str, Any], others: Any = ()) -> list[str]:
    """Return the names that were asked for, or those of all tables, each once.

    Args:
        kind: of the tables, ``"compare"`` or ``"tune"``.
        others: names that may be asked for without a table.
    """
    known = list(dict.fromkeys([*tables, *others]))
    chosen = list(dict.fromkeys(tables if names is None else names))
    if not chosen:
        raise InvalidArgument(f"nothing to {kind}: add a table [{kind}.NAME] for each method")
    for name in chosen:
        if name not in known:
            raise InvalidArgument(
                f"there is no table [{kind}.{name}]{nearest(name, known)} (known methods: {', '.join(known)})"
            )
    return chosen


def split_table(where: str, name: str, table: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Return the name of the algorithm, the label and the other keys of a method's table."""
    keys = dict(table)
    algorithm, label = keys.pop("algorithm", name), keys.pop("label", LABELS.get(name, name))
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise InvalidArgument(
            f"[{where}] needs the key 'algorithm', one of {sorted(ALGORITHMS)}, "
            f"got {algorithm!r}{nearest(algorithm, ALGORITHMS)}"
        )
    if not isinstance(label, str) or not label:
        raise InvalidArgument(f"[{where}] label: expected text in quotes, got {label!r}")
    return algorithm, label, keys


def build_algorithm(file: CompareFile, where: str, name: str, table: Mapping[str, Any]) -> Algorithm:
    """Return the algorithm of this name that one table makes of the file's base settings."""
    algorithm: Algorithm = named(where, _changed(where, _base(file, name), table), ALGORITHMS)
    return algorithm


def _method(file: CompareFile, name: str, epsilons: Sequence[float]) -> Method:
    where = f"compare.{name}"
    algorithm, label, table = split_table(where, name, file.methods.get(name, {}))
    overrides = _overrides(where, table.pop("epsilon", {}))
    keys = _changed(where, _base(file, algorithm), table)
    algorithms = {}
    # Those that are not asked for now are built as well, so that their mistakes are found.
    for epsilon in dict.fromkeys((*epsilons, *overrides)):
        text, override = overrides.get(epsilon, ("", {}))
        place = f"{where}.epsilon.{text}" if text else where
        algorithms[epsilon] = named(place, _changed(place, keys, override), ALGORITHMS)
    return Method(name, label, {epsilon: algorithms[epsilon] for epsilon in epsilons})


def _overrides(where: str, tables: Any) -> dict[float, tuple[str, Mapping[str, Any]]]:
    """Return the tables for an epsilon, by its value, with the text it was written as."""
    if not isinstance(tables, dict):
        raise InvalidArgument(f"[{where}] epsilon: expected tables such as [{where}.epsilon.1], got {tables!r}")
    found: dict[float, tuple[str, Mapping[str, Any]]] = {}
    for text, table in tables.items():
        if not isinstance(table, dict) or any(key.isdecimal() for key in table):
            raise InvalidArgument(f'[{where}.epsilon] expected tables by epsilon, such as [{where}.epsilon."0.5"]')
        try:
            epsilon = float(text)
        except ValueError:
            raise InvalidArgument(f"[{where}.epsilon.{text}] expected a number, got {text!r}") from None
        if epsilon in found:
            raise InvalidArgument(f"[{where}.epsilon] has two tables for epsilon {epsilon:g}")
        found[epsilon] = (text, table)
    return found


def _base(file: CompareFile, name: str) -> dict[str, Any]:
    """Return the base settings that the class has a field for, and whose value is of its type."""
    cls = ALGORITHMS[name]
    hints, keys = typing.get_type_hints(cls), {"name": name}
    for field in fields(cls):  # type: ignore[arg-type]
        if field.name in file.algorithm and field.name != "routine":
            try:
                convert(f"[algorithm] {field.name}", file.algorithm[field.name], hints[field.name])
            except InvalidArgument:
                if file.algorithm.get("name") == name:
                    raise
                continue
            keys[field.name] = file.algorithm[field.name]
    return keys if file.routine is None else {**keys, "routine": file.routine}


def _changed(where: str, keys: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with some replaced; a routine without a name replaces keys of the one before."""
    if "name" in changes:
        raise InvalidArgument(f"[{where}] has no key 'name'; did you mean 'algorithm', or 'label'?")
    merged = {**keys, **changes}
    routine = changes.get("routine")
    if isinstance(routine, dict) and "name" not in routine:
        if not keys.get("routine"):
            raise InvalidArgument(f"[{where}.routine] needs the key 'name': there is no [routine] to start from")
        merged["routine"] = {**keys["routine"], **routine}
    return merged


def _check_base(base: Mapping[str, Any]) -> None:
    name = base.get("name")
    if name is not None and name not in ALGORITHMS:
        raise InvalidArgument(f"[algorithm] name: expected one of {sorted(ALGORITHMS)}, got {name!r}")
    known = {field.name for algorithm in ALGORITHMS.values() for field in fields(algorithm)} - {"routine"}  # type: ignore[arg-type]
    for key in base:
        if key != "name" and key not in known:
            raise InvalidArgument(f"[algorithm] has no key {key!r} of any algorithm{nearest(key, known)}")
