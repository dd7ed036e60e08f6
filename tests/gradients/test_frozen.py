"""Frozen parameters cost nothing: no rule, no gradient, no noise, no memory; adapters train a frozen base."""

import pytest
import torch

import diff2
from diff2.gradients import build_engine
from helpers import make_case

ADAPTERS = pytest.mark.parametrize("name", ["adapters", "adapters as layers"])


@ADAPTERS
def test_only_adapters_are_recorded_and_kept(name):
    case = make_case(name)
    engine, _ = build_engine(case.model, case.loss, case.shapes)
    assert engine.name == "ghost"
    assert len(engine.flat) == sum(one.numel() for one in case.model.parameters() if one.requires_grad) == 38
    assert len(engine._recorder.rules) == 4
    assert engine._bytes_per_row == 8 * (81 if "layers" in name else 42)  # inputs and errors, or gradients


@ADAPTERS
def test_a_frozen_base_is_not_touched_in_training(name):
    case = make_case(name, count=40, dtype=torch.float32)
    algorithm = diff2.Diff2(3, 3, clip_gradient=1.0, clip_smoothness=1.0, routine=diff2.GradientDescent(0.1))
    records = (case.inputs, case.targets)
    result = diff2.train(case.model, "squared", records, algorithm, diff2.Budget(1.0, 1e-5), progress=False)
    after = dict(result.model.named_parameters())
    for name_of, before in case.model.named_parameters():
        assert torch.equal(after[name_of], before) == (not before.requires_grad), name_of
        assert after[name_of].requires_grad == before.requires_grad
