"""What the code imports is what pyproject.toml declares, and what needs no PyTorch works without it."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from commands import COUNTS, single_line
from diff2 import __version__
from diff2.cli.doctor import EXTRAS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAMES = {"sklearn": "scikit-learn", "dp_accounting": "dp-accounting", "PIL": "pillow", "yaml": "pyyaml"}


def distributions(requirements):
    """Return the names of distributions, with those of our own extras that are named."""
    found = set()
    for one in requirements:
        name, extras = re.match(r"([\w-]+)(?:\[([\w,]+)\])?", one).groups()
        if name == "diff2":
            found |= distributions(other for extra in extras.split(",") for other in EXTRA[extra])
        else:
            found.add(name.lower())
    return found


CORE, EXTRA = PROJECT["dependencies"], PROJECT["optional-dependencies"]


def imported(folder):
    """Return the distributions that the files of a folder import, at any depth."""
    found = set()
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(node.module.split(".")[0])
    found -= {*sys.stdlib_module_names, "diff2", "diff2_experiments"}
    return {NAMES.get(name, name) for name in found}


def test_what_is_imported_is_declared_and_what_the_core_declares_is_imported():
    used = imported("src")
    users = {"dev", "bench", "benchmark", "experiments", "demo"}
    declared = distributions(CORE) | distributions(one for name in EXTRA.keys() - users for one in EXTRA[name])
    assert used <= declared
    assert distributions(CORE) <= used
    assert imported("experiments") <= distributions([*CORE, *EXTRA["experiments"], *EXTRA["demo"]])


@pytest.mark.parametrize("module", EXTRAS)
def test_the_doctor_names_the_extra_that_brings_a_package(module):
    assert NAMES.get(module, module) in distributions(EXTRA[EXTRAS[module][0]])


@pytest.mark.parametrize("extra", ["demo", "experiments", "federation", "secure", "bench"])
def test_what_trains_brings_pytorch(extra):
    assert "torch" in distributions(EXTRA[extra])
    assert "torch" not in distributions(CORE)


def test_every_installation_pins_torch():
    """A later version brings gigabytes to a machine without an accelerator."""
    assert "export PIP_CONSTRAINT := $(CURDIR)/constraints.txt" in (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^torch==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)
    for path in [*(ROOT / ".ci").iterdir(), *(ROOT / ".github").rglob("*.yml")]:
        for line in path.read_text(encoding="utf-8").splitlines():
            assert "pip install" not in line or "--constraint constraints.txt" in line, (path.name, line)


def test_the_citation_names_this_version():
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


WITHOUT = """
import sys
sys.modules["torch"] = None
from diff2.cli.main import main
main()
"""


def without_pytorch(folder, *words):
    """Run a command where PyTorch cannot be imported."""
    command = [sys.executable, "-c", WITHOUT, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_table_is_fitted_and_verified_without_pytorch(tmp_path):
    rng = np.random.default_rng(0)
    rows = zip(rng.integers(0, 99, 500), rng.poisson(3, 500), strict=True)
    (tmp_path / "people.csv").write_text("\n".join(["age,visits", *(f"{a},{v}" for a, v in rows)]), encoding="utf-8")
    (tmp_path / "schema.toml").write_text(COUNTS, encoding="utf-8")
    fit = ["fit", "people.csv", "--schema", "schema.toml", "--epsilon", "1", "--out"]
    for words in ([*fit, "model"], ["predict", "model", "people.csv", "--out", "out.csv"], ["verify", "model"]):
        result = without_pytorch(tmp_path, *words)
        assert result.returncode == 0, result.stderr
    refused = without_pytorch(tmp_path, *fit, "other", "--method", "network")
    assert "method='network' needs PyTorch" in single_line(refused.stderr)
    assert not (tmp_path / "other").exists(), "nothing was spent"


def test_training_without_pytorch_says_what_to_install(tmp_path):
    (tmp_path / "run.toml").write_text("", encoding="utf-8")
    refused = without_pytorch(tmp_path, "train", "run.toml", "--out", "out")
    assert (refused.returncode, "pip install 'diff2[torch]'" in single_line(refused.stderr)) == (1, True)
    code = "import sys; sys.modules['torch'] = None; import diff2; diff2.train"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.stderr.endswith("ImportError: diff2.train needs PyTorch; install it: pip install 'diff2[torch]'\n")
