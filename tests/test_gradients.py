"""Clipping: no record contributes more than the radius, in any precision, and all are treated as defined."""

import copy
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import vector_to_parameters

from diff2.gradients import FeatureCache, FlatModule, LoopEngine, Records, VmapEngine
from diff2.models.losses import squared
from helpers import (
    FAST,
    Case,
    clipped_sum,
    engines,
    fast_engine,
    gradient_rows,
    make_case,
    paper_network,
    relative_error,
    start_of,
    step_from,
    trainable,
    with_fast_engines,
)

DISTANCES = [1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7]
KINDS = ["ghost", "vmap", "loop", "columns"]
both_fast = pytest.mark.parametrize("kind", FAST)


def identity_case(vectors):
    """Return a case in which the gradient of a record is its own input."""
    model = nn.Linear(vectors.shape[1], 1, bias=False).to(vectors.dtype)
    nn.init.zeros_(model.weight)
    return Case(model, vectors, torch.full((vectors.shape[0], 1), -0.5, dtype=vectors.dtype))


def paper_case(count=64, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 8, generator=generator, dtype=torch.float64).to(dtype)
    return Case(paper_network(dtype=dtype, seed=seed), inputs, torch.randn(count, 1, generator=generator).to(dtype))


def one_by_one(case):
    """Yield the records, each alone."""
    for row in range(case.inputs.shape[0]):
        yield Records.of(case.inputs[row : row + 1], case.targets[row : row + 1])


# Definition


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(
        st.floats(0.8, 1.25) | st.sampled_from([0.0, 1.0, 1 - 1e-9, 1 + 1e-9, 1e-200, 1e3, 1e100]), min_size=1
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
        value = engine.clipped_gradient_sum(torch.zeros(3, dtype=torch.float64), case.records, radius)
        assert torch.allclose(value, expected, rtol=1e-12, atol=1e-13 * radius * len(lengths)), engine.name


@pytest.mark.parametrize("kind", KINDS)
def test_a_zero_gradient_contributes_nothing(kind):
    case = identity_case(torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64))
    engine = engines(case)[KINDS.index(kind)]
    value = engine.clipped_gradient_sum(torch.zeros(2, dtype=torch.float64), case.records, 1.0)
    assert torch.allclose(value, torch.tensor([0.6, 0.8], dtype=torch.float64), rtol=1e-12)


def test_an_infinite_radius_gives_the_plain_gradient():
    case = make_case("mlp")
    model = copy.deepcopy(case.model)
    squared(model(case.inputs), case.targets).sum().backward()
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])
    for engine in engines(case):
        assert (
            relative_error(engine.clipped_gradient_sum(start_of(case.model), case.records, math.inf), expected) < 1e-13
        )


def test_results_are_in_double_precision_and_the_model_is_untouched():
    case = make_case("mlp", dtype=torch.float32)
    before = copy.deepcopy(case.model.state_dict())
    for engine in engines(case):
        assert engine.clipped_gradient_sum(start_of(case.model) + 1, case.records, 1.0).dtype == torch.float64
    assert all(torch.equal(value, before[name]) for name, value in case.model.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in case.model.parameters())


def test_a_trained_module_is_independent_and_trainable():
    case = make_case("frozen layer")
    flat = FlatModule(case.model)
    module = flat.trained_module(flat.vector + 1)
    assert torch.equal(start_of(module), start_of(case.model) + 1)
    flat.load(torch.zeros_like(flat.vector))
    assert torch.equal(start_of(module), start_of(case.model) + 1)
    assert len(trainable(module)) == len(trainable(case.model))


# Single precision: privacy must not hang on rounding


