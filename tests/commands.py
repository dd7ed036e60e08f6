"""A folder as a user has it, with clients' tables and a run file, and the command line called on it."""

import math
import os
import re
import signal
import subprocess
import sys
from unittest.mock import patch

import numpy as np
import pandas
from typer.testing import CliRunner

from diff2.cli.main import app

COUNTS = """
[target]
column = "visits"
kind = "counts"
high = 20
[columns]
age = { kind = "number", low = 0, high = 100 }
"""


def training(rounds: int) -> str:
    """Return the tables of a small network and its algorithm, for a run file."""
    return f"""
[model]
hidden = [3]
[algorithm]
name = "diff2"
rounds = {rounds}
restart_interval = 3
clip_gradient = 1.0
clip_smoothness = 2.0
[routine]
name = "gradient_descent"
learning_rate = 0.1
"""


RUN = (
    """
[data]
files = ["north.csv", "south.csv"]
target = "visits"
task = "regression"
bounds = { visits = [0, 10], age = [0, 100] }
drop = []
"""
    + training(rounds=6)
    + """[privacy]
epsilon = 1.0
delta = 1e-3
"""
)

# To a file of the repository, which whoever has installed the package does not have.
POINTER = re.compile(
    r"docs/|CONTRIBUTING|CHANGELOG|benchmarks/|experiments/|tests/|src/|\bmake (demo|test|bench|check)\b"
)


def write_folder(folder, run_file, **clients):
    """Write a run file and one table per client, with so many records; return the folder."""
    generator = np.random.default_rng(0)
    for name, records in clients.items():
        age, smoker = generator.integers(0, 100, records), generator.integers(0, 2, records)
        table = {"age": age, "smoker": smoker, "visits": age / 20 + smoker}
        pandas.DataFrame(table).to_csv(folder / f"{name}.csv", index=False)
    (folder / "run.toml").write_text(run_file, encoding="utf-8")
    return folder


def change(folder, *changes):
    """Replace pieces of the run file, which must be there."""
    text = (folder / "run.toml").read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "run.toml").write_text(text, encoding="utf-8")


def diff2_here(*words, terminal_width="100"):
    """Run a command in this process; exceptions that the command should have dealt with are raised here.

    Lines of progress, which appear where a command takes long, are left out: how long it takes depends on the machine.
    """
    with patch("diff2._progress.BETWEEN_LINES", math.inf):
        result = CliRunner(env={"COLUMNS": terminal_width}).invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def start(*words, **options):
    """Start a command as a process of its own, which hears Ctrl-C even if the tests run in the background."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    command = [sys.executable, "-m", "diff2", *(str(word) for word in words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **pipes, env=environment, preexec_fn=hear_interrupts, **options)


def hear_interrupts():
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def unframed(text):
    """Text in a frame, as one line."""
    return re.sub(r"[│\s]+", " ", text)


def single_line(text):
    assert text.count("\n") == 1
    assert "Traceback" not in text
    return text
