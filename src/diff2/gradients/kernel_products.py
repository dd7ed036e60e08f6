r"""Compiled matrix products over a tile of 512 records, in the cache of a core.

A tile is (rows, 512), records as columns. Two products are all that a pass needs: of a small matrix with the rows of a
tile, and of the rows of two tiles over the records. Five rows are computed together, so that what was loaded serves
five times; the bits are those of one row at a time.

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
_LANES, _LINE = _U(BLOCK), _U(16)  # a line of the cache holds 16 numbers
_1, _2, _3, _4, _5, _6, _7 = (_U(BLOCK * index) for index in range(1, BUNDLE))
_HALF, _QUARTER, _EIGHTH, _SIXTEENTH = (_U(BLOCK >> index) for index in range(1, 5))
_ONE, _TWO, _THREE = _U(1), _U(2), _U(3)


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
    five = rows - rows % 5
    s, x = left.reshape(-1), right.reshape(-1)
    for c in range(columns):
        for r in range(0, five, 5):
            _multiply_five(s, _U(r) * _ROW, x, _U(c) * _ROW, lanes)
            for k in range(5):
                out[(r + k) * columns + c] += _folded(lanes, _U(k) * _LANES)
        for r in range(five, rows):
            _multiply(s, _U(r) * _ROW, x, _U(c) * _ROW, lanes)
            out[r * columns + c] += _folded(lanes, _U(0))


@compiled("contract")
def _multiply(s: Any, r: Any, x: Any, c: Any, out: Any) -> None:
    """Write 64 sums of products, each over every 64th record."""
    for j in range(_LANES):
        at, a = r + j, c + j
        first = s[at] * x[a] + s[at + _1] * x[a + _1] + s[at + _2] * x[a + _2] + s[at + _3] * x[a + _3]
        out[j] = (
            first + s[at + _4] * x[a + _4] + s[at + _5] * x[a + _5] + s[at + _6] * x[a + _6] + s[at + _7] * x[a + _7]
        )


@compiled("contract")
def _multiply_five(s: Any, r0: Any, x: Any, c: Any, out: Any) -> None:
    r1, r2, r3, r4 = r0 + _ROW, r0 + _ROWS2, r0 + _ROWS3, r0 + _ROWS4
    for j in range(_LANES):
        at, bt, ct, dt, et, a = r0 + j, r1 + j, r2 + j, r3 + j, r4 + j, c + j
        p, q, t, u = x[a], x[a + _1], x[a + _2], x[a + _3]
        v, w, y, z = x[a + _4], x[a + _5], x[a + _6], x[a + _7]
        first = s[at] * p + s[at + _1] * q + s[at + _2] * t + s[at + _3] * u
        out[j] = first + s[at + _4] * v + s[at + _5] * w + s[at + _6] * y + s[at + _7] * z
        first = s[bt] * p + s[bt + _1] * q + s[bt + _2] * t + s[bt + _3] * u
        out[_1 + j] = first + s[bt + _4] * v + s[bt + _5] * w + s[bt + _6] * y + s[bt + _7] * z
        first = s[ct] * p + s[ct + _1] * q + s[ct + _2] * t + s[ct + _3] * u
        out[_2 + j] = first + s[ct + _4] * v + s[ct + _5] * w + s[ct + _6] * y + s[ct + _7] * z
        first = s[dt] * p + s[dt + _1] * q + s[dt + _2] * t + s[dt + _3] * u
        out[_3 + j] = first + s[dt + _4] * v + s[dt + _5] * w + s[dt + _6] * y + s[dt + _7] * z
        first = s[et] * p + s[et + _1] * q + s[et + _2] * t + s[et + _3] * u
        out[_4 + j] = first + s[et + _4] * v + s[et + _5] * w + s[et + _6] * y + s[et + _7] * z


@compiled()
def _folded(lanes: Any, at: Any) -> Any:
    """Return the sum of 64 numbers, added in pairs; they are overwritten."""
    for j in range(_HALF):
        lanes[at + j] += lanes[at + _HALF + j]
    for j in range(_QUARTER):
        lanes[at + j] += lanes[at + _QUARTER + j]
    for j in range(_EIGHTH):
        lanes[at + j] += lanes[at + _EIGHTH + j]
    for j in range(_SIXTEENTH):
        lanes[at + j] += lanes[at + _SIXTEENTH + j]
    return np.float64((lanes[at] + lanes[at + _TWO]) + (lanes[at + _ONE] + lanes[at + _THREE]))
