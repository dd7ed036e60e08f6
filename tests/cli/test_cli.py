"""The command line, as a user meets it: output, exit status, files, and a crash in the middle."""

import ast
import json
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import torch
from safetensors.torch import load_file
from typer.main import get_command

import diff2
import diff2_experiments
from commands import POINTER, change, diff2_here, single_line, start, unframed, write_folder
from diff2.cli.main import app
from diff2.cli.run import parse_sizes
from diff2.runfile.run import load_model
from stubs import rechained, untimed

RUN = """
[data]
files = ["north.csv", "south.csv"]
target = "visits"
task = "regression"
bounds = {{ age = [0, 100], visits = [0, 10] }}
[model]
hidden = [4]
[algorithm]
name = "diff2"
rounds = {rounds}
restart_interval = 10
clip_gradient = 1.0
clip_smoothness = 3.0
[routine]
name = "gradient_descent"
learning_rate = 0.25
[privacy]
epsilon = 1.0
delta = 1e-5
"""


@pytest.fixture
def folder(tmp_path):
    """A run file and two clients' tables."""
    return write_folder(tmp_path, RUN.format(rounds=25), north=60, south=45)


# train


def test_train_leaves_everything_behind(folder):
    result = diff2_here("train", folder / "run.toml", "--out", folder / "run")
    assert result.exit_code == 0
    assert "(1, 1e-05)-differential privacy" in unframed(result.stdout)
    assert "NOT PRIVATE" not in result.stdout
    assert result.stderr == ""
    names = {file.name for file in (folder / "run").iterdir()}
    assert names == {"model.safetensors", "ledger.jsonl", "result.json", "history.csv", "checkpoint.pt"}
    assert len(pandas.read_csv(folder / "run" / "history.csv")) == 25
    ledger = diff2.Ledger.read(folder / "run" / "ledger.jsonl")
    assert ledger.complete
    assert ledger.epsilon() <= 1.0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_result_json_is_all_that_is_needed_to_predict(folder, dtype):
    change(folder, ("[privacy]", f"[run]\ndtype = '{dtype}'\n[privacy]"))
    change(folder, ("epsilon = 1.0", "epsilon = 1e6"))
    change(folder, ("rounds = 25", "rounds = 400"))
    assert diff2_here("train", folder / "run.toml", "--out", folder / "run", "--seed", 0).exit_code == 0
    table = pandas.read_csv(folder / "north.csv")
    error = load_model(folder / "run").predict(table) - table["visits"]
    assert np.sqrt(np.mean(error**2)) < 0.5 * table["visits"].std()


def test_train_json_is_one_document(folder):
    result = diff2_here("train", folder / "run.toml", "--out", folder / "run", "--json")
    document = json.loads(result.stdout)
    assert document["guarantee"]["private"] is True
    assert document["guarantee"]["epsilon"] <= 1.0
    age = {"column": "age", "offset": 50.0, "scale": 50.0, "low": 0.0, "high": 100.0, "missing": None, "unit": ""}
    assert document["encoding"]["inputs"][0] == age
    assert document["clients"] == [{"name": "north.csv", "records": 60}, {"name": "south.csv", "records": 45}]
    assert all(Path(file).is_file() for file in document["files"].values())
    assert json.loads((folder / "run" / "result.json").read_text())["encoding"] == document["encoding"]


def test_train_quietly(folder):
    result = diff2_here("train", folder / "run.toml", "--out", folder / "run", "--quiet")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


def test_seed_is_repeatable_and_not_private(folder):
    for name in ("a", "b"):
        result = diff2_here("train", folder / "run.toml", "--out", folder / name, "--seed", 5)
        assert "NOT PRIVATE" in result.stdout
    first, second = (load_file(folder / name / "model.safetensors") for name in ("a", "b"))
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_settings_of_the_file_reach_the_run(folder):
    keys = "weighting = 'records'\noutput = 'uniform'\nseed = 7\nmetrics_every = 5\ndtype = 'float64'"
    change(folder, ("[privacy]", f"[run]\n{keys}\n[privacy]\naccounting = 'paper'"))
    result = diff2_here("train", folder / "run.toml", "--out", folder / "run", "--json")
    assert result.exit_code == 0
    header = diff2.Ledger.read(folder / "run" / "ledger.jsonl").header
    assert (header["weighting"], header["accounting"], header["seeded"]) == ("records", "paper", True)
    assert header["leaks"] == ["exact training metrics"]
    settings = torch.load(folder / "run" / "checkpoint.pt", weights_only=True)["settings"]
    assert (settings["output"], settings["seed"], settings["dtype"]) == ("uniform", 7, "torch.float64")
    assert pandas.read_csv(folder / "run" / "history.csv")["train_loss"].count() == 5
    diff2_here("train", folder / "run.toml", "--out", folder / "other", "--seed", 8)
    assert torch.load(folder / "other" / "checkpoint.pt", weights_only=True)["settings"]["seed"] == 8


