r"""From columns to tensors: clipped to public ranges, scaled, and back again for predictions.

A column with public bounds [low, high] is clipped to them and mapped linearly to [-1, 1]. A regression target with
bounds is clipped to them and divided by the larger of :math:`|low|` and :math:`|high|`: it stays within [-1, 1], and
zero stays zero. Neither looks at the data, so neither costs privacy. Scaling by the data's own mean and deviation does,
and says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._validate import nearest
from ..errors import InvalidArgument
from ..privacy.leaks import code_of, leak
from ..tables.cells import Lookup
from .settings import TableSettings
from .tables import ClientTable, as_table, classes_in, input_columns, numbers, require_column

PUBLIC, PRIVATE = "public bounds", "public bounds, then a private release of mean and deviation"
AS_IT_IS, FROM_DATA = "used as it is", "read off the data, a leak"


@dataclass(frozen=True)
class Scaling:
    """What a column means: clip to [low, high] where there are bounds, then subtract ``offset``, divide by ``scale``.

    >>> age = Scaling.of_input((0.0, 100.0))
    >>> age.encode(np.array([-5.0, 0.0, 50.0, 100.0, 120.0]))
    array([-1., -1.,  0.,  1.,  1.])
    >>> Scaling.of_target((0.0, 20.0)).decode(np.array([0.0, 0.5]))
    array([ 0., 10.])
    """

    offset: float = 0.0
    scale: float = 1.0
    low: float | None = None
    high: float | None = None
    missing: float | None = None  # what sites use for a missing value; None: the middle of the bounds, or 0
    unit: str = ""  # of measurement, for whoever approves the run

    def __post_init__(self) -> None:
        given = [value for value in (self.offset, self.scale, self.low, self.high, self.missing) if value is not None]
        if not all(isinstance(value, int | float) and math.isfinite(value) for value in given) or not self.scale > 0:
            raise InvalidArgument(f"expected finite numbers and scale > 0, got {self}")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise InvalidArgument(f"expected low < high, got {self}")

    @classmethod
    def of_input(cls, bounds: tuple[float, float], missing: float | None = None, unit: str = "") -> Scaling:
        """[low, high] to [-1, 1]."""
        low, high = bounds
        return cls(low / 2 + high / 2, high / 2 - low / 2, low, high, missing, unit)

    @classmethod
    def of_target(cls, bounds: tuple[float, float], missing: float | None = None, unit: str = "") -> Scaling:
        """[low, high] into [-1, 1], with zero at zero."""
        low, high = bounds
        return cls(0.0, max(abs(low), abs(high)), low, high, missing, unit)

    @classmethod
    def of_data(cls, values: np.ndarray) -> Scaling:
        """Mean 0 and deviation 1 on these values, which leaks both; a constant column becomes 0."""
        deviation = float(values.std())
        if not math.isfinite(deviation):
            return cls()  # values near the largest float; the check for the tensor's type will refuse them
        return cls(offset=float(values.mean()), scale=deviation if deviation > 0 else 1.0)

    @property
    def bounds(self) -> list[float | None] | None:
        """To which values are clipped; None: to none."""
        return None if self.low is None and self.high is None else [self.low, self.high]

    @property
    def source(self) -> str:
        """Where the numbers come from: only the data's own mean, deviation or maximum scale without bounds."""
        if self.bounds is not None:
            return PUBLIC
        return AS_IT_IS if (self.offset, self.scale) == (0.0, 1.0) else FROM_DATA

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Return what the model is trained on."""
        if self.low is not None or self.high is not None:
            values = np.clip(values, self.low, self.high)
        return (values - self.offset) / self.scale

    def decode(self, values: np.ndarray) -> np.ndarray:
        """Return encoded values in the original unit."""
        return values * self.scale + self.offset


@dataclass(frozen=True)
class Encoding:
    """How tables become tensors, and outputs predictions; everything needed to use a trained model."""

    inputs: Mapping[str, Scaling]  # by column, in the order of the model's inputs
    target: str
    target_scaling: Scaling | None  # of a regression
    classes: tuple[Any, ...] | None  # of a classification, in the order of the model's outputs

    @property
    def outputs(self) -> int:
        """How many outputs the model needs."""
        return 1 if self.classes is None else len(self.classes)

    @property
    def loss(self) -> str:
        """The name of the loss that goes with the target."""
        return "squared" if self.classes is None else "cross_entropy"

    def encode_inputs(self, table: Any, dtype: npt.DTypeLike = np.float64) -> np.ndarray:
        """Return the inputs of any table, shape (records, columns)."""
        client = as_table(table)
        inputs = np.empty((client.frame.size, len(self.inputs)), dtype)
        for j, (column, scaling) in enumerate(self.inputs.items()):
            inputs[:, j] = scaling.encode(numbers(client, column))
        return inputs

    def encode_targets(self, table: Any, dtype: npt.DTypeLike = np.float64) -> np.ndarray:
        """Return the targets of any table: shape (records, 1) for a regression, class numbers (records,) otherwise."""
        client = as_table(table)
        if self.classes is None:
            return self._scaling().encode(numbers(client, self.target)).astype(dtype).reshape(-1, 1)
        require_column(client, self.target)
        found = client.frame[self.target].mapped(Lookup(self.classes), np.int64)
        if (found >= len(self.classes)).any():
            raise InvalidArgument(
                f"target column {self.target!r} of client {client.name!r} holds a value that is not among the "
                f"{len(self.classes)} classes; complete the list"
            )
        return found

    def decode(self, outputs: np.ndarray) -> np.ndarray:
        """Return predictions in the target's unit, or as class labels, from outputs of shape (records, outputs)."""
        if self.classes is None:
            return self._scaling().decode(np.asarray(outputs, dtype=np.float64).reshape(-1))
        return np.array(self.classes, dtype=object)[np.argmax(outputs, axis=1)]

    def _scaling(self) -> Scaling:
        return self.target_scaling or Scaling()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "inputs": [{"column": name, **asdict(scaling)} for name, scaling in self.inputs.items()],
            "target": self.target,
            "target_scaling": None if self.target_scaling is None else asdict(self.target_scaling),
            "classes": None if self.classes is None else list(self.classes),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Encoding:
        """Return what :meth:`to_json` described, for example ``result.json``'s ``"encoding"``."""
        target = fields["target_scaling"]
        names = [str(scaling["column"]) for scaling in fields["inputs"]]
        if len({*names, fields["target"]}) <= len(names):
            raise InvalidArgument("expected the inputs and the target to be different columns")
        return cls(
            {
                name: Scaling(**{key: value for key, value in scaling.items() if key != "column"})
                for name, scaling in zip(names, fields["inputs"], strict=True)
            },
            str(fields["target"]),
            None if target is None else Scaling(**target),
            None if fields["classes"] is None else tuple(fields["classes"]),
        )


