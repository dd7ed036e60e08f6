"""Imports inside the federation go one way, only ``flare`` knows NVIDIA FLARE, and importing needs no POSIX."""

import ast
import signal
import sys
import types
from pathlib import Path

import pytest

import diff2

ROOT = Path(diff2.__file__).parent
ORDER = [
    *("faults", "wire", "among_sites", "fit_agreement", "agreement", "own_noise", "sealed", "server", "site"),
    *("from_run_file", "flare"),
]
FILES = sorted((ROOT / "federation").rglob("*.py"))


def imported(path):
    """Return the full names of all modules and names that a file imports, also inside functions."""
    package, found = ["diff2", *path.relative_to(ROOT).parts[:-1]], []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            found += [[*base, alias.name] for alias in node.names]
    return found


def part_of(path):
    return path.relative_to(ROOT / "federation").parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path):
    part = part_of(path)
    if part == "__init__":
        assert imported(path) == []
        return
    used = {name[2] for name in imported(path) if name[:2] == ["diff2", "federation"]}
    assert used <= set(ORDER[: ORDER.index(part) + 1])
    assert not {name[1] for name in imported(path) if name[0] == "diff2" and len(name) > 1} & {"cli", "__main__"}


def test_every_part_is_in_the_order():
    assert {part_of(path) for path in FILES} == {*ORDER, "__init__"}


def test_only_flare_imports_nvflare():
    users = {path for path in ROOT.rglob("*.py") if any(name[0] == "nvflare" for name in imported(path))}
    assert users
    assert all(path.parent == ROOT / "federation" / "flare" for path in users)


def test_nothing_needs_posix_when_it_is_imported(monkeypatch):
    """As on Windows: no fcntl, no SIGKILL, and a process that is started may have no preexec_fn."""
    posix = {"fcntl", "pwd", "grp", "resource", "termios"}
    assert not [path for path in ROOT.rglob("*.py") if posix & {name[0] for name in imported(path)}]
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.delattr(signal, "SIGKILL")
    path = ROOT / "federation" / "flare" / "processes.py"
    on_windows = types.ModuleType("processes_on_windows")
    exec(compile(path.read_text(encoding="utf-8"), path, "exec"), on_windows.__dict__)
    assert on_windows.END_WITH_PARENT is None
