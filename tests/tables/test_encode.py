"""The encoding: within public bounds for any values, a function of each record alone, the same from every library."""

import math
from datetime import date, datetime

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diff2.errors import InvalidArgument
from diff2.tables.encode import encode
from diff2.tables.files import read_tables
from diff2.tables.frames import as_frame
from diff2.tables.kinds import Category, Classes, Counts, Date, Flag, Number, Regression
from diff2.tables.schema import Schema

COLUMNS = {
    "age": Number(0, 100),
    "income": Number(),
    "sex": Category(("f", "m")),
    "ward": Category((1, 2, 30)),
    "smoker": Flag(),
    "joined": Date(date(2000, 1, 1), date(2020, 12, 31)),
    "left": Date(date(2020, 1, 1), date(2020, 6, 30), "%d.%m.%Y"),
}
TARGETS = [Classes(("no", "yes")), Regression(-5, 15), Regression(), Counts(9)]
SCHEMA = Schema(COLUMNS, "y", Classes((0, 1)))


def same(first, second):
    for one, other in zip(first.rows, second.rows, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(first.usable, second.usable)


def message(call, *arguments, **named):
    with pytest.raises(InvalidArgument) as caught:
        call(*arguments, **named)
    return str(caught.value)


anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6), st.binary(max_size=4), st.dates(),
    st.datetimes(), st.decimals(), st.complex_numbers(), st.lists(st.integers(), max_size=2), st.just(pandas.NA),
    st.sampled_from(["f", " m", "1.0", "30", "yes", "2010-05-06", "06.05.2020", "1e300", "-inf", "NaN", "nan"]),
)  # fmt: skip
records = st.fixed_dictionaries(dict.fromkeys((*COLUMNS, "y"), anything))


def table(found):
    return {name: [record[name] for record in found] for name in (*COLUMNS, "y")}


@settings(max_examples=150, deadline=None)
@given(st.lists(records, min_size=1, max_size=5), st.sampled_from(TARGETS))
def test_any_values_are_encoded_within_public_bounds(found, target):
    schema = Schema(COLUMNS, "y", target)
    rows, usable, _, _ = encode(table(found), schema, least=0)
    assert rows.numeric.shape == (len(found), len(schema.numeric))
    assert rows.numeric.dtype == rows.target.dtype == np.float64
    low, high = np.nan_to_num(schema.bounds, nan=1e100).T
    low = np.where(low == 1e100, -1e100, low)
    assert ((rows.numeric >= low) & (rows.numeric <= high) | np.isnan(rows.numeric)).all()
    assert ((rows.codes >= 0) & (rows.codes < np.array(schema.widths))).all()
    assert np.isfinite(rows.target).all()
    bounds = {"classes": (0, 1), "regression": (target.low, target.high) if hasattr(target, "low") else None,
              "counts": (0, 9)}[target.kind]  # fmt: skip
    if bounds[0] is not None:
        assert ((rows.target >= bounds[0]) & (rows.target <= bounds[1])).all()
    assert np.isnan(rows.numeric[~usable]).all()


@settings(max_examples=100, deadline=None)
@given(st.lists(records, min_size=2, max_size=4), records)
def test_one_record_changes_its_own_row_alone(found, other):
    """Also where it changes the types that lists, pandas and Arrow give a column."""
    for make in (dict, pandas.DataFrame):
        before = encode(make(table(found)), SCHEMA, least=0)
        after = encode(make(table([*found[:-1], other])), SCHEMA, least=0)
        for one, two in zip(before.rows, after.rows, strict=True):
            np.testing.assert_array_equal(one[:-1], two[:-1])
        np.testing.assert_array_equal(before.usable[:-1], after.usable[:-1])


whole = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.sampled_from([1, 2**53 + 1]))
typed_records = st.fixed_dictionaries(
    {
        "age": st.one_of(st.none(), st.floats()),
        "ward": whole,
        "smoker": st.one_of(st.none(), st.booleans()),
        "joined": st.one_of(st.none(), st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1))),
        "sex": st.one_of(st.none(), st.text(max_size=2), st.sampled_from(["f", " m", "1"])),
        "y": whole,
    }
)


