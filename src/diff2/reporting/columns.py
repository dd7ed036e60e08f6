"""What each column was, within which public bounds, and where these come from: as the header of a ledger says it.

Bounds and lists that were read off the data are a leak. They are named as one, and not shown.
"""

import tomllib
from collections.abc import Mapping
from typing import Any

LEAKED = "read off the data, a leak; not shown"
CLAMPED = "clamped to the bounds"
KINDS = {  # of fit, how a column becomes numbers
    "number": CLAMPED,
    "category": "one of the list, other, or missing",
    "flag": "yes or no",
    "date": f"days, and the season; {CLAMPED}",
    "regression": CLAMPED,
    "classes": "one of the list; a record with another class counts as empty",
    "counts": CLAMPED,
}
SOURCES = {  # of train
    "public bounds": f"{CLAMPED}, scaled to -1 to 1",
    "public bounds, then a private release of mean and deviation": f"{CLAMPED}, then standardised",
    "used as it is": "used as it is",
    "public list of classes": "one of the list",
}


def columns(header: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return name, role, kind, bounds, values, source and encoding of each column; None where nothing was declared."""
    found = header["columns"]
    if not isinstance(found, Mapping):
        return None
    of_fit = isinstance(found.get("columns"), Mapping) and isinstance(found.get("target"), Mapping)
    return _of_fit(found) if of_fit else [_of_train(name, one) for name, one in found.items()]


def dropped(header: Mapping[str, Any]) -> list[str]:
    """Return the columns that the run file says to leave out."""
    try:
        named = tomllib.loads(header["run_file"]["text"])["data"]["drop"]
        return [str(name) for name in named]
    except (TypeError, KeyError, ValueError):
        return []


def _of_fit(schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    target = dict(schema["target"])
    found = [_part(name, "input", one) for name, one in schema["columns"].items()]
    found.append(_part(str(target.pop("column", "")), "target", target))
    for role in ("clients", "groups"):
        if role in schema:
            whose = "which client each record belongs to" if role == "clients" else "which records belong together"
            found.append(_row(schema[role], role, "name", None, None, "given", whose))
    return found


def _part(name: str, role: str, part: Mapping[str, Any]) -> dict[str, Any]:
    kind = str(part.get("kind"))
    if part.get("source") == "data":
        return _row(name, role, kind, None, None, LEAKED, KINDS.get(kind, ""))
    low, high, values = part.get("low"), part.get("high"), part.get("values")
    if kind == "counts":
        low = 0
    bounds = None if high is None else [low, high]
    source = "given"
    if kind in ("number", "regression") and bounds is None:
        source = "found by a released histogram"
    return _row(name, role, kind, bounds, values, source, KINDS.get(kind, ""))


def _of_train(name: str, column: Any) -> dict[str, Any]:
    part = column if isinstance(column, Mapping) else {}
    source, values = str(part.get("source", "")), part.get("classes")
    if source.startswith("read off the data"):
        return _row(name, part.get("role"), "", None, None, LEAKED, "")
    kind = "number" if values is None else "classes"
    return _row(name, part.get("role"), kind, part.get("bounds"), values, source, SOURCES.get(source, ""))


def _row(name: Any, role: Any, kind: str, bounds: Any, values: Any, source: str, encoding: str) -> dict[str, Any]:
    return {
        "name": str(name), "role": str(role), "kind": kind, "bounds": bounds, "values": values, "source": source,
        "encoding": encoding,
    }  # fmt: skip
