"""Exact noise: probabilities counted out, shortcuts that change nothing, and no lattice to tell releases by."""

import hashlib
import itertools
import math
from bisect import bisect_right
from collections import Counter
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from diff2.errors import InvalidArgument
from diff2.privacy import NoiseSource
from diff2.privacy import discrete_gaussian as module
from diff2.privacy.discrete import SCALE
from diff2.privacy.discrete_gaussian import BlockSampler, discrete_gaussian, exp_bounds

SOURCE = NoiseSource.from_seed(20230717)
COUNT = 200_000
# sigma 8: blocks of 2 up to 2 sigma; of 1 up to 3 sigma; of 4, all of which a chord may get wrong
SMALL = {
    "blocks of 2": BlockSampler(scale_bits=3, block_bits=1, blocks=8, mass_bits=12, slot_bits=6),
    "blocks of 1": BlockSampler(scale_bits=3, block_bits=0, blocks=24, mass_bits=11, slot_bits=7),
    "blocks of 4": BlockSampler(scale_bits=3, block_bits=2, blocks=5, mass_bits=10, slot_bits=4),
}
STANDARD = module._standard()


@pytest.fixture(params=SMALL)
def small(request):
    return SMALL[request.param]


def exact_exp(exponent_numerator, exponent_denominator):
    """Return exp(-numerator / denominator) to 120 digits, by another library."""
    with localcontext() as context:
        context.prec = 120
        return (-Decimal(exponent_numerator) / Decimal(exponent_denominator)).exp()


def height(sampler, magnitude):
    """Return E(magnitude)."""
    with localcontext() as context:
        context.prec = 120
        return sampler.height * exact_exp(magnitude**2, 2 * 4**sampler.scale_bits)


class Fixed:
    """A source whose answers depend on the last part of the label alone."""

    def __init__(self, fraction=0, deviations=1 << 63, block=0):
        """Take ``fraction`` of [0, 1), and 64 bits each of the others."""
        self.answers = {"deviations": deviations, "block": block}
        self.fraction = fraction

    def bytes(self, count, *label):
        if label[-1] == "fraction":
            return int(self.fraction * 2 ** (8 * count)).to_bytes(count, "big")
        return self.answers[label[-1]].to_bytes(8, "big")[:count]


ONES = 1 - Fraction(1, 2**3000)  # nearer to one than bits are ever asked for


def all_words(sampler):
    """Return every word there is, without the bits in the middle that a small sampler does not use."""
    high = np.arange(2 ** (1 + sampler.block_bits), dtype=np.int64) << (63 - sampler.block_bits)
    low = np.arange(2 ** (sampler.slot_bits + sampler.rest_bits), dtype=np.int64)
    return (high[:, None] | low).ravel()


def taken(sampler, words, fraction, **bits):
    """Return how many words lead to each value."""
    steps, rejected = sampler.decide(words, Fixed(fraction, **bits), "label")
    return Counter(np.delete(steps, rejected).tolist())


def is_far(sampler, words):
    mass = ((words & (2**sampler.slot_bits - 1)) - sampler.decided << sampler.rest_bits) + (
        words >> sampler.slot_bits & (2**sampler.rest_bits - 1)
    )
    return mass >= sampler.lists.starts[-1]


@settings(deadline=None)
@given(st.integers(0, 2**75), st.integers(65, 75), st.sampled_from([64, 128, 256]))
def test_bounds_of_exp_hold_and_are_tight(numerator, shift, precision):
    low, high = exp_bounds(numerator, shift, precision)
    with localcontext() as context:
        context.prec = 120
        true = exact_exp(numerator, 2**shift) * 2**precision
        assert low <= true <= high
    assert high - low <= 16


