"""Tables: what is read, how it is scaled, and what is refused."""

import json
import sys
import warnings

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diff2 import InvalidArgument, PrivacyLeakError, PrivacyLeakWarning
from diff2.data import randhie
from diff2.data.loading import load_clients
from diff2.data.named import BuiltinSettings
from diff2.data.scaling import Encoding, Scaling
from diff2.data.settings import TableSettings
from diff2.data.tables import read_clients
from diff2.tables.file_format import FileFormat

SECRET = 73.125  # a value that no message may show


def frame(records: int, seed: int = 0) -> pandas.DataFrame:
    generator = np.random.default_rng(seed)
    return pandas.DataFrame(
        {
            "age": generator.integers(0, 100, records),
            "smoker": generator.integers(0, 2, records).astype(bool),
            "visits": generator.uniform(0, 12, records),
        }
    )


@pytest.fixture
def two(tmp_path):
    """Two clients' CSV files; returns settings for them, with changes."""
    for i, name in enumerate(("north.csv", "south.csv")):
        frame(30 + i, seed=i).to_csv(tmp_path / name, index=False)

    def settings(**changes):
        fields = {"target": "visits", "task": "regression", **changes}
        if "file" not in fields:
            fields.setdefault("files", (str(tmp_path / "north.csv"), str(tmp_path / "south.csv")))
        return TableSettings(**fields)

    return settings


def test_one_file_a_client(two):
    tables = load_clients(two())
    assert tables.names == ["north.csv", "south.csv"]
    assert list(tables.encoding.inputs) == ["age", "smoker"]
    assert tables.leaks == ()
    (inputs, targets), other = tables.clients
    assert inputs.shape == (30, 2)
    assert targets.shape == (30, 1)
    assert other[0].shape == (31, 2)
    np.testing.assert_array_equal(inputs[:, 0], frame(30)["age"])


def test_neither_reading_nor_predicting_needs_pandas(two, monkeypatch):
    settings = two()
    monkeypatch.setitem(sys.modules, "pandas", None)
    encoding = load_clients(settings).encoding
    assert encoding.encode_inputs({"smoker": ["True", False], "age": [3, "4"]}).tolist() == [[3.0, 1.0], [4.0, 0.0]]


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet"])
def test_formats_give_the_same_clients(two, tmp_path, kind):
    files = []
    for i, name in enumerate(("north", "south")):
        file = tmp_path / f"{name}.{kind}"
        table = frame(30 + i, seed=i)
        table.to_parquet(file) if kind == "parquet" else table.to_csv(file, index=False)
        files.append(str(file))
    for mine, theirs in zip(load_clients(two(files=tuple(files))).clients, load_clients(two()).clients, strict=True):
        np.testing.assert_array_equal(mine[0], theirs[0])
        np.testing.assert_array_equal(mine[1], theirs[1])


def test_another_way_to_write_csv_files(two, tmp_path):
    file = tmp_path / "w.csv"
    frame(30).rename(columns={"age": "âge"}).to_csv(file, index=False, sep=";", decimal=",", encoding="latin-1")
    with pytest.raises(InvalidArgument, match=r"not text in the encoding utf-8.*\[data.format\]"):
        load_clients(two(files=(str(file),)))
    tables = load_clients(two(files=(str(file),), format=FileFormat(";", "latin-1", ",")))
    assert list(tables.encoding.inputs) == ["âge", "smoker"]
    np.testing.assert_array_equal(tables.clients[0][1], load_clients(two()).clients[0][1])


def test_one_file_with_a_client_column(two, tmp_path):
    whole = pandas.concat([frame(30, 0).assign(site="n"), frame(31, 1).assign(site="s")])
    file = str(tmp_path / "all.csv")
    whole.sample(frac=1, random_state=0).to_csv(file, index=False)
    tables = load_clients(two(file=file, client_column="site"))
    sizes = dict(zip(tables.names, [len(inputs) for inputs, _ in tables.clients], strict=True))
    assert sizes == {"n": 30, "s": 31}
    assert list(tables.encoding.inputs) == ["age", "smoker"]
    alone = load_clients(two(file=file, drop=("site",)))
    assert [len(inputs) for inputs, _ in alone.clients] == [61]


def test_columns_and_drop_choose_the_inputs(two):
    assert list(load_clients(two(columns=("smoker", "age"))).encoding.inputs) == ["smoker", "age"]
    assert list(load_clients(two(drop=("smoker",))).encoding.inputs) == ["age"]


