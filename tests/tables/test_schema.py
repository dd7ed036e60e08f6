"""A schema is refused for all that is wrong with it at once, and travels as TOML and JSON."""

import json
import tomllib
from datetime import date

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diff2.errors import InvalidArgument
from diff2.tables.file_format import FileFormat
from diff2.tables.kinds import Category, Classes, Counts, Date, Flag, Number, Regression
from diff2.tables.schema import Schema

COLUMNS = {
    "age": Number(0, 100, unit="years"),
    "income": Number(source="data"),
    "sex": Category(("f", "m", 'odd "one"\n\x7f', 3, True)),
    "smoker": Flag(nullable=False),
    "joined (date)": Date(date(2000, 1, 1), date(2020, 12, 31), "%d.%m.%Y"),
}
SCHEMA = Schema(COLUMNS, "visits", Counts(50, source="data"), "hospital", "person", FileFormat(";", "latin-1", ","))


def message(call, *arguments, **named):
    with pytest.raises(InvalidArgument) as caught:
        call(*arguments, **named)
    return str(caught.value)


def test_widths_are_public():
    assert [one.name for one in SCHEMA.numeric] == [
        *("age", "income", "smoker", "joined (date)", "joined (date) (day of the year)"),
    ]
    np.testing.assert_array_equal(SCHEMA.bounds, [[0, 100], [np.nan, np.nan], [0, 1], [0, 7670], [1, 366]])
    assert SCHEMA.nullable == (0, 1, 3)
    assert SCHEMA.widths == (7,)
    assert SCHEMA.names == (*COLUMNS, "visits", "hospital", "person")


@pytest.mark.parametrize(
    "bounds", [(1, 1), (2, 1), (float("nan"), 1), (0, float("inf")), (0, 1e300), (-1e300, 1e300), (0, None), ("0", 1),
               (False, True), (1e16, 1e16 + 2)]
)  # fmt: skip
@pytest.mark.parametrize("kind", [Number, Regression])
def test_bounds_that_are_refused(bounds, kind):
    columns, target = ({"x": kind(*bounds)}, Counts(5)) if kind is Number else ({"x": Number(0, 1)}, kind(*bounds))
    text = message(Schema, columns, "y", target)
    assert text.count("\n- ") == 1
    assert ("column 'x'" if kind is Number else "target 'y'") in text


@pytest.mark.parametrize("target", [Classes(()), Classes(("a",)), Classes((1, "1")), Classes((0, None)), Counts(0),
                                    Counts(float("nan")), Counts(1e300), Regression(3, 3)])  # fmt: skip
def test_a_target_that_is_constant_by_its_description_is_refused(target):
    assert "target 'y'" in message(Schema, {"x": Flag()}, "y", target)


def test_all_problems_at_once():
    columns = {
        "a": Number(5, 1), "b": Category(()), "c": Category(("x", "x")), "d": Date(date(2020, 1, 1), date(2019, 1, 1)),
        "e": Number(0, 1, source="rumour"), "y": Flag(), "g": Category(("", "z")),
    }  # fmt: skip
    text = message(Schema, columns, "y", Classes((1,)), "p", "p")
    for place in ("'a'", "'b'", "'c'", "'d'", "'e'", "column 'y'", "'g'", "target 'y'", "'p'"):
        assert text.count(place) == 1, place


def test_no_columns_are_refused():
    assert "no column to predict from" in message(Schema, {}, "y", Counts(3))


def test_leaks_name_what_was_read_off_the_data():
    income, visits = SCHEMA.leaks()
    assert "column 'income'" in income
    assert "target 'visits'" in visits


def test_many_categories_are_warned_of():
    schema = Schema({"x": Category(tuple(range(10_000)))}, "y", Counts(3))
    assert "10,000 categories" in schema.warnings()[0]
    assert SCHEMA.warnings() == []


# Files


def test_toml_and_json_give_the_same_schema_back(tmp_path):
    text = SCHEMA.to_toml()
    (tmp_path / "s.toml").write_text(text, encoding="utf-8")
    assert Schema.read(tmp_path / "s.toml") == SCHEMA
    assert list(Schema.read(tmp_path / "s.toml").columns) == list(COLUMNS)
    assert Schema.from_json(json.loads(json.dumps(SCHEMA.to_json(), allow_nan=False))) == SCHEMA