@pytest.mark.parametrize("distance", DISTANCES)
@with_fast_engines("paper", "mlp", "sequence, wide", "conv2d", "conv1d, few places", "transformer", "frozen layer")
def test_one_record_alone_never_exceeds_the_radius(name, kind, distance):
    case = paper_case(16) if name == "paper" else make_case(name, count=5, dtype=torch.float32)
    previous = start_of(case.model)
    params = step_from(previous, distance)
    engine = engines(case)[KINDS.index(kind)]
    for record in one_by_one(case):
        length = float(engine.clipped_difference_sum(params, previous, record, math.inf).norm())
        for factor in (0.01, 0.999999, 1.0, 1.000001):  # around the true length, where a wrong norm would show
            radius = length * factor
            if radius > 0:
                value = engine.clipped_difference_sum(params, previous, record, radius)
                assert float(value.norm()) <= radius * (1 + 1e-5)
                assert float(value.norm()) >= min(radius, length) * (1 - 1e-2) or length < 1e-2 * distance


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [1, 10, 1000, 10_000])
def test_one_gradient_alone_never_exceeds_the_radius(kind, width):
    generator = torch.Generator().manual_seed(width)
    vectors = torch.cat(
        [torch.randn(20, width, generator=generator)]
        + [torch.full((1, width), value) for value in (0.1, 0.3, 0.7, 1.1, 3e-5, 7e4)]
    )
    case = identity_case(vectors)
    engine = engines(case)[KINDS.index(kind)]
    for vector, record in zip(vectors, one_by_one(case), strict=True):
        for factor in (0.1, 0.99999, 1.0, 1.00001):
            radius = float(vector.double().norm()) * factor
            value = engine.clipped_gradient_sum(torch.zeros(width), record, radius)
            assert float(value.norm()) <= radius * (1 + 1e-5)


@both_fast
def test_one_wide_gradient_alone_never_exceeds_the_radius(kind):
    for value in (0.3, 0.7, 1.1):
        case = identity_case(torch.full((1, 1_000_000), value))
        engine = engines(case)[KINDS.index(kind)]
        assert float(engine.clipped_gradient_sum(torch.zeros(1_000_000), case.records, 0.5).norm()) <= 0.5 * (1 + 1e-5)


@both_fast
def test_a_tiny_error_at_a_huge_input_is_clipped_too(kind):
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    case = Case(model, torch.full((1, 2), 1e18), torch.full((1, 1), 1e-23))  # a gradient of length 2.8e-5
    value = engines(case)[KINDS.index(kind)].clipped_gradient_sum(torch.zeros(2), case.records, 1e-7)
    assert float(value.norm()) <= 1e-7 * (1 + 1e-5)


@both_fast
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("growth", DISTANCES)
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
    # The error 2 (z - y) shrinks as the features grow; exactly so where the share is one.
    share = 1 + torch.linspace(-0.01, 0.01, 33, dtype=torch.float64).unsqueeze(1)
    case = Case(model, inputs, (outputs + outputs * (1 + growth) * share).float())
    engine, cancellation = engines(case)[KINDS.index(kind)], []
    for record, a, z in zip(one_by_one(case), hidden, outputs, strict=True):
        length = float(engine.clipped_difference_sum(start_of(grown), start_of(model), record, math.inf).norm())
        cancellation.append(length / float(growth * a.norm() * 2 * z.norm()))
        for factor in (0.1, 0.999999, 1.0):
            value = engine.clipped_difference_sum(start_of(grown), start_of(model), record, length * factor)
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
            record = Records.of(case.inputs[row : row + 1], case.targets[row : row + 1])
            radius = float(true[row]) / factor
            value = engine.clipped_difference_sum(params, previous, record, radius)
            assert float(value.norm()) <= radius * (1 + 1e-5)


@both_fast
@pytest.mark.parametrize(("distance", "tolerance"), [(1e-3, 1e-4), (1e-4, 1e-3)])
def test_differences_in_single_precision_are_accurate_in_the_median(kind, distance, tolerance):
    case = paper_case(101)
    previous = start_of(case.model)
    params = step_from(previous, distance)
    double = Case(copy.deepcopy(case.model).double(), case.inputs.double(), case.targets.double())
    true = (gradient_rows(double, params.double()) - gradient_rows(double, previous.double())).norm(dim=1)
    engine = engines(case)[KINDS.index(kind)]
    mine = torch.stack(
        [engine.clipped_difference_sum(params, previous, record, math.inf).norm() for record in one_by_one(case)]
    )
    # A gradient that is written out is rounded once more.
    assert float(((mine - true) / true).abs().median()) < tolerance * (1.5 if kind == "columns" else 1)