def test_every_value_has_its_probability_counted_out(small):
    """With f = 0 a value is taken for ceil(E) of all words, with f -> 1 for floor(E); so with a fair f, for E."""
    words = all_words(small)
    near = words[~is_far(small, words)]
    least, most = taken(small, near, ONES), taken(small, near, 0)
    end = small.blocks << small.block_bits
    for k in range(-end, end):
        share = height(small, abs(k))
        assert (least[k], most[k]) == (math.floor(share), math.ceil(share)), k
    assert sum(most.values()) == sum(most[k] for k in range(-end, end))


@pytest.mark.parametrize("deviations", [0, 1, 2])
def test_values_beyond_the_blocks_have_their_probabilities_too(small, deviations):
    words = all_words(small)
    far = words[is_far(small, words)]
    end, spread = small.blocks << small.block_bits, small.spread_bits
    for block in range(2**spread):
        bits = {"deviations": 1 << (63 - deviations), "block": block}
        least, most = taken(small, far, ONES, **bits), taken(small, far, 0, **bits)
        start = end + (deviations << small.scale_bits) + (block << small.block_bits)
        for k in range(start, start + 2**small.block_bits):
            for value in (k, -1 - k):
                share = height(small, abs(value)) * 2 ** (deviations + 1 + spread)  # E / P(b)
                assert (least[value], most[value]) == (math.floor(share), math.ceil(share)), value
        assert len(most) <= 2 * 2**small.block_bits


def test_far_blocks_have_their_probabilities():
    sampler = SMALL["blocks of 2"]
    draws = Counter(sampler._far_block(SOURCE, "far", i) for i in range(20_000))
    expected = {}
    for deviations, within in itertools.product(range(8), range(4)):
        expected[8 + 4 * deviations + within, deviations + 3] = 20_000 * 2.0 ** -(deviations + 3)
    seen = [draws[key] for key in expected]
    pvalue = scipy.stats.chisquare([*seen, 20_000 - sum(seen)], [*expected.values(), 20_000 * 2.0**-8]).pvalue
    assert pvalue > 0.001


@pytest.mark.parametrize("sampler", [*SMALL.values(), STANDARD])
def test_all_of_the_interval_is_owned_once(sampler):
    """Whole slots and what is left of them make up w_b for each block, and all of it is 2^mass_bits."""
    lists, slot = sampler.lists, 2**sampler.rest_bits
    slots = np.bincount(sampler.table[: sampler.decided], minlength=sampler.blocks).tolist()
    assert sum(slots) == sampler.decided
    last = (2**sampler.slot_bits - sampler.decided) * slot - lists.starts[-1]
    masses = [slots[b] * slot + lists.starts[b + 1] - lists.starts[b] for b in range(sampler.blocks)]
    assert sum(masses) + last == 2 ** (sampler.slot_bits + sampler.rest_bits)
    for b in range(sampler.blocks):
        assert masses[b] > height(sampler, b << sampler.block_bits)
        assert slots[b] * slot <= height(sampler, b + 1 << sampler.block_bits)
        assert lists.starts[b] - lists.origins[b] == slots[b] * slot
    assert last >= height(sampler, sampler.blocks << sampler.block_bits) * 2 ** (sampler.spread_bits + 1)


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("magnitude", [1, 7, 12])
def test_the_fraction_is_compared_exactly(magnitude, side):
    """200 bits of f agree with those of E; the next ones decide."""
    sampler = SMALL["blocks of 2"]
    with localcontext() as context:
        context.prec = 1000
        share = sampler.height * (-Decimal(magnitude**2) / 128).exp()
        fraction = Fraction(share - int(share)) + side * Fraction(1, 2**200)
    assert sampler._takes(int(share), magnitude, 0, Fixed(fraction), "place") == (side < 0)


