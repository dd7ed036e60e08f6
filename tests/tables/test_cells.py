"""What a cell means depends on the cell alone, however it is held."""

import math
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal

import numpy as np
import pandas
import pytest

from diff2.tables.cells import Lookup, days, flag, number, text_of
from diff2.tables.frames import as_frame


class Broken:
    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize("cell", [None, "", "   ", float("nan"), np.float64("nan"), Broken(), b" "])
def test_nothing_is_nothing_however_it_is_held(cell):
    assert text_of(cell) is None


@pytest.mark.parametrize("cell", [7, 7.0, np.int8(7), np.float32(7), " 7 ", "7", b"7", Decimal(7)])
def test_seven_is_seven(cell):
    assert text_of(cell) == "7"
    assert Lookup([5, 7])(text_of(cell)) == 1
    assert number(text_of(cell)) == 7.0


@pytest.mark.parametrize(
    "text", ["inf", "-Infinity", "1e999", "nan", "seven", "1_000", "", None, "1,5", "0x10", "9" * 9999]
)
def test_what_is_no_finite_number_is_missing(text):
    assert math.isnan(number(text))


@pytest.mark.parametrize("make", [np.array, list, lambda values: [str(value) for value in values]])
def test_infinity_is_missing_in_every_column(make):
    found = as_frame({"x": make([1.5, np.inf, -np.inf, np.nan])})["x"].numbers()
    np.testing.assert_array_equal(found, [1.5, np.nan, np.nan, np.nan])
    arrow = pytest.importorskip("pyarrow").table({"x": make([1.5, np.inf, -np.inf, np.nan])})
    np.testing.assert_array_equal(as_frame(arrow)["x"].numbers(), found)


def test_numbers_with_a_decimal_comma():
    assert number("1,5", ",") == 1.5
    assert number("1.5", ",") == 1.5  # as a cell that is a number already is written


@pytest.mark.parametrize(("texts", "value"), [("Yes TRUE t on 1 1.0 y", 1.0), ("no False F off 0 0.0 n", 0.0)])
def test_flags_in_usual_spellings(texts, value):
    assert [flag(text) for text in texts.split()] == [value] * 7
    assert math.isnan(flag("2"))
    assert math.isnan(flag(None))


def test_dates():
    assert days("2020-02-29T06:00:00+06:00") == days("2020-02-29") == 18321.0
    assert days("29.02.2020", "%d.%m.%Y") == 18321.0
    assert all(math.isnan(days(text)) for text in ("2021-02-29", "soon", "", None, "0001-01-01T00:00:00+23:59"))
    cells = [date(2020, 2, 29), datetime(2020, 2, 29), "2020-02-29", np.datetime64("2020-02-29")]
    assert as_frame({"x": cells})["x"].days().tolist() == [18321.0] * 4
    as_numpy = np.array(["2020-02-29T12:00:00.7", "NaT"], "datetime64[ms]")
    assert as_frame({"x": as_numpy})["x"].days().tolist()[0] == 18321.5
    assert math.isnan(as_frame({"x": as_numpy})["x"].days()[1])
    for unit in ("Y", "D", "ns", "as"):
        assert as_frame({"x": np.array([2**62]).astype(f"M8[{unit}]")})["x"].days().shape == (1,)


@pytest.mark.parametrize("format", ["%d.%m.%Y", "%Y-%d-%m", "%Y-%d-%mT%H:%M:%S"])
def test_a_format_is_for_texts_and_a_date_is_a_date(format):
    first, text = date(2020, 1, 2), datetime(2020, 1, 2).strftime(format)
    cells = [
        first,
        datetime(2020, 1, 2),
        pandas.Timestamp(first),
        np.datetime64(first),
        np.datetime64(first, "ns"),
        text,
    ]
    assert as_frame({"x": cells})["x"].days(format).tolist() == [18263.0] * 6
    assert as_frame({"x": np.array([first], "M8[D]")})["x"].days(format).tolist() == [18263.0]
    assert len({text_of(cell) for cell in cells[:5]}) == 1
    assert as_frame({"x": np.array([first], "M8[D]")})["x"].texts()[0] == [text_of(first)]


@pytest.mark.parametrize(
    ("listed", "cells", "codes"),
    [
        (["f", "m"], ["f", " m", "F", "x", None, "?", ""], [0, 1, 2, 2, 3, 3, 3]),
        (["01", "02"], ["01", "1", 1, 2.0, "3"], [0, 0, 0, 1, 2]),
        (["1", "01"], ["01", "1", "001"], [1, 0, 0]),  # the text decides first
        ([0, 1], [True, "False", 1.0, "0", "true"], [1, 0, 1, 0, 1]),
        ([True, False], [1, 0, "True", False], [0, 1, 0, 1]),
        (["NA", "DE"], ["NA", "DE", "N/A"], [0, 1, 3]),  # a listed value is never a missing one
        ([0.5, 1.5], ["0.50", 1.5, ".5"], [0, 1, 0]),
    ],
)
def test_categories(listed, cells, codes):
    assert [Lookup(listed)(text_of(cell)) for cell in cells] == codes


CELLS = [
    None, "NA", float("nan"), pandas.NA, pandas.NaT, True, False, 0, 1, -7, 2**70, 0.5, 1.0, math.inf, np.int8(1), 1j,
    "01", " 1.0 ", "f", "true", "1,5", "2020-01-02", "02.01.2020", b"1", Decimal("1.0"), date(2020, 1, 2),
    datetime(2020, 1, 2, 3, 4, 5, 6), datetime(2020, 1, 2, tzinfo=timezone(timedelta(hours=5))), time(1), timedelta(1),
    np.datetime64("2020-01-02"), [1], {"k": 1},
]  # fmt: skip
MEANINGS = [
    lambda cells: cells.numbers(),
    lambda cells: cells.numbers(","),
    lambda cells: cells.days(),
    lambda cells: cells.days("%d.%m.%Y"),
    lambda cells: cells.mapped(flag, np.float64),
    lambda cells: cells.mapped(Lookup([1, "f", 0.5]), np.float64),
]


def meanings(cells):
    """What the first cell means, beside the others in a column of pandas."""
    found = as_frame(pandas.DataFrame({"x": cells}))["x"]
    return [float(meaning(found)[0]) for meaning in MEANINGS]


def test_no_cell_changes_what_another_means():
    """Whatever type pandas gives the column that holds both."""
    for cell in CELLS:
        alone = meanings([cell])
        for other in CELLS:
            np.testing.assert_array_equal(meanings([cell, other]), alone, err_msg=f"{cell!r} beside {other!r}")