def test_strict_reaches_the_run(folder):
    change(folder, ("[privacy]", "[run]\nmetrics_every = 5\n[privacy]\nstrict = true"))
    result = diff2_here("train", folder / "run.toml", "--out", folder / "run")
    assert result.exit_code == 1
    assert "exact training metrics" in single_line(result.stderr)
    assert not (folder / "run").exists()


def test_leak_is_warned_of_once_and_named_in_the_guarantee(folder):
    change(folder, ("[model]", 'scale = "data"\n[model]'))
    result = diff2_here("train", folder / "run.toml", "--out", folder / "run")
    assert result.exit_code == 0
    name = "scaling of 'smoker' by the data's own mean and deviation"
    assert single_line(result.stderr).startswith(f"warning: LEAK-SCALING: {name}")
    assert f"NOT PRIVATE AS A WHOLE, because of {name} (LEAK-SCALING)" in unframed(result.stdout)
    change(folder, ("delta = 1e-5", "delta = 1e-5\nstrict = true"))
    result = diff2_here("train", folder / "run.toml", "--out", folder / "strict")
    assert result.exit_code == 1
    assert "strict=True" in single_line(result.stderr)
    assert not (folder / "strict").exists()


def test_classification(folder):
    for name in ("north", "south"):
        table = pandas.read_csv(folder / f"{name}.csv")
        table["visits"] = np.where(table["visits"] > 3, "many", "few")
        table.to_csv(folder / f"{name}.csv", index=False)
    change(folder, ('task = "regression"', 'task = "classification"\nclasses = ["few", "many"]'))
    change(folder, (", visits = [0, 10]", ""))
    result = diff2_here("train", folder / "run.toml", "--out", folder / "run", "--json")
    document = json.loads(result.stdout)
    assert (document["loss"], document["model"]["outputs"], document["guarantee"]["leaks"]) == ("cross_entropy", 2, [])
    labels = load_model(folder / "run").predict(pandas.read_csv(folder / "north.csv"))
    assert set(labels) <= {"few", "many"}
    assert len(labels) == 60


def test_directory_in_use_is_refused(folder):
    (folder / "run").mkdir()
    (folder / "run" / "notes.txt").write_text("mine")
    result = diff2_here("train", folder / "run.toml", "--out", folder / "run")
    assert result.exit_code == 1
    assert "is not empty" in single_line(result.stderr)
    assert [file.name for file in (folder / "run").iterdir()] == ["notes.txt"]
    result = diff2_here("train", folder / "run.toml", "--out", folder / "run.toml")
    assert "is a file" in single_line(result.stderr)


def test_resume_of_a_complete_run_changes_nothing(folder):
    diff2_here("train", folder / "run.toml", "--out", folder / "run")
    before = {file.name: file.read_bytes() for file in (folder / "run").iterdir()}
    assert diff2_here("train", folder / "run.toml", "--out", folder / "run", "--resume").exit_code == 0
    after = {file.name: file.read_bytes() for file in (folder / "run").iterdir()}
    assert before["ledger.jsonl"] == after["ledger.jsonl"]
    assert before["result.json"] == after["result.json"]
    change(folder, ("epsilon = 1.0", "epsilon = 2.0"))
    result = diff2_here("train", folder / "run.toml", "--out", folder / "run", "--resume")
    assert result.exit_code == 1
    assert "belongs to another run" in single_line(result.stderr)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("restart_interval", "restart_intervall", "did you mean 'restart_interval'?"),
        ("north.csv", "nord.csv", "no file at"),
        ('target = "visits"', 'target = "visit"', "did you mean 'visits'?"),
        ("epsilon = 1.0", "epsilon = 0", "expected epsilon > 0"),
        ("epsilon = 1.0", "epsilon = 'much'", "[privacy] epsilon: expected a number"),
        ("[data]", "[daten]", "did you mean 'data'?"),
        ("clip_gradient = 1.0", "clip_gradient = inf", "expected clip_gradient to be finite"),
    ],
)
def test_failures_are_one_line_and_leave_nothing(folder, old, new, message):
    change(folder, (old, new))
    result = diff2_here("train", folder / "run.toml", "--out", folder / "run")
    assert result.exit_code == 1
    assert message in single_line(result.stderr)
    assert result.stdout == ""
    assert not (folder / "run").exists()


