"""The page of errors and warnings, A to Z: what each class is for, and every message that the source has for it."""

from __future__ import annotations

import ast
import html
import inspect
from collections.abc import Iterator
from pathlib import Path

from diff2 import errors
from diff2.privacy.leaks import CODES

SOURCE = Path(errors.__file__).parent
HEAD = """# Errors and warnings, A to Z

All errors raised on purpose inherit `Diff2Error`, and a message names the argument, its value and the remedy.
Warnings go to standard error on the command line. No message quotes a record. Messages are listed as the source
has them; `{...}` stands for a name or a number. Look for yours with the search of this site.
"""
STATUS = {"BudgetExceeded": 3}


def errors_page() -> str:
    """Return the page in Markdown."""
    kinds = sorted(
        (one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, Exception)),
        key=lambda one: one.__name__,
    )
    messages: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for name, text in _messages(ast.parse(path.read_text(encoding="utf-8"))):
            messages.setdefault(name, set()).add(text)
    parts = [_section(one, sorted(messages.get(one.__name__, ()))) for one in kinds]
    codes = ", ".join(f"[{code}](leaks/{code.removeprefix('LEAK-').lower()}.md)" for code in sorted(CODES))
    return f"{HEAD}\n" + "\n".join(parts) + f"\n## Leak codes\n\nA `PrivacyLeakWarning` begins with one: {codes}.\n"


def _section(kind: type[Exception], messages: list[str]) -> str:
    name = kind.__name__
    what = "A warning" if issubclass(kind, Warning) else f"An error; exit status {STATUS.get(name, 1)}"
    about = inspect.cleandoc(kind.__doc__ or "").replace("``", "`")
    text = f"## {name}\n\n{about}\n\n*{what}; derived from `{kind.__bases__[0].__name__}`.*\n"
    if messages:
        items = "".join(f"<li>{html.escape(one)}</li>" for one in messages)
        count = "1 message" if len(messages) == 1 else f"{len(messages)} messages"
        text += f"\n<details><summary>{count}</summary><ul>{items}</ul></details>\n"
    return text


def _messages(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the class and the first text of every call like ``InvalidArgument("...")`` or ``warn("...", Kind)``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name == "warn" and len(node.args) > 1:
                name = getattr(node.args[1], "id", "")
            if name == "leak" and len(node.args) > 1:
                name, node = "PrivacyLeakWarning", ast.Call(node.func, node.args[1:], [])
            name = "InvalidArgument" if name == "wrong" else name
            text = _text(node.args[0])
            if hasattr(errors, name) and text:
                yield name, text


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(one) if isinstance(one, ast.Constant) else "{...}" for one in node.values)
    return ""
