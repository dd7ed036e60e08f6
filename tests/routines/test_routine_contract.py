"""The contract of all routines: what holds for each of them."""

import copy
import dataclasses
import json

import numpy as np
import pytest
import torch
from walks import DIMENSION, at, estimates, path_of, start, stored

from diff2._fields import from_table
from diff2.routines import (
    ROUTINES,
    Adam,
    Averaging,
    GradientDescent,
    Momentum,
    Nesterov,
    NormalizedDescent,
    TorchOptimizer,
)

EVERY_ROUTINE = {
    "gradient_descent": GradientDescent(0.3, schedule="cosine"),
    "momentum": Momentum(0.1, schedule="inverse_root"),
    "nesterov": Nesterov(0.1, 0.8),
    "adam": Adam(0.05),
    "averaging": Averaging(Nesterov(0.1), start=0.3),
    "averaging, moving": Averaging(Momentum(0.1), start=0.0, decay=0.7),
    "averaging torch_optim": Averaging(TorchOptimizer("AdamW", {"lr": 0.1})),
    "normalized_descent": NormalizedDescent(0.2),
    "normalized_descent, bounded": NormalizedDescent(0.2, max_step_norm=0.1, schedule="cosine"),
    "torch_optim": TorchOptimizer("NAdam", {"lr": 0.1, "betas": [0.8, 0.9]}, schedule="cosine"),
}


def every_routine(test):
    return pytest.mark.parametrize("routine", EVERY_ROUTINE.values(), ids=EVERY_ROUTINE.keys())(test)


def test_the_contract_covers_every_routine():
    local = {"bvr_local_sgd"}  # asks the cohort for more than the estimate, so it has tests of its own
    assert {routine.name for routine in EVERY_ROUTINE.values()} == set(ROUTINES) - local
    assert all(ROUTINES[routine.name] is type(routine) for routine in EVERY_ROUTINE.values())


def equal(one, other):
    """Return whether two states are the same, to the bit."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and one == other


def vectors(state):
    for value in state.values():
        if isinstance(value, dict):
            yield from vectors(value)
        elif isinstance(value, torch.Tensor) and value.shape == (DIMENSION,):
            yield value


@every_routine
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_state_that_was_stored_goes_on_to_the_same_bits(routine, dtype):
    straight, through = (path_of(routine, estimates(), start(dtype), b) for b in (lambda state: state, stored))
    for one, other in zip((*straight[0], *straight[1]), (*through[0], *through[1]), strict=True):
        assert one.dtype == other.dtype == dtype
        assert torch.equal(one, other)
    assert equal(stored(routine.init(start())), routine.init(start()))


@every_routine
def test_a_step_changes_nothing_that_it_was_given(routine):
    params, state = start(), routine.init(start())
    for r, estimate in enumerate(estimates(), start=1):
        before = copy.deepcopy((state, params, estimate.value))
        once = routine.step(state, params, estimate, at(r))
        moved = (once[0].clone(), copy.deepcopy(once[1]))
        twice = routine.step(state, params, estimate, at(r))
        routine.output(once[1], once[0])
        assert equal(state, before[0])
        assert torch.equal(params, before[1])
        assert torch.equal(estimate.value, before[2])
        assert torch.equal(twice[0], moved[0])
        assert equal(twice[1], moved[1])
        assert equal(once[1], moved[1])
        params, state = once
        assert not params.requires_grad
        assert params.grad is None


@every_routine
def test_states_are_in_double_precision_and_single_precision_follows(routine):
    params, state = start(torch.float32), routine.init(start(torch.float32))
    assert all(vector.dtype == torch.float64 for vector in vectors(state))
    for r, estimate in enumerate(estimates(), start=1):
        params, state = routine.step(state, params, estimate, at(r))
        assert params.dtype == routine.output(state, params).dtype == torch.float32
        assert all(vector.dtype == torch.float64 for vector in vectors(state))
    points, outputs = path_of(routine, estimates())
    np.testing.assert_allclose(params, points[-1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(routine.output(state, params), outputs[-1], rtol=1e-4, atol=1e-5)


@every_routine
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_before_the_first_round_the_output_is_the_start(routine, dtype):
    output = routine.output(routine.init(start(dtype)), start(dtype))
    assert torch.equal(output, start(dtype))
    assert output.dtype == dtype


@every_routine
def test_a_routine_is_frozen_hashable_and_plain(routine):
    assert hash(routine) == hash(copy.deepcopy(routine)) == hash(dataclasses.replace(routine))
    assert routine == copy.deepcopy(routine) == dataclasses.replace(routine)
    with pytest.raises(dataclasses.FrozenInstanceError):
        routine.name = "other"
    plain = dataclasses.asdict(routine)
    assert json.loads(json.dumps(plain)) == plain
    assert equal(stored(plain), plain)


@every_routine
def test_a_routine_can_be_written_in_a_run_file(routine):
    table = {key: value for key, value in dataclasses.asdict(routine).items() if value is not None}
    given = {"routine": routine.routine} if isinstance(routine, Averaging) else {}
    assert from_table(type(routine), "routine", {k: v for k, v in table.items() if k not in given}, **given) == routine