def described_columns(encoding: Encoding, leaks: Sequence[str] = (), private: Sequence[int] = ()) -> dict[str, Any]:
    """Say for the ledger what each column is, within which bounds, and where these come from.

    Args:
        leaks: what was taken from the data, as :func:`choose_encoding` says it.
        private: numbers of the inputs whose mean and deviation are released with noise.

    >>> described_columns(Encoding({"age": Scaling.of_input((0.0, 100.0))}, "cost", Scaling(scale=9.0), None))["cost"]
    {'role': 'target', 'bounds': None, 'source': 'read off the data, a leak'}
    """
    found = {
        name: {"role": "input", "bounds": scaling.bounds, "source": PRIVATE if j in private else scaling.source}
        for j, (name, scaling) in enumerate(encoding.inputs.items())
    }
    if encoding.classes is None:
        scaling = encoding.target_scaling or Scaling()
        target = {"role": "target", "bounds": scaling.bounds, "source": scaling.source}
    else:
        leaked = _classes_leak(encoding.target) in leaks
        classes = None if leaked else list(encoding.classes)
        target = {"role": "target", "classes": classes, "source": FROM_DATA if leaked else "public list of classes"}
    return {**found, encoding.target: target}


def choose_encoding(
    settings: TableSettings,
    tables: Sequence[ClientTable],
    held: Sequence[ClientTable] = (),
    *,
    strict: bool = False,
) -> tuple[Encoding, tuple[str, ...]]:
    """Return the encoding that the settings ask for, and what it takes from the data.

    Args:
        tables: records to train on.
        held: records held out, which count for the range of the target and the list of classes only.
    """
    names = input_columns(settings, tables)
    regression, leaks = settings.task == "regression", []
    scalings = {name: Scaling.of_input(*settings.meaning(name)) for name in names if name in settings.bounds}
    target = Scaling.of_target(*settings.meaning(settings.target)) if settings.target in settings.bounds else Scaling()
    if settings.target_scale == "max":
        values = np.concatenate([numbers(table, settings.target) for table in (*tables, *held)])
        target = Scaling(scale=float(np.abs(values).max()) or 1.0)
        leaks.append(f"scaling of {settings.target!r} by its largest absolute value")
    if settings.scale == "data":
        measured = [name for name in names if name not in settings.bounds and name not in settings.unscaled]
        if regression and settings.target not in settings.bounds and settings.target_scale is None:
            measured.append(settings.target)
        found = {name: Scaling.of_data(np.concatenate([numbers(t, name) for t in tables])) for name in measured}
        target = found.pop(settings.target, target)
        scalings |= found
        if measured:
            leaks.append(f"scaling of {_listed(measured)} by the data's own mean and deviation")
    if settings.scale == "private":
        scalings |= {name: Scaling.of_input(range) for name, range in private_ranges(settings, names).items()}
    classes = settings.classes
    if not regression and classes is None:
        classes = _found_classes(settings.target, (*tables, *held))
        leaks.append(_classes_leak(settings.target))
    for name in leaks:
        text = f"{name}: values that depend on the records leave without noise."
        leak(code_of(name), text, strict=strict, stacklevel=4)
    inputs = {name: scalings.get(name, Scaling()) for name in names}
    return Encoding(inputs, settings.target, target if regression else None, classes), tuple(leaks)


