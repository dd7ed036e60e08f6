"""Run files of every algorithm and routine, and what ``diff2 plan`` and ``train`` make of them."""

import json
import typing
from dataclasses import MISSING, fields

import numpy as np
import pandas
import pytest

import diff2
from commands import diff2_here, single_line, unframed
from diff2 import InvalidArgument
from diff2._fields import convert
from diff2.algorithms import ALGORITHMS
from diff2.runfile.reader import read_run_file

VALUES = {
    "rounds": 8, "restart_interval": 4, "batch_size": 20, "batches": 4, "restart_epochs": 1, "local_steps": 2,
    "clip_gradient": 1.0, "clip_smoothness": 1.0, "clip_difference": 0.1, "gain": 0.5, "local_learning_rate": 0.1,
}  # fmt: skip
GRADIENT_DESCENT = 'name = "gradient_descent"\nlearning_rate = 0.1'


def write(folder, algorithm, routine=GRADIENT_DESCENT, rest="", data=""):
    path = folder / "run.toml"
    text = f"{data}\n[algorithm]\n{algorithm}\n[routine]\n{routine}\n[privacy]\nepsilon = 2.0\ndelta = 1e-4\n{rest}"
    path.write_text(text, encoding="utf-8")
    return path


def required(name):
    """Return the lines that an algorithm cannot do without."""
    needed = [f.name for f in fields(ALGORITHMS[name]) if f.default is MISSING and f.name != "routine"]
    return "\n".join([f'name = "{name}"', *(f"{key} = {VALUES[key]}" for key in needed)])


DIFF2 = required("diff2")


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"gd"}))
def test_plan_of_every_algorithm(tmp_path, name):
    routine = 'name = "normalized_descent"\nlearning_rate = 0.1' if name == "srnsgd" else GRADIENT_DESCENT
    words = ["plan", write(tmp_path, required(name), routine), "--sizes", "100x3"]
    document = json.loads(diff2_here(*words, "--json").stdout)
    assert document["epsilon"] == pytest.approx(2, rel=1e-3)
    assert document["epsilon"] <= 2
    assert sum(document["releases"].values()) == sum(kind["count"] for kind in document["kinds"])
    assert all(kind["rate"] < 1 for kind in document["kinds"] if kind["sampling"] != "full")
    shown = unframed(diff2_here(*words).stdout)
    assert "sigma_" in shown
    assert "epsilon 2 of 2 at delta 0.0001" in shown


def test_plan_tells_the_rate_of_batches(tmp_path):
    shown = unframed(diff2_here("plan", write(tmp_path, required("dpsgd")), "--sizes", "100x4").stdout)
    assert "8 gradients (batches drawn without replacement, rate 0.05)" in shown
    path = write(tmp_path, required("dpsgd") + '\nsampling = "poisson"')
    shown = unframed(diff2_here("plan", path, "--sizes", "100x4").stdout)
    assert "8 gradients (Poisson batches, rate 0.05)" in shown
    assert "each record, against being added or removed" in shown


def test_plan_takes_unit_and_clients_a_round(tmp_path):
    words = ["plan", write(tmp_path, DIFF2), "--sizes", "100x4", "--json"]
    record, client = (json.loads(diff2_here(*words, "--unit", unit).stdout) for unit in ("record", "client"))
    assert client["sigma_1"] == pytest.approx(100 * record["sigma_1"])
    some = json.loads(diff2_here(*words, "--clients-per-round", 2).stdout)
    assert (some["clients_per_round"], some["predictions"]) == (2, [])
    result = diff2_here(*words, "--clients-per-round", 5)
    assert (result.exit_code, "at most the number of clients, 4" in single_line(result.stderr)) == (1, True)
    path = write(tmp_path, DIFF2, rest="unit = 'client'\n[run]\nclients_per_round = 2\nclient_order = 'random'")
    shown = unframed(diff2_here("plan", path, "--sizes", "100x4", "--delta", 0.1).stdout)
    assert "2 per round, drawn in secret" in shown
    assert "each client, with all its records" in shown


def test_plan_of_a_run_file_with_groups_protects_groups(tmp_path):
    data = '[data]\nfile = "a.csv"\ntarget = "y"\ntask = "regression"\ngroup_column = "person"'
    document = json.loads(diff2_here("plan", write(tmp_path, DIFF2, data=data), "--sizes", "300", "--json").stdout)
    assert document["unit"] == "group"
    path = write(tmp_path, DIFF2, data='[data]\nbuiltin = "randhie"', rest="[model]\nhidden = [5]")
    assert json.loads(diff2_here("plan", path, "--sizes", "3000", "--json").stdout)["dimension"] == 26 * 5 + 6


