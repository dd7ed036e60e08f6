"""A table as people have it, as named columns: numpy, pandas, polars, Arrow, a dictionary of lists.

Data frames of other libraries are read through narwhals; none of these libraries is imported here.

>>> frame = as_frame({"age": [31, None], "sex": ["f", " m "]})
>>> frame.names, frame.size, frame["age"].numbers().tolist()
(('age', 'sex'), 2, [31.0, nan])
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InvalidArgument
from .cells import Cells, joined, objects
from .problems import Problems

EXACT = 2**53  # from here on, not all whole numbers are floating-point numbers


@dataclass(frozen=True, eq=False)
class Frame:
    """Named columns of one length. Names may stand twice; a table is refused for that once it is used."""

    names: tuple[str, ...]
    cells: tuple[Cells, ...]
    size: int  # number of records

    def __getitem__(self, name: str) -> Cells:
        return self.cells[self.names.index(name)]

    def take(self, rows: np.ndarray) -> Frame:
        """Return the records with these numbers, in this order."""
        return Frame(self.names, tuple(Cells(cells.values.take(rows)) for cells in self.cells), len(rows))

    def having(self, **columns: Any) -> Frame:
        """Return the frame with further columns, say a target that came by itself; None is no column."""
        given = {name: _column(name, values) for name, values in columns.items() if values is not None}
        wrong = [name for name, cells in given.items() if len(cells.values) != self.size]
        if wrong:
            raise InvalidArgument(f"expected as many entries in {', '.join(wrong)} as the table has rows")
        return Frame((*self.names, *given), (*self.cells, *given.values()), self.size)


def as_frame(data: Any, names: tuple[str, ...] | None = None) -> Frame:
    """Return any table in memory as named columns.

    Args:
        data: a data frame, an Arrow table, a mapping of columns, or anything with two dimensions.
        names: those of the columns of an array; by default x0, x1, ...
    """
    if isinstance(data, Frame):
        return data
    if hasattr(data, "toarray") and not hasattr(data, "__array__"):
        raise InvalidArgument("expected a dense table, got a sparse one; call .toarray() on it first")
    if isinstance(data, Mapping):
        return _of_mapping(data)
    if any(hasattr(type(data), name) for name in ("columns", "column_names", "collect")):
        return _of_data_frame(data)
    return _of_array(data, names)


def concatenated(frames: list[Frame]) -> Frame:
    """Return the records of several frames, which have the same names in the same order."""
    if len(frames) == 1:
        return frames[0]
    cells = [joined([frame.cells[j] for frame in frames]) for j in range(len(frames[0].names))]
    return Frame(frames[0].names, tuple(cells), sum(frame.size for frame in frames))


def _of_mapping(data: Mapping[Any, Any]) -> Frame:
    columns = {str(name): _column(str(name), values) for name, values in data.items()}
    sizes = {len(cells.values) for cells in columns.values()}
    if len(sizes) > 1:
        raise InvalidArgument("expected all columns to have the same length")
    return Frame(tuple(columns), tuple(columns.values()), *(sizes or {0}))


def _of_data_frame(data: Any) -> Frame:
    import narwhals as nw

    arrow = sys.modules.get("pyarrow")
    if arrow is not None and isinstance(data, arrow.RecordBatch):
        data = arrow.Table.from_batches([data])
    if hasattr(type(data), "collect"):
        raise InvalidArgument(f"expected a table in memory, got {type(data).__name__}; call .collect() on it first")
    names = [str(name) for name in (data.column_names if hasattr(type(data), "column_names") else data.columns)]
    problems = Problems("the table")
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.add(f"column {name!r}", "is there twice", "rename one of them")
    problems.refuse()
    try:
        frame = nw.from_native(data, eager_only=True)
    except TypeError:
        raise InvalidArgument(
            f"expected a table as numpy, pandas, polars, Arrow or a dictionary holds it, got {type(data).__name__}; "
            "turn it into one of these first"
        ) from None
    return Frame(tuple(names), tuple(_of_series(series) for series in frame.iter_columns()), len(frame))


def _of_series(series: Any) -> Cells:
    """Return the cells of a series that narwhals holds."""
    import narwhals as nw

    if isinstance(series.dtype, nw.Categorical | nw.Enum):
        series = series.cast(nw.String)
    if series.dtype == nw.String and series.implementation.is_pyarrow():
        return Cells(series.to_native())
    array = series.to_numpy()
    if series.dtype.is_integer() and array.dtype.kind == "f" and np.abs(np.nan_to_num(array)).max(initial=0) >= EXACT:
        return Cells(objects(series.to_list()))  # a missing value would round the others
    return Cells(array if array.ndim == 1 else objects(series.to_list()))


def _of_array(data: Any, names: tuple[str, ...] | None) -> Frame:
    if isinstance(data, list | tuple) and data and all(isinstance(row, list | tuple) for row in data):
        if len({len(row) for row in data}) > 1:
            raise InvalidArgument("expected all rows to have the same length")
        data = np.stack([objects(row) for row in data])
    array = np.asarray(data)
    if array.ndim != 2:
        raise InvalidArgument(
            f"expected a table with rows and columns, got {array.ndim} dimension(s). Reshape your data: (rows, columns)"
        )
    if array.dtype.kind == "c":
        raise InvalidArgument("Complex data not supported; give real and imaginary parts as columns")
    found = names or tuple(f"x{j}" for j in range(array.shape[1]))
    if len(found) != array.shape[1]:
        raise InvalidArgument(f"expected {len(found)} columns, got {array.shape[1]}")
    return Frame(found, tuple(Cells(array[:, j]) for j in range(array.shape[1])), len(array))


def _column(name: str, values: Any) -> Cells:
    """Return one column that came by itself; a list keeps its cells as they are."""
    if isinstance(values, list | tuple):
        return Cells(objects(values))
    if not isinstance(values, np.ndarray) and hasattr(values, "to_numpy"):
        import narwhals as nw

        arrow = sys.modules.get("pyarrow")
        if arrow is not None and isinstance(values, arrow.Array):
            values = arrow.chunked_array([values])
        series = nw.from_native(values, series_only=True, pass_through=True)
        if isinstance(series, nw.Series):
            return _of_series(series)
    array = np.asarray(values)
    if array.ndim == 2 and array.shape[-1] == 1:
        array = array.reshape(-1)
    if array.ndim != 1:
        raise InvalidArgument(f"expected {name} to have one dimension, got {array.ndim}")
    return Cells(array)
