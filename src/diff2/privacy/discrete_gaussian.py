r"""Exact noise: the discrete Gaussian on the whole numbers, drawn with integer arithmetic alone.

Every release has noise of one distribution, :math:`P(k) \propto \exp(-k^2 / 2\sigma^2)` over all whole k, with
:math:`\sigma = 2^{32}` grid steps. What differs is the grid, and multiplying by a public number costs nothing. No float
takes part: nothing is rounded, no tail is cut, and a seed gives the same bytes on every machine.

**The ideal sampler.** Magnitudes are divided into blocks of width :math:`W = \sigma / 128`. Let
:math:`E(n) = C \exp(-n^2 / 2\sigma^2)`. Block b owns an interval of length :math:`w_b > E(bW)`; together with one
last interval, for all that lies beyond :math:`8 \sigma`, they make up :math:`[0, 2^{38})`.

1. A uniform real U of :math:`[0, 2^{38})` falls into the interval of a block b, d + f above its lower end; d is whole
   and f in [0, 1).
2. A fair sign and a uniform whole o of [0, W) propose :math:`k = bW + o`, or :math:`k = -1 - (bW + o)`.
3. k is taken if :math:`d + f < E(|k|)`; otherwise all starts again.

Since :math:`E(|k|) \le E(bW) < w_b`, an attempt ends in k with probability :math:`E(|k|) / (2 W \, 2^{38})`, for every
whole k: which is the claim. A U of the last interval (one in 500 million) gets a block beyond the others, with
:math:`P(b) = 2^{-g-1} W / \sigma` where g is the number of whole deviations between them, and its k is taken if
:math:`d + f < E(|k|) / P(b)`: the same probability again. An attempt succeeds with probability 0.997.

**The same with a word of 64 bits**: the sign, 25 bits of o, 38 of U. Bits of f are drawn where they matter.

* The first 16 bits of U are a *slot*. As many slots as fit below :math:`E((b + 1) W)` belong to block b: in them every
  k is taken, so one look into a table is all. That is 99 % of the words. What a block owns is thus in two pieces, its
  slots and a rest elsewhere; d counts through both.
* For the others E is compared through a chord of the block, which is within :math:`C W^2 / 8 \sigma^2` of it because
  :math:`|(e^{-x^2/2})''| \le 1`.
* Where that does not decide (one word in 19,000), and in the last interval, E is bounded from both sides to ever higher
  precision, with ever more bits of f, until it does.

The bits are those of :class:`NoiseSource`, functions of key and label. A shorter draw is the beginning of a longer one.
"""

from bisect import bisect_right
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from .._validate import at_least
from .discrete import SCALE_BITS
from .noise import NoiseSource

_CHUNK = 2**16  # values worked on together: they stay in the processor's cache
_FEW = 8  # comparisons that are faster one by one than as arrays
_WORD = 64  # bits


def discrete_gaussian(source: NoiseSource, count: int, *label: object) -> np.ndarray:
    r"""Return ``count`` independent whole numbers, :math:`P(k) \propto \exp(-k^2 / 2^{65})`, as int64.

    Formal guarantee: exactly that distribution, if the bits of ``source`` are fair coins.

    >>> discrete_gaussian(NoiseSource.from_seed(1), 3, "round", 1)
    array([5580904873,  570271174, 1336083884])
    """
    at_least("count", count, 0)
    return _standard().draw(source, count, *label) if count else np.empty(0, dtype=np.int64)


class _Edges(NamedTuple):
    """Of the blocks and the last interval, in arrays or in lists: what is needed where a slot does not decide."""

    starts: Any  # of what they own of the slots that do not
    origins: Any  # these less what they own of those that do: d is counted from there
    edges: Any  # E(bW), rounded down
    drops: Any  # to the next edge

    def block_of(self, mass: Any) -> Any:
        """Return the last that starts at ``mass`` or before."""
        if isinstance(self.starts, list):
            return bisect_right(self.starts, mass) - 1
        return np.searchsorted(self.starts, mass, side="right") - 1


class _Proposal(NamedTuple):
    """One, or an array of each."""

    signed: Any  # o, or -1 - o
    block: Any
    offset: Any  # |k| - bW
    above: Any  # d
    excess: Any  # d less the chord


