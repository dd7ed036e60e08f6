"""Clipping: no record contributes more than the radius, in any precision, and all are treated as defined."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import vector_to_parameters

from diff2.errors import InvalidArgument
from diff2.gradients import FlatModule
from diff2.models.losses import squared
from diff2.questions.question import Question
from helpers import (
    FAST,
    Case,
    clipped_sum,
    difference,
    engines,
    gradient,
    gradient_rows,
    make_case,
    make_engine,
    paper_case,
    relative_error,
    start_of,
    step_from,
    trainable,
    with_fast_engines,
)

DISTANCES = [1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7]
AROUND = (0.01, 0.999999, 1.0, 1.000001)  # around the true length, where a wrong norm would show
every_engine = pytest.mark.parametrize("kind", ["columns", "ghost", "vmap", "loop"])
both_fast = pytest.mark.parametrize("kind", FAST)


def engine_for(kind, case, **options):
    return make_engine(kind, case.model, case.loss, case.records, **options)


def identity_case(vectors):
    """Return a case in which the gradient of a record at zero is its own input."""
    model = nn.Linear(vectors.shape[1], 1, bias=False).to(vectors.dtype)
    nn.init.zeros_(model.weight)
    return Case(model, vectors, torch.full((vectors.shape[0], 1), -0.5, dtype=vectors.dtype))


# Definition


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(
        st.floats(0.8, 1.25) | st.sampled_from([0.0, 1.0, 1 - 1e-9, 1 + 1e-9, 1e-200, 1e3, 1e100]),
        min_size=1,
        max_size=8,
    ),
    radius=st.sampled_from([1.0, 0.37, 1e-6, 1e6]),
)
def test_a_vector_is_shortened_to_the_radius_and_only_if_it_is_longer(lengths, radius):
    directions = torch.randn(len(lengths), 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    directions /= directions.norm(dim=1, keepdim=True)
    scale = torch.tensor(lengths, dtype=torch.float64).unsqueeze(1) * radius
    case = identity_case(directions * scale)
    expected = (directions * scale.clamp(max=radius)).sum(0)
    for engine in engines(case):
        value = gradient(engine, torch.zeros(3, dtype=torch.float64), case.records, radius)
        assert torch.allclose(value, expected, rtol=1e-12, atol=1e-13 * radius * len(lengths)), engine.name


@every_engine
@pytest.mark.parametrize("size", [0.0, 0.1, 1e3, 1e50, 1e140])
def test_a_record_of_any_size_is_clipped_like_any_other(kind, size):
    case = identity_case(torch.tensor([[0.3, 0.4], [3 * size, 4 * size]], dtype=torch.float64))
    value = gradient(engine_for(kind, case), torch.zeros(2, dtype=torch.float64), case.records, 1.0)
    factor = 0.5 + min(1.0, 5 * size)
    assert torch.allclose(value, factor * torch.tensor([0.6, 0.8], dtype=torch.float64), rtol=1e-12)


def test_an_infinite_radius_gives_the_plain_gradient():
    case = make_case("mlp")
    model = copy.deepcopy(case.model)
    squared(model(case.inputs), case.targets).sum().backward()
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])
    for engine in engines(case):
        assert relative_error(gradient(engine, start_of(case.model), case.records), expected) < 1e-13


def test_results_are_ordinary_tensors_in_double_precision_and_the_model_is_untouched():
    case = paper_case()
    before = copy.deepcopy(case.model.state_dict())
    for engine in engines(case):
        value = gradient(engine, start_of(case.model) + 1, case.records, 1.0)
        assert value.dtype == torch.float64
        assert not value.is_inference()
    assert all(torch.equal(value, before[name]) for name, value in case.model.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in case.model.parameters())


def test_a_question_that_is_only_declared_is_refused():
    case = paper_case()
    for engine in engines(case):
        with pytest.raises(InvalidArgument, match=r"question\.at\(round, params"):
            engine.clipped_sum(Question.gradient(1.0), case.records)


def test_a_trained_module_is_independent_and_trainable():
    case = make_case("frozen layer")
    flat = FlatModule(case.model)
    module = flat.trained_module(flat.vector + 1)
    assert torch.equal(start_of(module), start_of(case.model) + 1)
    flat.load(torch.zeros_like(flat.vector))
    assert torch.equal(start_of(module), start_of(case.model) + 1)
    assert len(trainable(module)) == len(trainable(case.model))


# Single precision: privacy must not depend on rounding


@pytest.mark.parametrize("distance", DISTANCES[::2])
@with_fast_engines("paper", "mlp", "sequence, wide", "conv2d", "conv1d, few places", "transformer", "frozen layer")
def test_one_difference_alone_never_exceeds_the_radius(name, kind, distance):
    case = paper_case(16) if name == "paper" else make_case(name, count=5, dtype=torch.float32)
    previous = start_of(case.model)
    params = step_from(previous, distance)
    engine = engine_for(kind, case)
    for record in case.one_by_one():
        length = float(difference(engine, params, previous, record).norm())
        for radius in (length * factor for factor in AROUND if length > 0):
            value = float(difference(engine, params, previous, record, radius).norm())
            assert value <= radius * (1 + 1e-5)
            assert value >= min(radius, length) * (1 - 1e-2) or length < 1e-2 * distance


@every_engine
@pytest.mark.parametrize("width", [1, 10, 1000, 10_000])
def test_one_gradient_alone_never_exceeds_the_radius(kind, width):
    generator = torch.Generator().manual_seed(width)
    vectors = torch.cat(
        [torch.randn(8, width, generator=generator)]
        + [torch.full((1, width), value) for value in (0.1, 0.3, 0.7, 1.1, 3e-5, 7e4)]
    )
    case = identity_case(vectors)
    engine = engine_for(kind, case)
    for vector, record in zip(vectors, case.one_by_one(), strict=True):
        for factor in (0.1, 0.99999, 1.0, 1.00001):
            radius = float(vector.double().norm()) * factor
            assert float(gradient(engine, torch.zeros(width), record, radius).norm()) <= radius * (1 + 1e-5)


@both_fast
def test_one_wide_gradient_alone_never_exceeds_the_radius(kind):
    for value in (0.3, 0.7, 1.1):
        case = identity_case(torch.full((1, 1_000_000), value))
        clipped = gradient(engine_for(kind, case), torch.zeros(1_000_000), case.records, 0.5)
        assert float(clipped.norm()) <= 0.5 * (1 + 1e-5)


@both_fast
def test_a_tiny_error_at_a_huge_input_is_clipped_too(kind):
    case = identity_case(torch.full((1, 2), 1e18))._replace(targets=torch.full((1, 1), 1e-23))  # of length 2.8e-5
    assert float(gradient(engine_for(kind, case), torch.zeros(2), case.records, 1e-7).norm()) <= 1e-7 * (1 + 1e-5)


@both_fast
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("growth", DISTANCES[::2])
def test_a_record_whose_two_terms_nearly_cancel_never_exceeds_the_radius(kind, outputs, growth):
    """a = (1 + t) a' and g = g' / (1 + t): then da (x) g and a' (x) dg are opposite, and their sum is far smaller."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, outputs, bias=False))
    inputs = 1e-4 * torch.randn(33, 6, generator=generator)  # so small that only the second layer's gradient counts
    with torch.no_grad():
        model[0].weight.copy_(1e4 * torch.eye(6) + 1e3 * torch.randn(6, 6, generator=generator))
        model[1].weight.copy_(torch.randn(outputs, 6, generator=generator))
        hidden, outputs = model[0](inputs).double(), model(inputs).double()
    grown = copy.deepcopy(model)
    with torch.no_grad():
        grown[0].weight *= 1 + growth
    # The error 2 (z - y) shrinks as the features grow; exactly so where the ratio is one.
    ratio = 1 + torch.linspace(-0.01, 0.01, 33, dtype=torch.float64).unsqueeze(1)
    case = Case(model, inputs, (outputs + outputs * (1 + growth) * ratio).float())
    engine, points, cancellation = engine_for(kind, case), (start_of(grown), start_of(model)), []
    for record, a, z in zip(case.one_by_one(), hidden, outputs, strict=True):
        length = float(difference(engine, *points, record).norm())
        cancellation.append(length / float(growth * a.norm() * 2 * z.norm()))
        for factor in (0.1, 0.999999, 1.0):
            value = difference(engine, *points, record, length * factor)
            assert float(value.norm()) <= length * factor * (1 + 1e-5)
    assert min(cancellation) < 0.1 or growth < 1e-5  # below, rounding of the features is larger than what is left


