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
    "figures": set(),
}
TOP = {"cli", "__main__"}
USES_EXPERIMENTS = TOP | {"experiments_cli", "reports"}  # what trains models knows nothing of experiments

# Likewise within experiments: what is shown comes after what was found.
ALLOWED_EXPERIMENTS = {
    "store": set(),
    "exponents": set(),
    "theory": set(),
    "trials": {"store"},
    "methods": set(),
    "grids": {"methods"},
    "tuning": {"grids", "store", "trials"},
    "reproduced": set(),
    "findings": {"reproduced", "scores"},
    "landscape": {"findings", "reproduced"},
    "tabulation": {"findings", "reproduced", "scores"},
    "report_page": {"findings", "landscape", "reproduced", "tabulation"},
}


def part_of(path):
    """Return the first name below the package: a module, or a folder with all that is in it."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_parts(source, path, depth=1):
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
        if depth == 1:
            found |= {name[1] if len(name) > 1 else "__init__" for name in names if name[0] == "diff2"}
        else:
            found |= {name[2] for name in names if name[:2] == ["diff2", "experiments"] and len(name) > 2}
    return found


FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path):
    part = part_of(path)
    imported = imported_parts(path.read_text(encoding="utf-8"), path) - {part}
    if part in ALLOWED:
        assert imported <= ALLOWED[part] | (FOUNDATION if part not in FOUNDATION else set())
    if part not in USES_EXPERIMENTS:
        assert "experiments" not in imported
    if part not in TOP:
        assert not imported & TOP
        assert "__init__" not in imported, "import the part that is needed, not the whole package"


@pytest.mark.parametrize("name", ALLOWED_EXPERIMENTS)
def test_imports_among_experiments_point_one_way(name):
    path = ROOT / "experiments" / f"{name}.py"
    assert imported_parts(path.read_text(encoding="utf-8"), path, depth=2) <= ALLOWED_EXPERIMENTS[name]


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