class BlockSampler:
    """The sampler of this file for any scale, so that a small one can be counted out.

    Args:
        scale_bits: sigma is two to this power.
        block_bits: likewise W.
        blocks: how many there are before the last interval: at least sigma / W, so that E / P(b) falls beyond.
        mass_bits: of the whole part of U.
        slot_bits: of a slot, the first bits of U.
    """

    def __init__(self, scale_bits: int, block_bits: int, blocks: int, mass_bits: int, slot_bits: int):
        self.scale_bits, self.block_bits, self.blocks = scale_bits, block_bits, blocks
        self.slot_bits, self.rest_bits = slot_bits, mass_bits - slot_bits
        self.spread_bits = scale_bits - block_bits  # of sigma / W
        precision = mass_bits + _WORD
        bounds = [exp_bounds(b**2, 2 * self.spread_bits + 1, precision) for b in range(blocks + 1)]
        # The last interval has room for E / P(b), which is largest where it begins: 2 E sigma / W.
        total = sum(high for _, high in bounds[:-1]) + (bounds[-1][1] << (self.spread_bits + 1))
        self.height = ((2**mass_bits - 2 * blocks - 1) << precision) // total  # C
        edges = [self.height * low >> precision for low, _ in bounds]  # E(bW) is less than 2 above
        whole = [edge >> self.rest_bits for edge in edges[1:]]  # slots that fit below E((b + 1) W)
        masses = [edge + 2 for edge in edges[:-1]]  # w_b
        rests = [mass - (slots << self.rest_bits) for mass, slots in zip(masses, whole, strict=True)]
        self.decided = sum(whole)
        self.table = np.zeros(2**slot_bits, dtype=np.int16)  # the block of a slot, for those that are decided
        self.table[: self.decided] = np.repeat(np.arange(blocks), whole)
        starts = [0, *accumulate(rests)]  # of what each block, and then the last interval, owns of the other slots
        origins = [start - (slots << self.rest_bits) for start, slots in zip(starts, [*whole, 0], strict=True)]
        drops = [edge - after for edge, after in zip(edges, [*edges[1:], edges[-1]], strict=True)]
        self.lists = _Edges(starts, origins, edges, drops)
        self.arrays = _Edges(*(np.array(column, dtype=np.int64) for column in self.lists))
        # The chord of these edges, rounded up, is less than 2 below the chord of E and less than 1 above it. So if
        # that is within I of E: d + 1 <= E where d <= chord - I - 2, and d >= E where d >= chord + I + 2.
        self.slack = -(-self.height // 2 ** (2 * self.spread_bits + 3)) + 2

    def draw(self, source: NoiseSource, count: int, *label: object) -> np.ndarray:
        """Return ``count`` draws. What is rejected is drawn again, each time from a stream of its own."""
        attempt, (steps, rejected) = 0, self._attempt(source, count, *label, "attempt", 0)
        places = np.array(rejected, dtype=np.intp)
        while places.size:
            attempt += 1
            steps[places], rejected = self._attempt(source, places.size, *label, "attempt", attempt)
            places = places[rejected]
        return steps

    def _attempt(self, source: NoiseSource, count: int, *stream: object) -> tuple[np.ndarray, list[int]]:
        words = np.frombuffer(source.bytes(_WORD // 8 * count, *stream), dtype="<i8")
        return self.decide(words, source, *stream)

    def decide(self, words: np.ndarray, source: NoiseSource, *stream: object) -> tuple[np.ndarray, list[int]]:
        """Return what each word proposes, and the places of those that are rejected.

        A word is, from its top: the sign and offset as a signed number, o or -1 - o; the rest of U; the slot.
        """
        if words.size <= _CHUNK:
            steps, places = self._looked_up(words)
        else:
            parts = [self._looked_up(words[start : start + _CHUNK]) for start in range(0, words.size, _CHUNK)]
            steps = np.concatenate([part for part, _ in parts])
            places = np.concatenate([others + i * _CHUNK for i, (_, others) in enumerate(parts)])
        if places.size <= _FEW:
            near, rejected = places.tolist(), []
            proposals = [self._compared(int(words[place]), self.lists) for place in near]
        else:
            seen = self._compared(words[places], self.arrays)
            steps[places] = seen.signed ^ (seen.block << self.block_bits)
            is_near = (np.abs(seen.excess) < self.slack) | (seen.block == self.blocks)
            near, rejected = places[is_near].tolist(), places[(seen.excess >= 0) & ~is_near].tolist()
            proposals = list(map(_Proposal, *(column[is_near].tolist() for column in seen)))
        for place, proposal in zip(near, proposals, strict=True):
            steps[place], taken = self._settled(proposal, source, *stream, "exactly", place)
            if not taken:
                rejected.append(place)
        return steps, sorted(rejected)

    def _looked_up(self, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what the slots propose, and the places of those that do not decide."""
        slots = words & (2**self.slot_bits - 1)
        steps = self.table.take(slots).astype(np.int64)
        steps <<= self.block_bits
        steps ^= words >> (_WORD - 1 - self.block_bits)  # bW + o, or -1 - (bW + o)
        return steps, np.flatnonzero(slots >= self.decided)

    def _compared(self, word: Any, edges: _Edges) -> _Proposal:
        """Compare words whose slot does not decide: an array of them with arrays, a single one with lists."""
        signed = word >> (_WORD - 1 - self.block_bits)
        offset = abs(signed)
        slot, rest = word & (2**self.slot_bits - 1), word >> self.slot_bits & (2**self.rest_bits - 1)
        mass = (slot - self.decided << self.rest_bits) + rest
        block = edges.block_of(mass)
        above = mass - edges.origins[block]
        chord_below = edges.drops[block] * offset >> self.block_bits
        return _Proposal(signed, block, offset, above, above - edges.edges[block] + chord_below)

    def _settled(self, proposal: _Proposal, source: NoiseSource, *place: object) -> tuple[int, bool]:
        """Return what is proposed, and whether it is taken."""
        signed, block, offset, above, excess = proposal
        if block < self.blocks and abs(excess) >= self.slack:
            return signed ^ (block << self.block_bits), excess < 0
        doublings = 0
        if block == self.blocks:
            block, doublings = self._far_block(source, *place)
        magnitude = (block << self.block_bits) + offset
        return signed ^ (block << self.block_bits), self._takes(above, magnitude, doublings, source, *place)

    def _far_block(self, source: NoiseSource, *place: object) -> tuple[int, int]:
        """Return a block beyond the others, and the logarithm of 1 / P(b) to the base two."""
        size = 8
        while not (bits := int.from_bytes(source.bytes(size, *place, "deviations"), "big")):
            size *= 2
        further = 8 * size - bits.bit_length()  # g: fair coins until the first head
        within = source.bytes(_WORD // 8, *place, "block")
        block = self.blocks + (further << self.spread_bits)
        return block + (int.from_bytes(within, "big") & (2**self.spread_bits - 1)), further + 1 + self.spread_bits

    def _takes(self, above: int, magnitude: int, doublings: int, source: NoiseSource, *place: object) -> bool:
        """Return whether d + f < 2^doublings E(magnitude), exactly; f is the number 0.f1f2f3... of fair bits."""
        precision = _WORD
        while True:
            low, high = exp_bounds(magnitude**2, 2 * self.scale_bits + 1, precision)
            fraction = int.from_bytes(source.bytes(precision // 8, *place, "fraction"), "big")
            position = (above << precision) + fraction
            if position + 1 <= self.height * low << doublings:
                return True
            if position >= self.height * high << doublings:
                return False
            precision *= 2


@cache
def _standard() -> BlockSampler:
    return BlockSampler(SCALE_BITS, block_bits=25, blocks=1024, mass_bits=38, slot_bits=16)


def exp_bounds(numerator: int, shift: int, precision: int) -> tuple[int, int]:
    r"""Return whole numbers around :math:`2^{precision} e^{-q}`, :math:`q = numerator / 2^{shift} \ge 0`.

    With y = q / 2^halvings < 1/2, the series of e^y is summed in whole numbers of 2^-work, rounding down. Each term is
    less than 2 too small then, those left out less than 4, and rounding y makes less than 2. Squares and quotients
    are rounded outward.

    >>> exp_bounds(1, 0, 20)  # around 385749.55
    (385749, 385750)
    """
    if numerator == 0:
        return 1 << precision, 1 << precision
    halvings = max(0, numerator.bit_length() - shift + 1)
    work = precision + halvings + 4
    y = (numerator << work) >> (shift + halvings)
    low, terms, term = 0, 0, 1 << work
    while term:
        low, terms = low + term, terms + 1
        term = (term * y >> work) // terms
    high = low + 2 * terms + 6
    for _ in range(halvings):
        low, high = low * low >> work, (high * high >> work) + 1
    one = 1 << (work + precision)
    return one // high, one // low + 1
