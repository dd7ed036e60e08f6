"""Comparisons: settings of the methods, resumable runs, tables and figures."""

import csv
import json
import math
import os
import subprocess
import sys
import warnings

import numpy as np
import pandas
import pytest
from diff2_experiments.comparison import compare
from diff2_experiments.methods import choose_methods
from diff2_experiments.scores import plus_minus, summaries
from diff2_experiments.store import RunStore

import diff2
from commands import change, diff2_here, single_line, write_folder
from diff2 import InvalidArgument, PrivacyLeakError, PrivacyLeakWarning
from diff2.figures import OTHERS, STYLES, Band, Panel, apart, choose_styles, draw_panels
from diff2.runfile.reader import read_compare_file

FILE = """
[data]
files = ["north.csv", "south.csv"]
target = "visits"
task = "regression"
holdout = 0.25
bounds = { age = [0, 100], visits = [0, 10] }
[model]
hidden = [3]
[algorithm]
name = "diff2"
rounds = 12
restart_interval = 4
clip_gradient = 1.0
clip_smoothness = 3.0
budget_split = 1.5
[routine]
name = "gradient_descent"
learning_rate = 0.25
[privacy]
epsilon = 2.0
delta = 1e-4
[compare.dpgd]
clip_gradient = 0.5
[compare.slow]
algorithm = "diff2"
label = "DIFF2, slow"
routine = { learning_rate = 0.01 }
[compare.slow.epsilon.1]
rounds = 6
routine = { name = "adam", learning_rate = 0.5 }
"""


@pytest.fixture
def folder(tmp_path):
    """Two clients' tables and a run file."""
    return write_folder(tmp_path, FILE, north=60, south=44)


