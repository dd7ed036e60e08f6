r"""Statistics on their way to those who hold the records: names, numbers and arrays.

Whoever holds records builds the statistic again, from the classes that are listed here, and takes its bounds (longest,
diameter, sensitivity) from the class: none of them can be sent. What is sent may be anything, so it is first tried on
made-up records.

*Formal guarantee.* A statistic that :meth:`Unpacked.statistic` returns has, for every record of the schema, a finite
vector of one public dimension, within the bounds that its class states; and whether it is returned depends on what was
sent and on the schema, on no record.

*Why.* Shapes are those that the schema implies (``shapes.py``); indices are tried on all categories and classes.
Numbers are at most :math:`10^{30}`, a radius, a cut, a spread or a size is at least :math:`10^{-30}`, sums have at most
:math:`10^7` terms, and targets are at most :math:`10^{100}`. So, step by step, for every record:

* ``standard`` is within 6 and ``score`` within 3 whatever a centre, a deviation or ranks are: infinite ones are
  clipped, and those that are no number become 0. What is whitened is below :math:`10^{70}`, then clipped to 3. Angles
  are below :math:`10^{40}`, so cosines are cosines.
* Features before the matrix are within a ball: their squares stay below :math:`10^{130}`, and those that underflow
  belong to vectors shorter than :math:`10^{-150}`. After it they are below :math:`10^{67}`, outputs below
  :math:`10^{105}`.
* A gradient is a residual, at most :math:`10^{144}`, times features, whose length is raised by all that its squares may
  have lost: it is at most :math:`10^{220}`, and never too small. A factor that clips is at least :math:`10^{-250}`, and
  what it is multiplied with so much larger that nothing that is added is subnormal.
* Histograms count a record once in each, whatever its number is, infinite or none; leaves and classes likewise. Means
  are of numbers that are clipped last. A residual of trees is clipped, then made a whole number.
* Exponentials have arguments that are limited before: counts by :math:`\pm 3` around an offset of at most 100, classes
  by their largest output. No number is divided by an exponential that vanishes.
* Knots of a curve are at least :math:`10^{-30}` apart: its slopes are below :math:`10^{61}`.

A mean for one kind of target is refused for others: of several classes it would be several numbers, with one noise.

A request leaves out the arrays that the one before it held; parts that come again are the same objects again, so that
what was computed from them is kept.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from .._files import plain
from ..errors import InvalidArgument
from ..tables.kinds import LARGEST, Classes, Counts, Regression
from ..tables.rows import Rows
from ..tables.schema import Schema
from .asking import Scores, Statistic
from .bounds import Magnitudes, Zoom
from .columns import Column
from .counts import CountResiduals, LogMean, RatioMean
from .curve import OutputSums, OutputWeights, Tails
from .evaluate import Moments, ScoreHistogram
from .linear import CurvedModel, LinearModel
from .parts import Parts
from .preparation import Preparation, Projections, Whitening
from .scoring import CutDeviances, Errors, ErrorSizes
from .shapes import part_faults
from .statistics import (
    ClassShares,
    ClippedDescent,
    ColumnHistograms,
    Design,
    FeatureLengths,
    Gram,
    MeanResidual,
    NormHistogram,
    Residuals,
    TargetMean,
    WhiteningMoment,
)
from .tree_model import Binning, Half, Tree, TreeModel
from .trees import LeafSums, LeafWeights, PairScores, ResidualSizes

STATISTICS: tuple[type, ...] = (
    *(ColumnHistograms, WhiteningMoment, TargetMean, ClassShares, Gram, NormHistogram, MeanResidual),
    *(ClippedDescent, Magnitudes, Zoom, LogMean, RatioMean, ResidualSizes, PairScores, LeafSums, LeafWeights),
    *(Tails, OutputWeights, OutputSums, ErrorSizes, CutDeviances, ScoreHistogram, Moments, FeatureLengths),
)
PARTS: tuple[type, ...] = (
    *(Column, Preparation, Whitening, Projections, Design, Residuals, CountResiduals, LinearModel),
    CurvedModel,
    *(TreeModel, Binning, Tree, Half, Errors, Regression, Classes, Counts),
)
MOST, LEAST = 1e30, 1e-30  # of numbers; of what is divided by
DIVISORS = ("radius", "cut", "spread", "size", "below", "above")
ONLY_FOR: dict[type, tuple[type, ...]] = {  # kinds of targets
    **dict.fromkeys((LogMean, RatioMean, CountResiduals), (Counts,)),
    **dict.fromkeys((ClassShares, ScoreHistogram), (Classes,)),
    **dict.fromkeys((TargetMean, MeanResidual, Moments), (Regression, Counts)),
    **dict.fromkeys((Tails, OutputWeights, OutputSums), (Regression,)),
}
MOST_LOGARITHM = 100.0  # of the offset of counts
PURPOSE_LENGTH = 32
SINGLE = 6  # made-up records that are tried one by one
ALL = Parts(*STATISTICS, *PARTS)


class Packed(NamedTuple):
    """A statistic as plain JSON values, and its arrays by their SHA-256."""

    tree: dict[str, Any]
    arrays: dict[str, np.ndarray]


def packed(statistic: Statistic | Scores) -> Packed:
    """Return what describes a statistic."""
    arrays: dict[str, np.ndarray] = {}

    def keep(place: str, array: np.ndarray) -> str:
        array = array.view(np.uint8) if array.dtype == np.bool_ else array  # as messages carry it
        arrays[_sha256(array)] = array
        return _sha256(array)

    tree = plain(ALL.to_plain(statistic, type(statistic).__name__, keep))
    return Packed(tree, arrays)


class Unpacked(Parts):
    """Statistics as they arrive, one after the other, for records of one schema."""

    def __init__(self, schema: Schema):
        super().__init__(*STATISTICS, *PARTS)
        self._schema = schema
        self._arrays: dict[str, np.ndarray] = {}
        self._parts: tuple[dict[str, Any], dict[str, Any]] = ({}, {})  # of the request before this one, and of this one

    def statistic(self, tree: Any, arrays: Mapping[str, np.ndarray]) -> tuple[Any, int]:
        """Return a statistic and the dimension of its vectors; refuse one that is not listed or cannot be asked."""
        for name, array in arrays.items():
            if name != _sha256(array):
                raise InvalidArgument("an array of the statistic is not the one that it is called by")
        used, known = set(_array_names(tree)), {**self._arrays, **{name: _truth(one) for name, one in arrays.items()}}
        if not set(arrays) <= used <= set(known):
            raise InvalidArgument("the arrays of the statistic are not those that it names")
        self._arrays, self._parts = {name: known[name] for name in used}, (self._parts[1], {})
        kinds = {one.__name__: one for one in STATISTICS}
        kind = kinds.get(str(tree.get("part"))) if isinstance(tree, dict) else None
        if kind is None:
            raise InvalidArgument("the statistic is not known here; all parties need the same version")
        try:
            found = self.from_plain(tree, kind, self._arrays, kind.__name__)
            faults = [*_number_faults(tree), *_array_faults(self._arrays), *self._part_faults(found)]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InvalidArgument(f"the statistic is no {kind.__name__} ({error})") from None
        if faults:
            raise InvalidArgument(f"the statistic {kind.__name__} is not for the agreed columns: {faults[0]}")
        return found, dimension_of(found, self._schema)

    def _part(self, found: Any, hint: type, arrays: Mapping[str, np.ndarray], place: str) -> Any:
        key = json.dumps(found, sort_keys=True)
        before, now = self._parts
        if key not in now:
            now[key] = before[key] if key in before else super()._part(found, hint, arrays, place)
        if not isinstance(now[key], hint):
            raise ValueError(f"{place} is no {hint.__name__}")
        return now[key]

    def _part_faults(self, found: Any) -> Iterator[str]:
        if not 0 < len(found.purpose) <= PURPOSE_LENGTH:
            yield "its purpose is no word"
        counts = isinstance(self._schema.target, Counts)
        for part in self.within(found):
            yield from part_faults(part, self._schema)
            if isinstance(part, Errors):
                if part.target != self._schema.target:
                    yield "the target is another one"
                if counts and not all(math.isfinite(bound) for bound in part.bounds):
                    yield "counts have no bounds"
            if type(part) in ONLY_FOR and not isinstance(self._schema.target, ONLY_FOR[type(part)]):
                yield "the target is of another kind"
            if counts and np.max(np.abs(getattr(part, "offset", 0.0))) > MOST_LOGARITHM:
                yield "an offset is out of range"


def dimension_of(statistic: Statistic | Scores, schema: Schema) -> int:
    """Return the dimension of a statistic's vectors, from made-up records; refuse one that breaks its own bounds."""
    rows = made_up_records(schema)
    single = [Rows(*(part[i : i + 1] for part in rows)) for i in range(min(SINGLE, rows.size))]
    try:
        with np.errstate(all="ignore"):
            whole = statistic.total(rows, np.ones(rows.size), {})
            each = [statistic.total(one, np.ones(1), {}) for one in single]
            if any(one.shape != (whole.size,) or not np.isfinite(one).all() for one in (whole, *each)):
                raise ValueError
            if not hasattr(statistic, "scores"):
                longest = statistic.longest * (1 + 1e-9)
                diameter = max(statistic.diameter, statistic.longest) * (1 + 1e-9)
                if not LEAST <= longest <= LARGEST or any(float(np.linalg.norm(one)) > longest for one in each):
                    raise ValueError
                if any(float(np.linalg.norm(one - other)) > diameter for one, other in combinations(each, 2)):
                    raise ValueError
    except Exception:
        raise InvalidArgument(
            f"the statistic {type(statistic).__name__} cannot be computed within its bounds on records of the agreed "
            "columns"
        ) from None
    return int(whole.size)