@pytest.mark.parametrize(("split", "expected"), [("2", 2.0), ("[3, 3.5]", (3.0, 3.5))])
def test_budget_split_is_a_number_or_a_pair(tmp_path, split, expected):
    assert read_run_file(write(tmp_path, f"{DIFF2}\nbudget_split = {split}")).algorithm.budget_split == expected


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("[3, 3, 3]", r"budget_split: expected a number or a list of 2 values, got \[3, 3, 3\]"),
        ("[3, 'x']", "budget_split: expected a number or a list of 2 values"),
        ("true", "budget_split: expected a number"),
        ("'auto'", "budget_split: expected a number or a list of 2 values, got 'auto'"),
        ("[1.5, 1.5]", "1/u_1"),
        ("1", "budget_split > 1"),
    ],
)
def test_budget_split_that_is_none_of_them(tmp_path, split, message):
    with pytest.raises(InvalidArgument, match=message):
        read_run_file(write(tmp_path, f"{DIFF2}\nbudget_split = {split}"))


def test_routine_inside_a_routine(tmp_path):
    inner = '[routine.routine]\nname = "momentum"\nlearning_rate = 0.1\nmomentum = 0.8'
    path = write(tmp_path, DIFF2, f'name = "averaging"\nstart = 0.25\n{inner}')
    assert read_run_file(path).algorithm.routine == diff2.Averaging(diff2.Momentum(0.1, 0.8), start=0.25)
    for wrong, message in (
        ('name = "averaging"', r"\[routine\] needs a routine; add a table: \[routine.routine\]"),
        ('name = "averaging"\n[routine.routine]\nlearning_rate = 1', r"\[routine.routine\] needs the key 'name'"),
        ('name = "averaging"\n[routine.routine]\nname = "adm"', r"\[routine.routine\] name: .*did you mean 'adam'"),
        (f'name = "averaging"\n{inner}\nbeta = 1', r"\[routine.routine\] has no key 'beta'"),
        (f'name = "gradient_descent"\nlearning_rate = 0.1\n{inner}', r"\[routine\] has no key 'routine'"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            read_run_file(write(tmp_path, DIFF2, wrong))


def test_options_of_a_torch_optimizer(tmp_path):
    routine = 'name = "torch_optim"\noptimizer = "AdamW"\noptions = { lr = 0.01, betas = [0.9, 0.99] }'
    expected = diff2.TorchOptimizer("AdamW", {"lr": 0.01, "betas": (0.9, 0.99)})
    assert read_run_file(write(tmp_path, DIFF2, routine)).algorithm.routine == expected
    for wrong, message in (("3", "got optimizer=3"), ('"AdamX"', "did you mean 'Adam")):
        with pytest.raises(InvalidArgument, match=message):
            read_run_file(write(tmp_path, DIFF2, routine.replace('"AdamW"', wrong)))
    with pytest.raises(InvalidArgument, match="options: expected a table"):
        read_run_file(write(tmp_path, DIFF2, routine[: routine.index("options")] + "options = 3"))


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        ([1, 2], tuple[float, float] | None, (1.0, 2.0)),
        ([[1, 2], [3, 4]], tuple[tuple[int, int], ...], ((1, 2), (3, 4))),
        ("inf", float | str, float("inf")),
        ("x", float | str, "x"),
        (3, int | None, 3),
        ({"a": [1]}, typing.Mapping[str, tuple[float, ...]], {"a": (1.0,)}),
    ],
)
def test_values_become_the_annotated_types(value, hint, expected):
    assert convert("key", value, hint) == expected


# train


@pytest.fixture
def tables(tmp_path):
    generator = np.random.default_rng(0)
    age = generator.integers(0, 100, 90)
    table = pandas.DataFrame({"age": age, "person": [f"p{i // 3}" for i in range(90)], "visits": age / 20})
    table.to_csv(tmp_path / "all.csv", index=False)
    return tmp_path


DATA = (
    '[data]\nfile = "all.csv"\ntarget = "visits"\ntask = "regression"\nbounds = { age = [0, 100], visits = [0, 5] }\n'
)


