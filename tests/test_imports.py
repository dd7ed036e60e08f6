"""Imports point one way between the packages of the library, and what needs no tensors loads none."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import diff2

ROOT = Path(diff2.__file__).parent

# From the bottom up: a package, or a module of the top folder, imports itself and what stands before it. Nothing else.
ORDER = [
    *(
        "errors",
        "_version",
        "_validate",
        "_fields",
        "_vectors",
        "_files",
        "_numbers",
        "_progress",
        "_registry",
    ),
    *("privacy", "questions", "routines", "algorithms", "planning", "models", "gradients", "cohorts", "training"),
    *("tables", "fitting", "sklearn", "data", "runfile", "federation", "reporting", "cli"),
]
BESIDE = {"testing"}  # may import anything but the command line; imported by it, and inside of functions
TOP = {"__init__", "__main__"}
EXPERIMENTS = {"cli/experiments.py"}  # may import experiments, once a command is called

FILES = sorted(ROOT.rglob("*.py"))


def part_of(path):
    """Return the first name below the package: a module, or a folder with all that is in it."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(source, path):
    """Return (top name, part of the package, whether it is postponed) of all imports of a file, at any depth."""
    package = ["diff2", *path.relative_to(ROOT).parts[:-1]]
    found = set()

    def visit(node, postponed):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            names = [[*base, *(node.module.split(".") if node.module else []), alias.name] for alias in node.names]
        else:
            names = []
        found.update((name[0], name[1] if len(name) > 1 else "__init__", postponed) for name in names)
        later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        )
        for child in ast.iter_child_nodes(node):
            visit(child, postponed or later)

    visit(ast.parse(source), False)
    return found


def violations(source, path):
    """Return what a file imports against the order, as sentences."""
    part, found = part_of(path), []
    name = str(path.relative_to(ROOT))
    if part not in {*ORDER, *BESIDE, *TOP}:
        return [f"{part} has no place in the order of packages; give it one in {Path(__file__).name}"]
    for top, other, postponed in sorted(imported(source, path)):
        if top == "diff2_experiments" and not (name in EXPERIMENTS and postponed):
            found.append(f"{name} imports diff2_experiments")
        if top != "diff2" or part in TOP or other == part:
            continue
        if other in BESIDE:
            allowed = part == "cli" or postponed
        elif part in BESIDE:
            allowed = other in ORDER and other != "cli"
        else:
            allowed = other in ORDER[: ORDER.index(part)]
        if not allowed:
            found.append(f"{part} imports {other}")
    return found


def test_imports_point_one_way():
    assert [(path.name, found) for path in FILES if (found := violations(path.read_text(encoding="utf-8"), path))] == []


def test_no_module_is_left_out():
    """Every module of the package is a file that is looked at, and every name in the order is there."""
    parts = {part_of(path) for path in FILES}
    assert set(ORDER) <= parts <= {*ORDER, *BESIDE, *TOP}
    assert {path for path in ROOT.rglob("*") if path.suffix in (".py", ".pyx", ".so")} == set(FILES)


@pytest.mark.parametrize(
    ("file", "source", "expected"),
    [
        ("gradients/a.py", "from ..privacy import Ledger\nimport torch\nfrom .ghost import b", []),
        ("gradients/a.py", "from ..cohorts import Client", ["gradients imports cohorts"]),
        ("gradients/a.py", "from .. import cohorts", ["gradients imports cohorts"]),
        ("gradients/deep/a.py", "from ...data.tables import x", ["gradients imports data"]),
        ("privacy/a.py", "import diff2.cli", ["privacy imports cli"]),
        ("privacy/a.py", "from diff2 import train", ["privacy imports train"]),
        ("privacy/a.py", "import diff2", ["privacy imports __init__"]),
        ("privacy/a.py", "def f():\n    from ..training.loop import Training", ["privacy imports training"]),
        ("privacy/a.py", "if TYPE_CHECKING:\n    from ..questions import Round", ["privacy imports questions"]),
        ("_vectors.py", "from ._validate import nearest\nfrom ._files import plain", ["_vectors imports _files"]),
        ("cli/a.py", "from ..testing import check_algorithm", []),
        ("training/a.py", "from ..testing import check_algorithm", ["training imports testing"]),
        ("testing.py", "from .cli import main", ["testing imports cli"]),
        ("cli/a.py", "def f():\n    import diff2_experiments", ["cli/a.py imports diff2_experiments"]),
        ("cli/experiments.py", "from diff2_experiments import x", ["cli/experiments.py imports diff2_experiments"]),
        ("cli/experiments.py", "def f():\n    from diff2_experiments.a import x", []),
        ("utils/a.py", "", ["utils has no place in the order of packages; give it one in test_imports.py"]),
        ("extra.py", "", ["extra has no place in the order of packages; give it one in test_imports.py"]),
    ],
)
def test_an_import_is_seen_however_it_is_written(file, source, expected):
    assert violations(source, ROOT / file) == expected


TENSORLESS = ["diff2", "diff2.privacy", "diff2.questions", "diff2.routines", "diff2.algorithms", "diff2.planning"]
HEAVY = ["torch", "numpy", "pandas", "joblib", "dp_accounting"]


def test_what_needs_no_tensors_loads_none():
    """One fresh interpreter, from the bottom up: after each package, none of the heavy ones is there."""
    code = f"""
import importlib, sys
for name in {[*TENSORLESS, "diff2.cli.main"]}:
    importlib.import_module(name)
    loaded = [heavy for heavy in {HEAVY} if heavy in sys.modules]
    assert not loaded, f"{{name}} loads {{loaded}}"
from diff2 import Budget, Diff2, GradientDescent, plan
plan(Diff2(20, 5, 1.0, 1.0, GradientDescent(0.1)), Budget(1.0, 1e-5), [100, 200])
assert not [name for name in ("torch", "numpy") if name in sys.modules], "a plan loads them"
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_public_surface_is_what_it_says():
    source = (ROOT / "__init__.py").read_text(encoding="utf-8")
    declared = set(re.findall(r"^    from \.[\w.]+ import (\w+) as \1$", source, re.M))
    assert declared == set(diff2.__all__) - {"__version__"}
    for name in declared - {"ALGORITHMS", "ROUTINES"}:
        assert getattr(diff2, name).__name__ == name
    ours = [
        kind for kind in (*diff2.ALGORITHMS.values(), *diff2.ROUTINES.values()) if kind.__module__.startswith("diff2.")
    ]
    assert [kind.__name__ for kind in ours if getattr(diff2, kind.__name__, None) is not kind] == []
    assert callable(diff2.plan)  # a function, not the module of a like name
    assert set(dir(diff2)) == set(diff2.__all__)