def test_bounds_clip_and_map_to_one_without_looking_at_the_data(two):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tables = load_clients(two(bounds={"age": (20.0, 60.0), "visits": (0.0, 8.0)}))
    age, visits = frame(30)["age"].to_numpy(), frame(30)["visits"].to_numpy()
    inputs, targets = tables.clients[0]
    np.testing.assert_allclose(inputs[:, 0], (np.clip(age, 20, 60) - 40) / 20)
    np.testing.assert_allclose(targets[:, 0], np.clip(visits, 0, 8) / 8)
    np.testing.assert_allclose(tables.encoding.decode(targets), np.clip(visits, 0, 8))
    changed = frame(30)
    changed["age"] *= 3
    np.testing.assert_array_equal(tables.encoding.encode_inputs(changed)[:, 0], (np.clip(age * 3, 20, 60) - 40) / 20)


finite = st.floats(-1e6, 1e6)


@given(low=finite, width=st.floats(1e-3, 1e6), values=st.lists(finite, min_size=1))
def test_scaling_stays_within_one_and_inverts_inside_the_bounds(low, width, values):
    bounds = (low, low + width)
    for scaling in (Scaling.of_input(bounds), Scaling.of_target(bounds)):
        encoded = scaling.encode(np.array(values))
        assert np.all(np.abs(encoded) <= 1 + 1e-6)
        expected = np.clip(values, *bounds)
        np.testing.assert_allclose(scaling.decode(encoded), expected, rtol=1e-9, atol=1e-9 * (abs(low) + width))
    assert Scaling.of_target(bounds).decode(np.zeros(1))[0] == 0.0


def test_scaling_by_the_data_leaks_and_says_so(two):
    with pytest.warns(PrivacyLeakWarning, match="'smoker', 'visits'.*mean and deviation"):
        tables = load_clients(two(scale="data", bounds={"age": (0.0, 100.0)}))
    assert len(tables.leaks) == 1
    assert "'age'" not in tables.leaks[0]
    smoker = np.concatenate([inputs[:, 1] for inputs, _ in tables.clients])
    targets = np.concatenate([targets for _, targets in tables.clients])
    for column in (smoker, targets):
        assert np.mean(column) == pytest.approx(0, abs=1e-12)
        assert np.std(column) == pytest.approx(1)
    visits = np.concatenate([frame(30, 0)["visits"], frame(31, 1)["visits"]])
    np.testing.assert_allclose(tables.encoding.decode(targets), visits)
    with pytest.raises(PrivacyLeakError, match="strict"):
        load_clients(two(scale="data"), strict=True)


def test_scaling_by_the_data_leaks_nothing_where_all_columns_have_bounds(two):
    bounds = {"age": (0.0, 100.0), "smoker": (0.0, 1.0), "visits": (0.0, 12.0)}
    assert load_clients(two(scale="data", bounds=bounds), strict=True).leaks == ()


def test_constant_column_becomes_zero():
    np.testing.assert_array_equal(Scaling.of_data(np.full(4, 7.0)).encode(np.full(4, 7.0)), np.zeros(4))


@pytest.mark.parametrize("classes", [("no", "yes"), (0, 1), (False, True)])
def test_public_classes(two, tmp_path, classes):
    files = []
    for i, name in enumerate(("a.csv", "b.csv")):
        table = frame(20, i)
        table["visits"] = [classes[int(v > 6)] for v in table["visits"]]
        table.to_csv(tmp_path / name, index=False)
        files.append(str(tmp_path / name))
    settings = {"task": "classification", "files": tuple(files)}
    tables = load_clients(two(classes=classes[::-1], **settings), strict=True)
    assert tables.encoding.classes == classes[::-1]
    assert (tables.encoding.loss, tables.encoding.outputs) == ("cross_entropy", 2)
    targets = tables.clients[0][1]
    np.testing.assert_array_equal(targets, frame(20, 0)["visits"] <= 6)
    assert targets.dtype == np.int64
    assert list(tables.encoding.decode(np.eye(2)[targets])) == [classes[int(v > 6)] for v in frame(20, 0)["visits"]]
    with pytest.warns(PrivacyLeakWarning, match="classes of 'visits' taken from the data"):
        found = load_clients(two(**settings))
    assert found.encoding.classes == classes
    assert json.loads(json.dumps(found.encoding.to_json()))["classes"] == list(classes)


def test_value_outside_the_classes_is_not_shown(two):
    with pytest.raises(
        InvalidArgument, match=r"'visits' of client 'north.csv' holds a value that is not among"
    ) as caught:
        load_clients(two(task="classification", classes=("no", "yes")))
    assert not any(f"{value}"[:4] in str(caught.value) for value in frame(30)["visits"])


