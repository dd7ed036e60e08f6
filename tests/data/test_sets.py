"""The tables of the catalogue: what is read, how it becomes numbers, and what is refused."""

import gzip
import hashlib
import os
import warnings
from dataclasses import replace

import numpy as np
import pytest

from diff2 import InvalidArgument, PrivacyLeakWarning
from diff2.data.catalogue import CALIFORNIA, CATALOGUE, KDD
from diff2.data.datasets import load_dataset
from diff2.data.loading import load_clients
from diff2.data.named import DatasetSettings
from diff2.data.places import cache_folder, found

ROOTS = [*filter(None, [os.environ.get("DIFF2_DATA")]), cache_folder()]  # as they were before any test changes them
SHAPES = {
    "california_housing": (20_640, 8),
    "gas_turbine": (36_733, 9),
    "blog_feedback": (60_021, 280),
    "covertype": (581_012, 54),
    "kddcup99": (494_021, 118),
}


def real(name):
    """Return the folder that holds the true table, or skip."""
    path = found(CATALOGUE[name], ROOTS)
    if path is None:
        pytest.skip(f"{CATALOGUE[name].file} is not here; diff2 data fetch {name}, or set DIFF2_DATA")
    return str(path.parent)


@pytest.fixture(autouse=True)
def _no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DIFF2_DATA", raising=False)


def make(monkeypatch, folder, lines, entry=KDD, **changes):
    """Put a tiny table in a folder, and its entry in the catalogue in place of the true one."""
    content = ("\n".join([",".join(entry.columns), *lines]) + "\n").encode()
    digest = hashlib.sha256(content).hexdigest()
    provenance = replace(entry.provenance, csv_sha256=digest)
    small = replace(entry, rows=len(lines), provenance=provenance, **changes)
    monkeypatch.setitem(CATALOGUE, entry.name, small)
    folder.mkdir(exist_ok=True)
    (folder / entry.file).write_bytes(gzip.compress(content))
    return small


def kdd_line(protocol="tcp", service="http", flag="SF", label="normal.", number=0):
    return ",".join([str(number), protocol, service, flag, *["1"] * 37, label])


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_true_table_is_what_the_catalogue_says(name):
    data = load_dataset(name, real(name))
    assert data.inputs.shape == SHAPES[name]
    assert len(data.columns) == data.inputs.shape[1]
    assert data.inputs.dtype == np.float32
    assert np.isfinite(data.inputs).all()
    assert data.provenance.licence
    if data.classes is None:
        assert data.targets.shape == (len(data.inputs), 1)
    else:
        assert np.array_equal(np.unique(data.targets), np.arange(len(data.classes)))  # the public list is complete


def test_symbolic_columns_are_indicators_of_the_public_values(monkeypatch, tmp_path):
    make(monkeypatch, tmp_path, [kdd_line(), kdd_line("udp", "private", "S0", "smurf.", 5)])
    data = load_dataset("kddcup99", tmp_path)
    assert len(data.columns) == 38 + 3 + 66 + 11
    hot = {name: data.inputs[:, j].tolist() for j, name in enumerate(data.columns)}
    assert hot["protocol_type=tcp"] == [1, 0]
    assert hot["protocol_type=udp"] == [0, 1]
    assert hot["service=private"] == [0, 1]
    assert hot["duration"] == [0, 5]
    assert data.inputs[:, [j for j, name in enumerate(data.columns) if "=" in name]].sum() == 6
    assert [data.classes[k] for k in data.targets] == ["normal.", "smurf."]


def test_symbolic_columns_as_codes(monkeypatch, tmp_path):
    make(monkeypatch, tmp_path, [kdd_line(), kdd_line("udp", "private")])
    data = load_dataset("kddcup99", tmp_path, symbolic="codes")
    assert len(data.columns) == 41
    assert data.inputs[:, data.columns.index("protocol_type")].tolist() == [1, 2]


def test_value_outside_the_public_list(monkeypatch, tmp_path):
    make(monkeypatch, tmp_path, [kdd_line(), kdd_line(service="gopherd")])
    with pytest.raises(InvalidArgument, match="'service' of kddcup99 holds a value that is not among its 66"):
        load_dataset("kddcup99", tmp_path)


