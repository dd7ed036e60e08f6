"""A draft says at every line what was read off the data, and the command prints it."""

import tomllib
import warnings
from datetime import date

import numpy as np
import pandas
import pytest

from commands import diff2_here
from diff2.errors import InvalidArgument, PrivacyLeakError, PrivacyLeakWarning
from diff2.tables.draft import draft
from diff2.tables.encode import check, encode
from diff2.tables.file_format import FileFormat
from diff2.tables.kinds import Category, Classes, Counts, Date, Flag, Number, Regression
from diff2.tables.schema import Schema

PEOPLE = pandas.DataFrame(
    {
        "": np.arange(60),
        "id": np.arange(1, 61),
        "name": [f"person {i}" for i in range(60)],
        "height (cm)": np.linspace(151.3, 197.2, 60),
        "age": [18, 97, None] * 20,
        "smoker": ["yes", "no", "yes"] * 20,
        "city": ["Köln", "Bonn", ""] * 20,
        "joined": ["03.01.2011", "24.12.2019", "?"] * 20,
        "nothing": [None] * 60,
        "hospital": ["a", "b", "c"] * 20,
        "visits": [0, 3, 17] * 20,
    }
)


def quiet(*arguments, **named):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        return draft(*arguments, **named)


def test_a_draft_is_a_leak():
    with pytest.warns(PrivacyLeakWarning, match="read off the data"):
        draft(PEOPLE, "visits")
    with pytest.raises(PrivacyLeakError):
        draft(PEOPLE, "visits", strict=True)


def test_what_is_read_off_the_data():
    found = quiet(PEOPLE, "visits", clients="hospital")
    assert found.schema.columns == {
        "height (cm)": Number(150, 200, False, "cm", "data"),
        "age": Number(0, 100, True, "", "data"),
        "smoker": Flag(False, "data"),
        "city": Category(("Bonn", "Köln"), "data"),
        "joined": Date(date(2011, 1, 1), date(2019, 12, 31), "%d.%m.%Y", True, "data"),
    }
    assert found.schema.target == Counts(20, "data")
    assert found.schema.clients == "hospital"
    assert set(found.left_out) == {"", "id", "name", "nothing"}
    assert len(found.schema.leaks()) == 6
    encode(PEOPLE, found.schema)


def test_every_line_read_off_the_data_says_so(tmp_path):
    text = quiet(PEOPLE, "visits", file=FileFormat(";")).to_toml()
    lines = [line.strip() for line in text.splitlines() if line and not line.startswith(("#", "["))]
    public = ("delimiter", "encoding", "decimal", "column =", "unit")
    for line in lines:
        assert line.startswith(public) or line.endswith("[") or "# read off the data" in line, line
    assert "person 1" not in text
    (tmp_path / "s.toml").write_text(text, encoding="utf-8")
    schema = Schema.read(tmp_path / "s.toml")
    assert schema.file.delimiter == ";"
    assert len(schema.leaks()) == len(schema.columns) + 1
    confirmed = Schema.from_json(tomllib.loads(text.replace('source = "data"', 'source = "given"')))
    assert confirmed.leaks() == []


@pytest.mark.parametrize(
    ("values", "task", "expected"),
    [
        ([0, 1] * 3, None, Classes((0, 1), "data")),
        (["1", "2"] * 3, None, Classes((1, 2), "data")),
        (["no", "yes", "maybe"] * 2, None, Classes(("maybe", "no", "yes"), "data")),
        ([1.5, 2.5, 9.7], None, Regression(0, 10, "", "data")),
        ([0, 1, 9], None, Counts(9, "data")),
        ([0, 1, 9], "classes", Classes((0, 1, 9), "data")),
        ([0, 1, 9], "regression", Regression(0, 9, "", "data")),
        ([-3, -2, -1], None, Regression(-3, 0, "", "data")),
    ],
)
def test_targets(values, task, expected):
    table = {"x": [0.1 * i for i in range(len(values))], "y": values}
    assert quiet(table, "y", task=task).schema.target == expected


@pytest.mark.parametrize("values", [[0.0, 5e-324], [1e300, -1e300], [1e16, 1e16 + 2], [0, 0], [7, 7], [-1e-300, 1e300]])
def test_extreme_numbers_give_bounds_that_can_be_used(values):
    low, high = quiet({"x": values, "y": [0, 1]}, "y").schema.columns["x"].numeric("x")[0][1:3]
    assert low < high
    assert all(low <= value <= high or abs(value) > 1e100 for value in values)


def test_what_a_draft_refuses():
    for named in ({"target": "visit"}, {"target": "visits", "clients": "x"}, {"target": "name"},
                  {"target": "visits", "task": "guess"}, {"target": "city", "task": "counts"}):  # fmt: skip
        with pytest.raises(InvalidArgument):
            quiet(PEOPLE, **named)


def test_check_counts_for_the_owner():
    when = Date(date(2000, 1, 1), date(2001, 1, 1))
    schema = Schema({"a": Number(0, 9), "b": Category(("x",)), "c": Flag(), "d": when}, "y", Classes((0, 1)))
    table = {"a": ["1", "12", "?", "x"], "b": ["x", "y", None, "z"], "c": ["yes", "2", None, "ja"],
             "d": ["2000-05-05", "1999-01-01", "", "soon"], "y": [0, 1, 2, None]}  # fmt: skip
    with pytest.warns(PrivacyLeakWarning, match="only for the owner of the data"):
        found = check(table, schema)
    assert [tuple(one) for one in found] == [
        ("a", 1, 1, 1),
        ("b", 1, 0, 2),
        ("c", 1, 2, 0),
        ("d", 1, 1, 1),
        ("y", 1, 0, 1),
    ]


# The command


@pytest.fixture
def people(tmp_path):
    PEOPLE.to_csv(tmp_path / "people.csv", index=False, sep=";", encoding="latin-1")
    return tmp_path / "people.csv"


def test_schema_prints_a_draft(people, tmp_path):
    options = ("--delimiter", ";", "--encoding", "latin-1")
    result = diff2_here("schema", people, "--target", "visits", "--clients", "hospital", *options)
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: LEAK-DRAFT: the draft of a schema is read off the data")
    (tmp_path / "s.toml").write_text(result.stdout, encoding="utf-8")
    schema = Schema.read(tmp_path / "s.toml")
    assert schema.file == FileFormat(";", "latin-1")
    assert schema.columns["city"].values == ("Bonn", "Köln")
    checked = diff2_here("schema", people, "--check", "--schema", tmp_path / "s.toml")
    assert checked.exit_code == 0
    assert "NOT PRIVATE" in checked.stdout
    assert "height (cm)" in checked.stdout
    assert "warning: LEAK-CHECK: these counts are exact" in checked.stderr


def test_schema_names_what_is_wrong_with_a_file(people):
    result = diff2_here("schema", people, "--target", "visits")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "is not text in the encoding utf-8" in result.stderr
    result = diff2_here("schema", people, people.parent / "none.csv", "--target", "visits", "--encoding", "latin-1")
    assert "set the delimiter to ';'" in result.stderr
    assert "none.csv does not exist" in result.stderr
    assert result.stderr.count("\n") == 3  # a heading and one line for each problem


@pytest.mark.parametrize("words", [["--check"], ["--schema", "s.toml"], []])
def test_options_that_go_together(people, words):
    assert diff2_here("schema", people, *words).exit_code == 2
