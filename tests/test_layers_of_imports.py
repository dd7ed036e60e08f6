"""Imports point one way: records and noise know nothing of algorithms, and nothing knows the command line."""

import ast
from pathlib import Path

import pytest

import diff2

ROOT = Path(diff2.__file__).parent
FOUNDATION = {"errors", "_types", "_validate", "_version"}

# What each part may import besides itself and the foundation. A part that is not listed: anything but the top.
ALLOWED = {
    "errors": set(),
    "_types": set(),
    "_version": set(),
    "_validate": {"errors"},
    "privacy": set(),
    "gradients": {"losses"},
    "losses": set(),
    "models": set(),
    "data": set(),
    "clients": {"losses"},
    "population": {"privacy"},
    "cohort": {"clients", "gradients", "population", "privacy"},
    "clientwise": {"clients", "cohort", "gradients", "population", "privacy"},
    "rounds": {"cohort", "population", "privacy"},
    "routines": {"population", "rounds"},
    "estimators": {"population", "privacy", "rounds", "routines"},
    "plans": {"estimators", "population", "privacy", "rounds"},
    "reproduced": set(),
    "figures": set(),
    "findings": {"figures", "reproduced", "scores"},
    "landscape": {"findings", "reproduced"},
    "tabulation": {"findings", "reproduced", "scores"},
    "report_page": {"figures", "findings", "landscape", "reproduced", "tabulation"},
}
TOP = {"cli", "__main__"}


def part_of(path):
    """Return the first name below the package: a module, or a folder with all that is in it."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_parts(source, path):
    """Return the parts of the package that a file imports, at any depth and also inside functions."""
    package = ["diff2", *path.relative_to(ROOT).parts[:-1]]
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            names = [[*base, alias.name] for alias in node.names]
        else:
            continue
        found |= {name[1] if len(name) > 1 else "__init__" for name in names if name[0] == "diff2"}
    return found


FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path):
    part = part_of(path)
    imported = imported_parts(path.read_text(encoding="utf-8"), path) - {part}
    if part in ALLOWED:
        assert imported <= ALLOWED[part] | (FOUNDATION if part not in FOUNDATION else set())
    if part not in TOP:
        assert not imported & TOP
        assert "__init__" not in imported, "import the part that is needed, not the whole package"


def test_the_public_package_does_not_load_the_command_line():
    assert not imported_parts((ROOT / "__init__.py").read_text(encoding="utf-8"), ROOT / "__init__.py") & TOP


def test_every_part_of_the_table_exists():
    assert set(ALLOWED) <= {part_of(path) for path in FILES} | {path.name for path in ROOT.iterdir() if path.is_dir()}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from ..privacy import Ledger", {"privacy"}),
        ("from .. import plans", {"plans"}),
        ("from .ghost import GhostEngine", {"gradients"}),
        ("import diff2.cli", {"cli"}),
        ("from diff2 import train", {"train"}),
        ("def f():\n    from ..estimators.diff2 import Diff2", {"estimators"}),
        ("import torch\nfrom torch import nn", set()),
    ],
)
def test_an_import_is_seen_however_it_is_written(source, expected):
    assert imported_parts(source, ROOT / "gradients" / "some.py") == expected
