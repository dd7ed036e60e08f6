"""Comparisons: settings of the methods, runs that are never made twice, tables and figures."""

import csv
import importlib.util
import json
import subprocess
import sys
import warnings
from importlib import resources
from pathlib import Path

import numpy as np
import pandas
import pytest

import diff2
from commands import change, diff2_here, single_line, write_folder
from diff2 import InvalidArgument, PrivacyLeakError, PrivacyLeakWarning
from diff2.runfile.fit import read_federated
from diff2_experiments.comparison import compare
from diff2_experiments.comparison_report import summaries
from diff2_experiments.files import find_file, read_compare_file, read_tune_file
from diff2_experiments.grids import read_grids
from diff2_experiments.methods import LABELS, choose_methods
from diff2_experiments.scaling_law import read_experiment
from diff2_experiments.store import RunStore

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
    """Two clients' tables and a file for a comparison."""
    return write_folder(tmp_path, FILE, north=60, south=44)


def compared(folder, out="out", **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        return compare(read_compare_file(folder / "run.toml"), folder / out, **{"seeds": 2, **options})


def methods(folder, names=None, epsilons=(2.0,)):
    return {m.name: m for m in choose_methods(read_compare_file(folder / "run.toml"), names, epsilons)}


# Files


@pytest.mark.parametrize("file", sorted((resources.files("diff2_experiments")).glob("*/*.toml")), ids=lambda f: f.stem)
def test_every_file_of_the_package_is_found_by_name_and_can_be_read(file):
    kind = file.parent.name
    assert find_file(kind, file.stem) == file
    if kind == "scaling":
        assert read_experiment(file).points
    elif kind == "paper":
        assert read_grids(read_tune_file(file), None, "reduced")
    elif kind == "sites":
        assert read_federated(file).schema
    else:
        assert choose_methods(read_compare_file(file), None, [1.0, 3.0])


@pytest.mark.parametrize("name", ["randhie", "california", "gas"])
def test_every_algorithm_is_compared_on_every_data_set(name):
    tables = read_compare_file(find_file("compare", name)).methods
    assert {table.get("algorithm", key) for key, table in tables.items()} == set(LABELS)


def test_a_name_that_is_not_there():
    result = diff2_here("compare", "randhi", "--out", "x")
    assert "one of california, gas, randhie, got 'randhi'; did you mean 'randhie'?" in single_line(result.stderr)
    assert "no run file at own.toml" in single_line(diff2_here("compare", "own.toml", "--out", "x").stderr)


def test_a_public_table_is_fetched_by_name_and_found_where_it_was_put(tmp_path, monkeypatch):
    monkeypatch.delenv("DIFF2_DATA", raising=False)
    monkeypatch.setattr("diff2.data.places.cache_folder", lambda: tmp_path)
    refused = diff2_here("compare", "california", "--out", tmp_path / "out")
    assert "diff2 data fetch california_housing" in single_line(refused.stderr)
    (tmp_path / "california_housing.csv.gz").touch()
    file = read_compare_file(find_file("compare", "california"))
    assert file.data.file == str(tmp_path / "california_housing.csv.gz")


@pytest.mark.parametrize("words", [["compare", "randhie"], ["reproduce", "--dataset", "covertype"]])
@pytest.mark.parametrize("name", ["diff2_experiments", "joblib"])
def test_what_is_not_installed_is_named(monkeypatch, words, name):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda asked: None if asked == name else found(asked))
    result = diff2_here(*words, "--out", "x")
    assert result.exit_code == 1
    assert single_line(result.stderr) == (
        f"error: this command needs {name}; install with: pip install 'diff2[experiments]'\n"
    )


def test_a_file_of_an_experiment_is_no_run_file(folder):
    message = single_line(diff2_here("train", folder / "run.toml", "--out", folder / "out").stderr)
    assert "[compare] is for diff2 compare, which reads this file; a run file has none" in message


# Settings


def test_fields_come_from_the_base_then_the_method_then_its_epsilon(folder):
    found = methods(folder, epsilons=(1.0, 2.0))
    assert [(m.name, m.label) for m in found.values()] == [("dpgd", "DP-GD"), ("slow", "DIFF2, slow")]
    base = diff2.GradientDescent(0.25)
    assert found["dpgd"].algorithms[1.0] == found["dpgd"].algorithms[2.0] == diff2.DPGD(12, 0.5, base)
    slow = diff2.Diff2(12, 4, 1.0, 3.0, diff2.GradientDescent(0.01), budget_split=1.5)
    assert found["slow"].algorithms[2.0] == slow
    assert found["slow"].algorithms[1.0] == diff2.Diff2(6, 4, 1.0, 3.0, diff2.Adam(0.5), budget_split=1.5)


def test_an_algorithm_needs_no_table_where_the_base_says_enough(folder):
    found = methods(folder, ["recursive_diff2", "dpgd", "gd"])
    assert found["recursive_diff2"].algorithms[2.0].clip_smoothness == 3.0
    assert [(m.name, m.private) for m in found.values()] == [
        ("recursive_diff2", True), ("dpgd", True), ("gd", False)
    ]  # fmt: skip


