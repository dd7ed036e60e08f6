"""Experiments stand on the library: only their two commands import them, and they import in one direction."""

import ast
import graphlib
from importlib import resources

LIBRARY, EXPERIMENTS = resources.files("diff2"), resources.files("diff2_experiments")


def imported(path):
    """Return the modules of experiments that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.level == 1 or node.module.startswith("diff2_experiments"):
                found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("diff2_experiments")}
    return found


def test_only_their_commands_import_experiments():
    users = [
        path.relative_to(LIBRARY).as_posix()
        for path in LIBRARY.rglob("*.py")
        if any(name.startswith("diff2_experiments") for name in imported(path))
    ]
    assert users == ["cli/experiments.py"]


def test_experiments_import_in_one_direction():
    graph = {path.stem: imported(path) for path in EXPERIMENTS.glob("*.py")}
    graph["scaling_law"].discard("scaling_report")  # its command line, as a script
    order = list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError
    assert order.index("store") < order.index("trials") < order.index("comparison") < order.index("comparison_report")
