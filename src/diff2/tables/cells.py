"""The cells of a table: what each says as a number, a flag, a date or one of a list.

The meaning of a cell depends on its own text and on public settings, never on the other cells: not on the type that a
reader guessed for its column. Hence one record changes its own row of the encoding and no other. Numbers, texts and
truth values that look alike mean the same:

>>> [text_of(cell) for cell in (7, 7.0, " 7 ", True, float("nan"), None, "")]
['7', '7', '7', 'true', None, None, None]
>>> [number(text) for text in ("7", "1e3", "true", "unknown", "inf", "1_000", None)]
[7.0, 1000.0, 1.0, nan, nan, nan, nan]
>>> [flag(text) for text in ("Yes", "0", "1.0", "perhaps")]
[1.0, 0.0, 1.0, nan]
>>> Cells(objects([31, " 7 ", "old", None])).numbers().tolist()
[31.0, 7.0, nan, nan]
"""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

import numpy as np

MISSING = frozenset(["", "na", "n/a", "nan", "nat", "null", "none", "<na>", "?", "."])  # usual spellings
TRUE = frozenset(["true", "t", "yes", "y", "1", "on"])
FALSE = frozenset(["false", "f", "no", "n", "0", "off"])
_EPOCH = datetime(1970, 1, 1)
_DAY = 86_400.0
MOMENTS = frozenset(f"datetime64[{unit}]" for unit in ("D", "h", "m", "s", "ms", "us", "ns"))  # others overflow


def text_of(cell: Any) -> str | None:
    """Return the text of a cell, the same for all ways to hold it; None for a missing one. Never raises."""
    if isinstance(cell, str):
        return cell.strip() or None
    try:
        if cell is None:
            return None
        if isinstance(cell, bool | np.bool_):
            return "true" if cell else "false"
        if isinstance(cell, int | np.integer):
            return str(int(cell))
        if isinstance(cell, float | np.floating):
            return _float_text(float(cell))
        if isinstance(cell, complex | np.complexfloating) and not cell.imag:  # a number, in a column with a complex one
            return _float_text(float(cell.real))
        if isinstance(cell, bytes):
            return cell.decode("utf-8", "replace").strip() or None
        if isinstance(cell, np.datetime64):
            cell = cell.astype("datetime64[us]")  # its text is that of a datetime
        elif isinstance(cell, date):
            moment = cell if isinstance(cell, datetime) else datetime(cell.year, cell.month, cell.day)
            cell = moment.isoformat(timespec="microseconds")
        return str(cell).strip() or None
    except Exception:  # the cell of another library may fail in any way; an error would tell of it
        return None


def number(text: str | None, decimal: str = ".") -> float:
    """Return a finite number, or NaN where there is none."""
    if text is None or "_" in text:  # Python reads 1_000 as a number; nobody else does
        return math.nan
    try:
        found = float(text if decimal == "." else text.replace(decimal, "."))
    except ValueError:
        return {"true": 1.0, "false": 0.0}.get(text.casefold(), math.nan)
    return found if math.isfinite(found) else math.nan


def flag(text: str | None) -> float:
    """Return 1 for yes, 0 for no, NaN for all else."""
    word = "" if text is None else category_key(text).casefold()
    return 1.0 if word in TRUE else 0.0 if word in FALSE else math.nan


def days(text: str | None, format: str = "") -> float:
    """Return days since 1970, with a fraction for the time of the day (of UTC), or NaN.

    The format is that of texts. A cell that is a date already, and became a text with microseconds, needs none.

    >>> days("1970-02-01"), days("02.01.1970 12:00", "%d.%m.%Y %H:%M"), days("soon")
    (31.0, 1.5, nan)
    """
    try:
        text = text or ""
        free = not format or (text[10:11] == "T" and text[19:20] == "." and text[20:26].isdecimal())
        moment = datetime.fromisoformat(text) if free else datetime.strptime(text, format)
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
        return (moment.replace(microsecond=0) - _EPOCH).total_seconds() / _DAY
    except (ValueError, OverflowError):
        return math.nan


def category_key(text: str) -> str:
    """Return what a text has in common with all texts that mean the same number or truth value.

    >>> [category_key(text) for text in ("01", "1.0", "1", "True", "Munich")]
    ['1', '1', '1', 'true', 'Munich']
    """
    if text.casefold() in ("true", "false"):
        return text.casefold()
    if "_" in text:
        return text
    try:
        return str(int(text))
    except ValueError:
        found = number(text)
        return text if math.isnan(found) else str(_float_text(found))


