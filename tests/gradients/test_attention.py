"""Attention taken apart is PyTorch's own: the same outputs and gradients, and no slower engine."""

import copy
import warnings

import pytest
import torch
from torch import nn
from written_models import from_function, vectors

from diff2.errors import GradientFallbackWarning
from diff2.gradients import FlatModule, Masks, Records, build_engine
from diff2.gradients.attention import SplitAttention, take_apart
from helpers import MODELS, difference, gradient, make_case, make_engine, relative_error, start_of, step_from

LENGTH, RECORDS, WIDTH, HEADS = 5, 3, 4, 2
later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
ends = torch.arange(LENGTH) >= torch.tensor([[5], [3], [1]])
MASKS = {
    "no mask": {},
    "weights of each head": {"average_attn_weights": False},
    "no weights": {"need_weights": False},
    "later positions": {"attn_mask": later, "need_weights": False},
    "numbers": {"attn_mask": torch.randn(LENGTH, LENGTH, dtype=torch.float64)},
    "for each head": {"attn_mask": torch.randn(RECORDS * HEADS, LENGTH, LENGTH, dtype=torch.float64)},
    "causal": {"attn_mask": later, "is_causal": True, "need_weights": False},
    "causal, with weights": {"attn_mask": later, "is_causal": True},
    "padding": {"key_padding_mask": ends, "need_weights": False},
    "padding and later positions": {"key_padding_mask": ends, "attn_mask": later, "is_causal": True},
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("distinct", [1, 2, 3])
@pytest.mark.parametrize("first", [True, False])
def test_outputs_weights_and_gradients_are_those_of_pytorch(name, distinct, first):
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=first, dtype=torch.float64)
    shape = (RECORDS, LENGTH, WIDTH) if first else (LENGTH, RECORDS, WIDTH)
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(distinct)]
    arguments = [*inputs[:1], *inputs[-1:] * (3 - len(inputs)), *inputs[1:]][:3] if distinct < 3 else inputs
    flat = FlatModule(theirs)
    take_apart(flat, lambda: flat.module(*arguments))
    ours = flat.module
    assert type(ours) is SplitAttention
    assert len(ours.projections) == distinct
    found, expected = (layer(*arguments, **MASKS[name]) for layer in (ours, theirs))
    direction = torch.randn(shape, dtype=torch.float64)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.allclose(one, other, atol=1e-12)
    slopes = [torch.autograd.grad((value[0] * direction).sum(), inputs) for value in (found, expected)]
    assert all(torch.allclose(one, other, atol=1e-12) for one, other in zip(*slopes, strict=True))


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith(("attention", "encoder", "bare"))])
def test_attention_is_fast_and_nothing_is_said(name):
    case = make_case(name)
    before = copy.deepcopy(case.model.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build_engine(case.model, case.loss, case.shapes)[0].name == "ghost"
    assert all(torch.equal(value, before[key]) for key, value in case.model.state_dict().items())
    assert not any(isinstance(layer, SplitAttention) for layer in case.model.modules())


def attending(need_weights=True, **options):
    return vectors(
        from_function(
            lambda self, x: self.out(self.mix(x, x, x, need_weights=need_weights)[0].mean(1)),
            mix=nn.MultiheadAttention(4, 2, batch_first=True, **options),
            out=nn.Linear(4, 1),
        ),
        5,
        4,
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"add_zero_attn": True}, "add_zero_attn")],
)
def test_attention_that_is_not_taken_apart_gets_a_slower_engine_with_the_reason(options, reason):
    case = attending(**options)
    with pytest.warns(GradientFallbackWarning, match=reason):
        assert build_engine(case.model, case.loss, case.shapes)[0].name in ("vmap", "loop")


@pytest.mark.parametrize("weights", [True, False])
def test_dropout_inside_attention_is_served_and_drops_the_same_at_both_iterates(weights):
    """Record by record, PyTorch's own layer draws the same masks from the same seed."""
    torch.manual_seed(0)
    case = attending(dropout=0.4, need_weights=weights)
    engine, stochastic = build_engine(case.model, case.loss, case.shapes)
    assert (engine.name, stochastic) == ("ghost", True)
    model, records = case.model, Records.of(case.inputs, case.targets)
    params, masks = start_of(model), Masks(b"round 1")
    previous = step_from(params, 0.1)
    ghost, loop = (make_engine(kind, model, case.loss, records, chunk_rows=1) for kind in ("ghost", "loop"))
    value, expected = (gradient(one, params, records, 0.3, masks=masks) for one in (ghost, loop))
    assert relative_error(value, expected) < 1e-9
    assert relative_error(gradient(ghost, params, records, 0.3, masks=Masks(b"round 2")), value) > 1e-2
    value, expected = (difference(one, params, previous, records, 0.3, masks=masks) for one in (ghost, loop))
    assert relative_error(value, expected) < 1e-9
    assert not difference(ghost, params, params.clone(), records, 1.0, masks=masks).any()