def test_encoding_survives_json(two):
    encoding = load_clients(two(bounds={"age": (0.0, 100.0)})).encoding
    assert Encoding.from_json(json.loads(json.dumps(encoding.to_json()))) == encoding


# Owners, held-out records, dealt and built-in data


def test_owners_are_no_input(two, tmp_path):
    files = []
    for i, name in enumerate(("a.csv", "b.csv")):
        table = frame(20, i).assign(person=[f"p{j // 3}" for j in range(20)])
        files.append(write(tmp_path, name, table))
    tables = load_clients(two(files=tuple(files), group_column="person"))
    assert list(tables.encoding.inputs) == ["age", "smoker"]
    assert [list(group) for group in tables.groups] == [[f"p{j // 3}" for j in range(20)]] * 2
    assert load_clients(two(files=tuple(files), drop=("person",))).groups is None


def test_the_group_of_one_record_does_not_change_those_of_others(two, tmp_path):
    """A reader that guesses types takes 01 and 1 for one group, unless some other record has a name for its own."""
    found = []
    for last in ("7", "x"):
        file = tmp_path / f"{last}.csv"
        file.write_text(f"age,person,visits\n1,01,2\n2,1,3\n3,1.0,4\n4,{last},5\n", encoding="utf-8")
        (groups,) = load_clients(two(files=(str(file),), group_column="person")).groups
        found.append([str(one) == str(other) for one in groups[:3] for other in groups[:3]])
    assert found[0] == found[1]


def test_record_without_owner(two, tmp_path):
    file = write(tmp_path, "all.csv", frame(6).assign(person=["x", "x", None, "y", "y", "y"]))
    with pytest.raises(InvalidArgument, match=r"'person' of client 'all.csv' holds missing values; each record needs"):
        load_clients(two(files=(file,), group_column="person"))
    with pytest.raises(InvalidArgument, match=r"no column 'persn'; did you mean 'person'"):
        load_clients(two(files=(file,), group_column="persn"))


def rows_of(pair):
    inputs, targets = pair
    return {tuple(row) for row in np.column_stack([inputs, targets])}


def test_held_out_records_are_a_share_of_each_client_and_not_trained_on(two):
    whole, tables = load_clients(two()), load_clients(two(holdout=0.2))
    assert [len(inputs) for inputs, _ in tables.clients] == [24, 25]
    assert len(tables.holdout[0]) == 12
    kept = set().union(*(rows_of(pair) for pair in tables.clients))
    assert kept | rows_of(tables.holdout) == set().union(*(rows_of(pair) for pair in whole.clients))
    assert not kept & rows_of(tables.holdout)
    assert rows_of(load_clients(two(holdout=0.2)).holdout) == rows_of(tables.holdout)
    assert rows_of(load_clients(two(holdout=0.2, holdout_seed=1)).holdout) != rows_of(tables.holdout)
    with pytest.raises(InvalidArgument, match="holds out no record"):
        load_clients(two(holdout=1e-6))


def test_owners_are_on_one_side_and_at_one_client(two, tmp_path):
    person = np.random.default_rng(0).integers(0, 15, 60)
    file = write(tmp_path, "all.csv", frame(60).assign(person=person, copy=person))
    settings = {"file": file, "group_column": "person", "holdout": 0.2, "clients": 4}
    tables = load_clients(two(**settings))
    at = [set(group.tolist()) for group in tables.groups]
    assert sorted(len(people) for people in at) == [3, 3, 3, 3]
    assert len(set.union(*at)) == 12
    assert not set.union(*at) & set(tables.holdout[0][:, 2].astype(int))


