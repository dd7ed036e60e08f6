"""The page of all tables and keys of a run file, from the schema that is made of the dataclasses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from diff2.runfile.json_schema import run_file_schema

HEAD = """# Run file: every key

Made of the classes that read run files. [Run files](run-file.md) explains them. A key without a default that is
not required may be left out.
"""
TITLES = {"file": "Your own tables", "dataset": "A public table by name", "builtin": "A built-in table"}
TYPES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false", "object": "table"}


def run_file_keys() -> str:
    """Return the page in Markdown."""
    parts = [HEAD]
    for name, table in run_file_schema()["properties"].items():
        parts.append(f"## `[{name}]`\n")
        options = table.get("anyOf") or table.get("oneOf") or [table]
        parts += [_table(one, named="oneOf" in table, alone=len(options) == 1) for one in options]
    return "\n".join(parts)


def _table(table: Mapping[str, Any], *, named: bool, alone: bool) -> str:
    keys, needed = dict(table["properties"]), table.get("required", [])
    own = next((text for key, text in TITLES.items() if key in keys), "")
    title = f'`name = "{keys.pop("name")["const"]}"`' if named else own
    said = f"{table['description']}\n\n"
    if not keys:
        return f"### {title}\n\n{said}"
    rows = [
        f"| `{key}` | {_type(one)} | {_default(key, one, needed)} | {_cell(one.get('description', ''))} |"
        for key, one in keys.items()
    ]
    head = "" if alone else f"### {title}\n\n"
    return f"{head}{said}| key | type | default | meaning |\n| --- | --- | --- | --- |\n" + "\n".join(rows) + "\n"


def _type(one: Mapping[str, Any]) -> str:
    if "enum" in one:
        return " or ".join(f"`{json.dumps(choice)}`" for choice in one["enum"])
    if "anyOf" in one:
        found = [_type(option) for option in one["anyOf"]]
        return "number" if found == ["number", '`"inf"` or `"-inf"`'] else " or ".join(dict.fromkeys(found))
    if "oneOf" in one:
        names = [option["properties"]["name"]["const"] for option in one["oneOf"]]
        return "table, by name " + ", ".join(f"`{name}`" for name in names)
    if one.get("type") == "array":
        inside = [_type(item) for item in one.get("prefixItems", [one.get("items", {})])]
        return f"[{', '.join(inside)}]" if "prefixItems" in one else f"list of {inside[0]}"
    return TYPES.get(one.get("type", ""), "any")


def _default(key: str, one: Mapping[str, Any], needed: list[str]) -> str:
    if key in needed:
        return "required"
    return f"`{json.dumps(one['default'])}`" if "default" in one else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