class Reference:
    """The sampler by its definition: whole numbers and 120 digits, one word after the other."""

    def __init__(self, sampler):
        self.sampler = sampler
        edges = [math.floor(height(sampler, b << sampler.block_bits)) for b in range(sampler.blocks + 1)]
        slot = 2**sampler.rest_bits
        whole = [edge // slot * slot for edge in edges[1:]]
        self.pieces = [(b, 0, length) for b, length in enumerate(whole)]  # block, lowest d, length
        self.pieces += [(b, whole[b], edges[b] + 2 - whole[b]) for b in range(sampler.blocks)]
        self.ends = list(itertools.accumulate(length for _, _, length in self.pieces))

    def decide(self, word, source, *place):
        """Return the value, or None where it is rejected."""
        sampler = self.sampler
        bits = word % 2**64
        slot, rest = bits % 2**sampler.slot_bits, (bits >> sampler.slot_bits) % 2**sampler.rest_bits
        mass = slot * 2**sampler.rest_bits + rest
        offset = (bits >> (63 - sampler.block_bits)) % 2**sampler.block_bits
        piece = bisect_right(self.ends, mass)  # none of these words lies beyond the blocks
        block, lowest, length = self.pieces[piece]
        whole_part = lowest + mass - (self.ends[piece] - length)
        magnitude = block * 2**sampler.block_bits + offset
        value = magnitude
        if bits >> 63:  # -1 - o in two's complement has the bits of o inverted
            value = -1 - (block * 2**sampler.block_bits + 2**sampler.block_bits - 1 - offset)
        fraction = Decimal(int.from_bytes(source.bytes(40, *place, "fraction"), "big"))
        with localcontext() as context:
            context.prec = 120
            position = whole_part + fraction / Decimal(2) ** 320
            share = height(sampler, abs(value))
            assert abs(position - share) > Decimal(2) ** -300
            return value if position < share else None


REFERENCE = Reference(STANDARD)


def near_words(count=300):
    """Return words whose d is E rounded down, or one or two off: f decides for one in three or so."""
    generator, words = np.random.default_rng(1), []
    while len(words) < count:
        block, signed = int(generator.integers(0, 900)), int(generator.integers(-(2**25), 2**25))
        share = math.floor(height(STANDARD, (block << 25) + abs(signed)))
        mass = share + int(generator.integers(-1, 2)) + STANDARD.lists.origins[block]
        if STANDARD.lists.starts[block] <= mass < STANDARD.lists.starts[block + 1]:
            slot, rest = STANDARD.decided + (mass >> 22), mass % 2**22
            words.append(signed << 38 | rest << 16 | slot)
    return np.array(words, dtype=np.int64)


def any_words():
    return np.frombuffer(SOURCE.bytes(8 * 3_000, "words"), dtype="<i8")


def undecided_words():
    """Return words that the table does not decide."""
    words = np.frombuffer(SOURCE.bytes(8 * 3_000, "undecided"), dtype="<i8") >> 16 << 16
    return words | np.arange(words.size) % (2**16 - STANDARD.decided) + STANDARD.decided


WORDS = {"any": any_words(), "undecided": undecided_words(), "near": near_words()}


@pytest.mark.parametrize("kind", WORDS)
def test_shortcuts_change_nothing(kind):
    """The table, and chords in arrays, lead where the definition leads with the same bits."""
    words = WORDS[kind]
    steps, rejected = STANDARD.decide(words, SOURCE, "here")
    expected = [REFERENCE.decide(word, SOURCE, "here", "exactly", i) for i, word in enumerate(words.tolist())]
    assert rejected == [i for i, value in enumerate(expected) if value is None]
    assert np.delete(steps, rejected).tolist() == [value for value in expected if value is not None]
    share = {"any": (0, 0.01), "undecided": (0.2, 0.5), "near": (0.3, 0.7)}[kind]
    assert share[0] <= len(rejected) / len(words) <= share[1]  # the words are such that there is something to decide


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [(STANDARD, "slack", 2**62), (module, "_FEW", 10**9), (module, "_FEW", -1), (module, "_CHUNK", 7)],
)
@pytest.mark.parametrize("kind", WORDS)
def test_no_threshold_of_a_shortcut_changes_anything(monkeypatch, owner, name, value, kind):
    before = STANDARD.decide(WORDS[kind], SOURCE, "here")
    monkeypatch.setattr(owner, name, value)
    after = STANDARD.decide(WORDS[kind], SOURCE, "here")
    assert np.array_equal(before[0], after[0])
    assert before[1] == after[1]