@settings(max_examples=60, deadline=None)
@given(st.lists(typed_records, min_size=2, max_size=4), typed_records)
def test_one_record_changes_its_own_row_alone_where_columns_have_types(found, other):
    """A missing value makes floating-point numbers of whole ones, and objects of truth values."""
    arrow = pytest.importorskip("pyarrow")
    types = [arrow.float64(), arrow.int64(), arrow.bool_(), arrow.timestamp("us"), arrow.string(), arrow.int64()]
    names = ["age", "ward", "smoker", "joined", "sex", "y"]
    given_types = arrow.schema(list(zip(names, types, strict=True)))
    columns = {**{name: COLUMNS[name] for name in names[:-1]}, "ward": Category((1, 2**53 + 1))}
    schema = Schema(columns, "y", Classes((1, 2**53 + 1)))
    makers = [
        lambda rows: arrow.Table.from_pylist(rows, schema=given_types),
        lambda rows: arrow.Table.from_pylist(rows, schema=given_types).to_pandas(types_mapper=pandas.ArrowDtype),
        lambda rows: {name: [row[name] for row in rows] for name in names},
    ]
    first = [encode(make(found), schema, least=0) for make in makers]
    second = [encode(make([*found[:-1], other]), schema, least=0) for make in makers]
    for before, after in zip(first, second, strict=True):
        same(before, first[0])
        same(after, second[0])
        for one, two in zip(before.rows, after.rows, strict=True):
            np.testing.assert_array_equal(one[:-1], two[:-1])


@pytest.mark.parametrize("last", ["1", "01", "1.0", "x", "", "true", '"', "a,b,c,d", "nan", "2020-01-01", "1_0"])
def test_one_line_of_a_file_changes_its_own_row_alone(tmp_path, last):
    """A guessed type would be another one for a single odd cell."""
    schema = Schema({"a": Category(("01", "1.5")), "b": Number(0, 10)}, "y", Regression(0, 2))
    text = "a,b,y\n01,1,1\n1,+2,1.5\n1.5,  3 ,true\n1.50,4e0,0\n"
    rows = []
    for line in ("1,1,1\n", f"{last},{last},{last}\n"):
        (tmp_path / "t.csv").write_text(text + line, encoding="utf-8")
        found = encode(read_tables(tmp_path / "t.csv"), schema, least=0)
        assert found.rows.size == 5
        rows.append([part[:4].tolist() for part in (*found.rows, found.usable)])
    assert rows[0] == rows[1]
    assert rows[0][0] == [[1], [2], [3], [4]]
    assert rows[0][1] == [[0], [0], [1], [1]]
    assert rows[0][2] == [1, 1.5, 1, 0]


PLAIN = {
    "age": [31.0, None, 120.0, -3.0],
    "income": [1e300, None, -5.5, 7.0],
    "sex": ["f", None, "x", "m"],
    "ward": [1, 30, 4, 2],
    "smoker": [True, None, False, True],
    "joined": [datetime(2010, 5, 6, 7, 8, 9), None, datetime(1999, 1, 1), datetime(2030, 1, 1)],
    "left": [date(2020, 2, 29), None, date(2020, 1, 2), date(2021, 1, 2)],
    "y": [0, 1, 2, 1],
}


def as_polars(columns):
    return pytest.importorskip("polars", reason="polars is not installed").DataFrame(columns)


def as_arrow(columns):
    return pytest.importorskip("pyarrow").table(columns)


def as_batch(columns):
    return as_arrow(columns).to_batches()[0]


def as_nullable(columns):
    return pandas.DataFrame(columns).convert_dtypes()


def as_text(columns):
    return {name: [None if cell is None else f" {cell} " for cell in cells] for name, cells in columns.items()}


def as_categories(columns):
    frame = pandas.DataFrame(columns)
    return frame.assign(**{name: frame[name].astype("category") for name in ("sex", "ward", "age")})


def as_dictionaries(columns):
    arrow = as_arrow(columns)
    place = arrow.column_names.index("sex")
    return arrow.set_column(place, "sex", arrow["sex"].dictionary_encode())


EXPECTED_NUMERIC = [
    [31, 1e100, 1, 3778 + (7 * 3600 + 8 * 60 + 9) / 86400, 126, 59],
    [math.nan] * 6,
    [100, -5.5, 0, 0, 1, 1],
    [0, 7, 1, 7670, 366, 181],
]