def test_train_protects_groups(tables):
    path = write(tables, DIFF2, data=DATA + 'group_column = "person"')
    document = json.loads(diff2_here("train", path, "--out", tables / "run", "--json").stdout)
    assert document["unit"] == "group"
    assert [column["column"] for column in document["encoding"]["inputs"]] == ["age"]
    assert "any one group" in unframed(diff2_here("account", tables / "run").stdout)
    result = diff2_here("train", write(tables, DIFF2, data=DATA + 'group_column = "persn"'), "--out", tables / "other")
    assert "did you mean 'person'" in single_line(result.stderr)


def test_train_leaves_held_out_records_out_and_measures_them_when_asked(tables):
    data = DATA + 'drop = ["person"]\nholdout = 0.2\nclients = 4'
    document = json.loads(diff2_here("train", write(tables, DIFF2, data=data), "--out", tables / "a", "--json").stdout)
    assert [client["records"] for client in document["clients"]] == [18] * 4
    assert (document["held_out"], document["guarantee"]["leaks"]) == (18, [])
    path = write(tables, DIFF2, data=data, rest="[run]\nmetrics_every = 2")
    document = json.loads(diff2_here("train", path, "--out", tables / "b", "--json").stdout)
    assert document["guarantee"]["leaks"] == ["exact training metrics and exact held-out metrics"]
    assert pandas.read_csv(tables / "b" / "history.csv")["test_loss"].count() == 4


@pytest.mark.parametrize("divided", ["holdout = 0.2", "clients = 2", ""])
def test_where_the_number_of_records_is_secret_nothing_is_divided_by_it(tables, divided):
    """Of 90 records and of 89, holdout trained on other ones, and result.json said how many there were."""
    poisson = 'name = "dpsgd"\nrounds = 2\nbatch_size = 20\nclip_gradient = 1.0\nsampling = "poisson"'
    path = write(tables, poisson, rest="public_sizes = 100", data=DATA + f'drop = ["person"]\n{divided}')
    result = diff2_here("train", path, "--out", tables / "run", "--json")
    if divided:
        assert f"{divided.split()[0]} divides the records by how many there are" in single_line(result.stderr)
        assert not (tables / "run").exists()
    else:
        document = json.loads(result.stdout)
        assert document["clients"][0]["records"] == 100
        assert document["guarantee"]["private"]


def test_train_shows_a_routine_inside_a_routine(tables):
    routine = 'name = "averaging"\n[routine.routine]\nname = "momentum"\nlearning_rate = 0.1'
    path = write(tables, DIFF2, routine, data=DATA + 'drop = ["person"]')
    shown = unframed(diff2_here("train", path, "--out", tables / "run").stdout)
    assert "averaging, routine=(momentum, learning_rate=0.1" in shown


def test_tables_are_looked_up_beside_the_file_then_in_data_dir_then_in_the_environment(tables, monkeypatch):
    path = write(tables, DIFF2, data=DATA + 'drop = ["person"]')
    first, second = tables / "first", tables / "second"
    for folder in (first, second):
        folder.mkdir()
        (folder / "all.csv").write_bytes((tables / "all.csv").read_bytes())
    monkeypatch.setenv("DIFF2_DATA", str(second))
    assert read_run_file(path, first).data.file == str(tables / "all.csv")
    (tables / "all.csv").unlink()
    assert read_run_file(path, first).data.file == str(first / "all.csv")
    assert read_run_file(path).data.file == str(second / "all.csv")
    assert diff2_here("train", path, "--out", tables / "run", "--data-dir", first, "-q").exit_code == 0
    monkeypatch.delenv("DIFF2_DATA")
    assert read_run_file(path).data.file == str(tables / "all.csv")


def test_builtin_and_files_exclude_each_other(tables):
    for key in ('file = "all.csv"', 'files = ["all.csv"]'):
        with pytest.raises(InvalidArgument, match=r"\[data\] has both builtin and file"):
            read_run_file(write(tables, DIFF2, data=f'[data]\nbuiltin = "randhie"\n{key}'))
    with pytest.raises(InvalidArgument, match=r"\[data\] has no key 'target'"):
        read_run_file(write(tables, DIFF2, data='[data]\nbuiltin = "randhie"\ntarget = "visits"'))


def test_train_on_builtin_data(tmp_path):
    path = write(tmp_path, DIFF2, data='[data]\nbuiltin = "randhie"\n[model]\nhidden = [2]')
    document = json.loads(diff2_here("train", path, "--out", tmp_path / "run", "--json").stdout)
    assert [client["name"] for client in document["clients"]] == [f"site {i}" for i in range(1, 7)]
    assert document["guarantee"]["private"] is True