def test_data_table_is_needed_to_train(folder):
    text = (folder / "run.toml").read_text()
    (folder / "run.toml").write_text(text[text.index("[model]") :])
    result = diff2_here("train", folder / "run.toml", "--out", folder / "run")
    assert "the table [data] is missing" in single_line(result.stderr)
    assert diff2_here("plan", folder / "run.toml", "--sizes", "60,45").exit_code == 0


def test_budget_that_would_be_exceeded_is_status_3(folder):
    keys = "restart_interval = 10\nclip_gradient = 1.0\nclip_smoothness = 3.0\n"
    change(folder, (keys, ""))
    change(folder, ('name = "diff2"', 'name = "gd"'))
    for words in (
        ["train", folder / "run.toml", "--out", folder / "run"],
        ["plan", folder / "run.toml", "--sizes", "9"],
    ):
        result = diff2_here(*words)
        assert result.exit_code == 3
        assert "exceeds every finite epsilon" in single_line(result.stderr)


@pytest.mark.parametrize(
    "words",
    [
        ["train"],
        ["train", "run.toml"],
        ["train", "run.toml", "--out", "x", "--speed", "9"],
        ["train", "run.toml", "--out", "x", "--seed", "-1"],
        ["plan", "--epsilon", "1", "--delta", "1e-5", "--rounds", "10"],
        ["plan", "--sizes", "10x"],
        ["plan", "--sizes", "ten", "--epsilon", "1", "--delta", "1e-5", "--rounds", "10"],
        ["plan", "--sizes", "10", "--epsilon", "1"],
        ["plan", "--sizes", "10", "--epsilon", "one"],
        ["account"],
        ["demo"],
        ["trian"],
    ],
)
def test_wrong_usage_is_status_2(words):
    result = diff2_here(*words)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", [[], ["train"], ["plan"], ["account"], ["demo"]])
def test_help_shows_an_example(command):
    result = diff2_here(*command, "--help")
    assert result.exit_code == 0
    assert " ".join(["Example: diff2", *command]) in result.stdout
    if command:
        assert "--json" in result.stdout


def commands(group, *words):
    """Yield the words of every command and group."""
    yield words
    for name, one in getattr(group, "commands", {}).items():
        yield from commands(one, *words, name)


@pytest.mark.parametrize("words", list(commands(get_command(app))), ids=" ".join)
def test_no_help_points_to_the_repository(words):
    assert not POINTER.search(diff2_here(*words, "--help", terminal_width="400").stdout)


def test_no_message_points_to_the_repository():
    package = Path(diff2.__file__).parent
    for path in [*package.rglob("*.py"), *Path(diff2_experiments.__file__).parent.rglob("*.py")]:
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        texts = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
                assert not POINTER.search(node.value), (path.name, node.lineno)


def test_version():
    assert diff2_here("--version").stdout == f"diff2 {diff2.__version__}\n"


# a crash in the middle


def wait_until(happened, process) -> None:
    deadline = time.monotonic() + 100
    while not happened():
        assert process.poll() is None, f"the run ended too early: {process.stderr.read()}"
        assert time.monotonic() < deadline, "the run made no progress"
        time.sleep(0.002)


def releases(run: Path) -> int:
    ledger = run / "ledger.jsonl"
    return ledger.read_bytes().count(b"\n") - 1 if ledger.exists() else 0


class Killed(BaseException):
    """The process dies: nothing catches it."""


