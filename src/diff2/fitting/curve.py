r"""A curve for targets with heavy tails: what the target is above the output of a linear model, as a function of it.

Clipped descent says who is above whom, and not by how much: gradients at the radius count alike, however far beyond it
they are. Where residuals have heavy tails (most counts of comments are zero, few are hundreds) that is most of what can
be explained. The mean residual of few bins of the outputs brings it back, for far less than a larger radius of the
descent would cost: one number per bin, clipped far out, and on each side where the residuals of that side end.

Three releases: a histogram of the residuals, by sign and octave, which tells whether tails are heavy and where to clip;
if they are, the weights of the bins of the outputs, and the sums of the clipped residuals in them. With residuals in
[-b, a], two records in one bin are at most a + b apart, and two in different bins sqrt 2 times the larger of both.

Means with much noise are drawn to zero together (James and Stein 1961), and predictions keep the order of the outputs:
the nearest curve that does so has most of the noise that is left averaged away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from ..tables.rows import Rows
from .asking import Answer, Ask
from .linear import CurvedModel, LinearModel
from .second_moment import ROOT

TAILS_SHARE, MOST_SHARE = 0.02, 0.10  # of the budget: for the histogram of residuals, and for the rest at most
SHARE = 0.08  # of the budget for the rest, times what the ratio below is above one
WEIGHTS = 0.25  # of the rest, for the weights of the bins
HEAVY = 1.4  # ratio of the root mean square of the residuals to their mean size; 1.28, in octaves, if they are normal
SEEN, CERTAIN = 1.5, 8.0  # noise deviations of an octave that is believed, and of the outermost bin of outputs
OCTAVES, BINS = 15, 25


@dataclass(frozen=True, eq=False)
class Tails:
    """How many residuals are in which octave, by sign."""

    model: LinearModel
    bounds: tuple[float, float]
    cuts: np.ndarray
    purpose: str = "tails"
    longest: float = 1.0
    diameter: float = ROOT

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        found = np.searchsorted(self.cuts, residuals(self.model, self.bounds, rows, cache))
        return np.bincount(found, weights, len(self.cuts) + 1)


@dataclass(frozen=True, eq=False)
class OutputWeights:
    """The weight of the records in each bin of the outputs."""

    model: LinearModel
    cuts: np.ndarray
    purpose: str = "curve weights"
    longest: float = 1.0
    diameter: float = ROOT

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        return np.bincount(np.searchsorted(self.cuts, self.model.outputs(rows, cache)), weights, len(self.cuts) + 1)


@dataclass(frozen=True, eq=False)
class OutputSums:
    """The sum of the residuals in each bin of the outputs, each at most this far below zero and above it."""

    model: LinearModel
    bounds: tuple[float, float]
    cuts: np.ndarray
    below: float
    above: float
    purpose: str = "curve"

    @property
    def longest(self) -> float:
        return max(self.below, self.above)

    @property
    def diameter(self) -> float:
        return float(apart(self.below, self.above))

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        clipped = np.clip(residuals(self.model, self.bounds, rows, cache), -self.below, self.above)
        found = np.searchsorted(self.cuts, self.model.outputs(rows, cache))
        return np.bincount(found, weights * clipped, len(self.cuts) + 1)


def apart(below: Any, above: Any) -> Any:
    """Return how far apart the vectors of two residuals of [-below, above] can be: in one bin, or in two.

    >>> apart(1.0, 1.0), apart(0.0, 1.0).round(3)
    (np.float64(2.0), np.float64(1.414))
    """
    return np.maximum(below + above, ROOT * np.maximum(below, above))


def residuals(model: LinearModel, bounds: tuple[float, float], rows: Rows, cache: dict[Any, Any]) -> np.ndarray:
    """Return what the target is above the outputs."""
    return np.clip(rows.target, *bounds) - model.outputs(rows, cache)


def curved(
    ask: Ask, mu: float, weight: float, model: LinearModel, bounds: tuple[float, float]
) -> tuple[LinearModel, float]:
    """Return the model, with a curve where tails are heavy, and the share of mu^2 that was spent on this."""
    sizes = (bounds[1] - bounds[0]) * 2.0 ** (1 - np.arange(OCTAVES, 0, -1))
    tails = ask(Tails(model, bounds, np.concatenate([-sizes[::-1], sizes])), mu * math.sqrt(TAILS_SHARE))
    # The middle bin, of hardly any residual, is in both.
    below, above = (believed(side, tails.noise_std) for side in (tails.value[OCTAVES::-1], tails.value[OCTAVES:]))
    ratio = tail_ratio(below + above, sizes)
    if ratio < HEAVY:
        return model, TAILS_SHARE
    share = min(MOST_SHARE, SHARE * (ratio - 1))
    spread = max(float(np.linalg.norm(model.theta)), 1e-6)
    fine = float(model.offset) + spread * ndtri(np.arange(1, BINS) / BINS)
    bins = bins_of(ask(OutputWeights(model, fine), mu * math.sqrt(WEIGHTS * share)), fine, spread)
    price = mu * math.sqrt((1 - WEIGHTS) * share)
    radii = clipping(below, above, sizes, weight / price)
    sums = ask(OutputSums(model, bounds, bins.cuts, *radii), price)
    rises = rises_of(bins, sums)
    return CurvedModel(model.design, model.theta, model.offset, bins.centres, rises), TAILS_SHARE + share


def believed(counts: np.ndarray, noise_std: float) -> np.ndarray:
    """Return the counts that stand out of the noise, beyond the largest one without a gap.

    >>> believed(np.array([0.1, 0.0, 0.6, 0.2, 0.0, 0.1]), 0.02).tolist()
    [0.1, 0.0, 0.6, 0.2, 0.0, 0.0]
    """
    seen = counts >= SEEN * noise_std
    seen[counts.argmax() :] = np.logical_and.accumulate(seen[counts.argmax() :])
    return np.where(seen, counts, 0.0)


def tail_ratio(mass: np.ndarray, sizes: np.ndarray) -> float:
    """Return the root mean square over the mean of values between zero, the sizes and beyond; 0 for no mass.

    >>> round(tail_ratio(np.array([0.9, 0.0, 0.0, 0.1]), np.array([1.0, 2.0, 8.0])), 2)
    1.82
    """
    values = _middles(sizes)
    mean = float(mass @ values)
    return math.sqrt(float(mass @ values**2) * float(mass.sum())) / mean if mean > 0 else 0.0


def clipping(below: np.ndarray, above: np.ndarray, sizes: np.ndarray, noise: float) -> tuple[float, float]:
    """Return where to clip residuals on either side: what is cut off the mean, and noise, are to be small together.

    Args:
        below, above: weights of the residuals of either side, between zero, the sizes and beyond.
        noise: deviation of a sum, for vectors that are at most one apart.
    """
    beyond = np.maximum(_middles(sizes) - sizes[:, None], 0.0)
    cost = (beyond @ below)[:, None] ** 2 + (beyond @ above) ** 2 + (noise * apart(sizes[:, None], sizes)) ** 2
    low, high = divmod(int(cost.argmin()), len(sizes))
    return float(sizes[low]), float(sizes[high])


class Bins(NamedTuple):
    """Bins of the outputs."""

    cuts: np.ndarray
    weights: np.ndarray
    centres: np.ndarray  # about the mean output of each


def bins_of(found: Answer, cuts: np.ndarray, spread: float) -> Bins:
    """Return bins whose weights double from either end to the middle; the outermost ones stand out of the noise."""
    weights = np.where(found.value < found.noise_std, 0.0, found.value)
    weights = weights / weights.sum() if weights.sum() > 0 else np.full(len(weights), 1 / len(weights))
    least = min(CERTAIN * found.noise_std, 0.5)
    tails = least * 2.0 ** np.arange(math.ceil(math.log2(0.5 / least)) + 1)
    wanted = np.concatenate([tails[tails < 0.5], [0.5], 1 - tails[tails < 0.5]])
    last = np.unique(np.searchsorted(np.cumsum(weights), wanted - 1e-12))  # fine bins that end a bin
    last = last[last < len(cuts)] if last[0] < len(cuts) else np.array([len(cuts) // 2])
    of = np.searchsorted(last, np.arange(len(weights)))
    outputs = np.concatenate([[cuts[0] - spread / 4], (cuts[:-1] + cuts[1:]) / 2, [cuts[-1] + spread / 4]])
    counts = np.bincount(of, weights)
    plain = np.bincount(of, outputs) / np.bincount(of)
    centres = np.where(counts > 0, np.bincount(of, weights * outputs) / np.maximum(counts, 1e-300), plain)
    return Bins(cuts[last], np.maximum(counts, least / 2), centres)


def rises_of(bins: Bins, sums: Answer) -> np.ndarray:
    """Return what is added at the centre of each bin."""
    means, noise = sums.value / bins.weights, sums.noise_std**2 / bins.weights
    kept = max(0.0, 1 - float(noise.sum()) / max(float(bins.weights @ means**2), 1e-300))
    return increasing(bins.centres + kept * means, bins.weights) - bins.centres


def increasing(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the nearest values that nowhere decrease, by least squares.

    >>> increasing(np.array([1.0, 3.0, 2.0, 4.0]), np.ones(4))
    array([1. , 2.5, 2.5, 4. ])
    """
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        blocks.append((value, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (first, much, many), (second, more, others) = blocks[-2:]
            mean = (first * much + second * more) / (much + more)
            blocks[-2:] = [(mean, much + more, many + others)]
    return np.concatenate([np.full(many, value) for value, _, many in blocks])


def _middles(sizes: np.ndarray) -> np.ndarray:
    """Return about the size of values below each size, and beyond the last."""
    return np.append(sizes / ROOT, sizes[-1])
