r"""Bounds that nobody gave, from released histograms. The range of the data is never looked at.

One histogram over public edges, :math:`\pm 2^{j/2}` from :math:`2^{-20}` to :math:`2^{40}`, shows the magnitudes of all
u columns without bounds, the target among them. Replacing a record of weight w moves one count of each column from one
bin to another: :math:`\sqrt{2u}\, w`. Bounds reach from the first to the last bin that stands out of the noise, by more
than all bins' noise does together but in one of a thousand fits; from there to neighbours that hold more than two
deviations; and an octave further. Of columns that stay on one side of zero, say years, a second histogram of equal
bins, for the rest of the price, shows whether a small part of that range will do: what stands out, three times as
wide, if that is at most an eighth.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..tables.rows import Rows
from .asking import Ask
from .second_moment import ROOT

SIZES = 2.0 ** (np.arange(-40, 81) / 2)
EDGES = np.concatenate([-SIZES[::-1], SIZES])
BINS = len(EDGES) + 1
ZOOM_BINS = 256
LEAST_SHARE, MOST_SHARE = 0.03, 0.2  # of mu^2
ZOOM_SHARE = 0.4  # of that
SEEN = 0.04  # a deviation of the noise that lets a bin with a fifth of the records stand out
RISK = 1e-3
NOT_SEEN = (0.0, 1.0)


class Bounds(NamedTuple):
    """Bounds of the numeric columns, (columns, 2), and of the target where they were not known."""

    inputs: np.ndarray
    target: tuple[float, float] | None


def share_of_bounds(columns: int, mu: float, weight: float) -> float:
    """Return the share of mu^2 that bounds of this many columns get: public numbers decide."""
    if not columns:
        return 0.0
    return min(MOST_SHARE, max(LEAST_SHARE, 2 * columns * (weight / (mu * SEEN)) ** 2))


@dataclass(frozen=True)
class Magnitudes:
    """The histograms of magnitude and sign of some columns, and of the target."""

    columns: tuple[int, ...]
    target: bool
    purpose: str = "bounds"

    @property
    def longest(self) -> float:
        return math.sqrt(len(self.columns) + self.target)

    @property
    def diameter(self) -> float:
        return ROOT * self.longest

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        parts = []
        for values in _values(rows, self.columns, self.target):
            seen = np.isfinite(values)
            parts.append(np.bincount(np.searchsorted(EDGES, values[seen], side="right"), weights[seen], BINS))
        return np.concatenate(parts)


@dataclass(frozen=True)
class Zoom:
    """The histograms of some columns, and of the target, in equal bins; what is outside counts in the nearest."""

    columns: tuple[int, ...]
    ranges: np.ndarray  # (columns and target, 2)
    target: bool
    purpose: str = "bounds"

    @property
    def longest(self) -> float:
        return math.sqrt(len(self.ranges))

    @property
    def diameter(self) -> float:
        return ROOT * self.longest

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        parts = []
        for values, (low, high) in zip(_values(rows, self.columns, self.target), self.ranges, strict=True):
            seen = np.isfinite(values)
            places = np.clip((np.clip(values[seen], low, high) - low) / (high - low) * ZOOM_BINS, 0, ZOOM_BINS - 1)
            parts.append(np.bincount(places.astype(np.int64), weights[seen], ZOOM_BINS))
        return np.concatenate(parts)


def found_bounds(ask: Ask, mu: float, known: np.ndarray, names: Sequence[str], target: bool) -> Bounds:
    """Return all bounds, those that are NaN found by releases that cost ``mu`` together.

    Args:
        known: (columns, 2).
        names: of the columns, and last of the target, for warnings.
        target: whether the bounds of the target are to be found, too.
    """
    columns = tuple(int(j) for j in np.flatnonzero(np.isnan(known).any(axis=1)))
    unknown = len(columns) + target
    if not unknown:
        return Bounds(known, None)
    called = [names[j] for j in columns] + [names[-1]] * target
    answer = ask(Magnitudes(columns, target), mu * math.sqrt(1 - ZOOM_SHARE))
    spans = [standing_out(part, answer.noise_std, unknown) for part in np.split(answer.value, unknown)]
    ranges = np.array([NOT_SEEN if span is None else octave_around(*span) for span in spans])
    one_sided = [i for i, (low, high) in enumerate(ranges) if spans[i] is not None and low * high > 0]
    if one_sided:
        zoomed = tuple(columns[i] for i in one_sided if i < len(columns))
        with_target = target and one_sided[-1] == unknown - 1
        answer = ask(Zoom(zoomed, ranges[one_sided], with_target), mu * math.sqrt(ZOOM_SHARE))
        for i, part in zip(one_sided, np.split(answer.value, len(one_sided)), strict=True):
            span = standing_out(part, answer.noise_std, unknown)
            wide = ZOOM_BINS if span is None else span[1] + 1 - span[0]
            if span is not None and 24 * wide <= ZOOM_BINS:  # a broad one has tails that noise hides
                edges = np.linspace(ranges[i, 0], ranges[i, 1], ZOOM_BINS + 1)
                ranges[i] = edges[max(0, span[0] - wide)], edges[min(ZOOM_BINS, span[1] + 1 + wide)]
    for name, span in zip(called, spans, strict=True):
        _warn(name, span)
    inputs = known.copy()
    inputs[list(columns)] = ranges[: len(columns)]
    return Bounds(inputs, (float(ranges[-1][0]), float(ranges[-1][1])) if target else None)


def standing_out(counts: np.ndarray, noise_std: float, histograms: int) -> tuple[int, int] | None:
    """Return the first and the last bin that hold more than noise explains; None: no bin does."""
    threshold = noise_std * math.sqrt(2 * math.log(histograms * len(counts) / RISK))
    above = np.flatnonzero(counts > threshold)
    if not len(above):
        return None
    first, last = int(above[0]), int(above[-1])
    while first > 0 and counts[first - 1] > 2 * noise_std:
        first -= 1
    while last + 1 < len(counts) and counts[last + 1] > 2 * noise_std:
        last += 1
    return first, last


def octave_around(first: int, last: int) -> tuple[float, float]:
    """Return the ends of a span of bins, an octave further out; the bin around zero ends at zero."""
    ends = np.concatenate([[EDGES[0] * ROOT], EDGES, [EDGES[-1] * ROOT]])
    low, high = float(ends[first]), float(ends[last + 1])
    zero = len(SIZES)  # the bin around zero
    if first == zero:
        low = 0.0
    if last == zero and first != zero:
        high = 0.0
    low, high = (low * 2 if low < 0 else low / 2), (high * 2 if high > 0 else high / 2)
    return max(low, 2 * EDGES[0]), min(high, 2 * EDGES[-1])


def _values(rows: Rows, columns: tuple[int, ...], target: bool) -> list[np.ndarray]:
    return [rows.numeric[:, j] for j in columns] + [rows.target] * target


def _warn(name: str, span: tuple[int, int] | None) -> None:
    if span is None:
        warnings.warn(
            f"column {name!r}: noise hides its values, or they are missing: nothing stood out when its bounds "
            "were to be found, so that it helps little. Give its bounds, or leave it out",
            stacklevel=4,
        )
    elif span[0] == 0 or span[1] == BINS - 1:
        warnings.warn(
            f"column {name!r} has values beyond {EDGES[-1]:.3g}, which are moved to twice that; give its bounds, or "
            "scale it",
            stacklevel=4,
        )