# Records that are not finite, or very large


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, 1e308, 1e200])
@pytest.mark.parametrize("row", [0, 4, 10])
def test_a_record_whose_gradient_is_not_finite_counts_as_zero(kind, bad, row):
    case = make_case("mlp", count=11)
    params = start_of(case.model)
    previous = step_from(params, 0.1)
    targets = case.targets.clone()
    targets[row] = bad
    engine = engines(case, chunk_rows=4)[KINDS.index(kind)]
    weights = torch.ones(11, dtype=torch.float64)
    weights[row] = 0
    without, spoilt = case.records._replace(weights=weights), case.records._replace(targets=targets)
    assert torch.equal(
        engine.clipped_gradient_sum(params, spoilt, 1.0), engine.clipped_gradient_sum(params, without, 1.0)
    )
    assert torch.equal(
        engine.clipped_difference_sum(params, previous, spoilt, 0.1),
        engine.clipped_difference_sum(params, previous, without, 0.1),
    )


@pytest.mark.parametrize("name", ["conv2d", "sequence, wide", "sequence, long", "layer norm", "group norm"])
def test_a_record_that_is_not_finite_inside_the_network_counts_as_zero(name):
    case = make_case(name, count=5)
    params = start_of(case.model)
    previous = step_from(params, 0.1)
    for bad in (math.inf, math.nan):
        inputs = case.inputs.clone()
        inputs[2] = bad
        good = torch.tensor([0, 1, 3, 4])
        rest = Case(case.model, case.inputs[good], case.targets[good], case.loss)
        for engine in engines(case):
            value = engine.clipped_gradient_sum(params, case.records._replace(inputs=inputs), 1.0)
            assert relative_error(value, engine.clipped_gradient_sum(params, rest.records, 1.0)) < 1e-12
            value = engine.clipped_difference_sum(params, previous, case.records._replace(inputs=inputs), 0.1)
            assert relative_error(value, engine.clipped_difference_sum(params, previous, rest.records, 0.1)) < 1e-12


def test_a_record_that_is_finite_at_one_iterate_only_counts_as_zero_in_the_difference():
    case = identity_case(torch.tensor([[1.0, 1.0], [1e100, 0.0]], dtype=torch.float64))
    params, previous = torch.tensor([1e150, 0.0], dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for engine in engines(case):
        value = engine.clipped_difference_sum(params, previous, case.records, 1.0)
        assert torch.allclose(value, torch.full((2,), 0.5**0.5, dtype=torch.float64)), engine.name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1e3, 1e50, 1e140])
def test_a_huge_record_is_clipped_like_any_other(kind, size):
    vectors = torch.tensor([[0.3, 0.4], [3 * size, 4 * size]], dtype=torch.float64)
    case = identity_case(vectors)
    engine = engines(case)[KINDS.index(kind)]
    value = engine.clipped_gradient_sum(torch.zeros(2, dtype=torch.float64), case.records, 1.0)
    assert torch.allclose(value, torch.tensor([0.9, 1.2], dtype=torch.float64), rtol=1e-12)


# The cache


def counted(loss):
    def count(outputs, targets):
        count.calls += 1
        return loss(outputs, targets)

    count.calls = 0
    return count


@with_fast_engines("mlp", "conv2d", "transformer", "embedding", "layer norm", "frozen bias", "sequence, wide")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_the_cache_changes_no_byte(name, kind, dtype):
    case = make_case(name, dtype=dtype)
    points = [start_of(case.model)]
    for distance in (1e-1, 1e-3, 1e-5):
        points.append(step_from(points[-1], distance, seed=len(points)))
    records = case.weighted()
    engine, plain = (fast_engine(kind, case.model, case.loss, records, chunk_rows=5) for _ in range(2))
    cache = FeatureCache()
    first = engine.clipped_gradient_sum(points[0], records, 0.5, cache=cache)
    assert torch.equal(first, plain.clipped_gradient_sum(points[0], records, 0.5))
    for previous, params in pairwise(points):
        value = engine.clipped_difference_sum(params, previous, records, 1e-3, cache=cache)
        assert cache.holds(params)
        assert torch.equal(value, plain.clipped_difference_sum(params, previous, records, 1e-3))


