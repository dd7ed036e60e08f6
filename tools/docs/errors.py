"""The page of errors and warnings, A to Z, from the classes and from what raises them."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from diff2 import errors
from diff2.privacy.leaks import CODES

SOURCE = Path(errors.__file__).parent
HEAD = """# Errors and warnings, A to Z

All errors raised on purpose inherit `Diff2Error`, and a message names the argument, its value and the remedy.
Warnings go to standard error on the command line. No message quotes a record.
"""
STATUS = {"BudgetExceeded": 3}


def errors_page() -> str:
    """Return the page in Markdown."""
    kinds = sorted(
        (one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, Exception)),
        key=lambda one: one.__name__,
    )
    raised = _raised()
    parts = [_section(one, raised.get(one.__name__, set())) for one in kinds]
    codes = ", ".join(f"[{code}](leaks/{code.removeprefix('LEAK-').lower()}.md)" for code in sorted(CODES))
    return f"{HEAD}\n" + "\n".join(parts) + f"\n## Leak codes\n\nA `PrivacyLeakWarning` begins with one: {codes}.\n"


def _section(kind: type[Exception], packages: set[str]) -> str:
    name = kind.__name__
    parent = kind.__bases__[0].__name__
    what = "warning" if issubclass(kind, Warning) else f"error; exit status {STATUS.get(name, 1)}"
    lines = [f"## {name}", "", inspect.cleandoc(kind.__doc__ or "").replace("``", "`"), ""]
    lines.append(
        f"*{what}; a `{parent}`" + (f"; from {', '.join(f'`{one}`' for one in sorted(packages))}*" if packages else "*")
    )
    return "\n".join(lines) + "\n"


def _raised() -> dict[str, set[str]]:
    """Return, for each name that is called anywhere, the packages it is called in."""
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        package = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Name) and package != "errors" and not package.startswith("_"):
                found.setdefault(node.id, set()).add(package)
    return found