def test_every_line_says_where_it_comes_from():
    lines = [line for line in SCHEMA.to_toml().splitlines() if "=" in line and not line.endswith("[")]
    assert all("  # " in line for line in lines)
    part = SCHEMA.to_toml().split("[target]")[1].split("[columns")[0]
    assert part.count("# read off the data") == 3  # kind, high, source


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
cells = st.one_of(names.filter(lambda text: text.strip()), st.integers(-(10**9), 10**9), st.booleans())


@given(st.dictionaries(names, st.lists(cells, min_size=1, max_size=4), min_size=1, max_size=3))
def test_any_name_and_any_value_can_be_written(lists):
    from diff2.tables.cells import text_of

    columns = {name: Category(tuple({text_of(v): v for v in values}.values())) for name, values in lists.items()}
    schema = Schema(columns, "the target of all", Regression(-1e-7, 2.5e17))
    assert Schema.from_json(tomllib.loads(schema.to_toml())) == schema


def test_a_file_is_refused_for_all_at_once(tmp_path):
    (tmp_path / "s.toml").write_text(
        """
        colums = 3
        [file]
        delimeter = ";"
        [target]
        kind = "regresion"
        [columns.a]
        kind = "number"
        lo = 3
        nullable = "yes"
        [columns.b]
        kind = "category"
        [columns.c]
        kind = "category"
        values = "f"
        """,
        encoding="utf-8",
    )
    text = message(Schema.read, tmp_path / "s.toml")
    for part in ("'colums'; did you mean 'columns'", "'delimeter'; did you mean 'delimiter'", "'regresion'",
                 "column 'a' has an unknown key 'lo'", "nullable", "column 'b' lacks values", "'c' has values that",
                 "[target] names no column"):  # fmt: skip
        assert part in text, part
    assert str(tmp_path / "s.toml") in text


@pytest.mark.parametrize("format", [("ab",), (",", "latin-17"), (",", "utf-8", ","), ("\n",)])
def test_file_formats_that_are_refused(format):
    message(FileFormat, *format)


# Arguments of estimators


def test_arguments_by_name():
    schema = Schema.from_arguments(
        ["age", "sex", "smoker", "born", "other", "target"],
        bounds={"age": (np.int64(0), 100), "born": (date(1900, 1, 1), date(2020, 1, 1))},
        categories={"sex": ["f", "m"]}, flags=["smoker"], classes=np.array([0, 1]),
    )  # fmt: skip
    assert schema.columns["age"] == Number(0, 100)
    assert schema.columns["sex"] == Category(("f", "m"))
    assert schema.columns["smoker"] == Flag()
    assert schema.columns["born"].kind == "date"
    assert schema.columns["other"] == Number()
    assert (schema.target_name, schema.target) == ("target_", Classes((0, 1)))
    assert schema.leaks() == []
    assert json.dumps(schema.to_json())


def test_arguments_by_place():
    schema = Schema.from_arguments(["x0", "x1"], bounds=np.array([[0, 1], [2, 3]]), max_count=7)
    assert schema.columns["x1"] == Number(2, 3)
    assert schema.target == Counts(7)
    assert Schema.from_arguments(["x0"]).target == Regression()


def test_wrong_arguments_are_named_at_once():
    text = message(
        Schema.from_arguments, ["age", "sex"], bounds={"agee": (0, 1), "sex": 3}, categories={"sex": ["f"], "x": ["y"]},
        flags=["sex"], classes=[0, 1], target_bounds=(0, 1),
    )  # fmt: skip
    for part in ("'agee', which is not a column; did you mean 'age'", "'x', which is not a column",
                 "'sex' is named in two", "'sex' has bounds that are not a pair",
                 "two of classes, target_bounds"):  # fmt: skip
        assert part in text, part
    assert "1 pairs for 2 columns" in message(Schema.from_arguments, ["a", "b"], bounds=[(0, 1)])
