"""Which models, losses and settings are refused, with which reason."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from written_models import MIXING, from_function, mixing, vectors

from diff2.errors import InvalidArgument, UnsupportedModel
from diff2.gradients import Shapes, build_engine
from diff2.models.losses import squared
from helpers import start_of


def build(case, **options):
    return build_engine(case.model, case.loss, case.shapes, **options)


def linear(forward):
    return from_function(forward, out=nn.Linear(3, 1))


# Layers that mix records


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), (3,)),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(36, 1)), (1, 5, 5)),
        (nn.Sequential(nn.Linear(3, 4), nn.SyncBatchNorm(4), nn.Linear(4, 1)), (3,)),
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False).eval(), nn.Linear(4, 1)), (3,)),
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 1)), (3,)),
    ],
    ids=["1d", "2d", "sync", "eval without statistics", "without parameters"],
)
def test_batch_normalisation_is_refused_with_reason_and_replacement(model, shape):
    with pytest.raises(UnsupportedModel, match=r"'1'.*others of its batch.*GroupNorm.*\.eval\(\)"):
        build(vectors(model, *shape))


def test_statistics_of_the_records_in_a_buffer_are_refused():
    model = nn.Sequential(
        nn.Conv1d(1, 2, 3), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten(), nn.Linear(6, 1)
    )
    with pytest.raises(UnsupportedModel, match=r"'1\.\w+' changes.*track_running_stats=False"):
        build(vectors(model, 1, 5))


@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("dropout", [False, True], ids=["plain", "dropout"])
def test_a_model_that_mixes_records_is_refused(name, dtype, dropout):
    model = mixing(MIXING[name])
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), model) if dropout else model
    with pytest.raises(UnsupportedModel, match="mixes records"):
        build_engine(model.to(dtype), squared, Shapes((3,), (1,), dtype, dtype))


def test_a_recurrent_layer_that_takes_the_batch_for_time_is_refused():
    model = from_function(lambda self, x: self.out(self.rnn(x)[0]), rnn=nn.LSTM(3, 4), out=nn.Linear(4, 1))
    with pytest.raises(UnsupportedModel, match="mixes records"):
        build(vectors(model, 3))


# Other models


@pytest.mark.parametrize("where", ["model", "layer"])
def test_randomness_that_cannot_be_repeated_is_refused(where):
    generator = np.random.default_rng(0)
    model = from_function(
        lambda self, x: self.out(torch.tanh(self.first(x) + float(generator.normal()))),
        first=nn.Linear(3, 4),
        out=nn.Linear(4, 1),
    )
    with pytest.raises(UnsupportedModel, match="same random seed differ"):
        build(vectors(model if where == "model" else nn.Sequential(nn.Linear(3, 3), nn.Dropout(), model), 3))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(3, 1).requires_grad_(False), "no trainable parameter"),
        (nn.Sequential(nn.Flatten()), "no trainable parameter"),
        (nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 1)), "no size yet"),
        (nn.Sequential(nn.Linear(3, 3).double(), nn.Linear(3, 1)), "one floating-point dtype"),
        (linear(lambda self, x: self.out(x).sum()), "one output per record"),
        (linear(lambda self, x: self.out(x)[:1]), "one output per record"),
        (linear(lambda self, x: (self.out(x), x)), "one tensor"),
        (linear(lambda self, x: self.out(x.mul_(2))), "in place"),
    ],
    ids=["frozen", "empty", "lazy", "precisions", "scalar output", "one output for all", "tuple", "in place"],
)
def test_an_unusable_model_is_refused_with_the_reason(model, message):
    with pytest.raises(UnsupportedModel, match=message):
        build_engine(model, squared, Shapes((3,), (1,)))


def test_something_that_is_no_module_is_refused():
    with pytest.raises((InvalidArgument, AttributeError)):
        build_engine(lambda x: x, squared, Shapes((3,), (1,)))


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_reduced_precision_of_products_is_refused(precision):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        with pytest.raises(InvalidArgument, match="set_float32_matmul_precision"):
            build_engine(nn.Linear(3, 1), squared, Shapes((3,), (1,)))
    finally:
        torch.set_float32_matmul_precision(before)


def test_automatic_mixed_precision_is_refused():
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(InvalidArgument, match="autocast"):
        build_engine(nn.Linear(3, 1), squared, Shapes((3,), (1,)))


def test_mixed_precision_inside_the_model_is_refused():
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.out(x)

    with pytest.raises(UnsupportedModel, match="autocast"):
        build_engine(linear(forward), squared, Shapes((3,), (1,)))


# Shapes and losses


def test_inputs_that_do_not_fit_are_refused():
    with pytest.raises(InvalidArgument, match=r"cannot be applied to inputs of shape \(3, 3\).*pass example="):
        build(vectors(nn.Linear(4, 1), 3))


@pytest.mark.parametrize(
    "loss",
    [
        lambda outputs, targets: (outputs - targets).square(),  # (n, 1): no number per record
        lambda outputs, targets: (outputs - targets.squeeze(1)).square().sum(1),  # (n, 1) against (n,): n x n
        lambda outputs, targets: F.cross_entropy(outputs, targets),  # float targets of another shape
    ],
    ids=["matrix", "broadcast", "wrong type"],
)
@pytest.mark.parametrize("model", [lambda: nn.Linear(3, 2), lambda: nn.Bilinear(3, 3, 2)], ids=["fast", "slow"])
def test_a_loss_that_does_not_fit_is_refused(loss, model):
    model = model() if isinstance(model(), nn.Linear) else from_function(lambda self, x: self.out(x, x), out=model())
    with pytest.raises(InvalidArgument, match="the loss"):
        build(vectors(model, 3, outputs=1, loss=loss))


LOGARITHM = linear(lambda self, x: self.out(x.log()))
CODES = from_function(
    lambda self, x: self.out(self.words(x.long())).squeeze(2), words=nn.Embedding(4, 3), out=nn.Linear(3, 1)
)


@pytest.mark.parametrize(
    ("model", "shapes", "loss", "message"),
    [
        (LOGARITHM, Shapes((3,), (1,)), squared, "outputs of the model are not finite"),
        (CODES, Shapes((2,), (2,)), squared, "cannot be applied to inputs"),
        (nn.Linear(3, 1), Shapes((3,), (1,)), lambda z, y: (z - y.log()).square().sum(1), "loss is not finite"),
    ],
    ids=["logarithm", "codes as floats", "logarithm of the target"],
)
def test_where_made_up_records_do_not_fit_an_example_does(model, shapes, loss, message):
    with pytest.raises(InvalidArgument, match=rf"{message}.*pass example=\(inputs, targets\): a few public or made-up"):
        build_engine(model, loss, shapes)
    inputs = torch.arange(1, 4).float().unsqueeze(1).expand(3, *shapes.inputs)
    example = (inputs + 0.25 * (model is LOGARITHM), torch.ones(3, *shapes.targets))
    engine, _ = build_engine(model, loss, shapes, example=example)
    assert engine.name in ("ghost", "columns")


@pytest.mark.parametrize("example", [(torch.zeros(3, 2), torch.zeros(3, 1)), (torch.zeros(0, 3), torch.zeros(0, 1))])
def test_an_example_of_other_shapes_is_refused(example):
    with pytest.raises(InvalidArgument, match=r"expected example=\(inputs, targets\) of shapes"):
        build_engine(nn.Linear(3, 1), squared, Shapes((3,), (1,)), example=example)


# Looking leaves no trace


def test_looking_at_a_model_changes_neither_it_nor_the_global_generator():
    case = vectors(nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5), nn.Linear(5, 1)), 3)
    before, state = start_of(case.model), torch.get_rng_state()
    build(case)
    assert torch.equal(start_of(case.model), before)
    assert case.model.training
    assert not any(layer._forward_hooks for layer in case.model.modules())
    assert torch.equal(torch.get_rng_state(), state)
