"""The wheel, installed by pip into an empty environment elsewhere: each command works, or says what to install.

The environment holds what ``pip install diff2`` brings and no extra, hence no PyTorch.
"""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

from commands import COUNTS, POINTER, single_line

ROOT = Path(__file__).parents[1]
PARTS = ("pyproject.toml", "README.md", "LICENSE", "src", "experiments")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy of what it is made of."""
    copy, dist = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("dist")
    for name in PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
        else:
            shutil.copy(ROOT / name, copy / name)
    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", dist, copy)
    return next(dist.glob("diff2-*.whl"))


@pytest.fixture(scope="module")
def diff2(wheel, tmp_path_factory):
    """The command, in a folder with a table: a function of its words that returns how it ended."""
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder / "venv", with_pip=True)
    scripts = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
    pip(scripts / "python", "install", wheel)
    pip(scripts / "python", "check")
    rng = np.random.default_rng(0)
    rows = zip(rng.integers(0, 99, 500), rng.poisson(3, 500), strict=True)
    (folder / "people.csv").write_text("\n".join(["age,visits", *(f"{a},{v}" for a, v in rows)]), encoding="utf-8")
    (folder / "schema.toml").write_text(COUNTS, encoding="utf-8")

    def run(*words):
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "DIFF2_DATA")}
        return subprocess.run(
            [scripts / "diff2", *words], cwd=folder, env={**environment, "COLUMNS": "100"}, capture_output=True,
            text=True, encoding="utf-8", check=False,
        )  # fmt: skip

    return run


def pip(python, *words):
    """Run pip; what it may install is in the constraints of the repository."""
    environment = {**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    environment.pop("PYTHONPATH", None)
    command = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_wheel_holds_both_packages_their_data_and_nothing_else(wheel):
    there = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = [path for part in ("src", "experiments") for path in (ROOT / part).glob("*/**/*") if path.is_file()]
    wanted = {
        path.relative_to(ROOT).as_posix().split("/", 1)[1]
        for path in files
        if not {"__pycache__"} & set(path.parts) and ".egg-info" not in str(path) and path.suffix != ".sh"
    }
    assert there == wanted
    assert {"diff2/py.typed", "diff2/data/randhie.csv.gz", "diff2_experiments/paper/covertype.toml"} <= there


def test_a_table_becomes_a_model_that_is_verified(diff2):
    for words in (
        ["doctor"],
        ["tutorial", "first"],
        ["schema", "people.csv", "--target", "visits"],
        ["plan", "--schema", "schema.toml", "--records", "500", "--epsilon", "1"],
        ["fit", "people.csv", "--schema", "schema.toml", "--epsilon", "1", "--out", "model"],
        ["predict", "model", "people.csv", "--out", "predictions.csv"],
        ["evaluate", "model", "people.csv", "--epsilon", "0.5"],
        ["verify", "model"],
        ["account", "model"],
        ["report", "model", "--out", "report.html", "--card"],
        ["budget", "."],
        ["init", "people.csv", "--target", "visits"],
        ["run-schema"],
        ["data", "list"],
        ["plan", "--epsilon", "3", "--delta", "1e-5", "--rounds", "200", "--sizes", "1651x10"],
    ):
        result = diff2(*words)
        assert result.returncode == 0, (words, result.stderr)
        assert not POINTER.search(result.stdout + result.stderr), words


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("demo --out demo", "demo"),
        ("compare randhie --out compared", "experiments"),
        ("reproduce --dataset california_housing --out found", "experiments"),
        ("train run.toml --out run", "torch"),
        ("fit people.csv --schema schema.toml --epsilon 1 --method network --out other", "torch"),
        ("federate local run.toml --out run", "federation"),
        ("keygen key.pem", "sign"),
    ],
)
def test_what_is_not_installed_is_named_in_one_line(diff2, words, extra):
    result = diff2(*words.split())
    assert result.returncode == 1
    assert f"pip install 'diff2[{extra}]'" in single_line(result.stderr)
