"""Run files: everything that can be written, and the message for everything that cannot."""

import math
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import ClassVar, get_type_hints

import pytest

import diff2
from diff2 import InvalidArgument
from diff2.runfile.reader import ROUTINES, read_run_file

GOOD = """
[data]
files = ["north.csv", "sub/south.csv"]
target = "visits"
task = "regression"
bounds = { age = [0, 100] }
[model]
hidden = [10]
activation = "softplus"
[algorithm]
name = "diff2"
rounds = 2000
restart_interval = 20
clip_gradient = 3.0
clip_smoothness = 10
[routine]
name = "gradient_descent"
learning_rate = 0.125
[privacy]
epsilon = 1.0
delta = 1e-5
"""


@pytest.fixture
def read(tmp_path):
    """Read the good file after replacing one text by another."""

    def read_changed(*changes: tuple[str, str]):
        text = GOOD
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "run.toml"
        path.write_text(text, encoding="utf-8")
        return read_run_file(path)

    return read_changed


def test_the_file_of_the_documentation(read, tmp_path):
    run = read()
    assert run.algorithm == diff2.Diff2(2000, 20, 3.0, 10.0, diff2.GradientDescent(0.125))
    assert run.privacy.budget == diff2.Budget(1.0, 1e-5)
    assert run.data.files == (str(tmp_path / "north.csv"), str(tmp_path / "sub" / "south.csv"))
    assert run.data.bounds == {"age": (0.0, 100.0)}
    assert run.model.hidden == (10,)
    assert (run.run.weighting, run.run.output, run.run.seed) == ("clients", "last", None)


def test_everything_that_can_be_written(read):
    run = read(
        (
            'files = ["north.csv", "sub/south.csv"]',
            'file = "/data/all.csv"\nclient_column = "site"\nscale = "data"\nformat = { delimiter = ";" }',
        ),
        ("hidden = [10]", "hidden = []\nseed = 4"),
        ("clip_gradient = 3.0", 'clip_gradient = "inf"\nbudget_split = 2\ncap = false'),
        ("epsilon = 1.0", "epsilon = inf\naccounting = 'paper'\nstrict = true"),
        (
            "[privacy]",
            "[run]\nweighting='records'\noutput='uniform'\nseed=3\ndtype='float64'\nmetrics_every=5\n[privacy]",
        ),
    )
    assert run.data.file == str(Path("/data/all.csv"))
    assert (run.data.format.delimiter, run.data.format.decimal) == (";", ".")
    assert (run.data.client_column, run.data.scale) == ("site", "data")
    assert (run.model.hidden, run.model.seed) == ((), 4)
    assert (run.algorithm.clip_gradient, run.algorithm.budget_split, run.algorithm.cap) == (math.inf, 2.0, False)
    assert (run.privacy.epsilon, run.privacy.accounting, run.privacy.strict) == (math.inf, "paper", True)
    assert (run.run.weighting, run.run.output, run.run.dtype) == ("records", "uniform", "float64")
    assert (run.run.seed, run.run.metrics_every) == (3, 5)


@pytest.mark.parametrize("epsilon", ['"inf"', "inf"])
def test_infinite_epsilon_can_be_a_word(read, epsilon):
    assert read(("epsilon = 1.0", f"epsilon = {epsilon}")).privacy.epsilon == math.inf


VALUES = {"rounds": 7, "restart_interval": 3, "gain": 0.5, float: 2.5, int: 3}


@pytest.mark.parametrize("name", sorted(diff2.algorithms.ALGORITHMS))
def test_every_algorithm_can_be_written(read, name):
    """With nothing but the fields that have no default."""
    keys = 'name = "diff2"\nrounds = 2000\nrestart_interval = 20\nclip_gradient = 3.0\nclip_smoothness = 10'
    cls = diff2.algorithms.ALGORITHMS[name]
    needed = [field for field in fields(cls) if field.default is MISSING and field.name != "routine"]
    hints = get_type_hints(cls)
    values = {field.name: VALUES.get(field.name, VALUES.get(hints[field.name])) for field in needed}
    lines = "\n".join(f"{key} = {value}" for key, value in values.items())
    routine = "normalized_descent" if name == "srnsgd" else "momentum"
    run = read((keys, f'name = "{name}"\n{lines}'), ("gradient_descent", routine))
    assert run.algorithm == cls(**values, routine=ROUTINES[routine](0.125))
    assert run.algorithm.rounds == 7


