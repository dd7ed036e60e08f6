"""A schema as a file that people read and confirm, and as plain values that travel with a model.

Both have the same shape. In the file a comment on each line says where it comes from.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from datetime import date
from typing import Any

from .._files import AnyPath, read_toml
from .._validate import nearest
from ..errors import InvalidArgument
from .file_format import FileFormat
from .kinds import COLUMNS, DATA, GIVEN, TARGETS, Column, Target
from .problems import Problems
from .schema import Schema

LEAK = "read off the data: replace with what everybody knows"
CONFIRM = f'read off the data: once the lines above are public knowledge, write "{GIVEN}"'
HEADER = "from the name of the column"
BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


def read_schema(path: AnyPath) -> Schema:
    """Read a schema from a TOML file; all that is wrong with it is reported at once."""
    return from_plain(read_toml(path, "schema"), str(path))


def to_plain(schema: Schema) -> dict[str, Any]:
    """Return plain JSON values."""
    roles = {"clients": schema.clients, "groups": schema.groups}
    return {
        **{role: name for role, name in roles.items() if name is not None},
        "file": {one.name: getattr(schema.file, one.name) for one in fields(FileFormat)},
        "target": {"column": schema.target_name, **_plain_part(schema.target)},
        "columns": {name: _plain_part(column) for name, column in schema.columns.items()},
    }


def from_plain(document: Mapping[str, Any], what: str = "the schema") -> Schema:
    """Return the schema that such values describe."""
    problems = Problems(what)
    _check_keys(problems, "the schema", document, ["clients", "groups", "file", "target", "columns"])
    tables = {key: _table(problems, document, key) for key in ("file", "target", "columns")}
    target = dict(tables["target"])
    target_name = target.pop("column", None)
    if not isinstance(target_name, str):
        problems.add("[target]", "names no column", 'write: column = "..."')
    roles = {role: document.get(role) for role in ("clients", "groups")}
    for role, name in roles.items():
        if name is not None and not isinstance(name, str):
            problems.add(role, "is not a name", "name a column, in quotes")
    _check_keys(problems, "[file]", tables["file"], [one.name for one in fields(FileFormat)])
    if any(not isinstance(value, str) for value in tables["file"].values()):
        problems.add("[file]", "holds something else than texts", "put them in quotes")
    columns = {name: _part(problems, f"column {name!r}", table, COLUMNS) for name, table in tables["columns"].items()}
    found = _part(problems, f"target {target_name!r}", target, TARGETS)
    problems.refuse()
    return Schema(columns, str(target_name), found, **roles, file=FileFormat(**tables["file"]))


def to_toml(schema: Schema) -> str:
    """Return the schema as TOML."""
    document = to_plain(schema)
    lines = []
    for role in ("clients", "groups"):
        if role in document:
            lines.append(f"{role} = {_value(document[role])}  # {GIVEN}")
    lines += ["", "[file]"] if lines else ["[file]"]
    lines += [f"{key} = {_value(value)}  # {GIVEN}" for key, value in document["file"].items()]
    lines += ["", "[target]", f"column = {_value(schema.target_name)}  # {GIVEN}", *_lines(schema.target)]
    for name, column in schema.columns.items():
        lines += ["", f"[columns.{_key(name)}]", *_lines(column)]
    return "\n".join(lines) + "\n"


def _lines(part: Column | Target) -> Iterator[str]:
    """Yield the lines of one column, each with a comment on its source."""
    comment = LEAK if part.source == DATA else GIVEN
    kind = part.kind
    if kind in TARGETS:
        others = ", ".join(other for other in TARGETS if other != kind)
        comment_of_kind = f"{comment} (others: {others})"
    else:
        comment_of_kind = comment
    yield f'kind = "{kind}"  # {comment_of_kind}'
    for key, value in _values(part).items():
        if key == "source":
            yield f'source = "{value}"  # {CONFIRM if value == DATA else GIVEN}'
        elif isinstance(value, list):
            yield f"{key} = ["
            yield from (f"    {_value(one)},  # {comment}" for one in value)
            yield f"]  # {comment}"
        else:
            yield f"{key} = {_value(value)}  # {HEADER if key == 'unit' and part.source == DATA else comment}"


def _values(part: Column | Target) -> dict[str, Any]:
    """Return what a part states; nothing for what is unknown."""
    found = {one.name: getattr(part, one.name) for one in fields(part)}
    found = {key: list(value) if isinstance(value, tuple) else value for key, value in found.items()}
    return {key: value for key, value in found.items() if value is not None and value != ""}


def _plain_part(part: Column | Target) -> dict[str, Any]:
    values = {key: value.isoformat() if isinstance(value, date) else value for key, value in _values(part).items()}
    return {"kind": part.kind, **values}


def _part(problems: Problems, place: str, table: Any, kinds: Mapping[str, type]) -> Any:
    """Return the column or target that a table describes; None where a problem was noted."""
    if not isinstance(table, Mapping) or table.get("kind") not in kinds:
        found = table.get("kind") if isinstance(table, Mapping) else None
        problems.add(place, f"has kind={found!r}{nearest(found, kinds)}", f"write one of {', '.join(kinds)}")
        return None
    kind = kinds[table["kind"]]
    known = {one.name: one for one in fields(kind)}
    values = {key: value for key, value in table.items() if key != "kind"}
    before = len(problems.lines)
    _check_keys(problems, place, values, list(known))
    for key, one in known.items():
        if key not in values and one.default is MISSING:
            problems.add(place, f"lacks {key}", f"write: {key} = ...")
        if key in ("unit", "source", "format") and not isinstance(values.get(key, ""), str):
            problems.add(place, f"has {key} that is not text", "put it in quotes")
        if key == "nullable" and not isinstance(values.get(key, True), bool):
            problems.add(place, "has nullable that is neither true nor false", "write: nullable = true")
        if key == "values" and not isinstance(values.get(key, []), list):
            problems.add(place, "has values that are not a list", "write: values = [...]")
    if len(problems.lines) > before:
        return None
    if kind.kind == "date":  # type: ignore[attr-defined]
        values = {key: _date(value) if key in ("low", "high") else value for key, value in values.items()}
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})


def _check_keys(problems: Problems, place: str, table: Mapping[str, Any], known: list[str]) -> None:
    for key in table:
        if key not in known:
            problems.add(place, f"has an unknown key {key!r}{nearest(key, known)}", "leave it out")


def _table(problems: Problems, document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = document.get(key, {})
    if isinstance(found, Mapping):
        return found
    problems.add(key, "is not a table", f"write: [{key}]")
    return {}


def _date(value: Any) -> Any:
    try:
        return date.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return None


def _value(value: Any) -> str:
    """Return a TOML value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, int | float):
        return repr(value)
    raise InvalidArgument(f"a schema holds texts, numbers and truth values, got {type(value).__name__}")


def _key(name: str) -> str:
    return name if name and set(name) <= BARE else _value(name)
