"""The page of all commands and their options, from the command line itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from diff2.cli.main import app

HEAD = """# Commands

Every option of every command, as `--help` shows them. [Commands by example](command-line.md) shows outputs.
"""


def commands_page() -> str:
    """Return the page in Markdown."""
    found = list(commands())
    listed = "\n".join(f"| [`{name}`](#{name.replace(' ', '-')}) | {_first(one)} |" for name, one in found)
    parts = [_section(name, one) for name, one in found]
    return f"{HEAD}\n| command | |\n| --- | --- |\n{listed}\n\n" + "\n".join(parts)


def commands(group: Any = None, name: str = "diff2") -> Iterator[tuple[str, Any]]:
    """Yield every command with its full name."""
    group = typer.main.get_command(app) if group is None else group
    for key, one in sorted(group.commands.items()):
        if hasattr(one, "commands"):
            yield from commands(one, f"{name} {key}")
        elif not one.hidden:
            yield f"{name} {key}", one


def _first(one: Any) -> str:
    return _cell((one.help or "").strip().partition("\n\n")[0])


def _section(name: str, one: Any) -> str:
    shown = [option for option in one.params if not getattr(option, "hidden", False)]
    arguments = [_metavar(option) if option.required else f"[{_metavar(option)}]" for option in shown if _named(option)]
    needed = [f"{option.opts[0]} {_metavar(option)}" for option in shown if not _named(option) and option.required]
    text = "\n\n".join(" ".join(part.split()) for part in (one.help or "").split("\n\n"))
    example = " ".join((one.epilog or "").split())
    return (
        f"## {name}\n\n```text\n{' '.join([name, *arguments, *needed, '[OPTIONS]'])}\n```\n\n{text}\n\n"
        "| | default | meaning |\n| --- | --- | --- |\n" + "\n".join(map(_row, shown)) + f"\n\n{_code(example)}\n"
    )


def _named(option: Any) -> bool:
    return bool(option.param_type_name == "argument")


def _metavar(option: Any) -> str:
    return str(option.metavar or option.name.upper())


def _row(option: Any) -> str:
    value = "" if getattr(option, "is_flag", False) else f" {_metavar(option)}"
    names = [_metavar(option)] if _named(option) else [f"{one}{value}" for one in option.opts]
    default = option.default
    given = "" if default in (None, False, ()) or callable(default) else f"`{default}`"
    cells = ", ".join(f"`{one}`" for one in names), "required" if option.required else given, _cell(option.help or "")
    return f"| {' | '.join(cells)} |"


def _code(example: str) -> str:
    parts = example.removeprefix("Example: ").split(", or ")
    return "Example: " + ", or ".join(f"`{part}`" for part in parts) if example else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