def private_ranges(settings: TableSettings, names: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return the public ranges of the inputs whose mean and deviation are to be released with noise."""
    given = settings.scale_bounds
    wanted = [name for name in names if name not in settings.bounds and name not in settings.unscaled]
    if not wanted:
        raise InvalidArgument("scale='private' has nothing to scale: no input is without bounds; leave it out")
    if isinstance(given, Mapping):
        for name in given:
            if name not in wanted:
                hint = nearest(name, wanted)
                raise InvalidArgument(f"scale_bounds name {name!r}, which is not an input without bounds{hint}")
        for name in wanted:
            if name not in given:
                raise InvalidArgument(f"scale='private' needs the range of {name!r}: add it to scale_bounds, or bounds")
        return dict(given)
    limit = float(given or 0.0)
    return dict.fromkeys(wanted, (-limit, limit))


def _classes_leak(target: str) -> str:
    return f"the list of classes of {target!r} taken from the data"


def _found_classes(target: str, tables: Sequence[ClientTable]) -> tuple[Any, ...]:
    found = classes_in(tables, target)
    if len(found) < 2:
        raise InvalidArgument(f"target column {target!r} holds only one class; there is nothing to learn")
    return found


def _listed(names: Sequence[str]) -> str:
    quoted = [repr(name) for name in names]
    return ", ".join(quoted) if len(quoted) <= 4 else f"{', '.join(quoted[:3])} and {len(quoted) - 3} more columns"
