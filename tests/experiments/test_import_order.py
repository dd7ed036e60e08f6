"""Experiments import each other in one direction. That the library does not import them, tests/test_imports.py says."""

import ast
import graphlib
from importlib import resources

EXPERIMENTS = resources.files("diff2_experiments")


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


def test_experiments_import_in_one_direction():
    graph = {path.stem: imported(path) for path in EXPERIMENTS.glob("*.py")}
    graph["scaling_law"].discard("scaling_report")  # its command line, as a script
    order = list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError
    assert order.index("store") < order.index("trials") < order.index("comparison") < order.index("comparison_report")