def test_killed_run_resumes_to_the_same_model(folder, monkeypatch):
    """Real processes are killed in ``training/test_resume.py``."""
    words = ["train", folder / "run.toml", "--seed", 3, "--quiet"]
    killed, whole, record = folder / "killed", folder / "whole", diff2.Ledger.record
    monkeypatch.setattr("diff2.training.loop.CHECKPOINT_SECONDS", -1.0)

    def die(ledger, release):
        if len(ledger) == 13:
            raise Killed
        return record(ledger, release)

    with monkeypatch.context() as patch:
        patch.setattr(diff2.Ledger, "record", die)
        with pytest.raises(Killed):
            diff2_here(*words, "--out", killed)
    assert releases(killed) == 13
    assert not (killed / "model.safetensors").exists()
    assert diff2_here(*words, "--out", killed).exit_code == 1  # without --resume it is refused

    for out, more in ((killed, ["--resume"]), (whole, [])):
        result = diff2_here(*words, "--out", out, *more)
        assert (result.output, result.exit_code) == ("", 0)
    mine, theirs = (load_file(out / "model.safetensors") for out in (killed, whole))
    assert list(mine) == list(theirs)
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    ledger = diff2.Ledger.read(killed / "ledger.jsonl")
    assert [entry.round for entry in ledger.releases] == list(range(1, 26))
    assert untimed(killed / "ledger.jsonl") == untimed(whole / "ledger.jsonl")


def test_interrupt_says_how_to_resume(folder):
    (folder / "run.toml").write_text(RUN.format(rounds=5000), encoding="utf-8")
    process = start("train", folder / "run.toml", "--out", folder / "run dir", "--seed", 3, "--quiet")
    wait_until(lambda: releases(folder / "run dir") > 5, process)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, "")
    assert single_line(errors).startswith("interrupted: resume with: diff2 train ")
    assert errors.endswith("run dir' --resume --seed 3\n")


# plan


def test_plan_prints_the_noise_of_the_paper():
    words = ["plan", "--epsilon", 3, "--delta", 1e-5, "--rounds", 2000, "--restart-interval", 20, "--sizes", "16512"]
    exact = json.loads(diff2_here(*words, "--json").stdout)
    assert exact["sigma_1"] == pytest.approx(0.001883152555, rel=1e-9)
    assert exact["sigma_2"] == pytest.approx(0.01641694336, rel=1e-9)
    assert exact["releases"] == {"gradient": 100, "difference": 1900}
    assert exact["epsilon"] <= 3
    paper = json.loads(diff2_here(*words, "--accounting", "paper", "--json").stdout)
    assert paper["sigma_1"] == pytest.approx(0.002345556775, rel=1e-9)
    shown = diff2_here(*words)
    assert "0.00188315" in shown.stdout
    assert "predicted noise" in shown.stdout


def test_plan_suggests_interval_and_split():
    words = ["plan", "--epsilon", 1, "--delta", 1e-5, "--rounds", 2000, "--restart-interval", 20, "--sizes", "1000x10",
             "--clip-gradient", 3, "--clip-smoothness", 10, "--step-length", 0.03, "--dimension", 101]  # fmt: skip
    (view,) = json.loads(diff2_here(*words, "--json").stdout)["predictions"]
    assert view["rho"] == pytest.approx(0.1)
    assert view["given"]["relative_error"] == pytest.approx(0.514, abs=1e-3)
    assert (view["best"]["restart_interval"], view["best_interval"]["restart_interval"]) == (13, 7)
    assert view["best"]["budget_split"] == pytest.approx(1 / 0.54, abs=0.02)
    assert "suggestion: restart_interval = 13, budget_split = 1.85" in diff2_here(*words).stdout


@pytest.mark.filterwarnings("always::diff2.NoGainWarning")
def test_plan_says_which_interval_it_chose_and_what_that_is_worth():
    words = ["plan", "--epsilon", 3, "--delta", 1e-6, "--rounds", 2000, "--restart-interval", "auto", "--clip-gradient",
             3, "--clip-smoothness", 10, "--learning-rate", 0.03125, "--dimension", 101, "--sizes"]  # fmt: skip
    document = json.loads(diff2_here(*words, "16510x10", "--json").stdout)
    assert (document["restart_interval"], document["early_restarts"]) == (75, True)
    shown = " ".join(diff2_here(*words, "16510x10").stdout.split())
    assert "'auto' is 75, with early_restarts: noise is expected to add to the loss 0.89 times" in shown
    few = " ".join(diff2_here(*words, "1651x10").output.split())
    assert few.count("'auto' is 1, which is DP-GD") == 1