@both_fast
def test_with_the_cache_a_difference_costs_one_pass_and_without_it_two(kind):
    case = make_case("mlp")
    params = start_of(case.model)
    points = [params, step_from(params, 0.1), step_from(params, 0.2)]
    loss = counted(squared)
    for cache_bytes, passes in ((1 << 20, [3, 3, 3]), (0, [3, 6, 6])):
        engine = fast_engine(kind, case.model, loss, case.records, chunk_rows=4, cache_bytes=cache_bytes)
        cache, seen = FeatureCache(), []
        for r, point in enumerate(points):
            loss.calls = 0
            if r == 0:
                engine.clipped_gradient_sum(point, case.records, 1.0, cache=cache)
            else:
                engine.clipped_difference_sum(point, points[r - 1], case.records, 1.0, cache=cache)
            seen.append(loss.calls)
        assert seen == passes


@both_fast
def test_a_cache_beyond_the_memory_limit_is_not_kept(kind):
    case = make_case("mlp")
    params = start_of(case.model)
    previous = step_from(params, 0.1)
    expected = engines(case)[KINDS.index(kind)].clipped_difference_sum(params, previous, case.records, 0.1)
    for cache_bytes in (0, 100):
        engine = fast_engine(kind, case.model, case.loss, case.records, cache_bytes=cache_bytes)
        cache = FeatureCache()
        engine.clipped_gradient_sum(previous, case.records, 1.0, cache=cache)
        assert not cache.holds(previous)
        assert not cache.chunks
        assert torch.equal(engine.clipped_difference_sum(params, previous, case.records, 0.1, cache=cache), expected)


@both_fast
def test_features_of_another_iterate_are_not_used(kind):
    case = make_case("mlp")
    params = start_of(case.model)
    previous, other = step_from(params, 0.1), step_from(params, 0.2)
    engine, cache = engines(case)[KINDS.index(kind)], FeatureCache()
    engine.clipped_gradient_sum(other, case.records, 1.0, cache=cache)
    value = engine.clipped_difference_sum(params, previous, case.records, 0.1, cache=cache)
    assert torch.equal(value, engine.clipped_difference_sum(params, previous, case.records, 0.1))


@both_fast
@pytest.mark.parametrize("known", [True, False])
def test_features_of_an_interrupted_pass_are_not_used(kind, known):
    """Ctrl-C in the middle of a round leaves features of two iterates; the round done again must not mix them."""
    case = make_case("mlp")
    params = start_of(case.model)
    previous, other = step_from(params, 0.1), step_from(params, 0.2)

    def loss(outputs, targets):
        loss.calls += 1
        if loss.calls == loss.fails_at:
            raise KeyboardInterrupt
        return squared(outputs, targets)

    loss.calls, loss.fails_at = 0, -1
    engine, cache = fast_engine(kind, case.model, loss, case.records, chunk_rows=4), FeatureCache()
    cached = previous if known else other
    engine.clipped_gradient_sum(cached, case.records, 1.0, cache=cache)
    loss.fails_at = loss.calls + (2 if known else 4)  # in the second chunk
    with pytest.raises(KeyboardInterrupt):
        engine.clipped_difference_sum(params, previous, case.records, 0.1, cache=cache)
    value = engine.clipped_difference_sum(params, cached, case.records, 0.1, cache=cache)
    assert torch.equal(value, engine.clipped_difference_sum(params, cached, case.records, 0.1))


@pytest.mark.parametrize("engine_type", [VmapEngine, LoopEngine])
def test_slow_engines_need_no_cache(engine_type):
    case = make_case("mlp", count=4)
    params = start_of(case.model)
    engine = engine_type(case.model, case.loss)
    cached = engine.clipped_difference_sum(params, params + 1, case.records, 0.1, cache=FeatureCache())
    assert torch.equal(cached, engine.clipped_difference_sum(params, params + 1, case.records, 0.1))


def test_the_definition_used_by_these_tests_clips():
    """The reference itself, on numbers one can check by hand."""
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]], dtype=torch.float64)
    value = clipped_sum(rows, torch.tensor([1.0, 0.5], dtype=torch.float64), 1.0)
    assert torch.allclose(value, torch.tensor([0.75, 1.0], dtype=torch.float64))
