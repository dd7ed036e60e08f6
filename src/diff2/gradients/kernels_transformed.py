r"""Compiled passes for transformed gradients of a network with one hidden layer of softplus units.

A pass is that of ``kernels.py``, and its rows are multiplied by the factors of ``transform.py``: errors of the hidden
layer and of the outputs, hidden units with a row of ones. The records, with a row of ones, are transformed once, when
they are cut into tiles. What is added up for a record are products of these rows, from which its norm was computed.
"""

from __future__ import annotations

from typing import Any

from .kernel_products import add_products, affine, compiled
from .kernels import (
    ZERO,
    _copy,
    _fill,
    _only_finite,
    _run,
    _scale,
    _squares,
    _subtract,
    _subtract_products,
    _weigh,
)


@compiled()
def _transform(now: Any, factors: Any, out: Any, h: Any, o: Any) -> None:
    """Write h + o + (h + 1) transformed rows: errors ``g`` and ``e``, and hidden units."""
    of_g, of_e, of_a, zeros = factors
    affine(of_g, zeros, now[:h], out[:h])
    affine(of_e, zeros, now[h : h + o], out[h : h + o])
    affine(of_a[:, :h], of_a[:, h], now[h + o :], out[h + o :])


@compiled("contract")
def _norm(now: Any, h: Any, o: Any, gain: Any, floor: Any, limits: Any, norm: Any, lines: Any) -> None:
    """Write the squared norms of the gradients, |g|^2 |x|^2 + |e|^2 |a|^2, never too small."""
    up, tiny = limits[0], limits[1]
    first, second, third = lines[0], lines[1], lines[2]
    _squares(now[:h], ZERO, first)
    _squares(now[h : h + o], tiny, second)
    _squares(now[h + o :], tiny, third)
    for j in range(norm.shape[0]):
        norm[j] = floor[j] + gain[j] * first[j] + up * second[j] * third[j]


@compiled("contract")
def _difference(now: Any, before: Any, h: Any, o: Any, d: Any, gain: Any, limits: Any, norm: Any, square: Any) -> None:
    """Write the differences of g and of e (x) a, and add their squared norms; ``before`` becomes ``now``."""
    units, up = h + 1, limits[0]
    for k in range(o):
        _fill(square, ZERO)
        for r in range(units):
            line = d[h + k * units + r]
            _subtract_products(now[h + k], now[h + o + r], before[h + k], before[h + o + r], line, square)
        for j in range(norm.shape[0]):
            norm[j] += up * square[j]
    _copy(now[h:], before[h:])
    _fill(square, ZERO)
    for r in range(h):
        _subtract(now[r], before[r], d[r], square)
    for j in range(norm.shape[0]):
        norm[j] += gain[j] * square[j]


@compiled(top=True)
def add_gradients(
    out: Any, at: Any, tiles: Any, moved: Any, factors: Any, options: Any, radius: Any, kept: Any, work: Any
) -> None:
    """Add the clipped sums of transformed gradients; ``kept``: transformed passes, read if ``known``, else written."""
    xs, ys, gains, floors, weights = tiles
    limits, classes, known = options
    f, o = xs.shape[1], ys.shape[1]
    h = (kept.shape[1] - o - 1) // 2
    lines, slope, raw, rest = work[:6], work[6 : 6 + h], work[6 + h : 6 + 3 * h + o], work[6 + 3 * h + o :]
    scaled, spare = rest[: h + o], rest[h + o :]
    lanes, norm, share, first = lines[0], lines[3], lines[5], h * (f + 1)
    for tile in range(xs.shape[0]):
        total, x, now = out[tile], moved[tile], kept[tile if kept.shape[0] == xs.shape[0] else 0]
        a = now[h + o :]
        if not known:
            _run(at, xs[tile], ys[tile], classes, raw, slope, lines, work[:0])
            _transform(raw, factors, now, h, o)
        _norm(now, h, o, gains[tile], floors[tile], limits, norm, lines)
        if not _weigh(norm, radius, weights[tile], share):
            # A record without a finite gradient counts as zero; 0 * inf would not.
            _only_finite(norm, lines[5:6], lines[5:6])
            _only_finite(norm, x, spare[: f + 1])
            _only_finite(norm, a, spare[f + 1 : f + h + 2])
            _only_finite(norm, now[: h + o], scaled)
            x, a = spare[: f + 1], spare[f + 1 : f + h + 2]
            _scale(scaled, share, scaled)
        else:
            _scale(now[: h + o], share, scaled)
        add_products(scaled[:h], x, total[:first], lanes)
        add_products(scaled[h:], a, total[first:], lanes)


@compiled(top=True)
def add_differences(
    out: Any, points: Any, tiles: Any, moved: Any, factors: Any, options: Any, radius: Any, kept: Any, work: Any
) -> None:
    """Add the clipped sums of transformed differences from points[1] to points[0]; ``kept`` as in ``kernels.py``."""
    xs, ys, gains, floors, weights = tiles
    limits, classes, known = options
    f, o = xs.shape[1], ys.shape[1]
    h = (kept.shape[1] - o - 1) // 2
    rows = 2 * h + o
    lines, slope, raw, rest = work[:6], work[6 : 6 + h], work[6 + h : 6 + h + rows], work[6 + h + rows :]
    now, d, spare = rest[: rows + 1], rest[rows + 1 : rows + 1 + h + o * (h + 1)], rest[rows + 1 + h + o * (h + 1) :]
    lanes, norm, line, share, first = lines[0], lines[3], lines[4], lines[5], h * (f + 1)
    for tile in range(xs.shape[0]):
        total, x, before = out[tile], moved[tile], kept[tile if kept.shape[0] == xs.shape[0] else 0]
        for point in range(0 if known else 1, -1, -1):
            _run(points[point], xs[tile], ys[tile], classes, raw, slope, lines, work[:0])
            _transform(raw, factors, before if point else now, h, o)
        _copy(floors[tile : tile + 1], lines[3:4])
        _difference(now, before, h, o, d, gains[tile], limits, norm, line)
        if not _weigh(norm, radius, weights[tile], share):
            _only_finite(norm, lines[5:6], lines[5:6])
            _only_finite(norm, d, d)
            _only_finite(norm, x, spare[h : h + f + 1])
            x = spare[h : h + f + 1]
        _scale(d[:h], share, spare[:h])
        add_products(spare[:h], x, total[:first], lanes)
        add_products(d[h:], lines[5:6], total[first:], lanes)
