"""Where the noise comes from: keyed streams that do not run together, and no shared state."""

import random

import numpy as np
import pytest
import scipy.stats
import torch

from diff2.errors import InvalidArgument
from diff2.privacy import NoiseSource

SOURCE = NoiseSource.from_seed(20230717)


def test_no_two_labels_run_together():
    streams = {SOURCE.bytes(16, *label) for label in [("a", "b"), ("ab",), ("a", "b", ""), ("", "ab"), ("b", "a"), ()]}
    assert len(streams) == 6


def test_no_global_generator_is_touched():
    states = lambda: (torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate())  # noqa: E731, NPY002
    before = states()
    NoiseSource.from_system().bytes(1000, "noise", 1)
    assert states() == before
    first = SOURCE.bytes(10, "noise", 1)
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    assert SOURCE.bytes(10, "noise", 1) == first


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


def test_integers_are_uniform():
    counts = np.bincount([SOURCE.integer(7, "integer", i) for i in range(7000)], minlength=7)
    assert counts.size == 7
    assert scipy.stats.chisquare(counts).pvalue > 0.001