def test_records_are_dealt_in_turn_after_the_split(two, tmp_path):
    file = write(tmp_path, "all.csv", frame(23).assign(row=range(23)))
    tables = load_clients(two(file=file, clients=5, columns=("row",)))
    assert [inputs[:, 0].tolist() for inputs, _ in tables.clients] == [list(range(p, 23, 5)) for p in range(5)]
    tables = load_clients(two(file=file, clients=3, columns=("row",), holdout=0.3))
    assert [len(inputs) for inputs, _ in tables.clients] == [6, 5, 5]
    order = [tables.clients[i % 3][0][i // 3, 0] for i in range(16)]
    assert order == sorted(order)
    with pytest.raises(InvalidArgument, match="clients=24 is more than the records"):
        load_clients(two(file=file, clients=24))


def test_scaling_by_the_data_is_fitted_on_the_records_trained_on(two):
    with pytest.warns(PrivacyLeakWarning):
        tables = load_clients(two(scale="data", holdout=0.3))
    age = np.concatenate([inputs[:, 0] for inputs, _ in tables.clients])
    assert (np.mean(age), np.std(age)) == (pytest.approx(0, abs=1e-12), pytest.approx(1))
    assert abs(np.mean(tables.holdout[0][:, 0])) > 1e-6


def test_target_by_its_largest_value_leaks_and_counts_held_out_records(two):
    visits = np.concatenate([frame(30, 0)["visits"], frame(31, 1)["visits"]])
    for seed in range(4):
        with pytest.warns(PrivacyLeakWarning, match="'visits' by its largest absolute value"):
            tables = load_clients(two(target_scale="max", holdout=0.3, holdout_seed=seed))
        assert tables.encoding.target_scaling.scale == visits.max()
        assert tables.leaks == ("scaling of 'visits' by its largest absolute value",)
    with pytest.warns(PrivacyLeakWarning, match="mean and deviation"):
        tables = load_clients(two(scale="data", target_scale="none"))
    np.testing.assert_array_equal(tables.clients[0][1][:, 0], frame(30)["visits"])


def test_classes_of_held_out_records_are_known(two, tmp_path):
    file = write(tmp_path, "all.csv", frame(12).assign(visits=[f"class {i}" for i in range(12)]))
    with pytest.warns(PrivacyLeakWarning):
        tables = load_clients(two(files=(file,), task="classification", holdout=0.5))
    assert tables.encoding.outputs == 12


def test_builtin_data_is_that_of_the_demo():
    data, tables = randhie.load(), load_clients(BuiltinSettings("randhie", group_column="zper"), strict=True)
    for mine, theirs in zip(tables.clients, data.clients, strict=True):
        np.testing.assert_array_equal(mine[0], theirs[0])
        np.testing.assert_array_equal(mine[1], theirs[1])
    assert len(tables.holdout[0]) == 4085
    assert [len(set(group)) for group in tables.groups] == [len(set(people)) for people in data.people]
    assert (tables.encoding.outputs, tables.encoding.loss, len(tables.encoding.inputs)) == (1, "squared", 25)
    with pytest.raises(InvalidArgument, match="did you mean 'randhie'"):
        BuiltinSettings("randhi")
    with pytest.raises(InvalidArgument, match="group_column to be 'zper'"):
        BuiltinSettings("randhie", group_column="person")


# What is refused


def write(folder, name, table):
    file = folder / name
    table.to_csv(file, index=False)
    return str(file)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", ["age", "visits"])
def test_missing_value_names_client_and_column_and_nothing_else(two, tmp_path, bad, column):
    table = frame(17).astype({"age": float})
    table[["age", "visits"]] = SECRET
    table.loc[[3, 4, 5], column] = bad
    file = write(tmp_path, "west.csv", table)
    with pytest.raises(InvalidArgument, match=f"column '{column}' of client 'west.csv' holds missing") as caught:
        load_clients(two(files=(file,)))
    assert not any(word in str(caught.value) for word in (str(SECRET), "17", "14", "3", "4"))


def test_column_of_text_comes_with_the_remedy(two, tmp_path):
    file = write(tmp_path, "west.csv", frame(5).assign(sex="secret"))
    with pytest.raises(InvalidArgument, match=r"'sex' of client 'west.csv' holds .*or is not numeric.*drop") as caught:
        load_clients(two(files=(file,)))
    assert "secret" not in str(caught.value)
    load_clients(two(files=(file,), drop=("sex",)))


@pytest.mark.parametrize("change", [{"target": "visit"}, {"columns": ("agee",)}, {"drop": ("smokerr",)}])
def test_unknown_column_suggests_the_nearest(two, change):
    with pytest.raises(InvalidArgument, match=r"'north.csv' has no column .*; did you mean '(visits|age|smoker)'\?"):
        load_clients(two(**change))


def test_bounds_of_an_unknown_column(two):
    with pytest.raises(InvalidArgument, match=r"bounds name 'agee'.*did you mean 'age'"):
        load_clients(two(bounds={"agee": (0.0, 1.0)}))


def test_clients_must_hold_the_same_columns(two, tmp_path):
    first, more = write(tmp_path, "a.csv", frame(5)), write(tmp_path, "b.csv", frame(5).assign(extra=1))
    with pytest.raises(InvalidArgument, match=r"'b.csv' has column 'extra', client 'a.csv' has not"):
        load_clients(two(files=(first, more)))
    with pytest.raises(InvalidArgument, match=r"'a.csv' has no column 'extra'"):
        load_clients(two(files=(more, first)))
    load_clients(two(files=(first, more), columns=("age", "smoker")))


def test_column_without_a_name_is_not_taken_for_an_input(two, tmp_path):
    frame(5).to_csv(tmp_path / "a.csv", index=True)
    with pytest.raises(InvalidArgument, match=r"without a name; leave it out: drop = \[''\]"):
        load_clients(two(files=(str(tmp_path / "a.csv"),)))
    tables = load_clients(two(files=(str(tmp_path / "a.csv"),), drop=("",)))
    assert list(tables.encoding.inputs) == ["age", "smoker"]


def test_missing_file(two, tmp_path):
    with pytest.raises(InvalidArgument, match=r"no file at .*nowhere.csv"):
        load_clients(two(files=(str(tmp_path / "nowhere.csv"),)))


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b"age,smoker,visits\n", "holds no record"),
     (b"\xff\xfe\x00\xd8,73.125", "mark of utf-16"), (b"a,b\n\xff,73.125", "not text in the encoding"),
     (b"age;visits\n1;73.125\n", "set the delimiter to ';'")],
)  # fmt: skip
def test_unreadable_file(two, tmp_path, content, message):
    file = tmp_path / "west.csv"
    file.write_bytes(content)
    with pytest.raises(InvalidArgument, match=message) as caught:
        load_clients(two(files=(str(file),)))
    assert "west.csv" in str(caught.value)
    assert str(SECRET) not in str(caught.value)


