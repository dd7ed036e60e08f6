"""Where the noise comes from: the right distribution, streams independent of each other, no shared state."""

import random

import numpy as np
import pytest
import scipy.stats
import torch

from diff2.errors import InvalidArgument
from diff2.privacy import NoiseSource

COUNT = 100_000
SOURCE = NoiseSource.from_seed(20230717)


def correlation(first, second):
    return abs(np.corrcoef(first, second)[0, 1])


INDEPENDENT = 4.5 / np.sqrt(COUNT)  # a bound that chance exceeds once in 150,000 seeds


@pytest.mark.parametrize(("factor", "is_right"), [(1.0, True), (0.95, False), (1.05, False)])
def test_noise_is_standard_normal(factor, is_right):
    pvalue = scipy.stats.kstest(SOURCE.gaussian(COUNT, "scale"), scipy.stats.norm(scale=factor).cdf).pvalue
    assert (pvalue > 0.01) == is_right


def test_noise_has_the_tails_of_a_normal():
    draws = SOURCE.gaussian(400_000, "tails")
    for bound in (3.0, 4.0):
        expected = 2 * scipy.stats.norm.sf(bound) * draws.size
        assert abs((np.abs(draws) > bound).sum() - expected) < 4 * np.sqrt(expected)
    assert np.isfinite(draws).all()


@pytest.mark.parametrize(
    "other",
    [
        ("noise", 2, "gradient"),
        ("noise", 1, "difference"),
        ("masks", 1, "gradient"),
        ("noise", 1),
        ("noise", "1gradient"),
    ],
)
def test_noise_of_other_labels_is_independent(other):
    assert correlation(SOURCE.gaussian(COUNT, "noise", 1, "gradient"), SOURCE.gaussian(COUNT, *other)) < INDEPENDENT


def test_noise_of_other_keys_is_independent():
    first, second = (NoiseSource.from_seed(seed).gaussian(COUNT, "noise", 1) for seed in (1, 2))
    assert correlation(first, second) < INDEPENDENT
    first, second = (NoiseSource.from_system().gaussian(COUNT, "noise", 1) for _ in range(2))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("lag", [1, 2, COUNT // 2])
@pytest.mark.parametrize("power", [1, 2])
def test_coordinates_are_independent(lag, power):
    """Also their squares: the two normals of one Box-Muller pair share a radius."""
    draws = SOURCE.gaussian(COUNT, "coordinates") ** power
    assert correlation(draws[lag:], draws[:-lag]) < INDEPENDENT * np.sqrt(COUNT / (COUNT - lag))


def test_the_same_label_gives_the_same_noise():
    again = NoiseSource(SOURCE.key, private=False)
    assert np.array_equal(SOURCE.gaussian(1001, "noise", 3, "gradient"), again.gaussian(1001, "noise", 3, "gradient"))
    assert correlation(SOURCE.gaussian(COUNT, "a"), again.gaussian(COUNT, "a")) > 0.999  # dependence looks like this


def test_no_two_labels_run_together():
    streams = {SOURCE.bytes(16, *label) for label in [("a", "b"), ("ab",), ("a", "b", ""), ("", "ab"), ("b", "a"), ()]}
    assert len(streams) == 6


def test_no_global_generator_is_touched():
    states = lambda: (torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate())  # noqa: E731, NPY002
    before = states()
    NoiseSource.from_system().gaussian(1000, "noise", 1)
    assert states() == before
    first = SOURCE.gaussian(10, "noise", 1)
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    assert np.array_equal(SOURCE.gaussian(10, "noise", 1), first)


def test_a_system_key_has_256_bits_and_a_seeded_one_is_not_private():
    assert len(NoiseSource.from_system().key) == 32
    assert NoiseSource.from_system().key != NoiseSource.from_system().key
    assert NoiseSource.from_system().private
    assert not NoiseSource.from_seed(0).private
    assert NoiseSource.from_seed(0).key != NoiseSource.from_seed(1).key


@pytest.mark.parametrize("seed", [-1, 1.5, "1", True])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(InvalidArgument, match="seed"):
        NoiseSource.from_seed(seed)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_as_many_numbers_as_asked_for(count):
    assert SOURCE.gaussian(count, "count").shape == (count,)


def test_integers_are_uniform():
    counts = np.bincount([SOURCE.integer(7, "integer", i) for i in range(7000)], minlength=7)
    assert counts.size == 7
    assert scipy.stats.chisquare(counts).pvalue > 0.001
