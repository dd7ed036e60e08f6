"""Which models are refused, which get which engine, and that every one that is accepted gets the right gradients."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from diff2.errors import GradientFallbackWarning, InvalidArgument, UnsupportedModel
from diff2.gradients import Masks, build_engine
from diff2.models.losses import cross_entropy, squared
from helpers import Case, clipped_sum, gradient_rows, relative_error, start_of, step_from


def build(case, **options):
    return build_engine(case.model, case.loss, case.inputs, case.targets, **options)


def vectors(model, *shape, count=7, outputs=1, loss=squared, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    return Case(model.double(), inputs, torch.randn(count, outputs, generator=generator, dtype=torch.float64), loss)


def tokens(model, *, count=7, length=5, words=6, classes=3):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, words, (count, length), generator=generator)
    return Case(model.double(), inputs, torch.randint(0, classes, (count,), generator=generator), cross_entropy)


def from_function(forward, **layers):
    """Return a module with these layers and this forward(self, x)."""
    torch.manual_seed(0)
    module = type("Written", (nn.Module,), {"forward": forward})()
    for name, layer in layers.items():
        setattr(module, name, layer)
    return module


def assert_right_gradients(engine, case):
    params = start_of(case.model)
    previous = step_from(params, 1e-2)
    rows = gradient_rows(case, params)
    radius = float(rows.norm(dim=1).median())
    records = case.weighted()
    expected = clipped_sum(rows, records.weights, radius)
    assert relative_error(engine.clipped_gradient_sum(params, records, radius), expected) < 1e-9
    rows = rows - gradient_rows(case, previous)
    radius = float(rows.norm(dim=1).median())
    expected = clipped_sum(rows, records.weights, radius)
    assert relative_error(engine.clipped_difference_sum(params, previous, records, radius), expected) < 1e-9


# Refused


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


def test_pretrained_batch_normalisation_is_allowed_in_eval_mode():
    case = vectors(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4).eval(), nn.Tanh(), nn.Linear(4, 1)), 3)
    with pytest.warns(GradientFallbackWarning, match="BatchNorm1d"):
        engine, _ = build(case)
    assert_right_gradients(engine, case)


def test_statistics_of_the_records_in_a_buffer_are_refused():
    model = nn.Sequential(
        nn.Conv1d(1, 2, 3), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten(), nn.Linear(6, 1)
    )
    with pytest.raises(UnsupportedModel, match=r"'1\.\w+' changes.*track_running_stats=False"):
        build(vectors(model, 1, 5))


def test_instance_normalisation_without_statistics_is_accepted():
    model = nn.Sequential(nn.Conv1d(1, 2, 3), nn.InstanceNorm1d(2, affine=True), nn.Flatten(), nn.Linear(6, 1))
    case = vectors(model, 1, 5)
    with pytest.warns(GradientFallbackWarning):
        engine, _ = build(case)
    assert_right_gradients(engine, case)


MIXING = {
    "centred by the batch": lambda self, x: self.out(torch.tanh(self.first(x) - self.first(x).mean(0))),
    "softmax over the batch": lambda self, x: self.out(torch.softmax(self.first(x), dim=0)),
    "shifted to the next record": lambda self, x: self.out(self.first(x).roll(1, 0)),
    "cumulative": lambda self, x: self.out(torch.tanh(self.first(x).cumsum(0))),
    "attention over the batch": lambda self, x: self.out(torch.softmax(x @ x.T, dim=1) @ self.first(x)),
}


def mixing(forward):
    return from_function(forward, first=nn.Linear(3, 4), out=nn.Linear(4, 1))


@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_model_that_mixes_records_is_refused(name, dtype):
    case = vectors(mixing(MIXING[name]), 3)
    with pytest.raises(UnsupportedModel, match="mixes records"):
        build_engine(case.model.to(dtype), squared, case.inputs.to(dtype), case.targets.to(dtype))


def test_a_recurrent_layer_that_takes_the_batch_for_time_is_refused():
    model = from_function(lambda self, x: self.out(self.rnn(x)[0]), rnn=nn.LSTM(3, 4), out=nn.Linear(4, 1))
    with pytest.raises(UnsupportedModel, match="mixes records"):
        build(vectors(model, 3))


@pytest.mark.parametrize("name", MIXING)
def test_a_model_that_mixes_records_is_refused_also_with_dropout(name):
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), mixing(MIXING[name]))
    with pytest.raises(UnsupportedModel, match="mixes records"):
        build(vectors(model, 3))


@pytest.mark.parametrize("count", [1, 7])
def test_a_model_that_mixes_records_is_refused_also_if_the_first_records_are_equal(count):
    case = vectors(mixing(MIXING["centred by the batch"]), 3, count=count)
    inputs, targets = case.inputs[:1].expand(count, 3).clone(), case.targets[:1].expand(count, 1).clone()
    with pytest.raises(UnsupportedModel, match="mixes records"):
        build(case._replace(inputs=inputs, targets=targets))


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


@pytest.mark.parametrize("p", [0.5, 0.1, 1e-3, 1e-6])
def test_dropout_is_noticed_however_rare(p):
    torch.manual_seed(0)
    case = vectors(nn.Sequential(nn.Linear(3, 10), nn.Dropout(p), nn.Tanh(), nn.Linear(10, 1)), 3)
    engine, stochastic = build(case)
    assert stochastic
    assert engine.name == "ghost"


def test_dropout_in_eval_mode_is_no_randomness():
    case = vectors(nn.Sequential(nn.Linear(3, 10), nn.Dropout(0.5), nn.Linear(10, 1)).eval(), 3)
    engine, stochastic = build(case)
    assert (engine.name, stochastic) == ("ghost", False)


@pytest.mark.filterwarnings("ignore::diff2.GradientFallbackWarning")
def test_functional_dropout_has_the_same_mask_at_both_iterates():
    model = from_function(
        lambda self, x: self.out(F.dropout(self.first(x), 0.5)), first=nn.Linear(3, 10), out=nn.Linear(10, 1)
    )
    case = vectors(model, 3)
    engine, stochastic = build(case)
    assert stochastic
    params, records = start_of(case.model), case.records
    assert not engine.clipped_difference_sum(params, params, records, 1.0, masks=Masks(b"1")).any()


def test_a_model_that_changes_its_inputs_is_refused():
    model = from_function(lambda self, x: self.out(x.mul_(2)), out=nn.Linear(3, 1))
    case = vectors(model, 3)
    with pytest.raises(UnsupportedModel, match="in place"):
        build(case)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(3, 1).requires_grad_(False), "no trainable parameter"),
        (nn.Sequential(nn.Flatten()), "no trainable parameter"),
        (nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 1)), "no size yet"),
        (from_function(lambda self, x: self.out(x).sum(), out=nn.Linear(3, 1)), "one output a record"),
        (from_function(lambda self, x: self.out(x)[:1], out=nn.Linear(3, 1)), "one output a record"),
        (from_function(lambda self, x: (self.out(x), x), out=nn.Linear(3, 1)), "one tensor"),
    ],
    ids=["frozen", "empty", "lazy", "scalar output", "one output for all", "tuple"],
)
def test_an_unusable_model_is_refused_with_the_reason(model, message):
    inputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    with pytest.raises(UnsupportedModel, match=message):
        build_engine(model, squared, inputs, torch.zeros(5, 1))


def test_parameters_of_two_precisions_are_refused():
    with pytest.raises(UnsupportedModel, match="one floating-point dtype"):
        build_engine(
            nn.Sequential(nn.Linear(3, 3).double(), nn.Linear(3, 1)), squared, torch.zeros(3, 3), torch.zeros(3, 1)
        )


def test_something_that_is_no_module_is_refused():
    with pytest.raises((InvalidArgument, AttributeError)):
        build_engine(lambda x: x, squared, torch.zeros(3, 3), torch.zeros(3, 1))


def test_inputs_that_do_not_fit_are_refused():
    with pytest.raises(InvalidArgument, match="cannot be applied to inputs of shape"):
        build(vectors(nn.Linear(4, 1), 3))


@pytest.mark.parametrize(
    "loss",
    [
        lambda outputs, targets: (outputs - targets).square(),  # (n, 1): no number a record
        lambda outputs, targets: (outputs - targets.squeeze(1)).square().sum(1),  # (n, 1) against (n,): n x n
        lambda outputs, targets: F.cross_entropy(outputs, targets),  # float targets of another shape
    ],
    ids=["matrix", "broadcast", "wrong type"],
)
def test_a_loss_that_does_not_fit_is_refused(loss):
    case = vectors(nn.Linear(3, 2), 3, outputs=1)
    with pytest.raises(InvalidArgument):
        build(case._replace(loss=loss))


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_reduced_precision_of_products_is_refused(precision):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        with pytest.raises(InvalidArgument, match="set_float32_matmul_precision"):
            build(vectors(nn.Linear(3, 1), 3))
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.filterwarnings("ignore::diff2.GradientFallbackWarning")
def test_automatic_mixed_precision_is_refused():
    case = vectors(nn.Linear(3, 1), 3)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(InvalidArgument, match="autocast"):
        build_engine(case.model.float(), squared, case.inputs.float(), case.targets.float())


def test_mixed_precision_inside_the_model_is_refused():
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.out(x)

    case = vectors(from_function(forward, out=nn.Linear(3, 1)), 3)
    with pytest.raises(UnsupportedModel, match="autocast"):
        build_engine(case.model.float(), squared, case.inputs.float(), case.targets.float())


# Accepted, with a slower engine


def tied():
    model = from_function(
        lambda self, x: self.out(torch.tanh(self.second(torch.tanh(self.first(x))))),
        first=nn.Linear(3, 3),
        second=nn.Linear(3, 3),
        out=nn.Linear(3, 1),
    )
    model.second.weight = model.first.weight
    return model


def with_parameter():
    model = from_function(lambda self, x: self.out(torch.tanh(x * self.scale)), out=nn.Linear(3, 1))
    model.scale = nn.Parameter(torch.tensor([1.0, 2.0, -0.5]))
    return model


FALLBACKS = {
    "tied weights": lambda: vectors(tied(), 3),
    "a layer called twice": lambda: vectors(
        from_function(
            lambda self, x: self.out(torch.tanh(self.twice(torch.tanh(self.twice(x))))),
            twice=nn.Linear(3, 3),
            out=nn.Linear(3, 1),
        ),
        3,
    ),
    "a weight used functionally": lambda: vectors(
        from_function(
            lambda self, x: self.out(torch.tanh(F.linear(x, self.first.weight))),
            first=nn.Linear(3, 4, bias=False),
            out=nn.Linear(4, 1),
        ),
        3,
    ),
    "a weight used both ways": lambda: vectors(
        from_function(
            lambda self, x: self.out(torch.tanh(self.first(x)) + F.linear(x, self.first.weight)),
            first=nn.Linear(3, 4),
            out=nn.Linear(4, 1),
        ),
        3,
    ),
    "a weight penalty in the forward pass": lambda: vectors(
        from_function(lambda self, x: self.out(x) + self.out.weight.square().sum(), out=nn.Linear(3, 1)), 3
    ),
    "positions without a batch dimension": lambda: tokens(
        from_function(
            lambda self, x: self.out(torch.tanh(self.words(x) + self.places(torch.arange(x.shape[1]))).mean(1)),
            words=nn.Embedding(6, 4),
            places=nn.Embedding(9, 4),
            out=nn.Linear(4, 3),
        )
    ),
    "as many positions as records are tried": lambda: tokens(
        from_function(
            lambda self, x: self.out(torch.tanh(self.words(x) + self.places(torch.arange(x.shape[1]))).mean(1)),
            words=nn.Embedding(6, 4),
            places=nn.Embedding(9, 4),
            out=nn.Linear(4, 3),
        ),
        length=3,
    ),
    "records folded into positions": lambda: vectors(
        from_function(
            lambda self, x: self.out(torch.tanh(self.first(x.reshape(-1, 3))).reshape(x.shape[0], -1)),
            first=nn.Linear(3, 4),
            out=nn.Linear(8, 1),
        ),
        2,
        3,
    ),
    "batch dimension second": lambda: vectors(
        from_function(
            lambda self, x: self.out(torch.tanh(self.first(x.transpose(0, 1))).mean(0)),
            first=nn.Linear(3, 4),
            out=nn.Linear(4, 1),
        ),
        3,
        3,
    ),
    "custom parameter": lambda: vectors(with_parameter(), 3),
    "custom convolution": lambda: vectors(
        nn.Sequential(nn.ConvTranspose1d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(14, 1)), 1, 5
    ),
    "in place, functionally, in the first layer": lambda: vectors(
        from_function(
            lambda self, x: self.out(F.relu(self.first(x), inplace=True)), first=nn.Linear(3, 6), out=nn.Linear(6, 1)
        ),
        3,
    ),
    "in place, functionally, further on": lambda: vectors(
        from_function(
            lambda self, x: self.out(F.relu(self.second(torch.tanh(self.first(x))), inplace=True)),
            first=nn.Linear(3, 6),
            second=nn.Linear(6, 8),
            out=nn.Linear(8, 1),
        ),
        3,
    ),
    "gru": lambda: vectors(
        from_function(
            lambda self, x: self.out(self.rnn(x)[0][:, -1]), rnn=nn.GRU(3, 4, batch_first=True), out=nn.Linear(4, 1)
        ),
        5,
        3,
    ),
    "lstm": lambda: vectors(
        from_function(
            lambda self, x: self.out(self.rnn(x)[0][:, -1]), rnn=nn.LSTM(3, 4, batch_first=True), out=nn.Linear(4, 1)
        ),
        5,
        3,
    ),
    "attention layer": lambda: vectors(
        from_function(
            lambda self, x: self.out(self.mix(x, x, x)[0].mean(1)),
            mix=nn.MultiheadAttention(4, 2, batch_first=True),
            out=nn.Linear(4, 1),
        ),
        5,
        4,
    ),
    "embedding scaled by frequency": lambda: tokens(
        from_function(
            lambda self, x: self.out(self.words(x).mean(1)),
            words=nn.Embedding(6, 4, scale_grad_by_freq=True),
            out=nn.Linear(4, 3),
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FALLBACKS)
def test_a_model_without_a_rule_gets_a_slower_engine_and_right_gradients(name):
    case = FALLBACKS[name]()
    with pytest.warns(GradientFallbackWarning, match="slower") as caught:
        engine, stochastic = build(case)
    assert len(caught) == 1
    assert engine.name in ("vmap", "loop")
    assert not stochastic
    assert_right_gradients(engine, case)


def test_an_operation_in_place_that_the_tried_records_do_not_show_gives_right_gradients():
    case = FALLBACKS["in place, functionally, further on"]()
    with torch.no_grad():
        case.model.first.weight *= 3
        case.model.second.weight *= 6
        case.model.second.bias.fill_(4.0)
        case.inputs[:3] *= 0.01
        hidden = case.model.second(torch.tanh(case.model.first(case.inputs)))
    assert (hidden[:3] > 0).all()  # ReLU changes nothing here,
    assert (hidden[3:] < 0).any()  # but here
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GradientFallbackWarning)
        engine, _ = build(case)
    assert_right_gradients(engine, case)


def test_a_layer_called_with_a_named_argument_gets_a_slower_engine():
    model = from_function(lambda self, x: self.out(input=torch.tanh(x)), out=nn.Linear(3, 1))
    case = vectors(model, 3)
    with pytest.warns(GradientFallbackWarning, match="cannot run it"):
        engine, _ = build(case)
    assert_right_gradients(engine, case)


def test_layers_called_in_another_order_than_defined_keep_the_fast_engine():
    model = from_function(
        lambda self, x: self.out(torch.tanh(self.second(torch.tanh(self.first(x))))),
        out=nn.Linear(4, 1),
        second=nn.Linear(5, 4),
        first=nn.Linear(3, 5),
    )
    case = vectors(model, 3)
    engine, _ = build(case)
    assert engine.name == "ghost"
    assert_right_gradients(engine, case)


def test_an_unused_layer_has_a_zero_gradient():
    model = from_function(lambda self, x: self.out(x), unused=nn.Linear(4, 4), out=nn.Linear(3, 1))
    case = vectors(model, 3)
    with pytest.warns(GradientFallbackWarning):
        engine, _ = build(case)
    value = engine.clipped_gradient_sum(start_of(case.model), case.records, math.inf)
    assert value[:20].abs().sum() == 0
    assert value[20:].abs().sum() > 0


# Losses


LOSSES = {
    "one number for the batch": lambda outputs, targets: (outputs - targets).square().mean(),
    "ranked within the batch": lambda outputs, targets: (
        (outputs - targets).square().sum(1) * (1 + outputs.detach().sum(1).argsort())
    ),
    "normalised by the batch": lambda outputs, targets: (outputs - targets).square().sum(1) / outputs.shape[0],
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_mixes_records_is_called_once_a_record(name):
    case = vectors(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)), 3, loss=LOSSES[name])
    with pytest.warns(GradientFallbackWarning, match="once a record") as caught:
        engine, _ = build(case)
    assert len(caught) == 1
    assert engine.name in ("vmap", "loop")
    assert_right_gradients(engine, case)


def test_a_loss_of_ones_own_that_gives_one_number_a_record_is_fast():
    def absolute(outputs, targets):
        return F.smooth_l1_loss(outputs, targets, reduction="none").sum(1)

    case = vectors(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)), 3, loss=absolute)
    engine, _ = build(case)
    assert engine.name == "columns"
    assert_right_gradients(engine, case)


def test_looking_at_a_model_does_not_change_it():
    case = vectors(nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5), nn.Linear(5, 1)), 3)
    before = start_of(case.model)
    build(case)
    assert torch.equal(start_of(case.model), before)
    assert case.model.training
    assert not any(layer._forward_hooks for layer in case.model.modules())


def test_looking_at_a_model_touches_no_global_generator():
    case = vectors(nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5), nn.Linear(5, 1)), 3)
    state = torch.get_rng_state()
    build(case)
    assert torch.equal(torch.get_rng_state(), state)