def test_plan_from_a_run_file_reads_no_table(folder):
    (folder / "north.csv").unlink()
    words = ["plan", folder / "run.toml", "--sizes", "60,45", "--json"]
    document = json.loads(diff2_here(*words).stdout)
    assert (document["rounds"], document["client_sizes"], document["dimension"]) == (25, [60, 45], None)
    changed = json.loads(diff2_here(*words, "--rounds", 50, "--epsilon", "inf", "--weighting", "records").stdout)
    assert (changed["rounds"], changed["epsilon"], changed["sigma_1"]) == (50, "inf", 0.0)
    change(folder, ("[model]", 'columns = ["age", "smoker"]\n[model]'))
    document = json.loads(diff2_here(*words).stdout)
    assert document["dimension"] == (2 + 1) * 4 + (4 + 1)
    assert document["cycle_growth"] > 2
    assert "unstable: from one restart to the next" in diff2_here(*words[:-1]).stdout
    assert "unstable" not in diff2_here(*words[:-1], "--restart-interval", 1).stdout


def test_plan_compares_a_dpgd_run_file_with_diff2(folder):
    change(folder, ("restart_interval = 10\nclip_gradient = 1.0\nclip_smoothness = 3.0\n", "clip_gradient = 1.0\n"))
    change(folder, ('name = "diff2"', 'name = "dpgd"'))
    words = ["plan", folder / "run.toml", "--sizes", "60,45", "--step-length", 0.05, "--json"]
    document = json.loads(diff2_here(*words).stdout)
    assert (document["algorithm"], document["sigma_2"]) == ("dpgd", None)
    assert "dpgd, 25 rounds" in diff2_here(*words[:-1]).stdout
    assert json.loads(diff2_here(*words, "--restart-interval", 5).stdout)["algorithm"] == "diff2"
    assert document["predictions"][0]["given"] == document["predictions"][0]["dpgd"]


def test_plan_counts_the_records_of_the_tables(folder):
    document = json.loads(diff2_here("plan", folder / "run.toml", "--json").stdout)
    assert document["client_sizes"] == [60, 45]
    change(folder, ("[model]", "holdout = 0.2\n[model]"))
    result = diff2_here("plan", folder / "run.toml", "--json")
    assert json.loads(result.stdout)["client_sizes"] == [48, 36]
    assert diff2_here("train", folder / "run.toml", "--out", folder / "run", "--quiet").exit_code == 0
    assert diff2.Ledger.read(folder / "run" / "ledger.jsonl").header["client_sizes"] == [48, 36]
    change(folder, ("[model]", 'scale = "data"\n[model]'))  # a leak of training, not of counting
    assert diff2_here("plan", folder / "run.toml").stderr == ""


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--epsilon", -1, "epsilon > 0"),
        ("--delta", 2, "0 < delta < 1"),
        ("--accounting", "papr", "did you mean 'paper'"),
        ("--restart-interval", 0, "restart_interval >= 1"),
        ("--step-length", 0, "step_length > 0"),
        ("--sizes", "0", ">= 1"),
        ("--rounds", 0, "rounds >= 1"),
        ("--clip-gradient", "inf", "clip_gradient to be finite"),
    ],
)
def test_plan_refuses_bad_values(option, value, message):
    words = {"--epsilon": 1, "--delta": 1e-5, "--rounds": 10, "--sizes": "100", option: value}
    result = diff2_here("plan", *(word for pair in words.items() for word in pair))
    assert result.exit_code == 1
    assert message in single_line(result.stderr)


def test_weak_delta_is_a_warning():
    result = diff2_here("plan", "--epsilon", 1, "--delta", 0.01, "--rounds", 10, "--sizes", 500, "--json")
    assert result.exit_code == 0
    assert single_line(result.stderr).startswith("warning: delta=0.01 is larger than 1/500")
    json.loads(result.stdout)


def test_sizes():
    assert parse_sizes("1651x3") == [1651] * 3
    assert parse_sizes("10, 20x2,5") == [10, 20, 20, 5]


# account


def test_account_needs_the_ledger_alone(folder, tmp_path):
    diff2_here("train", folder / "run.toml", "--out", folder / "run")
    ledger = tmp_path / "copy.jsonl"
    ledger.write_bytes((folder / "run" / "ledger.jsonl").read_bytes())
    document = json.loads(diff2_here("account", ledger, "--json").stdout)
    assert document["epsilon"] == pytest.approx(1.0, rel=1e-6)
    assert document["complete"] is True
    assert {row["purpose"]: row["count"] for row in document["purposes"]} == {"gradient": 3, "difference": 22}
    assert all(row["multiplier_min"] == row["multiplier_max"] for row in document["purposes"])
    smaller = json.loads(diff2_here("account", folder / "run", "--delta", 1e-7, "--json").stdout)
    assert smaller["epsilon"] > document["epsilon"]
    shown = diff2_here("account", ledger)
    assert "complete" in shown.stdout
    assert "1e-05)-differential privacy" in unframed(shown.stdout)


