"""A table as people have it, as named columns: numpy, pandas, polars, Arrow, a dictionary of lists.

Data frames of other libraries are read through narwhals; none of these libraries is imported here.

>>> frame = as_frame({"age": [31, None], "sex": ["f", " m "]})
>>> frame.names, frame.size, frame["age"].numbers().tolist()
(('age', 'sex'), 2, [31.0, nan])
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..errors import InvalidArgument
from .cells import MISSING, days, number, text_of
from .problems import Problems


class Cells(NamedTuple):
    """One column: a numpy array of any type, or texts as Arrow holds them."""

    values: Any

    def numbers(self, decimal: str = ".") -> np.ndarray:
        """Return finite numbers; NaN where there are none."""
        values = self.values
        if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
            with np.errstate(all="ignore"):
                return _finite(values.astype(np.float64))
        found = None if isinstance(values, np.ndarray) else _numbers_by_arrow(values, decimal)
        return self.mapped(lambda text: number(text, decimal), np.float64) if found is None else _finite(found)

    def days(self, format: str = "") -> np.ndarray:
        """Return days since 1970; NaN where there is no date."""
        if isinstance(self.values, np.ndarray) and self.values.dtype.kind == "M":
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
            return [text_of(cell) for cell in coded.dictionary.to_pylist()], coded.indices.to_numpy(
                zero_copy_only=False
            )
        if values.dtype.kind in "biuf":
            found, places = np.unique(values, return_inverse=True)
            return [text_of(cell) for cell in found.tolist()], places.ravel()
        if values.dtype.kind == "M":
            found, places = np.unique(values, return_inverse=True)
            dates = np.datetime_as_string(found).tolist()
            return [None if text == "NaT" else text for text in dates], places.ravel()
        place_of: dict[str | None, int] = {}
        order = [place_of.setdefault(text_of(cell), len(place_of)) for cell in values.tolist()]
        return list(place_of), np.array(order, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Frame:
    """Named columns of one length. Names may stand twice; a table is refused for that once it is used."""

    names: tuple[str, ...]
    cells: tuple[Cells, ...]
    size: int  # number of records

    def __getitem__(self, name: str) -> Cells:
        return self.cells[self.names.index(name)]

    def having(self, **columns: Any) -> Frame:
        """Return the frame with further columns, say a target that came by itself; None is no column."""
        given = {name: _vector(name, values) for name, values in columns.items() if values is not None}
        wrong = [name for name, values in given.items() if len(values) != self.size]
        if wrong:
            raise InvalidArgument(f"expected as many entries in {', '.join(wrong)} as the table has rows")
        cells = tuple(Cells(values) for values in given.values())
        return Frame((*self.names, *given), (*self.cells, *cells), self.size)


def as_frame(data: Any, names: tuple[str, ...] | None = None) -> Frame:
    """Return any table in memory as named columns.

    Args:
        data: a data frame, an Arrow table, a mapping of columns, or anything with two dimensions.
        names: those of the columns of an array; by default x0, x1, ...
    """
    if isinstance(data, Frame):
        return data
    if isinstance(data, Mapping):
        return _of_mapping(data)
    if hasattr(data, "columns") or hasattr(data, "column_names") or hasattr(data, "schema"):
        return _of_data_frame(data)
    return _of_array(data, names)


def concatenated(frames: list[Frame]) -> Frame:
    """Return the records of several frames, which have the same names in the same order."""
    if len(frames) == 1:
        return frames[0]
    cells = [_joined([frame.cells[j] for frame in frames]) for j in range(len(frames[0].names))]
    return Frame(frames[0].names, tuple(cells), sum(frame.size for frame in frames))


def _of_mapping(data: Mapping[Any, Any]) -> Frame:
    columns = {str(name): _vector(str(name), values) for name, values in data.items()}
    sizes = {len(values) for values in columns.values()}
    if len(sizes) > 1:
        raise InvalidArgument("expected all columns to have the same length; they have not")
    return Frame(tuple(columns), tuple(Cells(v) for v in columns.values()), *(sizes or {0}))


def _of_data_frame(data: Any) -> Frame:
    import narwhals as nw

    arrow = sys.modules.get("pyarrow")
    if arrow is not None and isinstance(data, arrow.RecordBatch):
        data = arrow.Table.from_batches([data])
    given = getattr(data, "column_names", None)
    names = [str(name) for name in (data.columns if given is None else given)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        problems = Problems("the table")
        for name in twice:
            problems.add(f"column {name!r}", "is there twice", "rename one of them")
        problems.refuse()
    try:
        frame = nw.from_native(data, eager_only=True)
    except TypeError:
        raise InvalidArgument(
            f"expected a table that is in memory (numpy, pandas, polars, Arrow, a dictionary), got {type(data)}; "
            "call .collect() or .to_arrow() on it first"
        ) from None
    cells = []
    for series in frame.iter_columns():  # a name may be a number
        if isinstance(series.dtype, nw.Categorical | nw.Enum):
            series = series.cast(nw.String)
        native = series.to_native()
        by_arrow = arrow is not None and isinstance(native, arrow.ChunkedArray) and series.dtype == nw.String
        cells.append(Cells(native if by_arrow else series.to_numpy()))
    return Frame(tuple(names), tuple(cells), len(frame))


def _of_array(data: Any, names: tuple[str, ...] | None) -> Frame:
    if hasattr(data, "toarray") and not hasattr(data, "__array__"):
        raise InvalidArgument("expected a dense table, got a sparse one; call .toarray() on it first")
    array = np.asarray(data, dtype=object) if isinstance(data, list | tuple) else np.asarray(data)
    if array.ndim != 2:
        raise InvalidArgument(
            f"expected a table with rows and columns, got {array.ndim} dimension(s); reshape it: (rows, columns)"
        )
    if array.dtype.kind == "c":
        raise InvalidArgument("complex data not supported; give real and imaginary parts as columns")
    found = names or tuple(f"x{j}" for j in range(array.shape[1]))
    if len(found) != array.shape[1]:
        raise InvalidArgument(f"expected {len(found)} columns, got {array.shape[1]}")
    return Frame(found, tuple(Cells(array[:, j]) for j in range(array.shape[1])), len(array))


def _vector(name: str, values: Any) -> np.ndarray:
    """Return one column; a list keeps its cells as they are."""
    if isinstance(values, list | tuple):
        array = np.empty(len(values), dtype=object)
        for i, value in enumerate(values):  # one by one, for a cell may be a list
            array[i] = value
        return array
    if hasattr(values, "to_numpy") and not isinstance(values, np.ndarray):
        import narwhals as nw

        series = nw.from_native(values, series_only=True, pass_through=True)
        dtype = getattr(series, "dtype", None)
        values = series.cast(nw.String) if isinstance(dtype, nw.Categorical | nw.Enum) else series
        values = values.to_numpy()
    array = np.asarray(values)
    if array.ndim == 2 and array.shape[-1] == 1:
        array = array.reshape(-1)
    if array.ndim != 1:
        raise InvalidArgument(f"expected {name} to have one dimension, got {array.ndim}")
    return array


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, np.nan)


def _numbers_by_arrow(values: Any, decimal: str) -> np.ndarray | None:
    """Return the numbers of texts, much faster than one by one; None where one of them is not written plainly."""
    import pyarrow
    import pyarrow.compute as compute

    trimmed = compute.utf8_trim_whitespace(values)
    if decimal != ".":
        trimmed = compute.replace_substring(trimmed, decimal, ".")
    spellings = pyarrow.array([*MISSING, "NA", "N/A", "NaN", "nan"], pyarrow.string()).cast(trimmed.type)
    present = compute.if_else(compute.is_in(trimmed, spellings), None, trimmed)
    try:
        return compute.cast(present, pyarrow.float64()).to_numpy()
    except pyarrow.ArrowInvalid:
        return None


def _joined(parts: list[Cells]) -> Cells:
    values = [part.values for part in parts]
    if all(not isinstance(one, np.ndarray) for one in values) and len({str(one.type) for one in values}) == 1:
        import pyarrow

        return Cells(pyarrow.chunked_array([chunk for one in values for chunk in one.chunks], values[0].type))
    arrays = [one if isinstance(one, np.ndarray) else np.array(one.to_pylist(), dtype=object) for one in values]
    if len({array.dtype.kind for array in arrays}) > 1:
        plain = [array.astype("datetime64[us]") if array.dtype.kind == "M" else array for array in arrays]
        arrays = [np.array([*array.tolist(), None], dtype=object)[:-1] for array in plain]
    return Cells(np.concatenate(arrays))