def test_indicators_stay_and_constant_columns_become_zero(monkeypatch, tmp_path):
    make(monkeypatch, tmp_path, [kdd_line(number=i, protocol=("tcp", "udp")[i % 2]) for i in range(20)])
    settings = DatasetSettings("kddcup99", clients=2, scale="data", folders=(str(tmp_path),))
    with pytest.warns(PrivacyLeakWarning, match="scaling of 'duration', 'src_bytes'"):
        tables = load_clients(settings)
    names = list(tables.encoding.inputs)
    inputs = np.concatenate([x for x, _ in tables.clients])
    assert inputs.dtype == np.float32
    assert set(inputs[:, names.index("protocol_type=udp")]) == {0.0, 1.0}
    assert set(inputs[:, names.index("src_bytes")]) == {0.0}
    assert np.isclose(inputs[:, names.index("duration")].std(), 1, atol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        scaled = load_clients(replace(settings, indicators="scale"))
    column = np.concatenate([x for x, _ in scaled.clients])[:, names.index("protocol_type=udp")]
    assert set(column) == {-1.0, 1.0}


def inputs_of(settings):
    """Return the records of all clients as they are trained on, by column."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        tables = load_clients(settings)
    return dict(zip(tables.encoding.inputs, np.concatenate([x for x, _ in tables.clients]).T, strict=True))


def test_codes_are_scaled_like_numbers_unless_they_are_to_stay(monkeypatch, tmp_path):
    make(monkeypatch, tmp_path, [kdd_line(number=i, protocol=("icmp", "udp")[i % 2]) for i in range(20)])
    settings = DatasetSettings("kddcup99", clients=1, scale="data", symbolic="codes", folders=(str(tmp_path),))
    scaled = inputs_of(settings)
    assert len(scaled) == 41
    assert set(scaled["protocol_type"]) == {-1.0, 1.0}
    kept = inputs_of(replace(settings, unscaled=("protocol_type", "service", "flag")))
    assert set(kept["protocol_type"]) == {0.0, 2.0}
    assert set(kept["service"]) == {KDD.symbolic["service"].index("http")}
    assert np.array_equal(kept["duration"], scaled["duration"])


def test_every_column_of_cover_type_may_be_standardised():
    settings = DatasetSettings("covertype", clients=10, scale="data", folders=(real("covertype"),))
    scaled = inputs_of(replace(settings, indicators="scale"))
    assert len(scaled) == 54
    for column in scaled.values():
        assert abs(column.mean(dtype=np.float64)) < 1e-3
        assert column.std(dtype=np.float64) == pytest.approx(1, abs=1e-3)
    assert set(inputs_of(settings)["Soil_Type15"]) == {0.0, 1.0}


# Totals and averages


def california_line(rooms, bedrooms, people, households):
    return ",".join(map(str, [-122.2, 37.9, 41, rooms, bedrooms, people, households, 8.3, 452600]))


def test_averages_by_household_take_the_place_of_totals(monkeypatch, tmp_path):
    make(monkeypatch, tmp_path, [california_line(880, 129, 322, 126), california_line(60, 12, 30, 10)], CALIFORNIA)
    data = load_dataset("california_housing", tmp_path, totals="average")
    assert data.columns == (
        "longitude", "latitude", "housingMedianAge", "AveRooms", "AveBedrms", "population", "AveOccup", "medianIncome"
    )  # fmt: skip
    columns = dict(zip(data.columns, data.inputs.T.tolist(), strict=True))
    assert columns["AveRooms"] == pytest.approx([880 / 126, 6.0])
    assert columns["AveBedrms"] == pytest.approx([129 / 126, 1.2])
    assert columns["AveOccup"] == pytest.approx([322 / 126, 3.0])
    assert columns["population"] == [322, 30]


def test_averages_of_the_true_table_are_those_of_the_other_copy():
    settings = DatasetSettings(
        "california_housing", clients=10, scale="data", totals="average", folders=(real("california_housing"),)
    )
    columns = inputs_of(settings)
    assert len(columns) == settings.inputs == 8
    assert max(abs(column).max() for column in columns.values()) > 90
    raw = inputs_of(replace(settings, scale="none"))
    # What scikit-learn's documentation prints of its copy.
    assert raw["AveRooms"].mean(dtype=np.float64) == pytest.approx(5.43, abs=0.005)
    assert raw["AveBedrms"].mean(dtype=np.float64) == pytest.approx(1.10, abs=0.005)
    assert raw["AveOccup"].mean(dtype=np.float64) == pytest.approx(3.07, abs=0.005)


def test_the_split_of_scikit_learn(monkeypatch, tmp_path):
    lines = [california_line(i, 1, 1, 1) for i in range(10)]
    make(monkeypatch, tmp_path, lines, CALIFORNIA)
    settings = DatasetSettings(
        "california_housing", holdout=0.15, holdout_split="scikit_learn", columns=("totalRooms",),
        folders=(str(tmp_path),),
    )  # fmt: skip
    # train_test_split(range(10), test_size=0.15, random_state=0)[1] is [2, 8]: it rounds upwards.
    assert sorted(load_clients(settings).holdout[0].ravel()) == [2, 8]
    # random_state=1 gives [2, 9]
    assert sorted(load_clients(replace(settings, holdout_seed=1)).holdout[0].ravel()) == [2, 9]


def test_columns_are_named_after_what_they_are():
    DatasetSettings("california_housing", totals="average", drop=("AveRooms",))
    with pytest.raises(InvalidArgument, match="drop names 'totalRooms', which is not an input"):
        DatasetSettings("california_housing", totals="average", drop=("totalRooms",))


def test_settings_know_the_size_of_the_model():
    settings = DatasetSettings("kddcup99")
    assert (settings.inputs, settings.outputs) == (118, 23)
    assert DatasetSettings("kddcup99", symbolic="codes", drop=("land",)).inputs == 40
    assert (DatasetSettings("gas_turbine").inputs, DatasetSettings("gas_turbine").outputs) == (9, 1)


def test_blog_feedback_as_the_authors_used_it():
    data = load_dataset("blog_feedback", real("blog_feedback"), rows="train")
    assert len(data.inputs) == 52_397


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset": "covertyp"}, "did you mean 'covertype'"),
        ({"rows": "test"}, "expected rows to be one of"),
        ({"symbolic": "hash"}, "expected symbolic to be one of"),
        ({"indicators": "drop"}, "expected indicators to be one of"),
        ({"totals": "mean"}, "expected totals to be one of"),
        ({"totals": "average"}, "'covertype' has no totals to average"),
        ({"unscaled": ("Slop",)}, "unscaled names 'Slop'.*did you mean 'Slope'"),
        ({"unscaled": ("Slope",), "bounds": {"Slope": (0, 90)}}, "'Slope', which is the target or has bounds"),
        ({"clients": 0}, "expected clients >= 1"),
        ({"columns": ("Elevation",), "drop": ("Slope",)}, "got both"),
        ({"drop": ("Slop",)}, "drop names 'Slop'.*did you mean 'Slope'"),
        ({"drop": ("Cover_Type",)}, "cannot also be dropped"),
        ({"columns": ("Slop",)}, "columns names 'Slop'.*did you mean 'Slope'"),
        ({"target_scale": "max"}, "is for a regression"),
    ],
)
def test_settings_that_make_no_sense(change, message):
    with pytest.raises(InvalidArgument, match=message):
        DatasetSettings(**{"dataset": "covertype", **change})


def test_rows_of_a_training_part_that_is_not_there(monkeypatch, tmp_path):
    make(monkeypatch, tmp_path, [kdd_line()])
    with pytest.raises(InvalidArgument, match="has no training part"):
        load_dataset("kddcup99", tmp_path, rows="train")


def test_absent_table_names_the_command_and_the_places(tmp_path, monkeypatch):
    monkeypatch.setenv("DIFF2_DATA", str(tmp_path / "variable"))
    with pytest.raises(InvalidArgument, match="diff2 data fetch covertype") as error:
        load_dataset("covertype", tmp_path / "given")
    for place in ("given", "variable", os.path.join("cache", "diff2")):
        assert str(tmp_path / place) in str(error.value)


def test_order_of_the_places(tmp_path, monkeypatch):
    entry = CATALOGUE["covertype"]
    monkeypatch.setenv("DIFF2_DATA", str(tmp_path / "variable"))
    for folder in (cache_folder(), tmp_path / "variable", tmp_path / "given"):
        folder.mkdir(parents=True)
        (folder / entry.file).touch()
        assert found(entry, [tmp_path / "given"]) == folder / entry.file


def test_truncated_table(monkeypatch, tmp_path):
    entry = make(monkeypatch, tmp_path, [kdd_line(number=i) for i in range(500)])
    path = tmp_path / entry.file
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InvalidArgument, match="is truncated; remove it and fetch it again: diff2 data"):
        load_dataset("kddcup99", tmp_path)


def test_altered_table_names_both_checksums(monkeypatch, tmp_path):
    entry = make(monkeypatch, tmp_path, [kdd_line()])
    content = (",".join(entry.columns) + "\n" + kdd_line(number=7) + "\n").encode()
    (tmp_path / entry.file).write_bytes(gzip.compress(content))
    with pytest.raises(InvalidArgument, match="is not the table that was published") as error:
        load_dataset("kddcup99", tmp_path)
    assert entry.provenance.csv_sha256 in str(error.value)
    assert hashlib.sha256(content).hexdigest() in str(error.value)


def test_table_with_other_columns(monkeypatch, tmp_path):
    entry = make(monkeypatch, tmp_path, [kdd_line()])
    names = ["duration", "protocol", *entry.columns[2:]]
    (tmp_path / entry.file).write_bytes(gzip.compress((",".join(names) + "\n").encode()))
    with pytest.raises(InvalidArgument, match="should be 'protocol_type' and is 'protocol'"):
        load_dataset("kddcup99", tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"no gzip at all", b"", gzip.compress(b"x" * 9, mtime=0)[:-9] + b"123456789"],
    ids=["text", "empty", "damaged"],
)
def test_file_that_is_no_table(monkeypatch, tmp_path, content):
    entry = make(monkeypatch, tmp_path, [kdd_line()])
    (tmp_path / entry.file).write_bytes(content)
    with pytest.raises(InvalidArgument, match=r"fetch it again|other columns"):
        load_dataset("kddcup99", tmp_path)
