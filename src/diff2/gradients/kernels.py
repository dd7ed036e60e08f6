r"""Compiled passes over tiles of 512 records, for a network with one hidden layer of softplus units.

A tile holds records as columns, (rows, 512), and stays in the cache of a core while a whole round goes over it, in
single precision; sums over tiles are in double. Parameters are one vector: weight (h, f) and bias of the
hidden layer, weight (o, h) and bias of the outputs. A pass gives h + o + h rows: errors ``g`` of the hidden layer,
errors ``e`` of the outputs, and hidden units ``a``. What is added up for a record is what its norm was computed from.

The compiler may use fused multiply-adds, which round less; it may not change the order of additions. The products with
a tile, and sums over its records, are in ``kernel_products.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .kernel_products import add_products, affine, compiled, touch

FEW_FEATURES = 64  # with more, a tile is larger than the cache next to the core
ZERO, ONE, TWO = np.float32(0), np.float32(1), np.float32(2)
LOWEST = np.float32(-87)  # below it the exponential is taken to be 1.6e-38
LOG2_E, ROUND = np.float32(1.4426950408889634), np.float32(12582912)  # adding 1.5 * 2^23 rounds to a whole number
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
ONE_BITS, MANTISSA = np.int32(0x3F800000), np.int32(23)
# (e^r - 1 - r) / r^2 on |r| <= log(2) / 2, and log((1 + s) / (1 - s)) / s in s^2 on 0 <= s <= 1/3.
E0, E1, E2, E3, E4, E5 = np.array(
    [5.0000001201e-1, 1.6666665459e-1, 4.1665795894e-2, 8.3334519073e-3, 1.3981999507e-3, 1.9875691500e-4], np.float32
)
L0, L1, L2, L3, L4 = np.array([2.0000000077, 0.66666321641, 0.40024595231, 0.27965157745, 0.28157778363], np.float32)


@compiled()
def _fill(line: Any, value: Any) -> None:
    for j in range(line.shape[0]):
        line[j] = value


@compiled()
def _copy(rows: Any, out: Any) -> None:
    for r in range(rows.shape[0]):
        row, target = rows[r], out[r]
        for j in range(row.shape[0]):
            target[j] = row[j]


@compiled()
def _scale(rows: Any, weights: Any, out: Any) -> None:
    for r in range(rows.shape[0]):
        row, target = rows[r], out[r]
        for j in range(weights.shape[0]):
            target[j] = row[j] * weights[j]


@compiled("contract")
def _exp(x: Any) -> Any:
    """e^x for x <= 0, to two units of rounding."""
    x = LOWEST if x < LOWEST else x
    shifted = x * LOG2_E + ROUND
    whole = shifted - ROUND
    r = (x - whole * LN2_HIGH) - whole * LN2_LOW
    p = ((((E5 * r + E4) * r + E3) * r + E2) * r + E1) * r + E0
    power = np.int32((np.float32(shifted).view(np.int32) << MANTISSA) + ONE_BITS).view(np.float32)
    return (p * (r * r) + r + ONE) * power


@compiled("contract")
def _softplus(z: Any, slope: Any) -> None:
    """Replace z by log(1 + e^z) = max(z, 0) + log(1 + t), t = e^-|z|, and write the derivative. One division."""
    for j in range(z.shape[0]):
        value = z[j]
        t = _exp(-abs(value))
        both = ONE / ((ONE + t) * (TWO + t))
        sigmoid = (TWO + t) * both  # of |z|
        s = t * (ONE + t) * both  # t / (2 + t)
        u = s * s
        p = (((L4 * u + L3) * u + L2) * u + L1) * u + L0
        slope[j] = t * sigmoid if value < ZERO else sigmoid
        z[j] = (ZERO if value < ZERO else value) + p * s


@compiled("contract")
def _softmax(e: Any, lines: Any) -> None:
    top, total = lines[0], lines[1]
    _copy(e[:1], lines[:1])
    _fill(total, ZERO)
    for o in range(e.shape[0]):
        row = e[o]
        for j in range(top.shape[0]):
            top[j] = row[j] if row[j] > top[j] else top[j]
    for o in range(e.shape[0]):
        row = e[o]
        for j in range(top.shape[0]):
            row[j] = _exp(row[j] - top[j])
            total[j] += row[j]
    for o in range(e.shape[0]):
        row = e[o]
        for j in range(top.shape[0]):
            row[j] /= total[j]


@compiled("contract")
def _run(params: Any, x: Any, y: Any, classes: bool, now: Any, slope: Any, lines: Any, outputs: Any) -> None:
    """Do one forward and one backward pass over a tile; ``y``: targets, or classes in one-hot form."""
    h, f, o = slope.shape[0], x.shape[0], y.shape[0]
    g, e, a = now[:h], now[h : h + o], now[h + o :]
    affine(params[: h * f].reshape(h, f), params[h * f : h * f + h], x, a)
    for r in range(h):
        _softplus(a[r], slope[r])
    head = params[h * f + h : h * f + h + o * h].reshape(o, h)
    affine(head, params[h * f + h + o * h :], a, e)
    if outputs.shape[0]:
        _copy(e, outputs)
    if classes:
        _softmax(e, lines)
    scale = ONE if classes else TWO
    for r in range(o):
        error, target = e[r], y[r]
        for j in range(error.shape[0]):
            error[j] = scale * (error[j] - target[j])
    for r in range(h):
        back, factor = g[r], slope[r]
        _fill(back, ZERO)
        for k in range(o):
            w, error = head[k, r], e[k]
            for j in range(back.shape[0]):
                back[j] += w * error[j] * factor[j]


@compiled("contract")
def _squares(rows: Any, least: Any, out: Any) -> None:
    """Write the sum of the squares of the rows, increased by ``least``: what may have underflowed."""
    _fill(out, least)
    for r in range(rows.shape[0]):
        row = rows[r]
        for j in range(out.shape[0]):
            out[j] += row[j] * row[j]


@compiled("contract")
def _gradient_norm(now: Any, h: Any, o: Any, gain: Any, floor: Any, limits: Any, norm: Any, lines: Any) -> None:
    """Write the squared norms of the gradients, |g|^2 (|x|^2 + 1) + |e|^2 (|a|^2 + 1), never too small."""
    up, tiny = limits[0], limits[1]
    first, second, third = lines[0], lines[1], lines[2]
    _squares(now[:h], ZERO, first)
    _squares(now[h : h + o], tiny, second)
    _squares(now[h + o :], ONE + tiny, third)
    for j in range(norm.shape[0]):
        norm[j] = floor[j] + gain[j] * first[j] + up * second[j] * third[j]


@compiled()  # no fused operations: what has not changed has the difference zero
def _subtract(new: Any, old: Any, out: Any, square: Any) -> None:
    """Write the difference of two lines, add its square, and let the new line take the place of the old one."""
    for j in range(out.shape[0]):
        step = new[j] - old[j]
        old[j], out[j] = new[j], step
        square[j] += step * step


@compiled()
def _subtract_products(e: Any, new: Any, e_old: Any, old: Any, out: Any, square: Any) -> None:
    for j in range(out.shape[0]):
        step = e[j] * new[j] - e_old[j] * old[j]
        out[j] = step
        square[j] += step * step


@compiled("contract")
def _difference(now: Any, a: Any, before: Any, b: Any, d: Any, gain: Any, limits: Any, norm: Any, square: Any) -> None:
    """Write the differences of g, e and e (x) a, and add their squared norms in short chains; ``before`` is lost."""
    h, o, up = a.shape[0], now.shape[0] - a.shape[0], limits[0]
    for k in range(o):
        _fill(square, ZERO)
        for r in range(h):
            _subtract_products(now[h + k], a[r], before[h + k], b[r], d[h + o + k * h + r], square)
        _subtract(now[h + k], before[h + k], d[h + k], square)
        for j in range(norm.shape[0]):
            norm[j] += up * square[j]
    _copy(a, b)
    _fill(square, ZERO)
    for r in range(h):
        _subtract(now[r], before[r], d[r], square)
    for j in range(norm.shape[0]):
        norm[j] += gain[j] * square[j]


@compiled()
def _weigh(norm: Any, radius: Any, weights: Any, out: Any) -> bool:
    """Write min(1, radius / norm) times the weights, NaN where the norm is not finite; return whether all are."""
    finite = np.int32(0)
    for j in range(out.shape[0]):
        share = radius / np.sqrt(norm[j])
        out[j] = (ONE if share > ONE else share) * weights[j] + (norm[j] - norm[j])
        finite += np.int32(norm[j] - norm[j] == ZERO)
    return bool(finite == out.shape[0])


@compiled()
def _only_finite(norm: Any, rows: Any, out: Any) -> None:
    """Write the rows with the columns of records whose norm is not finite set to zero."""
    for r in range(rows.shape[0]):
        for j in range(norm.shape[0]):
            out[r, j] = rows[r, j] if norm[j] - norm[j] == ZERO else ZERO


@compiled(top=True)
def add_gradients(out: Any, at: Any, tiles: Any, options: Any, radius: Any, kept: Any, results: Any, work: Any) -> None:
    """Add the clipped sums of gradients, one row per tile. ``kept``: passes, to be read if ``known``, else written."""
    xs, ys, gains, floors, weights = tiles
    limits, classes, known = options
    f, o = xs.shape[1], ys.shape[1]
    h = (kept.shape[1] - o) // 2
    first, second = h * f, h * f + h + o * h
    lines, slope, scaled, rest = work[:6], work[6 : 6 + h], work[6 + h : 6 + 2 * h + o], work[6 + 2 * h + o :]
    lanes, norm, line, share = lines[0], lines[3], lines[4], lines[5]
    for tile in range(xs.shape[0]):
        total, x, now = out[tile], xs[tile], kept[tile if kept.shape[0] == xs.shape[0] else 0]
        a = now[h + o :]
        if f > FEW_FEATURES:
            touch(x)
        if not known:
            _run(at, x, ys[tile], classes, now, slope, lines, results[tile if results.shape[0] > 1 else 0])
        _gradient_norm(now, h, o, gains[tile], floors[tile], limits, norm, lines)
        if not _weigh(norm, radius, weights[tile], share):
            # A record without a finite gradient counts as zero; 0 * inf would not.
            _only_finite(norm, lines[5:6], lines[5:6])
            _only_finite(norm, x, rest[:f])
            _only_finite(norm, a, rest[f : f + h])
            _only_finite(norm, now[: h + o], scaled)
            x, a = rest[:f], rest[f : f + h]
            _scale(scaled, share, scaled)
        else:
            _scale(now[: h + o], share, scaled)
        _fill(line, ONE)
        add_products(scaled[:h], x, total[:first], lanes)
        add_products(scaled[:h], lines[4:5], total[first : first + h], lanes)
        add_products(scaled[h:], a, total[first + h : second], lanes)
        add_products(scaled[h:], lines[4:5], total[second:], lanes)


@compiled(top=True)
def add_differences(out: Any, points: Any, tiles: Any, options: Any, radius: Any, kept: Any, work: Any) -> None:
    """Add the clipped sums of differences from points[1] to points[0], one row per tile.

    ``kept``: the passes at points[1], to be read if ``known``; afterwards those at points[0].
    """
    xs, ys, gains, floors, weights = tiles
    limits, classes, known = options
    f, o = xs.shape[1], ys.shape[1]
    h = (kept.shape[1] - o) // 2
    first, second = h * f, h * f + h + o * h
    lines, slope, now, rest = work[:6], work[6 : 6 + h], work[6 + h : 6 + 3 * h + o], work[6 + 3 * h + o :]
    d, scaled = rest[: h + o + o * h], rest[h + o + o * h :]
    lanes, norm, line, share = lines[0], lines[3], lines[4], lines[5]
    for tile in range(xs.shape[0]):
        total, x, before = out[tile], xs[tile], kept[tile if kept.shape[0] == xs.shape[0] else 0]
        if f > FEW_FEATURES:
            touch(x)
        for point in range(0 if known else 1, -1, -1):
            _run(points[point], x, ys[tile], classes, before if point else now, slope, lines, work[:0])
        _copy(floors[tile : tile + 1], lines[3:4])
        _difference(now[: h + o], now[h + o :], before[: h + o], before[h + o :], d, gains[tile], limits, norm, line)
        if not _weigh(norm, radius, weights[tile], share):
            _only_finite(norm, lines[5:6], lines[5:6])
            _only_finite(norm, d, d)
            _only_finite(norm, x, scaled[h : h + f])
            x = scaled[h : h + f]
        _scale(d[:h], share, scaled[:h])
        add_products(scaled[:h], x, total[:first], lanes)
        add_products(d[:h], lines[5:6], total[first : first + h], lanes)
        add_products(d[h + o :], lines[5:6], total[first + h : second], lanes)
        add_products(d[h : h + o], lines[5:6], total[second:], lanes)
