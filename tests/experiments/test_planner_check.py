"""The planner check: an error splits into noise and clipping, and what was planned is what is measured."""

import csv
import math
from dataclasses import replace

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import diff2
from diff2 import Budget, InvalidArgument, PrivacyLeakWarning
from diff2.planning.prediction import predict_noise
from diff2_experiments.estimate_errors import estimate_errors
from diff2_experiments.files import read_compare_file
from diff2_experiments.planner_check import check, planner_check
from diff2_experiments.synthetic import ROBUST_MEAN, draw_problem

BUDGET = Budget(epsilon=3.0, delta=1e-5)
RATE = diff2.GradientDescent(learning_rate=0.1)
G, L = ROBUST_MEAN.gradient, ROBUST_MEAN.smoothness
ALGORITHMS = {
    "dpgd": diff2.DPGD(120, G, RATE),
    "diff2": diff2.Diff2(120, 6, G, L, RATE),
    "recursive": diff2.RecursiveDiff2(120, G, L, RATE),
}


def prepared(algorithm, seed=0):
    """Return a run on records whose gradients and differences are never clipped to G and L."""
    problem = draw_problem("robust_mean", 900, 40, 0)
    clients = [(problem.inputs[:300], problem.targets[:300]), (problem.inputs[300:], problem.targets[300:])]
    return diff2.prepare(problem.model, problem.loss, clients, algorithm, BUDGET, seed=seed)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_without_clipping_the_error_is_the_noise_and_the_run_knows_it(name):
    errors = estimate_errors(prepared(ALGORITHMS[name])).whole
    assert errors.clipping < 1e-18 * errors.noise
    assert errors.total == pytest.approx(errors.noise, rel=1e-6)
    assert errors.noise == pytest.approx(errors.known, rel=0.12)


@pytest.mark.parametrize("name", ["dpgd", "diff2"])
def test_the_plan_for_the_steps_of_a_run_is_what_the_run_measures(name):
    algorithm, training = ALGORITHMS[name], prepared(ALGORITHMS[name])
    errors = estimate_errors(training).whole
    given = algorithm if name == "diff2" else diff2.Diff2(120, 1, G, 1.0, RATE)
    view = predict_noise(
        given, BUDGET, [300, 600], step_length=errors.step_length, dimension=len(training.engine.flat)
    )  # fmt: skip
    assert view.given.error == pytest.approx(errors.noise, rel=0.15)
    assert view.given.error == pytest.approx(errors.known, rel=0.1)


def test_tight_clipping_shows_as_clipping_and_not_as_noise():
    training = prepared(replace(ALGORITHMS["diff2"], clip_gradient=G / 50, clip_smoothness=L / 50))
    errors = estimate_errors(training).whole
    assert errors.clipping > 0.5 * errors.total
    assert errors.noise == pytest.approx(errors.known, rel=0.25)
    assert errors.total == pytest.approx(errors.noise + errors.clipping, rel=0.25)


def test_a_run_that_is_watched_is_the_same_run():
    algorithm = ALGORITHMS["diff2"]
    watched, plain = prepared(algorithm), prepared(algorithm)
    found = estimate_errors(watched)
    history = plain.run(progress=False).history
    assert found.whole.step_length == pytest.approx(math.sqrt((history["step_norm"] ** 2).mean()), rel=1e-12)
    assert found.later.step_length == pytest.approx(
        math.sqrt((history["step_norm"][12:] ** 2).mean()), rel=1e-12
    )  # fmt: skip
    assert [entry.noise_std for entry in watched.mechanism.ledger.releases] == list(history["noise_std"])


def test_other_routines_are_refused():
    momentum = diff2.Diff2(10, 5, 1.0, 1.0, diff2.Momentum(learning_rate=0.1))
    cosine = diff2.DPGD(10, 1.0, diff2.GradientDescent(learning_rate=0.1, schedule="cosine"))
    for algorithm in (momentum, cosine):
        with pytest.raises(InvalidArgument, match="constant rate"):
            estimate_errors(prepared(algorithm))


FILE = """
[data]
file = "table.csv"
target = "y"
task = "regression"
scale = "data"
clients = 2

[model]
hidden = [3]

[algorithm]
rounds = 40
clip_gradient = 20.0
clip_smoothness = 20.0

[routine]
name = "gradient_descent"
learning_rate = 0.05

[privacy]
epsilon = 3.0
delta = 1e-5

[run]
dtype = "float64"

[compare.dpgd]

[compare.diff2]
restart_interval = 5

[compare.recursive_diff2]
"""


@pytest.fixture
def file(tmp_path):
    generator = np.random.default_rng(2)
    table = generator.normal(size=(200, 3))
    lines = ["a,b,y", *(f"{a:.4f},{b:.4f},{a - b + 0.1 * c:.4f}" for a, b, c in table)]
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "check.toml").write_text(FILE)
    return tmp_path / "check.toml"


def test_the_table_compares_plan_ledger_and_measurement(file, tmp_path):
    app = typer.Typer()
    app.command()(check)
    run = CliRunner().invoke(app, [str(file), "--out", str(tmp_path)])
    assert run.exit_code == 0, run.output
    assert "NOT PRIVATE" in run.stderr
    with (tmp_path / "planner-check.csv").open() as table:
        labels = [row["method"] for row in csv.DictReader(table)]
    assert labels == ["DP-GD", "DP-GD", "DIFF2-GD", "DIFF2-GD", "DIFF2 recursive", "DIFF2 recursive"]
    before = (tmp_path / "check" / "runs.jsonl").read_text()
    with pytest.warns(PrivacyLeakWarning, match="NOT PRIVATE"):
        rows = planner_check(read_compare_file(file), tmp_path / "check")
    assert (tmp_path / "check" / "runs.jsonl").read_text() == before
    dpgd, restarted, recursive = [row for row in rows if row["part"] == "whole"]
    assert [row["restart_interval"] for row in rows] == [None, None, 5, 5, None, None]
    assert dpgd["plan"] == pytest.approx(dpgd["ledger"], rel=1e-6)
    assert restarted["plan"] == pytest.approx(restarted["ledger"], rel=0.3)
    assert math.isnan(recursive["plan"])  # diff2 plan predicts nothing for it
    for row in rows:
        assert row["ledger_ratio"] == pytest.approx(1, abs=0.2)
        assert 0 <= row["clipping_share"] < 0.05