def compared(folder, out="out", **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        return compare(read_compare_file(folder / "run.toml"), folder / out, **{"seeds": 2, **options})


def methods(folder, names=None, epsilons=(2.0,)):
    return {m.name: m for m in choose_methods(read_compare_file(folder / "run.toml"), names, epsilons)}


# Settings


def test_fields_come_from_the_base_then_the_method_then_its_epsilon(folder):
    found = methods(folder, epsilons=(1.0, 2.0))
    assert list(found) == ["dpgd", "slow"]
    assert [m.label for m in found.values()] == ["DP-GD", "DIFF2, slow"]
    base = diff2.GradientDescent(0.25)
    assert found["dpgd"].algorithms[1.0] == found["dpgd"].algorithms[2.0] == diff2.DPGD(12, 0.5, base)
    slow = diff2.Diff2(12, 4, 1.0, 3.0, diff2.GradientDescent(0.01), budget_split=1.5)
    assert found["slow"].algorithms[2.0] == slow
    assert found["slow"].algorithms[1.0] == diff2.Diff2(6, 4, 1.0, 3.0, diff2.Adam(0.5), budget_split=1.5)


def test_an_algorithm_needs_no_table_where_the_base_says_enough(folder):
    found = methods(folder, ["fused_diff2", "dpgd", "gd"])
    assert list(found) == ["fused_diff2", "dpgd", "gd"]
    assert found["fused_diff2"].algorithms[2.0].budget_split == 1.5
    assert [m.private for m in found.values()] == [True, True, False]


def test_base_value_that_does_not_fit_another_algorithm_is_left_out(folder):
    change(folder, ("budget_split = 1.5", 'budget_split = "auto"'))
    found = methods(folder, ["diff2", "fused_diff2"])
    assert found["diff2"].algorithms[2.0].budget_split == "auto"
    assert found["fused_diff2"].algorithms[2.0].budget_split == 2.0
    change(folder, ('budget_split = "auto"', "budget_split = [2, 2, 2]"))
    with pytest.raises(InvalidArgument, match=r"budget_split: expected a number, a list of 2 values or text in quotes"):
        methods(folder, ["diff2"])


def test_epsilon_is_found_however_it_is_written(folder):
    change(folder, ("[compare.slow.epsilon.1]", '[compare.slow.epsilon."0.50"]'))
    assert methods(folder, epsilons=(0.5,))["slow"].algorithms[0.5].rounds == 6


def test_routine_inside_a_routine(folder):
    adam = '{ name = "adam", learning_rate = 0.5 }'
    change(folder, (f"routine = {adam}", f'routine = {{ name = "averaging", start = 0.25, routine = {adam} }}'))
    assert methods(folder, epsilons=(1.0,))["slow"].algorithms[1.0].routine == diff2.Averaging(diff2.Adam(0.5), 0.25)


@pytest.mark.parametrize(
    ("names", "changes", "message"),
    [
        (["dpsgd"], [], r"\[compare.dpsgd\] needs the key 'batch_size'"),
        (["dpgdd"], [], r"no table \[compare.dpgdd\].* did you mean 'dpgd'"),
        (["srnsgd"], [("clip_gradient = 0.5", "")], r"\[compare.srnsgd\] needs the key 'batches'"),
        (None, [("clip_gradient = 0.5", "clip_gradent = 0.5")], r"\[compare.dpgd\] .* did you mean 'clip_gradient'"),
        (None, [("clip_gradient = 0.5", "clip_gradient = 'x'")], r"\[compare.dpgd\] clip_gradient: expected a number"),
        (None, [('algorithm = "diff2"', "")], r"\[compare.slow\] needs the key 'algorithm'.*got 'slow'"),
        (None, [('algorithm = "diff2"', 'name = "diff2"\nalgorithm = "diff2"')], r"did you mean 'algorithm'"),
        (None, [('label = "DIFF2, slow"', 'label = "DP-GD"')], "two methods have the label 'DP-GD'"),
        (None, [('label = "DIFF2, slow"', "label = 3")], "label: expected text"),
        (None, [("rounds = 6", "rounds = 0")], r"\[compare.slow.epsilon.1\] expected rounds >= 1"),
        (None, [("epsilon.1]", "epsilon.0.5]")], r'such as \[compare.slow.epsilon."0.5"\]'),
        (None, [("epsilon.1]", "epsilon.one]")], "expected a number, got 'one'"),
        (None, [("[compare.slow.epsilon.1]", "[compare.slow.epsilon.1]\nlabel = 'x'")], "has no key 'label'"),
        (None, [("budget_split = 1.5", "budget_spilt = 1.5")], r"\[algorithm\] .* did you mean 'budget_split'"),
        (None, [('name = "diff2"', 'name = "dif2"')], r"\[algorithm\] name: expected one of"),
        (["gd"], [('name = "gradient_descent"\n', "")], r"\[compare.gd.routine\] needs the key 'name'"),
        (None, [("[compare.dpgd]\nclip_gradient = 0.5", "[compare]\ndpgd = 1")], r"expected \[compare.dpgd\] to be"),
    ],
)
def test_what_is_wrong_is_named_before_anything_runs(folder, names, changes, message):
    change(folder, *changes)
    with pytest.raises(InvalidArgument, match=message) as caught:
        compared(folder, names=names)
    assert "run.toml" in str(caught.value)
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("changes", "options", "error", "message"),
    [
        ([], {"epsilons": [-1.0]}, InvalidArgument, "epsilon > 0"),
        ([], {"seeds": 0}, InvalidArgument, "seeds >= 1"),
        ([], {"jobs": 0}, InvalidArgument, "jobs >= 1"),
        ([("clip_gradient = 0.5", "clip_gradient = inf")], {}, InvalidArgument, "clip_gradient to be finite"),
        ([("clip_gradient = 0.5", 'algorithm = "dpsgd"\nbatch_size = 79')], {}, InvalidArgument, "the 78 records"),
        ([("delta = 1e-4", "delta = 1e-4\nstrict = true")], {}, PrivacyLeakError, "NOT PRIVATE"),
        ([("north.csv", "nord.csv")], {}, InvalidArgument, "no file at"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_runs(folder, changes, options, error, message):
    change(folder, *changes)
    with pytest.raises(error, match=message):
        compared(folder, **options)
    assert not (folder / "out").exists()


# Runs


def test_runs_in_processes_give_the_same_numbers_as_training_by_hand(folder):
    found = compared(folder, jobs=2)
    assert found.trained == 4
    run = found.runs["slow", 2.0][1]
    with pytest.warns(PrivacyLeakWarning):
        result = diff2.train(
            diff2.mlp(2, 1, hidden=[3], seed=1), "squared", found.tables.clients, found.methods[1].algorithms[2.0],
            diff2.Budget(2.0, 1e-4), seed=1, metrics_every=1, holdout=found.tables.holdout,
        )  # fmt: skip
    assert run["rounds"] == list(range(1, 13))
    for name in ("train_loss", "test_loss", "squared_gradient_norm"):
        np.testing.assert_allclose(run[name], result.history[name], rtol=1e-6)
        assert run["final"][name] == run[name][-1]
    assert run["final"]["smallest_squared_gradient_norm"] == min(run["squared_gradient_norm"])
    assert run["epsilon"] == result.epsilon <= 2.0
    alone = compared(folder, "alone", jobs=1).runs["slow", 2.0][1]
    assert {**alone, "seconds": 0} == {**run, "seconds": 0}


def test_seed_changes_noise_and_start(folder):
    runs = compared(folder, names=["gd"]).runs["gd", 2.0]
    assert runs[0]["train_loss"] != runs[1]["train_loss"]  # GD has no noise: this is the start
    assert {run["seed"] for run in runs} == {0, 1}


def test_second_call_trains_what_is_missing_and_nothing_else(folder):
    first = compared(folder)
    assert (first.trained, compared(folder).trained) == (4, 0)
    lines = (folder / "out" / "runs.jsonl").read_text().splitlines(keepends=True)
    assert len(lines) == 4
    (folder / "out" / "runs.jsonl").write_text("".join(lines[:2]) + lines[2][:40])  # as a crash may leave it
    again = compared(folder)
    assert again.trained == 2
    assert [row["final"] for rows in again.runs.values() for row in rows] == [
        row["final"] for rows in first.runs.values() for row in rows
    ]
    assert compared(folder, seeds=3).trained == 2
    assert compared(folder, epsilons=[2.0, 1.0]).trained == 4
    change(folder, ("DIFF2, slow", "DIFF2, slower"))
    assert compared(folder).trained == 0
    change(folder, ("learning_rate = 0.01", "learning_rate = 0.02"))
    assert compared(folder).trained == 2
    table = pandas.read_csv(folder / "north.csv")
    table.assign(visits=table["visits"] / 2).to_csv(folder / "north.csv", index=False)
    assert compared(folder).trained == 4


def test_reference_is_trained_once_for_all_budgets(folder):
    found = compared(folder, names=["gd"], epsilons=[1.0, 2.0])
    assert found.trained == 2
    assert found.runs["gd", 1.0] == found.runs["gd", 2.0]


def test_diverged_runs_are_counted_and_not_averaged(folder):
    change(folder, ("learning_rate = 0.25", "learning_rate = 1e30"))
    found = compared(folder, names=["gd"])
    (row,) = summaries(found)
    assert row["metrics"]["train_loss"]["diverged"] == 2
    assert math.isnan(row["metrics"]["train_loss"]["mean"])
    assert row["metrics"]["squared_gradient_norm"]["diverged"] == 2  # records without a finite gradient count as zero
    words = ["compare", folder / "run.toml", "--algorithms", "gd", "--seeds", 2, "--out", folder / "out"]
    assert "diverged (2 of 2)" in diff2_here(*words, terminal_width="200").stdout
    assert "| diverged (2 of 2) |" in (folder / "out" / "table.md").read_text(encoding="utf-8")


def test_classification_reports_accuracy(folder):
    for name in ("north", "south"):
        table = pandas.read_csv(folder / f"{name}.csv")
        table["visits"] = np.where(table["visits"] > 3, "many", "few")
        table.to_csv(folder / f"{name}.csv", index=False)
    change(folder, ('task = "regression"', 'task = "classification"\nclasses = ["few", "many"]'))
    change(
        folder,
        (", visits = [0, 10]", ""),
        ("rounds = 12", "rounds = 150"),
        ("learning_rate = 0.25", "learning_rate = 2"),
    )
    (row,) = summaries(compared(folder, names=["gd"]))
    assert row["metrics"]["test_accuracy"]["mean"] > 0.8
    assert row["metrics"]["train_accuracy"]["mean"] > 0.8
    assert "rmse" not in row["metrics"]


def test_owners_are_compared_as_owners(folder):
    for name in ("north", "south"):
        table = pandas.read_csv(folder / f"{name}.csv")
        table.assign(person=np.arange(len(table)) // 2).to_csv(folder / f"{name}.csv", index=False)
    change(folder, ('task = "regression"', 'task = "regression"\ngroup_column = "person"'))
    found = compared(folder, names=["dpgd"], seeds=1)
    assert found.tables.groups is not None
    change(folder, ("delta = 1e-4", "delta = 1e-4\nunit = 'client'"))
    with pytest.raises(InvalidArgument, match="leave one of them out"):
        compared(folder, "other")


# The command


def test_compare_prints_and_writes_a_table_and_a_figure(folder):
    words = ["compare", folder / "run.toml", "--seeds", 2, "--epsilon", "1,2", "--jobs", 2, "--out", folder / "out"]
    result = diff2_here(*words, terminal_width="160")
    assert result.exit_code == 0
    assert single_line(result.stderr).startswith("warning: A COMPARISON IS NOT PRIVATE")
    for text in ("DP-GD", "DIFF2, slow", "±", "epsilon 1", "epsilon 2", "Not private: exact metrics, tuned settings"):
        assert text in result.stdout
    with (folder / "out" / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["budget_epsilon"], row["method"]) for row in rows] == [
        ("1.0", "dpgd"), ("1.0", "slow"), ("2.0", "dpgd"), ("2.0", "slow")
    ]  # fmt: skip
    runs = RunStore(folder / "out").runs().values()
    mine = [run["final"]["test_loss"] for run in runs if run["algorithm"]["name"] == "dpgd" and run["budget"] == 2]
    assert len(mine) == 2
    assert float(rows[2]["test_loss_mean"]) == pytest.approx(np.mean(mine))
    assert float(rows[2]["test_loss_sd"]) == pytest.approx(np.std(mine, ddof=1))
    assert float(rows[2]["rmse_mean"]) == pytest.approx(np.mean(np.sqrt(mine)) * 10)  # visits were divided by 10
    assert float(rows[2]["epsilon"]) == pytest.approx(2, rel=1e-6)
    markdown = (folder / "out" / "table.md").read_text(encoding="utf-8")
    assert "| 2 | DP-GD | " in markdown
    assert "diff2 compare" in markdown
    assert "Not private: exact metrics, tuned settings" in markdown
    assert "visits / 10" in markdown
    for epsilon in (1, 2):
        assert (folder / "out" / f"figure-epsilon-{epsilon}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_compare_json_is_one_document(folder):
    words = ["compare", folder / "run.toml", "--algorithms", "gd,dpgd", "--seeds", 1, "--out", folder / "out", "--json"]
    document = json.loads(diff2_here(*words).stdout)
    assert document["private"] is False
    assert document["trained"] == 2
    assert [(row["label"], row["epsilon"] == "inf") for row in document["rows"]] == [("GD", True), ("DP-GD", False)]
    assert document["rows"][1]["metrics"]["train_loss"]["sd"] is None
    assert all(os.path.isfile(document["files"][name]) for name in ("runs", "table", "markdown"))
    assert json.loads(diff2_here(*words).stdout)["trained"] == 0
    quiet = diff2_here(*words[:-1], "--quiet")
    assert (quiet.exit_code, quiet.stdout) == (0, "")


def test_nothing_to_compare(folder):
    text = (folder / "run.toml").read_text()
    (folder / "run.toml").write_text(text[: text.index("[compare.dpgd]")])
    result = diff2_here("compare", folder / "run.toml", "--out", folder / "out")
    assert result.exit_code == 1
    assert "nothing to compare" in single_line(result.stderr)


@pytest.mark.parametrize("words", ["", "run.toml", "run.toml --out x --epsilon a", "run.toml --out x --seeds 0"])
def test_wrong_usage_is_status_2(words):
    assert diff2_here("compare", *words.split()).exit_code == 2


def test_help_shows_an_example():
    result = diff2_here("compare", "--help")
    assert "Example: diff2 compare" in result.stdout
    assert "[compare.NAME]" in result.stdout
    assert "--json" in result.stdout


@pytest.mark.parametrize("words", [["--help"], ["compare", "--help"]])
def test_help_does_not_wait_for_torch(words):
    script = "import sys\nfrom diff2.cli import app\ntry: app(sys.argv[1:])\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False\n")


def test_data_dir_and_the_environment(folder, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("tables")
    for name in ("north.csv", "south.csv"):
        (folder / name).rename(elsewhere / name)
    words = ["compare", folder / "run.toml", "--algorithms", "gd", "--seeds", 1, "--out", folder / "out", "--json"]
    result = diff2_here(*words)
    assert result.exit_code == 1
    assert "DIFF2_DATA" in single_line(result.stderr)
    assert diff2_here(*words, "--data-dir", elsewhere).exit_code == 0
    monkeypatch.setenv("DIFF2_DATA", str(elsewhere))
    document = json.loads(diff2_here(*words).stdout)
    assert document["trained"] == 0  # the same records, wherever they are
    (folder / "north.csv").write_text("age,smoker,visits\n1,0,1\n2,0,1\n3,1,1\n4,1,2\n")  # beside the file comes first
    assert json.loads(diff2_here(*words).stdout)["trained"] == 1


# Figures


def test_a_dozen_methods_have_a_style_each():
    labels = ["GD", "DP-GD", "DIFF2-GD", *(f"method {i}" for i in range(11))]
    styles = choose_styles(labels)
    assert len({style["color"] for style in styles.values()}) == len(labels) == len(STYLES) + len(OTHERS)


def test_labels_are_apart_and_inside():
    levels = apart([0.99, 1.0, 1.0, 0.2, 0.2, 0.0, 1.3], 0.1)
    assert max(levels) <= 1
    assert np.diff(sorted(levels)).min() >= 0.1 - 1e-12


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e300])
def test_figure_survives_what_went_astray(tmp_path, bad):
    fine, astray = [3.0, 2.0, 1.0], [3.0, bad, bad]
    bands = [Band("DP-GD", [1, 2, 3], fine, fine, fine), Band("other", [1, 2, 3], astray, astray, astray)]
    panels = [Panel("loss", "unit", bands, log=False), Panel("gradient", "unit", bands, log=True)]
    path = draw_panels(panels, tmp_path / "figure.png", title="title", subtitle="subtitle", warning="warning")
    assert path.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("mean", "sd", "text"),
    [
        (0.57454, 0.00014, "0.57454 ± 0.00014"),
        (0.57454, 0.02, "0.575 ± 0.020"),
        (70_726.3, 3344.0, "70,726 ± 3,344"),
        (4.2e-5, 1.13e-5, "4.2e-05 ± 1.1e-05"),
        (9.5354e-4, 1.26e-5, "9.54e-04 ± 1.3e-05"),
        (9.5354e-4, 1.26e-6, "9.535e-04 ± 1.3e-06"),
        (4e-5, 1e-3, "4.0e-05 ± 1.0e-03"),
        (0.5, 0.0, "0.5 ± 0"),
        (0.51234, None, "0.5123"),
    ],
)
def test_plus_minus(mean, sd, text):
    assert plus_minus(mean, sd) == text
