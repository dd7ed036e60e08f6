"""``llms.txt``: what the library is, and every page with its first sentence, for programs that read documentation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml


class _Lenient(yaml.SafeLoader):
    """Reads mkdocs.yml without looking up the functions it names."""


_Lenient.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def llms_txt(pages: Path, config: Path) -> str:
    """Return the file; the order is that of the navigation."""
    settings = yaml.load(config.read_text(encoding="utf-8"), _Lenient)
    lines = [f"# {settings['site_name']}", "", f"> {settings['site_description']}"]
    for entry in settings["nav"]:
        lines += _entries(pages, entry)
    return "\n".join(lines) + "\n"


def _entries(pages: Path, entry: Any) -> list[str]:
    if isinstance(entry, str):
        entry = {"": entry}
    lines: list[str] = []
    for title, inside in entry.items():
        if isinstance(inside, list):
            lines += ["", f"## {title}", ""]
            for one in inside:
                lines += [line for line in _entries(pages, one) if line.startswith("- ")]
        else:
            text = (pages / inside).read_text(encoding="utf-8")
            heading = re.search(r"^# (.*)$", text, re.M)
            name = title or (heading[1] if heading else inside)
            lines.append(f"- [{name}]({inside.removesuffix('.md')}.html): {_first_sentence(text)}")
    return lines


def _first_sentence(text: str) -> str:
    body = re.sub(r"```.*?```", "", text, flags=re.S)
    body = re.sub(r"<[^>]*>|^(?:[#|>!-]|:::|    ).*$", "", body, flags=re.M)
    words = " ".join(body.split())
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", words).replace("**", "")
    return (re.match(r".*?[.:](?=\s|$)", plain) or re.match(r".*", plain))[0]  # type: ignore[index]