def test_chords_are_within_the_slack_and_two_thirds_of_it_is_needed():
    errors = []
    for b in range(STANDARD.blocks):
        for offset in (0, 1, 2**23, 2**24, 2**24 + 2**23, 2**25):
            chord = STANDARD.lists.edges[b] - (STANDARD.lists.drops[b] * offset >> 25)
            errors.append(float(height(STANDARD, (b << 25) + offset) - chord))
    assert max(map(abs, errors)) + 1 < STANDARD.slack < 1.5 * max(map(abs, errors))


@cache
def drawn(sampler=None):
    """Draws that several tests look at."""
    return discrete_gaussian(SOURCE, 2_000_000, "scale") if sampler is None else sampler.draw(SOURCE, COUNT, "small")


def probabilities(scale, reach):
    """Return P(-reach), ..., P(reach) of the discrete Gaussian."""
    k = np.arange(-reach, reach + 1)
    weights = np.exp(-(k**2) / (2 * scale**2))
    return weights / weights.sum()


@pytest.mark.parametrize(("factor", "is_right"), [(1.0, True), (0.98, False), (1.02, False)])
def test_a_small_scale_has_its_probabilities(small, factor, is_right):
    draws = np.clip(drawn(small), -28, 28)
    expected = probabilities(8 * factor, 80)
    expected = np.array([expected[:53].sum(), *expected[53:108], expected[108:].sum()])
    counts = np.bincount(draws + 28, minlength=57)
    pvalue = scipy.stats.chisquare(counts, expected * COUNT).pvalue
    assert pvalue > 0.001 if is_right else pvalue < 1e-6


@pytest.mark.parametrize(("factor", "is_right"), [(1.0, True), (0.99, False), (1.01, False)])
def test_noise_is_normal_at_the_stated_scale(factor, is_right):
    draws = drawn() / SCALE
    pvalue = scipy.stats.kstest(draws, scipy.stats.norm(scale=factor).cdf).pvalue
    assert pvalue > 0.01 if is_right else pvalue < 1e-6


def test_noise_has_the_moments_and_tails_of_a_normal():
    draws = discrete_gaussian(SOURCE, 2_000_000, "tails") / SCALE
    for power, (expected, variance) in {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96)}.items():
        assert abs((draws**power).mean() - expected) < 4.5 * math.sqrt(variance / draws.size)
    for bound in (3.0, 4.0):
        for side in (draws, -draws):
            expected = scipy.stats.norm.sf(bound) * draws.size
            assert abs((side > bound).sum() - expected) < 4.5 * math.sqrt(expected)


@pytest.mark.parametrize("shift", [0, 8, 16, 19])
@pytest.mark.parametrize("chosen", ["all", "far"])
def test_low_bits_are_uniform(shift, chosen):
    draws = discrete_gaussian(SOURCE, 1_000_000, "low bits")
    draws = draws if chosen == "all" else draws[np.abs(draws) > 3 * SCALE]
    counts = np.bincount(draws >> shift & (63 if chosen == "far" else 255))
    assert scipy.stats.chisquare(counts).pvalue > 0.001


