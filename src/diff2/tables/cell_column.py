"""One column of a table: what its cells say, all at once.

>>> Cells(objects([31, " 7 ", "old", None])).numbers().tolist()
[31.0, 7.0, nan, nan]
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .cells import MISSING, days, number, text_of

MOMENTS = frozenset(f"datetime64[{unit}]" for unit in ("D", "h", "m", "s", "ms", "us", "ns"))  # others overflow


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