class Lookup:
    """Finds the place of a cell in a public list: by its text, or else by what the text means.

    >>> lookup = Lookup(["f", "m", 1])
    >>> [lookup(text) for text in ("m", "1.0", "x", None, "NA")]
    [1, 2, 3, 4, 4]
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self.other, self.missing = len(values), len(values) + 1
        texts = [text_of(value) or "" for value in values]
        self._exact = {text: code for code, text in reversed(list(enumerate(texts)))}
        self._alike: dict[str, int] = {}
        for code, text in enumerate(texts):
            self._alike.setdefault(category_key(text), code)
        for word, digit in (("true", "1"), ("false", "0")):
            for one, twin in ((word, digit), (digit, word)):
                if one in self._alike:
                    self._alike.setdefault(twin, self._alike[one])

    def __call__(self, text: str | None) -> int:
        if text is None:
            return self.missing
        code = self._exact.get(text)
        if code is None:
            code = self._alike.get(category_key(text))
        if code is None:
            return self.missing if text.casefold() in MISSING else self.other
        return code


def _float_text(value: float) -> str | None:
    if math.isnan(value):
        return None
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


class Cells(NamedTuple):
    """One column: a numpy array of any type, or texts as Arrow holds them."""

    values: Any

    def numbers(self, decimal: str = ".") -> np.ndarray:
        """Return finite numbers; NaN where there are none."""
        values = self.values
        if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":  # truth values, whole and real numbers
            with np.errstate(all="ignore"):
                return _finite(values.astype(np.float64))
        found = None if isinstance(values, np.ndarray) else _numbers_by_arrow(values, decimal)
        return self.mapped(lambda text: number(text, decimal), np.float64) if found is None else _finite(found)

    def days(self, format: str = "") -> np.ndarray:
        """Return days since 1970; NaN where there is no date."""
        if isinstance(self.values, np.ndarray) and self.values.dtype.name in MOMENTS:
            seconds = self.values.astype("datetime64[s]")
            return np.where(np.isnat(seconds), np.nan, seconds.astype(np.int64) / 86_400)
        return self.mapped(lambda text: days(text, format), np.float64)

    def mapped(self, meaning: Callable[[str | None], Any], dtype: Any) -> np.ndarray:
        """Return what each cell's text means; computed once for each different text."""
        texts, places = self.texts()
        return np.array([meaning(text) for text in texts], dtype=dtype)[places]

    def texts(self) -> tuple[list[str | None], np.ndarray]:
        """Return the different texts, and for each cell the place of its own."""
        values = self.values
        if not isinstance(values, np.ndarray):
            coded = values.combine_chunks().dictionary_encode(null_encoding="encode")
            places = coded.indices.to_numpy(zero_copy_only=False)
            return [text_of(cell) for cell in coded.dictionary.to_pylist()], places
        if values.dtype.kind in "biuf":
            found, places = np.unique(values, return_inverse=True)
            return [text_of(cell) for cell in found.tolist()], places.ravel()
        if values.dtype.kind == "M":
            found, places = np.unique(values, return_inverse=True)
            dates = np.datetime_as_string(
                found, "us" if values.dtype.name in MOMENTS else None, casting="unsafe"
            ).tolist()
            return [None if text == "NaT" else text for text in dates], places.ravel()
        place_of: dict[str | None, int] = {}
        order = [place_of.setdefault(text_of(cell), len(place_of)) for cell in values.tolist()]
        return list(place_of), np.array(order, dtype=np.int64)


def objects(values: Sequence[Any]) -> np.ndarray:
    """Return an array that keeps cells as they are, even if some are lists."""
    array = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        array[i] = value
    return array


def joined(parts: list[Cells]) -> Cells:
    """Return the cells of several columns, one after the other."""
    values = [part.values for part in parts]
    if all(not isinstance(one, np.ndarray) for one in values) and len({str(one.type) for one in values}) == 1:
        import pyarrow

        return Cells(pyarrow.chunked_array([chunk for one in values for chunk in one.chunks], values[0].type))
    arrays = [one if isinstance(one, np.ndarray) else objects(one.to_pylist()) for one in values]
    if len({array.dtype.kind for array in arrays}) > 1:
        plain = [array.astype("datetime64[us]") if array.dtype.kind == "M" else array for array in arrays]
        arrays = [objects(array.tolist()) for array in plain]
    return Cells(np.concatenate(arrays))


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, np.nan)


def _numbers_by_arrow(values: Any, decimal: str) -> np.ndarray | None:
    """Return the numbers of texts, much faster than one by one; None where one of them is not written plainly."""
    import pyarrow
    import pyarrow.compute as compute

    try:
        trimmed = compute.utf8_trim_whitespace(values)
        if decimal != ".":
            trimmed = compute.replace_substring(trimmed, decimal, ".")
        spellings = pyarrow.array([*MISSING, "NA", "N/A", "NaN"], pyarrow.string()).cast(trimmed.type)
        present = compute.if_else(compute.is_in(trimmed, spellings), None, trimmed)
        return compute.cast(present, pyarrow.float64()).to_numpy()
    except pyarrow.ArrowException:
        return None