def box_muller(source, count, *label):
    """Noise as it was: 53-bit uniforms, of which those of the radii start with 27 zero bits, as one in 2^27 does."""
    words = np.frombuffer(source.bytes(16 * count, *label), dtype="<u8")
    uniform = ((words >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53
    radius = np.sqrt(-2 * np.log(np.ceil(2.0**26 * uniform[:count]) * 2.0**-53))
    angle = 2 * math.pi * uniform[count:]
    return np.rint(SCALE * np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)) / SCALE


class FarWords(NoiseSource):
    """Every word falls into a block from 4 deviations on; all else about it is random."""

    def bytes(self, count, *label):
        if label[-2:] != ("attempt", 0):
            return super().bytes(count, *label)
        words = np.frombuffer(super().bytes(count, *label), dtype="<i8")
        first = STANDARD.lists.starts[512]
        mass = first + (words & 2**38 - 1) % (STANDARD.lists.starts[-1] - first)
        return (words >> 38 << 38 | mass % 2**22 << 16 | (mass >> 22) + STANDARD.decided).tobytes()


def attributed(pairs):
    """Return the share of releases that are told from releases of another value, by radii that lie on a lattice.

    Box-Muller's radius is sqrt(-2 log(i / 2^53)) for a whole i: whole where the right value is taken off.
    """
    another = np.array([0.1, -0.05])

    def off_the_lattice(noise):
        i = 2.0**53 * np.exp(-(noise**2).sum(1) / 2)
        return np.abs(i - np.rint(i))

    return (off_the_lattice(pairs) < off_the_lattice(pairs + another)).mean()


def test_releases_in_the_tail_cannot_be_attributed_by_a_lattice_of_radii():
    """The attack on Box-Muller rounded to the same grid, and what is left of it."""
    assert attributed(box_muller(SOURCE, 2_000, "pairs")) > 0.95
    noise = discrete_gaussian(FarWords(SOURCE.key, private=False), 4_000, "pairs") / SCALE
    far = np.abs(noise) > 4
    assert far.mean() > 0.5  # those that are rejected are drawn again, from everywhere
    pairs = noise[far][: far.sum() // 2 * 2].reshape(-1, 2)
    radius = np.sqrt((pairs**2).sum(1))
    assert ((radius > math.sqrt(2 * 27 * math.log(2))).sum()) > 100
    pairs = pairs[radius > 5.77]  # u below 2^-24
    assert abs(attributed(pairs) - 0.5) < 4 * 0.5 / math.sqrt(len(pairs))


def test_the_same_label_gives_the_same_noise_and_another_label_other_noise():
    again = NoiseSource(SOURCE.key, private=False)
    first = discrete_gaussian(SOURCE, COUNT, "noise", 3, "gradient")
    assert np.array_equal(first, discrete_gaussian(again, COUNT, "noise", 3, "gradient"))
    for other in [("noise", 4, "gradient"), ("noise", 3, "difference"), ("noise", 3), ("noise", "3gradient")]:
        second = discrete_gaussian(SOURCE, COUNT, *other)
        assert abs(np.corrcoef(first, second)[0, 1]) < 4.5 / math.sqrt(COUNT)


@pytest.mark.parametrize("count", [0, 1, 7, 101, 9_999])
def test_a_shorter_draw_is_the_beginning_of_a_longer_one(count):
    draws = discrete_gaussian(SOURCE, count, "prefix")
    assert draws.dtype == np.int64
    assert np.array_equal(draws, discrete_gaussian(SOURCE, COUNT, "prefix")[:count])


@pytest.mark.parametrize("lag", [1, 2, COUNT // 2])
@pytest.mark.parametrize("power", [1, 2])
def test_coordinates_are_independent(lag, power):
    draws = (discrete_gaussian(SOURCE, COUNT, "coordinates") / SCALE) ** power
    assert abs(np.corrcoef(draws[lag:], draws[:-lag])[0, 1]) < 4.5 / math.sqrt(COUNT - lag)


def test_a_seed_gives_these_bytes_on_every_machine():
    digest = hashlib.sha256(discrete_gaussian(NoiseSource.from_seed(1), 1_000_000, "bytes").astype("<i8").tobytes())
    assert digest.hexdigest()[:16] == "7f964dfa4e7e0c49"


@pytest.mark.parametrize("count", [-1, 1.5, True])
def test_a_count_is_a_whole_number(count):
    with pytest.raises(InvalidArgument, match="count"):
        discrete_gaussian(SOURCE, count, "label")
