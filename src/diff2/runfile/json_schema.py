"""A JSON Schema of run files, for editors: made of the same dataclasses that read them, so that it cannot fall behind.

It knows tables, keys, types, defaults and, of texts with few choices, the choices. What depends on other keys is left
to the reader of run files (``reader.py``).
"""

import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any

from .._files import plain
from ..algorithms import ALGORITHMS
from ..data.named import BUILTIN, BuiltinSettings, DatasetSettings
from ..data.settings import SCALES, TASKS, TableSettings
from ..models.mlp import ACTIVATIONS
from ..privacy.calibration import ACCOUNTINGS
from ..routines import ROUTINES, Routine
from ..training import OUTPUTS
from .reader import DTYPES, FederationSettings, ModelSettings, PrivacySettings, RunSettings

DRAFT = "https://json-schema.org/draft/2020-12/schema"
CHOICES: dict[tuple[type, str], Sequence[str]] = {
    (ModelSettings, "activation"): tuple(ACTIVATIONS),
    (PrivacySettings, "accounting"): ACCOUNTINGS,
    (PrivacySettings, "unit"): ("record", "client"),
    (RunSettings, "output"): OUTPUTS,
    (RunSettings, "dtype"): DTYPES,
    (RunSettings, "weighting"): ("clients", "records"),
    (TableSettings, "task"): TASKS,
    (TableSettings, "scale"): SCALES,
    (DatasetSettings, "scale"): SCALES,
    (BuiltinSettings, "builtin"): BUILTIN,
    (FederationSettings, "trust"): ("server", "sites"),
}
HIDDEN = {(DatasetSettings, "folders")}
NUMBER: dict[str, Any] = {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf"]}]}
PLAIN: dict[Any, dict[str, Any]] = {
    int: {"type": "integer"}, bool: {"type": "boolean"}, str: {"type": "string"}, float: NUMBER, Any: {},
}  # fmt: skip


def run_file_schema() -> dict[str, Any]:
    """Return the schema, in plain JSON values."""
    data = {"anyOf": [_table(kind) for kind in (TableSettings, DatasetSettings, BuiltinSettings)]}
    tables = {
        "data": data,
        "model": _table(ModelSettings),
        "algorithm": _named(ALGORITHMS, without=("routine",)),
        "routine": _named(ROUTINES),
        "privacy": _table(PrivacySettings),
        "run": _table(RunSettings),
        "federation": _table(FederationSettings),
    }
    return {
        "$schema": DRAFT,
        "title": "A run file of diff2",
        "type": "object",
        "properties": tables,
        "required": ["algorithm", "routine", "privacy"],
        "additionalProperties": False,
    }


def _named(classes: Mapping[str, type], without: Sequence[str] = ()) -> dict[str, Any]:
    """Return the schema of a table in which ``name`` chooses what else there may be."""
    return {"oneOf": [_table(kind, name, without) for name, kind in sorted(classes.items())]}


def _table(kind: type, name: str | None = None, without: Sequence[str] = ()) -> dict[str, Any]:
    hints, about = typing.get_type_hints(kind), _descriptions(kind)
    known = [
        field for field in fields(kind) if field.init and field.name not in without and (kind, field.name) not in HIDDEN
    ]
    properties = {field.name: _key(kind, field, hints[field.name], about) for field in known}
    needed = [field.name for field in known if field.default is MISSING and field.default_factory is MISSING]
    if name is not None:
        properties, needed = {"name": {"const": name}, **properties}, ["name", *needed]
    summary = (kind.__doc__ or "").strip().partition("\n")[0].replace("``", "")
    found = {"type": "object", "description": summary, "properties": properties, "additionalProperties": False}
    return {**found, **({"required": needed} if needed else {})}


def _key(kind: type, field: Field[Any], hint: Any, about: Mapping[str, str]) -> dict[str, Any]:
    choices = CHOICES.get((kind, field.name))
    found = {"enum": list(choices)} if choices else _type(hint)
    if field.name in about:
        found = {**found, "description": about[field.name]}
    if field.default not in (MISSING, None):
        found = {**found, "default": plain(field.default)}
    return found


def _type(hint: Any) -> dict[str, Any]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        options = [_type(one) for one in args if one is not type(None) and typing.get_origin(one) is not type]
        return options[0] if len(options) == 1 else {"anyOf": options}
    if origin is tuple and args[-1] is Ellipsis:
        return {"type": "array", "items": _type(args[0])}
    if origin is tuple:
        return {
            "type": "array",
            "prefixItems": [_type(one) for one in args],
            "minItems": len(args),
            "maxItems": len(args),
        }
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _type(args[1])}
    if hint is Routine:  # a routine inside a routine: its own keys are checked when the file is read
        return {"type": "object", "properties": {"name": {"enum": sorted(ROUTINES)}}, "required": ["name"]}
    return PLAIN.get(hint, {})


def _descriptions(kind: type) -> dict[str, str]:
    """Return what the docstrings of a class and of what it inherits say of its arguments."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        _, _, rest = (one.__doc__ or "").partition("Args:")
        for names, text in re.findall(r"^ {8}([\w, ]+): (.*(?:\n {12}.*)*)", rest, re.M):
            for name in names.split(", "):
                found[name.strip()] = " ".join(text.replace("``", "").split())
    return found