def test_unreadable_parquet(two, tmp_path):
    file = tmp_path / "west.parquet"
    file.write_bytes(b"PAR1 73.125")
    with pytest.raises(InvalidArgument, match="not a readable Parquet"):
        load_clients(two(files=(str(file),)))


def test_parquet_without_pyarrow_names_the_extra(two, tmp_path, monkeypatch):
    file = tmp_path / "west.parquet"
    frame(5).to_parquet(file)
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidArgument, match=r"pip install 'diff2\[parquet\]'"):
        load_clients(two(files=(str(file),)))


def test_record_without_client(two, tmp_path):
    table = frame(6).assign(site=["n", "n", None, "s", "s", "s"])
    file = write(tmp_path, "all.csv", table)
    with pytest.raises(InvalidArgument, match=r"column 'site' of client 'all.csv' holds missing"):
        read_clients(two(file=file, client_column="site"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "regresion"}, "did you mean 'regression'"),
        ({"scale": "minmax"}, "scale"),
        ({"files": ()}, "either files"),
        ({"files": ("a.csv",), "client_column": "site"}, "client_column"),
        ({"files": ("a.csv", "b.csv", "a.csv")}, "'a.csv' is listed twice"),
        ({"columns": ("age",), "drop": ("smoker",)}, "got both"),
        ({"columns": ()}, "at least one input"),
        ({"columns": ("age", "age")}, "twice"),
        ({"columns": ("age", "visits")}, "target='visits' is also listed"),
        ({"drop": ("visits",)}, "target='visits'"),
        ({"bounds": {"age": (1.0, 1.0)}}, "low < high"),
        ({"bounds": {"age": (0.0, float("inf"))}}, "finite"),
        ({"columns": ("age", "person"), "group_column": "person"}, "group_column='person' is also listed"),
        ({"group_column": "visits"}, "target='visits'"),
        ({"file": "a.csv", "files": (), "client_column": "p", "group_column": "p"}, "unit = 'client'"),
        ({"clients": 0, "file": "a.csv", "files": ()}, "clients >= 1"),
        ({"clients": 3}, "clients=3 splits the records of one file"),
        ({"clients": 3, "file": "a.csv", "files": (), "client_column": "site"}, "clients=3 splits"),
        ({"holdout": 0.0}, "holdout"),
        ({"holdout": 1.0}, "holdout"),
        ({"holdout_seed": -1}, "holdout_seed >= 0"),
        ({"holdout_split": "sklearn"}, "expected holdout_split to be one of"),
        ({"target_scale": "mx"}, "did you mean 'max'"),
        ({"target_scale": "max", "bounds": {"visits": (0.0, 1.0)}}, "target has no bounds"),
        ({"task": "classification", "target_scale": "max"}, "for a regression"),
        ({"classes": ("a", "b")}, "task='regression'"),
        ({"task": "classification", "classes": ("a",)}, "two or more"),
        ({"task": "classification", "classes": ("a", "a")}, "different"),
        ({"task": "classification", "bounds": {"visits": (0.0, 1.0)}}, "bounds of the target"),
    ],
)
def test_settings_that_make_no_sense(two, change, message):
    with pytest.raises(InvalidArgument, match=message):
        two(**change)