@pytest.mark.parametrize(
    "make",
    [dict, pandas.DataFrame, as_nullable, as_categories, as_arrow, as_batch, as_dictionaries, as_polars, as_text],
)
def test_all_libraries_give_the_same_rows(make):
    schema = Schema({**COLUMNS, "left": Date(date(2020, 1, 1), date(2020, 6, 30))}, "y", Classes((0, 1)))
    rows, usable, _, _ = encode(make(PLAIN), schema, least=0)
    expected = np.array(EXPECTED_NUMERIC)
    expected[2] = np.nan  # the class 2 is not listed
    np.testing.assert_allclose(rows.numeric, expected, rtol=1e-12)
    assert rows.codes.tolist() == [[0, 0], [3, 2], [3, 4], [1, 1]]
    assert rows.target.tolist() == [0, 1, 0, 1]
    assert usable.tolist() == [True, True, False, True]


def test_names_of_columns_may_be_numbers():
    frame = as_frame(pandas.DataFrame(np.eye(3)))
    assert frame.names == ("0", "1", "2")
    assert frame["1"].numbers().tolist() == [0, 1, 0]


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_files_give_the_same_rows(tmp_path, suffix):
    frame, path = pandas.DataFrame(PLAIN), tmp_path / f"t{suffix}"
    frame.to_parquet(path) if suffix == ".parquet" else frame.to_csv(path, index=False)
    schema = Schema({**COLUMNS, "left": Date(date(2020, 1, 1), date(2020, 6, 30))}, "y", Classes((0, 1)))
    same(encode(read_tables(path), schema, least=0), encode(PLAIN, schema, least=0))
    twice = encode(read_tables([path, path]), schema, least=0)
    assert twice.rows.size == 8
    np.testing.assert_array_equal(twice.rows.codes[:4], twice.rows.codes[4:])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int64, np.uint8, bool, object, "U4", "S4"])
def test_arrays_of_any_type(dtype):
    array = np.array([[1, 0], [0, 1]]).astype(dtype)
    schema = Schema.from_arguments(["x0", "x1"], bounds=[(0, 1)] * 2, classes=["a", "b"])
    if dtype == "S4":
        array = np.array([[b"1", b"0"], [b"0", b"1"]])
    found = encode(as_frame(array).having(target=["a", "b"]), schema, least=0)
    assert found.rows.numeric.tolist() == [[1, 0], [0, 1]]
    assert found.rows.target.tolist() == [0, 1]


@pytest.mark.parametrize("make", [list, np.array, pandas.Series, pandas.Categorical, pandas.Index, tuple])
def test_a_target_may_come_in_any_way(make):
    schema = Schema.from_arguments(["x0"], classes=["a", "b"])
    frame = as_frame([[1], [2]]).having(**{schema.target_name: make(["b", "a"])})
    assert encode(frame, schema, least=0).rows.target.tolist() == [1, 0]


def test_cells_that_are_no_cells_are_missing_or_other():
    arrow = pytest.importorskip("pyarrow")
    schema = Schema({"a": Number(0, 1), "b": Category(("x",))}, "y", Counts(1))
    values = [arrow.array([{"k": 1}, None]), arrow.array([[1, 2], None]), arrow.array([b"\xff", None]), arrow.nulls(2),
              arrow.array(["q", None], arrow.string_view())]  # fmt: skip
    for one in values:
        for data in ({"a": one, "b": one}, arrow.table({"a": one, "b": one})):
            rows = encode(data, schema, with_target=False).rows
            assert np.isnan(rows.numeric).all()
            assert rows.codes.ravel().tolist() in ([1, 2], [2, 2])
    assert encode([[[1, 2], "x"], [3, [4]]], schema, with_target=False).rows.codes.ravel().tolist() == [0, 1]


def test_a_null_record_says_nothing_of_itself():
    same_but_for_unlisted = [{**{n: PLAIN[n][i] for n in PLAIN}, "y": y} for i in (0, 2) for y in (7, None, "?")]
    rows, usable, _, _ = encode(table(same_but_for_unlisted), SCHEMA, least=0)
    assert not usable.any()
    assert np.isnan(rows.numeric).all()
    assert (rows.codes == [3, 4]).all()
    assert (rows.target == 0).all()


def test_integer_targets_in_all_spellings():
    columns = {"x": [0] * 5, "y": [1, 1.0, "1", True, " 1.0 "]}
    for target in (Classes((0, 1)), Classes(("0", "1")), Regression(0, 3), Counts(3)):
        assert encode(columns, Schema({"x": Flag()}, "y", target), least=0).rows.target.tolist() == [1.0] * 5


def test_counts_are_whole_and_bounded():
    schema = Schema({"x": Flag()}, "y", Counts(9))
    rows = encode({"x": [0] * 4, "y": [2.4, -3, 1e300, "7"]}, schema, least=0).rows
    assert rows.target.tolist() == [2, 0, 9, 7]