def test_account_of_an_unfinished_run(folder):
    diff2_here("train", folder / "run.toml", "--out", folder / "run")
    file = folder / "run" / "ledger.jsonl"
    file.write_text("".join(line + "\n" for line in file.read_text().splitlines()[:6]))
    document = json.loads(diff2_here("account", file, "--json").stdout)
    assert (document["complete"], document["releases"]) == (False, 5)
    assert 0 < document["released_epsilon"] < document["epsilon"] == pytest.approx(1.0)
    shown = diff2_here("account", file).stdout
    assert "not complete" in shown
    assert "not a guarantee" in shown


def test_account_of_a_ledger_beyond_its_budget_is_status_3(folder):
    """Of an algorithm that is not here; otherwise the plan says first that something was edited."""
    diff2_here("train", folder / "run.toml", "--out", folder / "run")
    file = folder / "run" / "ledger.jsonl"
    text = file.read_text().replace('"budget": {"epsilon": 1.0', '"budget": {"epsilon": 0.5')
    file.write_text(text)
    assert diff2_here("account", file).exit_code == 1
    unfinished = text.replace(': "diff2", "rounds"', ': "other", "rounds"').splitlines()[:-1]
    file.write_text("\n".join(rechained(unfinished)) + "\n")
    result = diff2_here("account", file)
    assert result.exit_code == 3
    assert "more than its budget of 0.5" in result.stderr


def test_account_of_a_run_without_noise(folder):
    change(folder, ("epsilon = 1.0", 'epsilon = "inf"'))
    result = diff2_here("train", folder / "run.toml", "--out", folder / "run")
    assert result.exit_code == 0
    assert "NOT PRIVATE" in result.stdout
    result = diff2_here("account", folder / "run", "--json")
    assert (json.loads(result.stdout)["epsilon"], result.exit_code) == ("inf", 0)


@pytest.mark.parametrize("content", [None, b"", b"not a ledger\n", b'{"kind": "header", "format": 1}\n'])
def test_account_of_something_else(tmp_path, content):
    file = tmp_path / "ledger.jsonl"
    if content is not None:
        file.write_bytes(content)
    result = diff2_here("account", file)
    assert result.exit_code == 1
    assert "ledger" in single_line(result.stderr)


@pytest.mark.parametrize("delta", [0, 1, -1])
def test_account_refuses_a_bad_delta(folder, delta):
    diff2_here("train", folder / "run.toml", "--out", folder / "run")
    result = diff2_here("account", folder / "run", "--delta", delta)
    assert result.exit_code == 1
    assert "0 < delta < 1" in single_line(result.stderr)


# demo


def test_demo_shows_its_report(tmp_path, monkeypatch):
    asked = {}

    from diff2_experiments.demo import show

    def run_demo(out, **options):
        asked.update(options, out=out)
        rows = [{"method": "fit", "epsilon": 1.0, "r2": 0.17, "share": 0.9}]
        return SimpleNamespace(
            rows=rows, guarantee="The sentence.", health="explains", figure=out / "demo.png", model=out / "model",
            commands=["diff2 predict"], notes=["One record is a person-year."], to_json=lambda: {"rows": rows},
        )  # fmt: skip

    monkeypatch.setitem(sys.modules, "diff2_experiments.demo", SimpleNamespace(run_demo=run_demo, show=show))
    result = diff2_here("demo", "--out", tmp_path, "--epsilon", 2, "--seed", 4)
    assert result.exit_code == 0
    assert asked == {"out": tmp_path, "epsilon": 2.0, "seed": 4, "progress": "lines"}
    for text in ("fit", "0.170 (90%)", "The sentence.", "person-year", "demo.png", "diff2 predict"):
        assert text in result.stdout
    document = json.loads(diff2_here("demo", "--out", tmp_path, "--json").stdout)
    assert [row["epsilon"] for row in document["rows"]] == [1.0]