def textbook_norms(case, params, previous):
    """|a|^2|g|^2 + |a'|^2|g'|^2 - 2 (a.a')(g.g') over the paper's network, as one would first write it."""

    def features(at):
        model = copy.deepcopy(case.model).to(at.dtype)
        vector_to_parameters(at, trainable(model))
        inputs = case.inputs.to(at.dtype)
        hidden = model[0](inputs)
        outputs = model[2](model[1](hidden))
        total = squared(outputs, case.targets.to(at.dtype)).sum()
        errors = torch.autograd.grad(total, (hidden, outputs))
        return [(inputs, errors[0]), (model[1](hidden).detach(), errors[1])]

    square = 0.0
    for (a, g), (b, h) in zip(features(params), features(previous), strict=True):
        square = square + (a * a).sum(1) * (g * g).sum(1) + (b * b).sum(1) * (h * h).sum(1)
        square = square - 2 * (a * b).sum(1) * (g * h).sum(1) + ((g - h) ** 2).sum(1)
    return square.clamp(min=0).sqrt()


@pytest.mark.parametrize(("distance", "factor"), [(1e-3, 3), (1e-4, 38)])
def test_the_textbook_norm_of_a_difference_is_too_small_in_single_precision(distance, factor):
    case = paper_case(4096)
    previous = start_of(case.model)
    params = step_from(previous, distance)
    textbook = textbook_norms(case, params, previous).double()
    true = textbook_norms(case, params.double(), previous.double())
    underestimated = true > factor * textbook
    assert underestimated.double().mean() > 0.01  # one record in a hundred would exceed its radius by this factor
    # The same records through the engines: none does.
    for engine in engines(case):
        for row in underestimated.nonzero().flatten()[:20]:
            radius = float(true[row]) / factor
            value = difference(engine, params, previous, case.part([int(row)]).records, radius)
            assert float(value.norm()) <= radius * (1 + 1e-5)