def test_new_routine_needs_no_change_here(read, monkeypatch):
    @dataclass(frozen=True)
    class HeavyBall(diff2.PostProcessing):
        learning_rate: float
        decay: float | None = None
        warm: tuple[int, ...] = ()
        name: ClassVar[str] = "heavy_ball"

        def step(self, state, params, estimate, round):
            return params, state

    monkeypatch.setattr(ROUTINES, "_known", dict(ROUTINES._known))
    ROUTINES.register(HeavyBall)
    run = read(('name = "gradient_descent"', 'name = "heavy_ball"\ndecay = 1\nwarm = [1, 2]'))
    assert run.algorithm.routine == HeavyBall(0.125, 1.0, (1, 2))
    with pytest.raises(InvalidArgument, match=r"\[routine\] warm\[1\]: expected a whole number, got 'x'"):
        read(('name = "gradient_descent"', 'name = "heavy_ball"\nwarm = [1, "x"]'))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        # names
        ("[privacy]", "[privcy]", r"unknown table 'privcy'; did you mean 'privacy'\?"),
        ("restart_interval", "restart_intervall", r"\[algorithm\] has no key .*; did you mean 'restart_interval'\?"),
        ("learning_rate", "learning-rate", r"\[routine\] has no key .*; did you mean 'learning_rate'\?"),
        ("epsilon", "eps", r"\[privacy\] has no key 'eps'; did you mean 'epsilon'\?"),
        ("target", "targt", r"\[data\] has no key 'targt'; did you mean 'target'\?"),
        ("hidden", "hiden", r"\[model\] has no key 'hiden'; did you mean 'hidden'\?"),
        ('name = "diff2"', 'name = "dif2"', r"\[algorithm\] name: .*'dif2'; did you mean 'diff2'\?"),
        ('name = "gradient_descent"', 'name = "gradient"', r"\[routine\] name: .* did you mean 'gradient_descent'\?"),
        ('name = "diff2"', "", r"\[algorithm\] needs the key 'name'"),
        ("rounds = 2000", "", r"\[algorithm\] needs the key 'rounds'"),
        ("delta = 1e-5", "", r"\[privacy\] needs the key 'delta'"),
        ("rounds = 2000", "rounds = 2000\nroutine = 'x'", r"\[algorithm\] has no key 'routine'"),
        ("[data]", "epsilon = 1\n[data]", r"unknown key outside of a table: 'epsilon'"),
        ("[data]", "run = 1\n[data]", r"expected \[run\] to be a table"),
        ("[privacy]\nepsilon = 1.0\ndelta = 1e-5", "", r"\[privacy\] is missing"),
        ("[model]", "[data.format]\ndelimeter = ';'\n[model]", r"\[data.format\] has no key .* mean 'delimiter'\?"),
        # types
        ("rounds = 2000", "rounds = '2000'", r"\[algorithm\] rounds: expected a whole number, got '2000'"),
        ("rounds = 2000", "rounds = 2e3", r"\[algorithm\] rounds: expected a whole number, got 2000.0"),
        ("rounds = 2000", "rounds = true", r"\[algorithm\] rounds: expected a whole number, got True"),
        ("clip_gradient = 3.0", "clip_gradient = 'big'", r"\[algorithm\] clip_gradient: expected a number, got 'big'"),
        ("clip_gradient = 3.0", "clip_gradient = 3.0\ncap = 1", r"\[algorithm\] cap: expected true or false, got 1"),
        ('target = "visits"', "target = 3", r"\[data\] target: expected text in quotes, got 3"),
        ('files = ["north.csv", "sub/south.csv"]', "files = 'north.csv'", r"\[data\] files: expected a list"),
        ("[0, 100]", "[0, 50, 100]", r"\[data\] bounds.age: expected a list of 2 values, got \[0, 50, 100\]"),
        ("{ age = [0, 100] }", "[0, 100]", r"\[data\] bounds: expected a table"),
        ("hidden = [10]", "hidden = 10", r"\[model\] hidden: expected a list"),
        ("delta = 1e-5", "delta = 1e-5\nstrict = 'yes'", r"\[privacy\] strict: expected true or false, got 'yes'"),
        ("{ age = [0, 100] }", "{}\nformat = ';'", r"\[data\] expected format = { ... }, a table, got ';'"),
        # values
        ("epsilon = 1.0", "epsilon = 0", r"\[privacy\] expected epsilon > 0, got epsilon=0.0"),
        ("epsilon = 1.0", "epsilon = -1", r"\[privacy\] expected epsilon > 0"),
        ("epsilon = 1.0", "epsilon = nan", r"\[privacy\] expected epsilon > 0"),
        ("epsilon = 1.0", "epsilon = 'big'", r"\[privacy\] epsilon: expected a number, got 'big'"),
        ("delta = 1e-5", "delta = 1", r"\[privacy\] expected 0 < delta < 1"),
        ("restart_interval = 20", "restart_interval = 0", r"\[algorithm\] expected restart_interval >= 1"),
        ("learning_rate = 0.125", "learning_rate = -1", r"\[routine\] expected learning_rate > 0"),
        ('"softplus"', '"softpls"', r"\[model\] expected activation .* did you mean 'softplus'\?"),
        ("hidden = [10]", "hidden = [0]", r"\[model\] expected hidden\[0\] >= 1"),
        ("[privacy]", "[run]\nseed = -1\n[privacy]", r"\[run\] expected seed >= 0"),
        ("[privacy]", "[run]\ndtype = 'float16'\n[privacy]", r"\[run\] expected dtype"),
        ("[privacy]", "[run]\nweighting = 'client'\n[privacy]", r"\[run\] .* did you mean 'clients'\?"),
        ("task = \"regression\"", "task = 'regresion'", r"\[data\] .* did you mean 'regression'\?"),
        ("[data]", "[data", "is not a TOML file"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(read, old, new, message):
    with pytest.raises(InvalidArgument, match=message) as caught:
        read((old, new))
    assert "run.toml" in str(caught.value)


def test_missing_run_file(tmp_path):
    with pytest.raises(InvalidArgument, match="no run file at"):
        read_run_file(tmp_path / "run.toml")


def test_plan_needs_no_data_table(read):
    start, _, rest = GOOD.partition("[model]")
    assert read((start, "")).data is None
    assert rest


def test_all_that_is_wrong_is_said_at_once(read):
    """Of every table, and of every key in it; a misspelt key is not missing as well."""
    with pytest.raises(InvalidArgument) as caught:
        read(
            ("hidden = [10]", "hiden = [10]"),
            ('"softplus"', "3"),
            ("rounds = 2000", "rounds = '2000'\nrestart_int = 4"),
            ("clip_gradient = 3.0\n", ""),
            ("clip_smoothness = 10", "clip_smoothness = -10.0\nbudget_split = 0.5"),
            ("learning_rate = 0.125", "learning-rate = 0.125"),
            ("epsilon = 1.0", "eps = 1.0\nunit = 'person'"),
            ("delta = 1e-5", "delta = 2.0"),
            ("[data]", "[dta]\n[data]"),
            ("[0, 100]", "['LOW', 'HIGH']"),
        )
    first, *lines = str(caught.value).splitlines()
    assert first.endswith("run.toml: 14 things are wrong:")
    for piece in (
        "unknown table 'dta'; did you mean 'data'?",
        "[routine] has no key 'learning-rate'; did you mean 'learning_rate'?",
        "[algorithm] has no key 'restart_int'; did you mean 'restart_interval'?",
        "[algorithm] needs the key 'clip_gradient'",
        "[algorithm] rounds: expected a whole number, got '2000'",
        "[model] has no key 'hiden'; did you mean 'hidden'?",
        "[model] activation: expected text in quotes, got 3",
        "[privacy] has no key 'eps'; did you mean 'epsilon'?",
        "[privacy] expected unit to be one of ['record', 'client'], got unit='person'",
        "[privacy] expected 0 < delta < 1, got delta=2.0",
        "[algorithm] expected clip_smoothness > 0, got clip_smoothness=-10.0",
        "[algorithm] expected budget_split > 1",
        "[data] bounds.age[0]: expected a number, got 'LOW'",
        "[data] bounds.age[1]: expected a number, got 'HIGH'",
    ):
        assert sum(piece in line for line in lines) == 1, piece
    assert not any("needs the key 'epsilon'" in line for line in lines)
    assert not any("needs the key 'learning_rate'" in line for line in lines)
    assert "(absent)" not in str(caught.value)


def test_a_stand_in_for_what_is_missing_cannot_be_written(read):
    with pytest.raises(InvalidArgument, match="expected accounting to be one of"):
        read(("delta = 1e-5", "delta = 1e-5\naccounting = '(absent)'"))
