"""Records as agreed, whatever a table holds: numbers within their range, classes of the list. No value raises.

A number outside of its agreed range is clamped to it; what is no finite number becomes the agreed stand-in; what is no
class of the list becomes the class ``"other"``, or the first one where the list has none. So whether a site can answer
depends on the header of its table, or the shape of its arrays, and on the number of records, which is public: never on
what a record says. What had to be changed is counted for the site's own log.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...data.scaling import Encoding, Scaling
from ...errors import InvalidArgument
from ...tables.cells import Cells, Lookup

UNBOUNDED = 1e12  # the range of an encoded column without bounds, which only runs on one machine have
OTHER = "other"


class Clamped:
    """Encodes columns and arrays, and notes what had to be changed."""

    def __init__(self, encoding: Encoding):
        self._encoding = encoding
        self.notes: list[str] = []  # counts, for the site alone

    def table(self, columns: Mapping[str, Cells]) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets from raw columns, by their agreed names."""
        encoding = self._encoding
        inputs = [self._scaled(name, scaling, columns[name].numbers()) for name, scaling in encoding.inputs.items()]
        cells = columns[encoding.target]
        targets = self._target(cells.numbers()) if encoding.classes is None else self._classes(cells)
        return np.stack(inputs, axis=1), targets

    def arrays(self, inputs: Any, targets: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets that are encoded already: finite, within the encoded ranges."""
        names, x, y = list(self._encoding.inputs), _array("inputs", inputs), _array("targets", targets)
        if x.ndim != 2 or x.shape[1] != len(names):
            raise InvalidArgument(f"expected inputs of shape (records, {len(names)}), got {x.shape}")
        if y.shape not in ((len(x),), (len(x), 1)):
            raise InvalidArgument(f"expected one target for each of the {len(x)} inputs, got shape {y.shape}")
        columns = [
            self._within(name, self._encoding.inputs[name], Cells(x[:, j]).numbers())
            for j, name in enumerate(names)
        ]  # fmt: skip
        found, y = np.stack(columns, axis=1), Cells(y.reshape(-1)).numbers()
        if self._encoding.classes is not None:
            unknown = ~np.isin(y, np.arange(len(self._encoding.classes)))
            return found, np.where(unknown, self._other(unknown), y).astype(np.int64)
        scaling = self._encoding.target_scaling or Scaling()
        return found, self._within(self._encoding.target, scaling, y).reshape(-1, 1)

    def _target(self, values: np.ndarray) -> np.ndarray:
        return self._scaled(self._encoding.target, self._encoding.target_scaling or Scaling(), values).reshape(-1, 1)

    def _classes(self, cells: Cells) -> np.ndarray:
        classes = self._encoding.classes or ()
        found = cells.mapped(Lookup(classes), np.int64)
        unknown = found >= len(classes)
        return np.where(unknown, self._other(unknown), found)

    def _other(self, unknown: np.ndarray) -> int:
        """Return the class that stands in for unknown ones."""
        classes = self._encoding.classes or ()
        place = classes.index(OTHER) if OTHER in classes else 0
        self._note(self._encoding.target, unknown, f"not in the list of classes; used as {classes[place]!r}")
        return place

    def _scaled(self, name: str, scaling: Scaling, values: np.ndarray) -> np.ndarray:
        """Return raw numbers as the model sees them."""
        missing = np.isnan(values)
        self._note(name, missing, f"no number; used as {_stand_in(scaling):g}")
        values = np.where(missing, _stand_in(scaling), values)
        low = -math.inf if scaling.low is None else scaling.low
        high = math.inf if scaling.high is None else scaling.high
        self._note(name, (values < low) | (values > high), f"outside of [{low:g}, {high:g}]; clamped")
        with np.errstate(over="ignore"):
            return _clip(scaling, scaling.encode(values))

    def _within(self, name: str, scaling: Scaling, values: np.ndarray) -> np.ndarray:
        """Return encoded numbers within the range that encoding allows."""
        missing = np.isnan(values)
        self._note(name, missing, "no number; the agreed stand-in is used")
        values = np.where(missing, scaling.encode(np.array(_stand_in(scaling))), values)
        self._note(name, values != _clip(scaling, values), "outside of the encoded range; clamped")
        return _clip(scaling, values)

    def _note(self, name: str, changed: np.ndarray, what: str) -> None:
        if changed.any():
            self.notes.append(f"column {name!r}: {int(changed.sum())} of {changed.size} values are {what}")


def _stand_in(scaling: Scaling) -> float:
    if scaling.missing is not None:
        return scaling.missing
    bounds = [bound for bound in (scaling.low, scaling.high) if bound is not None]
    return sum(bound / 2 for bound in bounds) if len(bounds) == 2 else float(sum(bounds))


def _clip(scaling: Scaling, encoded: np.ndarray) -> np.ndarray:
    low, high = (
        UNBOUNDED * sign if bound is None else float(scaling.encode(np.array(bound)))
        for sign, bound in ((-1, scaling.low), (1, scaling.high))
    )
    return np.clip(encoded, low, high)


def _array(name: str, values: Any) -> np.ndarray:
    try:
        return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"{name} cannot be made an array ({type(error).__name__})") from None