@pytest.mark.parametrize("kind", ["compiled", "columns", "ghost"])
@pytest.mark.parametrize(("distance", "tolerance"), [(1e-3, 1e-4), (1e-4, 1e-3)])
def test_differences_in_single_precision_are_accurate_in_the_median(kind, distance, tolerance):
    if kind == "compiled":
        pytest.importorskip("diff2.gradients.kernels")
    case = paper_case(101)
    previous = start_of(case.model)
    params = step_from(previous, distance)
    double = Case(copy.deepcopy(case.model).double(), case.inputs.double(), case.targets.double())
    true = (gradient_rows(double, params.double()) - gradient_rows(double, previous.double())).norm(dim=1)
    engine = engine_for(kind, case)
    mine = torch.stack([difference(engine, params, previous, record).norm() for record in case.one_by_one()])
    # A gradient that is written out is rounded once more.
    assert float(((mine - true) / true).abs().median()) < tolerance * (1 if kind == "ghost" else 1.5)


# Records without a finite gradient


@every_engine
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, 1e308, 1e200])
def test_a_record_whose_gradient_is_not_finite_counts_as_zero(kind, bad):
    case = make_case("mlp", count=11)
    params = start_of(case.model)
    previous = step_from(params, 0.1)
    engine = engine_for(kind, case, chunk_rows=4)
    for row in (0, 4, 10):
        targets, weights = case.targets.clone(), torch.ones(11, dtype=torch.float64)
        targets[row], weights[row] = bad, 0
        spoilt, without = case.records._replace(targets=targets), case.records._replace(weights=weights)
        assert torch.equal(gradient(engine, params, spoilt, 1.0), gradient(engine, params, without, 1.0))
        value = difference(engine, params, previous, spoilt, 0.1)
        assert torch.equal(value, difference(engine, params, previous, without, 0.1))


@pytest.mark.parametrize("name", ["mlp", "conv2d", "sequence, wide", "sequence, long", "layer norm", "group norm"])
def test_a_record_that_is_not_finite_inside_the_network_counts_as_zero(name):
    case = make_case(name, count=5)
    params = start_of(case.model)
    previous = step_from(params, 0.1)
    rest = case.part([0, 1, 3, 4]).records
    for bad in (math.inf, math.nan):
        inputs = case.inputs.clone()
        inputs[2] = bad
        spoilt = case.records._replace(inputs=inputs)
        for engine in engines(case):
            assert relative_error(gradient(engine, params, spoilt, 1.0), gradient(engine, params, rest, 1.0)) < 1e-12
            value = difference(engine, params, previous, spoilt, 0.1)
            assert relative_error(value, difference(engine, params, previous, rest, 0.1)) < 1e-12


@pytest.mark.parametrize("far", [(1e150, 0.0), (0.0, 1e150), (1.0, 0.0), (1e150, -1e150)], ids=str)
def test_a_record_without_a_finite_gradient_at_either_iterate_counts_as_zero_in_the_difference(far):
    """At 1e150 the second record has no finite gradient, at 1.0 only the norm of it is not finite."""
    case = identity_case(torch.tensor([[1.0, 1.0], [1e100, 0.0]], dtype=torch.float64))
    params, previous = (torch.tensor([value, 0.0], dtype=torch.float64) for value in far)
    direction = torch.full((2,), math.copysign(0.5**0.5, far[0] - far[1]), dtype=torch.float64)
    for engine in engines(case):
        value = difference(engine, params, previous, case.records, 1.0)
        assert torch.allclose(value, direction), engine.name


def test_the_definition_used_by_these_tests_clips():
    """The reference itself, on numbers one can check by hand."""
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]], dtype=torch.float64)
    value = clipped_sum(rows, torch.tensor([1.0, 0.5], dtype=torch.float64), 1.0)
    assert torch.allclose(value, torch.tensor([0.75, 1.0], dtype=torch.float64))