def made_up_records(schema: Schema) -> Rows:
    """Return records at the ends of all that a schema allows: every category and class, bounds, missing values."""
    target = schema.target
    classes = len(target.values) if isinstance(target, Classes) else 1
    size = max(8, classes, *schema.widths, 0)
    places = np.arange(size)
    numeric = np.zeros((size, len(schema.numeric)))
    for j, one in enumerate(schema.numeric):
        low, high = (-LARGEST, LARGEST) if one.low is None or one.high is None else (one.low, one.high)
        numeric[:, j] = np.array([low, high, math.nan, low / 2 + high / 2])[(places + j // 2) % 4]
    codes = np.stack([places % width for width in schema.widths], axis=1) if schema.widths else np.zeros((size, 0), int)
    if isinstance(target, Classes):
        return Rows(numeric, codes, (places % classes).astype(np.float64))
    least = 0.0 if isinstance(target, Counts) else target.low
    ends = (-LARGEST, LARGEST) if least is None or target.high is None else (least, target.high)
    return Rows(numeric, codes, np.array([*ends, ends[0] / 2 + ends[1] / 2])[places % 3])


def _sha256(array: np.ndarray) -> str:
    return hashlib.sha256(f"{array.dtype.str} {array.shape}".encode() + array.tobytes()).hexdigest()


def _truth(array: np.ndarray) -> np.ndarray:
    """Return bytes of zero and one as truth values; others are refused later, for their type."""
    return array.view(np.bool_) if array.dtype == np.uint8 and (array <= 1).all() else array


def _array_names(tree: Any) -> Iterator[str]:
    if isinstance(tree, dict):
        if "array" in tree:
            yield str(tree["array"])
        for one in tree.values():
            yield from _array_names(one)
    elif isinstance(tree, list):
        for one in tree:
            yield from _array_names(one)


def _number_faults(tree: Any, name: str = "") -> Iterator[str]:
    if isinstance(tree, dict):
        for key, one in tree.items():
            yield from _number_faults(one, key)
    elif isinstance(tree, list):
        for one in tree:
            yield from _number_faults(one, name)
    elif tree in ("inf", "-inf") and name != "bounds":
        yield f"{name} is infinite"
    elif isinstance(tree, int | float) and (abs(tree) > MOST or (name in DIVISORS and tree < LEAST)):
        yield f"{name} is out of range"


def _array_faults(arrays: Mapping[str, np.ndarray]) -> Iterator[str]:
    for array in arrays.values():
        if array.size and array.dtype != np.bool_ and float(np.max(np.abs(array))) > MOST:
            yield "an array holds numbers that are out of range"
