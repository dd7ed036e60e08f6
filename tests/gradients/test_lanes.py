"""Threads that compute alone: subnormal numbers, each a hundred cycles, are zero there and nowhere else."""

import sys

import numpy as np
import pytest
import torch

from diff2.gradients import FeatureCache, Records
from diff2.gradients.compiled import CompiledEngine
from diff2.gradients.lanes import share_out
from diff2.models.losses import cross_entropy
from diff2.models.mlp import mlp
from helpers import gradient, start_of

TINY = np.finfo(np.float32).tiny

can_flush = pytest.mark.skipif(not torch.set_flush_denormal(True), reason="this processor cannot")
torch.set_flush_denormal(False)


@pytest.fixture(params=[False, True], ids=["kept", "flushed"])
def mode(request):
    """How the caller's thread treats subnormal numbers."""
    torch.set_flush_denormal(request.param)
    yield request.param
    torch.set_flush_denormal(False)


def is_flushed(lane: int = 0) -> bool:
    return sys.float_info.min / 2 == 0 and float(torch.tensor(TINY) / 2) == 0


@can_flush
@pytest.mark.parametrize("lanes", [1, 2])
def test_subnormal_numbers_are_zero_in_every_lane(lanes, mode):
    assert share_out(is_flushed, lanes) == [True] * lanes
    assert is_flushed() == mode


@can_flush
def test_the_caller_keeps_its_mode_when_work_fails(mode):
    def fail(lane):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        share_out(fail, 1)
    assert is_flushed() == mode


@can_flush
def test_outputs_that_saturate_leave_no_subnormal_number():
    """Probabilities of 1e-40 made a round ten times as long, and its length told of the records."""
    pytest.importorskip("numba")
    model, cache = mlp(3, 4, seed=0), FeatureCache()
    records = Records.of(torch.linspace(-200, 200, 900).view(300, 3), torch.arange(300) % 4)
    gradient(CompiledEngine(model, cross_entropy), start_of(model), records, 1.0, cache=cache, remember=True)
    (numbers,) = cache.chunks.values()
    assert np.count_nonzero(numbers) > 300
    assert not ((numbers != 0) & (np.abs(numbers) < TINY)).any()
