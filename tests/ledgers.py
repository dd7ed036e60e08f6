"""Ledgers of real runs, one of each kind, and every way to change one thing in them."""

import json
import tempfile
import warnings
from functools import cache
from pathlib import Path

import diff2
from catalogue import PRIVATE, run
from commands import write_folder
from diff2.runfile.reader import read_run_file
from diff2.runfile.run import train_run_file
from diff2.tables.kinds import Category, Number, Regression
from diff2.tables.schema import Schema
from federated import federated_run, own_noise
from fitted import few_trees, table

KINDS = [
    "dpgd",
    "diff2",
    "diff2, groups",
    "diff2, torch",
    "recursive",
    "recursive, client",
    "srnsgd",
    "dpsgd, poisson",
    "dpfedavg",
    "recursive, 2 of 3 clients",
    "recursive, client, 2 of 3 drawn",
    "sites add the noise",
    "private scaling",
    "fit",
    "fit, groups, clients alike",
    "evaluate",
    "select",
]
OF_FITS = ("fit", "evaluate", "select")
TARGET = Regression(0, 10)
RUN_FILE = """
[data]
files = ["north.csv", "south.csv"]
target = "visits"
task = "regression"
bounds = { visits = [0, 10] }
scale = "private"
scale_bounds = { age = [0, 100], smoker = [0, 1] }
[model]
hidden = [3]
[algorithm]
name = "dpgd"
rounds = 4
clip_gradient = 1.0
[routine]
name = "gradient_descent"
learning_rate = 0.1
[privacy]
epsilon = 2.0
delta = 1e-3
"""


@cache
def lines_of(kind):
    """The lines of the ledger of a complete run of this kind."""
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore", diff2.WeakDeltaWarning)
        folder = Path(name)
        if kind == "sites add the noise":
            federated_run(own_noise("recursive, 2 of 3 clients", 2, seed=None), folder)
            folder = folder / "server"
        elif kind == "private scaling":
            write_folder(folder, RUN_FILE, north=20, south=15)
            train_run_file(read_run_file(folder / "run.toml"), folder / "run")
            folder = folder / "run"
        elif kind.startswith(OF_FITS):
            _fit(kind, folder)
        else:
            run(kind, budget=PRIVATE, seed=None, directory=folder)
        return tuple((folder / "ledger.jsonl").read_text().splitlines())


def _fit(kind, folder):
    """Fit trees to a small table, evaluate or select them; a column without bounds has them released."""
    whose = {"unit": "group", "weighting": "clients"} if "groups" in kind else {}
    roles = {"clients": "hospital", "groups": "person"} if whose else {}
    known = Schema(
        {"age": Number(0, 100), "income": Number(), "sex": Category(("f", "m"))}, "regression", TARGET, **roles
    )
    with few_trees(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "select":
            diff2.select(table(), {"a": known, "b": known}, epsilon=2.0, directory=folder / "selected")
            (folder / "selected" / "ledger.jsonl").rename(folder / "ledger.jsonl")
            return
        made = diff2.fit(table(), known, epsilon=2.0, directory=folder if kind != "evaluate" else None, **whose)
        if kind == "evaluate":
            diff2.evaluate(made, table(seed=1), epsilon=2.0, directory=folder)


def changes(value):
    """Yield (path of names, value with one thing in it changed): numbers, texts, lists, entries."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield (name,), {key: other for key, other in value.items() if key != name}
            for path, changed in changes(item):
                yield (name, *path), {**value, name: changed}
    elif isinstance(value, list):
        if value:
            yield (), []
        for i, item in enumerate(value):
            yield (), value[:i] + value[i + 1 :]
            for path, changed in changes(item):
                yield path, [*value[:i], changed, *value[i + 1 :]]
    elif isinstance(value, bool):
        yield (), not value
    elif isinstance(value, int | float):
        yield from (((), changed) for changed in (value / 10, value + 1) if changed != value)
    elif isinstance(value, str):
        yield (), value + "x"
    else:
        yield (), 1


def changed_lines(lines, number):
    """Yield (path of names, lines) with one thing in the line of this number changed, counted from 1."""
    for path, changed in changes(json.loads(lines[number - 1])):
        yield path, [*lines[: number - 1], json.dumps(changed), *lines[number:]]


def rearranged(lines):
    """Yield (what, number of the first line that is wrong, lines) with lines removed, doubled and swapped."""
    for i in range(len(lines)):
        if i + 1 < len(lines):
            yield "removed", i + 1, [*lines[:i], *lines[i + 1 :]]
            yield "swapped", i + 1, [*lines[:i], lines[i + 1], lines[i], *lines[i + 2 :]]
        yield "doubled", i + 2, [*lines[: i + 1], *lines[i:]]
