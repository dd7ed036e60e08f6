r"""Compiled matrix products over a tile of 512 records, in the cache of a core.

A tile is (rows, 512), records as columns. Two products are all that a pass needs: of a small matrix with the rows of a
tile, and of the rows of two tiles over the records. Five rows are computed together, in the second product with two of
the other tile, so that what was loaded serves several times; the bits are those of one row at a time.

**Rounding.** A sum over the records of a tile is made in single precision: 64 chains of eight records, whose results
are added in pairs, six times. So its error is at most 15 units of rounding of the sum of the sizes of its terms, less
than ``sums.py`` allows a tile. The compiler may fuse multiplications with additions, which rounds less; it may not
change their order.

Indices are unsigned: the compiler then needs no code for negative ones, and computes many records at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .sums import BLOCK, BUNDLE, TILE

_U = np.uintp
_ROW, _ROWS2, _ROWS3, _ROWS4 = (_U(TILE * index) for index in range(1, 5))
_LINE = _U(16)  # a line of the cache holds 16 numbers
_1, _2, _3, _4, _5, _6, _7 = (_U(BLOCK * index) for index in range(1, BUNDLE))
_HALF, _QUARTER, _EIGHTH, _SIXTEENTH = (_U(BLOCK >> index) for index in range(1, 5))
_SUMS = tuple(_U(BLOCK // 2 * index) for index in range(1, 10))
_ONE, _TWO, _THREE, _TWELVE = _U(1), _U(2), _U(3), _U(12)


def compiled(*flags: str, top: bool = False) -> Any:
    """Return the decorator of a compiled function; with ``top``, the result is kept on disk where that is possible."""

    def decorate(function: Any) -> Any:
        options: dict[str, Any] = {"fastmath": set(flags), "error_model": "numpy", "nogil": True}
        try:
            return njit(cache=top, **options)(function)
        except RuntimeError:  # no directory for the cache can be written
            return njit(**options)(function)

    return decorate


@compiled()
def touch(tile: Any) -> Any:
    """Read a tile once from start to end: in that order memory is several times as fast as in that of a product."""
    numbers, total = tile.reshape(-1), np.float32(0)
    for index in range(_U(0), _U(numbers.shape[0]), _LINE):
        total = max(total, numbers[index])
    return total


@compiled("contract")
def affine(weight: Any, bias: Any, x: Any, out: Any) -> None:
    """out = weight x + bias."""
    rows, inputs = weight.shape
    five, four = rows - rows % 5, inputs - inputs % 4
    numbers, sums = x.reshape(-1), out.reshape(-1)
    for r in range(rows):
        start, value = _U(r) * _ROW, bias[r]
        for j in range(_ROW):
            sums[start + j] = value
    for f in range(0, four, 4):
        for r in range(0, five, 5):
            _add_four_to_five(sums, _U(r) * _ROW, numbers, _U(f) * _ROW, weight[r : r + 5, f : f + 4])
        for r in range(five, rows):
            _add_four(sums, _U(r) * _ROW, numbers, _U(f) * _ROW, weight[r, f : f + 4])
    for f in range(four, inputs):
        for r in range(rows):
            start, at, w = _U(r) * _ROW, _U(f) * _ROW, weight[r, f]
            for j in range(_ROW):
                sums[start + j] += w * numbers[at + j]


@compiled("contract")
def _add_four(z: Any, r: Any, x: Any, f: Any, w: Any) -> None:
    a, b, c, d = w[0], w[1], w[2], w[3]
    for j in range(_ROW):
        z[r + j] = z[r + j] + a * x[f + j] + b * x[f + _ROW + j] + c * x[f + _ROWS2 + j] + d * x[f + _ROWS3 + j]


@compiled("contract")
def _add_four_to_five(z: Any, r: Any, x: Any, f: Any, w: Any) -> None:
    a0, b0, c0, d0 = w[0, 0], w[0, 1], w[0, 2], w[0, 3]
    a1, b1, c1, d1 = w[1, 0], w[1, 1], w[1, 2], w[1, 3]
    a2, b2, c2, d2 = w[2, 0], w[2, 1], w[2, 2], w[2, 3]
    a3, b3, c3, d3 = w[3, 0], w[3, 1], w[3, 2], w[3, 3]
    a4, b4, c4, d4 = w[4, 0], w[4, 1], w[4, 2], w[4, 3]
    r1, r2, r3, r4 = r + _ROW, r + _ROWS2, r + _ROWS3, r + _ROWS4
    for j in range(_ROW):
        a, b, c, d = x[f + j], x[f + _ROW + j], x[f + _ROWS2 + j], x[f + _ROWS3 + j]
        z[r + j] = z[r + j] + a0 * a + b0 * b + c0 * c + d0 * d
        z[r1 + j] = z[r1 + j] + a1 * a + b1 * b + c1 * c + d1 * d
        z[r2 + j] = z[r2 + j] + a2 * a + b2 * b + c2 * c + d2 * d
        z[r3 + j] = z[r3 + j] + a3 * a + b3 * b + c3 * c + d3 * d
        z[r4 + j] = z[r4 + j] + a4 * a + b4 * b + c4 * c + d4 * d


@compiled()
def add_products(left: Any, right: Any, out: Any, lanes: Any) -> None:
    """out += left right^T, each number a sum over the records of the tile. ``lanes``: a row to compute in."""
    rows, columns = left.shape[0], right.shape[0]
    five, two = rows - rows % 5, columns - columns % 2
    s, x = left.reshape(-1), right.reshape(-1)
    for r in range(0, five, 5):
        for c in range(0, two, 2):
            _multiply_five_by_two(s, _U(r) * _ROW, x, _U(c) * _ROW, lanes)
            for k in range(5):
                out[(r + k) * columns + c] += _folded(lanes, _U(k) * _HALF)
                out[(r + k) * columns + c + 1] += _folded(lanes, _U(k + 5) * _HALF)
        for c in range(two, columns):
            _multiply_five(s, _U(r) * _ROW, x, _U(c) * _ROW, lanes)
            for k in range(5):
                out[(r + k) * columns + c] += _folded(lanes, _U(k) * _HALF)
    for r in range(five, rows):
        for c in range(columns):
            _multiply(s, _U(r) * _ROW, x, _U(c) * _ROW, lanes)
            out[r * columns + c] += _folded(lanes, _U(0))


@compiled("contract")
def _chain(s: Any, r: Any, x: Any, c: Any) -> Any:
    """Return a sum of products over every 64th record."""
    first = s[r] * x[c] + s[r + _1] * x[c + _1] + s[r + _2] * x[c + _2] + s[r + _3] * x[c + _3]
    return first + s[r + _4] * x[c + _4] + s[r + _5] * x[c + _5] + s[r + _6] * x[c + _6] + s[r + _7] * x[c + _7]


@compiled()
def _multiply(s: Any, r: Any, x: Any, c: Any, out: Any) -> None:
    """Write 32 sums, each of two of the 64 chains."""
    for j in range(_HALF):
        k = j + _HALF
        out[j] = _chain(s, r + j, x, c + j) + _chain(s, r + k, x, c + k)


@compiled()
def _multiply_five(s: Any, r0: Any, x: Any, c: Any, out: Any) -> None:
    r1, r2, r3, r4 = r0 + _ROW, r0 + _ROWS2, r0 + _ROWS3, r0 + _ROWS4
    for j in range(_HALF):
        a, k = c + j, j + _HALF
        p0, p1, p2 = _chain(s, r0 + j, x, a), _chain(s, r1 + j, x, a), _chain(s, r2 + j, x, a)
        p3, p4, a = _chain(s, r3 + j, x, a), _chain(s, r4 + j, x, a), c + k
        p0, p1, p2 = p0 + _chain(s, r0 + k, x, a), p1 + _chain(s, r1 + k, x, a), p2 + _chain(s, r2 + k, x, a)
        p3, p4 = p3 + _chain(s, r3 + k, x, a), p4 + _chain(s, r4 + k, x, a)
        out[j], out[_SUMS[0] + j], out[_SUMS[1] + j], out[_SUMS[2] + j], out[_SUMS[3] + j] = p0, p1, p2, p3, p4


@compiled()
def _multiply_five_by_two(s: Any, r0: Any, x: Any, c: Any, out: Any) -> None:
    """The same for two neighbouring rows of ``x``: what was loaded serves ten products. The order is for registers."""
    r1, r2, r3, r4, d = r0 + _ROW, r0 + _ROWS2, r0 + _ROWS3, r0 + _ROWS4, c + _ROW
    for j in range(_HALF):
        a, b, k = c + j, d + j, j + _HALF
        p0, q0 = _chain(s, r0 + j, x, a), _chain(s, r0 + j, x, b)
        p1, q1 = _chain(s, r1 + j, x, a), _chain(s, r1 + j, x, b)
        p2, q2 = _chain(s, r2 + j, x, a), _chain(s, r2 + j, x, b)
        p3, q3 = _chain(s, r3 + j, x, a), _chain(s, r3 + j, x, b)
        p4, q4 = _chain(s, r4 + j, x, a), _chain(s, r4 + j, x, b)
        a, b = c + k, d + k
        p0, q0 = p0 + _chain(s, r0 + k, x, a), q0 + _chain(s, r0 + k, x, b)
        p1, q1 = p1 + _chain(s, r1 + k, x, a), q1 + _chain(s, r1 + k, x, b)
        p2, q2 = p2 + _chain(s, r2 + k, x, a), q2 + _chain(s, r2 + k, x, b)
        p3, q3 = p3 + _chain(s, r3 + k, x, a), q3 + _chain(s, r3 + k, x, b)
        p4, q4 = p4 + _chain(s, r4 + k, x, a), q4 + _chain(s, r4 + k, x, b)
        out[j], out[_SUMS[0] + j], out[_SUMS[1] + j], out[_SUMS[2] + j], out[_SUMS[3] + j] = p0, p1, p2, p3, p4
        out[_SUMS[4] + j], out[_SUMS[5] + j], out[_SUMS[6] + j] = q0, q1, q2
        out[_SUMS[7] + j], out[_SUMS[8] + j] = q3, q4


@compiled()
def _folded(lanes: Any, at: Any) -> Any:
    """Return the sum of 32 numbers, added in pairs; they are overwritten."""
    for j in range(_QUARTER):
        lanes[at + j] += lanes[at + _QUARTER + j]
    for j in range(_SIXTEENTH):
        low, high = lanes[at + j] + lanes[at + _EIGHTH + j], lanes[at + _SIXTEENTH + j] + lanes[at + _TWELVE + j]
        lanes[at + j] = low + high
    return np.float64((lanes[at] + lanes[at + _TWO]) + (lanes[at + _ONE] + lanes[at + _THREE]))