def test_clients_and_groups():
    schema = Schema({"x": Flag()}, "y", Counts(9), "hospital", "person")
    columns = {"x": [0] * 3, "y": [0] * 3, "hospital": ["a", " a", None], "person": [7, 7.0, "8"]}
    found = encode(columns, schema, least=0)
    assert found.clients.tolist() == ["a", "a", ""]
    assert found.groups.tolist() == ["7", "7", "8"]


# Prediction


def test_prediction_needs_no_target_and_knows_new_categories():
    columns = {name: cells for name, cells in PLAIN.items() if name != "y"}
    found = encode(columns, SCHEMA, with_target=False)
    assert found.rows.codes.tolist() == [[0, 0], [3, 2], [2, 3], [1, 1]]
    assert found.usable.all()


def test_missing_columns_are_named_all_at_once():
    text = message(encode, {"Age": [1], "sex": ["f"]}, SCHEMA, with_target=False)
    for name in ("age", "income", "ward", "smoker", "joined", "left"):
        assert f"column '{name}' is missing" in text
    assert "did you mean 'Age'" in text
    assert "'y'" not in text


# What is refused by header and shape


def test_a_table_is_refused_for_all_its_problems_at_once():
    schema = Schema({"a": Number(0, 1), "b": Number(), "c": Flag(), "d": Flag()}, "y", Counts(3), "who")
    text = message(encode, pandas.DataFrame({"a": ["secret"], "b": ["secret"], "y": [17]}), schema)
    for part in ("'c' is missing", "'d' is missing", "'who' is missing",
                 "fewer than 50 records", "more columns than records"):  # fmt: skip
        assert part in text, part
    assert "secret" not in text
    assert "17" not in text


def test_fewer_than_50_records_are_refused():
    schema = Schema.from_arguments(["x0"], target_bounds=(0, 1))
    encode(as_frame(np.zeros((50, 1))).having(target=np.zeros(50)), schema)
    assert "fewer than 50 records" in message(encode, as_frame(np.zeros((49, 1))).having(target=np.zeros(49)), schema)


def test_more_columns_than_records_are_refused():
    schema = Schema.from_arguments([f"x{j}" for j in range(61)], target_bounds=(0, 1))
    assert "more columns than records" in message(
        encode, as_frame(np.zeros((60, 61))).having(target=np.zeros(60)), schema
    )


def test_many_categories_warn():
    schema = Schema({"x": Category(tuple(range(10_000)))}, "y", Counts(3))
    with pytest.warns(UserWarning, match=r"'x' has 10,000 categories"):
        encode({"x": [0] * 50, "y": [0] * 50}, schema)


@pytest.mark.parametrize("x", [None, math.inf, "text", 1e300])
@pytest.mark.parametrize("y", [None, 0.5, "text", -1e300])
@pytest.mark.parametrize("make", [dict, pandas.DataFrame, as_arrow])
def test_no_error_depends_on_values(x, y, make):
    """A column that is all missing and a constant target are found by releases, later."""
    for column in (Number(0, 1), Number()):
        encode(make({"x": [x] * 50, "y": [y] * 50}), Schema({"x": column}, "y", Regression(0, 1)))


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (np.zeros(3), "1 dimension"),
        (np.zeros((3, 2, 2)), "3 dimension"),
        (np.zeros((3, 7)), "expected 1 columns, got 7"),
        (np.zeros((3, 1), complex), "Complex data not supported"),
        ({"x": [1, 2], "y": [1]}, "same length"),
        ([[1], [1, 2]], "same length"),
        (pandas.DataFrame([[1, 2, 3]], columns=["x", "x", "y"]), "'x' is there twice"),
        (3, "0 dimension"),
    ],
)
def test_shapes_that_are_refused(data, part):
    assert part in message(encode, data, Schema({"x": Number(0, 1)}, "y", Regression(0, 1)), with_target=False)


def test_a_sparse_or_lazy_table_is_refused_with_the_remedy():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    schema = Schema({"x": Number(0, 1)}, "y", Regression(0, 1))
    assert ".toarray()" in message(encode, scipy_sparse.eye(3), schema, with_target=False)
    polars = pytest.importorskip("polars", reason="polars is not installed")
    assert ".collect()" in message(encode, polars.LazyFrame({"x": [1]}), schema, with_target=False)


def test_a_target_of_another_length_is_refused():
    with pytest.raises(InvalidArgument, match="as many entries in target"):
        as_frame(np.zeros((3, 1))).having(target=[1, 2])