def test_base_value_that_does_not_fit_another_algorithm_is_left_out(folder):
    change(folder, ("rounds = 12", "rounds = 'x'"), ("[compare.dpgd]", "[compare.dpgd]\nrounds = 7"))
    assert methods(folder, ["dpgd"])["dpgd"].algorithms[2.0].rounds == 7
    with pytest.raises(InvalidArgument, match=r"\[algorithm\] rounds: expected a whole number, got 'x'"):
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
        (["dpgdd"], [], r"no table \[compare.dpgdd\]; did you mean 'dpgd'"),
        (["srnsgd"], [("clip_gradient = 0.5", "")], r"\[compare.srnsgd\] needs the key 'batches'"),
        ([], [], "nothing to compare: add a table"),
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


def test_runs_are_those_of_training_by_hand_and_differ_by_seed(folder):
    found = compared(folder)
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
    starts = compared(folder, names=["gd"]).runs["gd", 2.0]
    assert starts[0]["train_loss"] != starts[1]["train_loss"]  # GD has no noise: this is the start


@pytest.mark.slow
def test_processes_do_not_change_the_runs(folder):
    spread, alone = (
        {**compared(folder, str(jobs), jobs=jobs, seeds=1).runs["slow", 2.0][0], "seconds": 0} for jobs in (2, 1)
    )
    assert spread == alone


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
    (row,) = summaries(compared(folder, names=["gd"]))
    for name in ("train_loss", "squared_gradient_norm"):  # records without a finite gradient count as zero
        assert (row["metrics"][name]["diverged"], row["metrics"][name]["mean"]) == (2, None)
    words = ["compare", folder / "run.toml", "--algorithms", "gd", "--seeds", 2, "--out", folder / "out"]
    assert "diverged (2 of 2)" in diff2_here(*words, terminal_width="200").stdout
    assert "| diverged (2 of 2) |" in (folder / "out" / "table.md").read_text(encoding="utf-8")


def test_classification_reports_accuracy(folder):
    for name in ("north", "south"):
        table = pandas.read_csv(folder / f"{name}.csv")
        table["visits"] = np.where(table["visits"] > 3, "many", "few")
        table.to_csv(folder / f"{name}.csv", index=False)
    change(folder, ('task = "regression"', 'task = "classification"\nclasses = ["few", "many"]'))
    change(folder, (", visits = [0, 10]", ""), ("rounds = 12", "rounds = 150"), ("rate = 0.25", "rate = 2"))
    (row,) = summaries(compared(folder, names=["gd"], seeds=1))
    assert row["metrics"]["test_accuracy"]["mean"] > 0.8
    assert row["metrics"]["train_accuracy"]["mean"] > 0.8
    assert "rmse" not in row["metrics"]


def test_owners_are_compared_as_owners(folder):
    for name in ("north", "south"):
        table = pandas.read_csv(folder / f"{name}.csv")
        table.assign(person=np.arange(len(table)) // 2).to_csv(folder / f"{name}.csv", index=False)
    change(folder, ('task = "regression"', 'task = "regression"\ngroup_column = "person"'))
    assert compared(folder, names=["dpgd"], seeds=1).tables.groups is not None
    change(folder, ("delta = 1e-4", "delta = 1e-4\nunit = 'client'"))
    with pytest.raises(InvalidArgument, match="leave one of them out"):
        compared(folder, "other")


# The command


def test_compare_prints_and_writes_tables_figures_and_json(folder):
    words = ["compare", folder / "run.toml", "--seeds", 2, "--epsilon", "1,2", "--out", folder / "out"]
    result = diff2_here(*words, terminal_width="160")
    assert result.exit_code == 0
    assert single_line(result.stderr).startswith("warning: LEAK-METRICS: A COMPARISON IS NOT PRIVATE")
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
    for text in ("| 2 | DP-GD | ", "diff2 compare", "Not private: exact metrics, tuned settings", "visits / 10"):
        assert text in markdown
    document = json.loads(diff2_here(*words, "--json").stdout)
    assert (document["private"], document["trained"]) == (False, 0)
    assert [row["label"] for row in document["rows"]] == ["DP-GD", "DIFF2, slow"] * 2
    assert all(Path(document["files"][name]).is_file() for name in ("runs", "table", "markdown"))
    for path in document["files"]["figures"]:
        assert Path(path).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("words", ["", "run.toml", "run.toml --out x --epsilon a", "run.toml --out x --seeds 0"])
def test_wrong_usage_is_status_2(words):
    assert diff2_here("compare", *words.split()).exit_code == 2


@pytest.mark.parametrize("command", ["compare", "reproduce"])
def test_help_shows_an_example_and_no_file_of_the_repository(command):
    text = diff2_here(command, "--help").stdout
    assert f"Example: diff2 {command}" in text
    assert "experiments/" not in text
    assert "docs/" not in text


def test_help_does_not_wait_for_torch():
    script = "import sys, diff2.cli.main as m\ntry: m.app(['compare', '-h'])\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False\n")


def test_data_dir_and_the_environment(folder, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("tables")
    for name in ("north.csv", "south.csv"):
        (folder / name).rename(elsewhere / name)
    with pytest.raises(InvalidArgument, match="DIFF2_DATA"):
        compared(folder)
    assert read_compare_file(folder / "run.toml", elsewhere).data.files[0] == str(elsewhere / "north.csv")
    monkeypatch.setenv("DIFF2_DATA", str(elsewhere))
    assert read_compare_file(folder / "run.toml").data.files[0] == str(elsewhere / "north.csv")
    (folder / "north.csv").touch()  # beside the file comes first
    assert read_compare_file(folder / "run.toml").data.files[0] == str(folder / "north.csv")
