"""Differences of clipped gradients: their sum is a clipped gradient, and no record contributes more than the radius.

And clipped gradients at an iterate whose features are already known: the model is not run again.
"""

import copy
import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from diff2.gradients import FeatureCache, GhostEngine, LoopEngine, Masks, Records, VmapEngine
from diff2.gradients.column_terms import ColumnTerms
from diff2.models.losses import squared
from helpers import (
    FAST,
    MODELS,
    Case,
    clipped_sum,
    engines,
    fast_engine,
    gradient_rows,
    make_case,
    relative_error,
    start_of,
    step_from,
    with_fast_engines,
)
from test_gradients import counted, identity_case, one_by_one, paper_case

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
ALL = pytest.mark.parametrize("name", MODELS)
KINDS = ["ghost", "vmap", "loop", "columns"]
both_fast = pytest.mark.parametrize("kind", FAST)
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


def clipped(rows, radius):
    """Every row clipped by the definition, in double precision."""
    rows = rows.double()
    norms = rows.norm(dim=1, keepdim=True)
    return torch.where(norms > radius, rows * (radius / norms), rows)


def in_double(case):
    def double(values):
        return values.double() if values.dtype.is_floating_point else values

    return Case(copy.deepcopy(case.model).double(), double(case.inputs), double(case.targets), case.loss)


# Definition


@ALL
@DTYPES
@pytest.mark.parametrize("distance", [1e-5, 0.3])
def test_engines_give_the_clipped_difference_of_clipped_gradients(name, dtype, distance):
    case = make_case(name, dtype=dtype)
    previous = start_of(case.model)
    params = step_from(previous, distance)
    exact = in_double(case)
    now, before = (gradient_rows(exact, point.double()) for point in (params, previous))
    inner = float(before.norm(dim=1).median())  # one half of the gradients is clipped
    rows = clipped(now, inner) - clipped(before, inner)
    records = case.weighted()
    unit = torch.finfo(dtype).eps
    for radius in (float(rows.norm(dim=1).median()), math.inf):
        expected = clipped_sum(rows, records.weights, radius)
        for engine in engines(case):
            value = engine.clipped_difference_sum(params, previous, records, radius, inner=inner)
            # Gradients are rounded, and their difference is smaller than they are.
            allowed = 100 * unit * float(now.norm(dim=1).sum()) + 1e-14 * float(expected.norm())
            assert float((value - expected).norm()) < allowed, engine.name


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_one_can_check_by_hand(kind):
    """The gradient of a record at w is (2 w x + 1) x: 9, 5/3 and 18 at w = 1/3, and 3, 1 and -6 at w = 0."""
    case = identity_case(torch.tensor([[3.0], [1.0], [-6.0]], dtype=torch.float64))
    engine = engines(case)[KINDS.index(kind)]
    points = [torch.tensor([value], dtype=torch.float64) for value in (1 / 3, 0.0)]

    def difference(row, **radii):
        weights = torch.eye(3, dtype=torch.float64)[row]
        return float(engine.clipped_difference_sum(*points, case.records._replace(weights=weights), **radii))

    plain = [difference(row, radius=math.inf) for row in range(3)]
    assert plain == pytest.approx([6.0, 2 / 3, 24.0])
    assert [difference(row, radius=math.inf, inner=4.0) for row in range(3)] == pytest.approx([1.0, 2 / 3, 8.0])
    assert [difference(row, radius=0.9, inner=4.0) for row in range(3)] == pytest.approx([0.9, 2 / 3, 0.9])


@with_fast_engines(*MODELS)
@DTYPES
def test_without_the_outer_clip_the_sum_telescopes_to_the_clipped_gradient(name, kind, dtype):
    case = make_case(name, dtype=dtype)
    points = [start_of(case.model)]
    for distance in (0.5, 1e-3, 0.2):
        points.append(step_from(points[-1], distance, seed=len(points)))
    records = case.weighted()
    inner = 0.7 * float(gradient_rows(case, points[0]).norm(dim=1).median())
    engine, cache = engines(case)[KINDS.index(kind)], FeatureCache()
    total = engine.clipped_gradient_sum(points[0], records, inner, cache=cache)
    plain = total.clone()
    for previous, params in pairwise(points):
        total += engine.clipped_difference_sum(params, previous, records, math.inf, cache=cache, inner=inner)
        plain += engine.clipped_difference_sum(params, previous, records, math.inf)
    expected = LoopEngine(case.model, case.loss).clipped_gradient_sum(points[-1], records, inner)
    assert relative_error(total, expected) < (1e-13 if dtype == torch.float64 else 3e-5)
    assert relative_error(plain, expected) > 1e-3  # differences of gradients that are not clipped do not


@pytest.mark.parametrize("name", ["mlp", "conv2d", "transformer", "layer norm"])
@DTYPES
def test_a_radius_that_no_gradient_reaches_changes_no_byte(name, dtype):
    case = make_case(name, dtype=dtype)
    params = start_of(case.model)
    previous = step_from(params, 1e-2)
    for engine in engines(case):
        plain, infinite, huge = (
            engine.clipped_difference_sum(params, previous, case.weighted(), 1e-3, **options)
            for options in ({}, {"inner": math.inf}, {"inner": 1e12})
        )
        assert torch.equal(infinite, plain)
        assert torch.equal(huge, plain)


def test_masks_are_the_same_at_both_iterates_of_a_telescoped_difference():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 20), nn.Dropout(0.5), nn.Tanh(), nn.Linear(20, 1)).double()
    records = Records.of(torch.randn(8, 4, dtype=torch.float64), torch.randn(8, 1, dtype=torch.float64))
    params, masks = start_of(model), Masks(b"round 1")
    previous = step_from(params, 0.1)
    ghost, *slow = (
        GhostEngine(model, squared, records, chunk_rows=1),
        VmapEngine(model, squared, chunk_rows=1),
        LoopEngine(model, squared, chunk_rows=1),
    )
    value = ghost.clipped_difference_sum(params, previous, records, 0.1, masks=masks, inner=0.5)
    for engine in slow:
        expected = engine.clipped_difference_sum(params, previous, records, 0.1, masks=masks, inner=0.5)
        assert relative_error(value, expected) < 1e-9
    assert not ghost.clipped_difference_sum(params, params.clone(), records, 0.1, masks=masks, inner=0.5).any()


# Privacy


@pytest.mark.parametrize("distance", [1.0, 1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("name", ["paper", "mlp", "sequence, wide", "conv2d", "conv1d, few places", "transformer"])
def test_one_record_alone_never_exceeds_the_radius(name, distance):
    case = paper_case(12) if name == "paper" else make_case(name, count=4, dtype=torch.float32)
    previous = start_of(case.model)
    params = step_from(previous, distance)
    engine = engines(case)[0]
    for record in one_by_one(case):
        norm = float(engine.clipped_gradient_sum(params, record, math.inf).norm())
        for share in (0.3, 1.0, 3.0):
            inner = share * norm
            length = float(engine.clipped_difference_sum(params, previous, record, math.inf, inner=inner).norm())
            assert length <= 2 * inner * (1 + 1e-5)
            for factor in (0.01, 0.999999, 1.0, 1.000001):  # around the true length, where a wrong norm would show
                radius = length * factor
                if radius > 0:
                    value = engine.clipped_difference_sum(params, previous, record, radius, inner=inner)
                    assert float(value.norm()) <= radius * (1 + 1e-5)
                    assert float(value.norm()) >= min(radius, length) * (1 - 1e-2) or length < 1e-2 * distance


def test_in_single_precision_the_norm_is_that_of_the_vector_that_is_summed():
    """At a distance of 1e-4 the textbook norm of a difference is too small by factors; this one is not."""
    case = paper_case(64)
    previous = start_of(case.model)
    params = step_from(previous, 1e-4)
    engine = engines(case)[0]
    exact = in_double(case)
    now, before = (gradient_rows(exact, point.double()) for point in (params, previous))
    inner = float(now.norm(dim=1).median())
    true = (clipped(now, inner) - clipped(before, inner)).norm(dim=1)
    radius = float(true.median())
    lengths = torch.stack(
        [
            engine.clipped_difference_sum(params, previous, record, radius, inner=inner).norm()
            for record in one_by_one(case)
        ]
    )
    assert float(lengths.max()) <= radius * (1 + 1e-5)
    assert float(((lengths - true.clamp(max=radius)) / radius).abs().median()) < 2e-3


@pytest.mark.parametrize("kind", KINDS)
@DTYPES
def test_replacing_a_record_moves_the_sum_by_at_most_twice_the_radius(kind, dtype):
    case = paper_case(7, dtype)
    previous = start_of(case.model)
    params = step_from(previous, 0.01)
    engine = engines(case, chunk_rows=3)[KINDS.index(kind)]
    ones, top = torch.ones(8, dtype=dtype), torch.finfo(dtype).max
    others = {
        "zero": (0 * ones, 0.0),
        "huge input": (1e6 * ones, 0.0),
        "huge target": (ones, 1e7),
        "huge opposite target": (ones, -1e7),
        "infinite loss": (ones, top / 2),
        "infinite norm": (ones * top**0.75, 1.0),
        "not a number": (ones * top * torch.tensor([1.0, -1.0] * 4, dtype=dtype), 0.0),
    }
    tolerance = 1e-9 if dtype == torch.float64 else 1e-5

    def sums(row, inputs, target, radius, inner):
        records = Records.of(case.inputs.clone(), case.targets.clone())
        records.inputs[row], records.targets[row] = inputs, target
        return engine.clipped_difference_sum(params, previous, records, radius, inner=inner)

    worst = 0.0
    for radius, inner, bound in ((1e-3, 1.0, 1e-3), (1e-3, 1e-2, 1e-3), (math.inf, 1e-3, 2e-3)):
        for row in (0, 6):
            found = [sums(row, *other, radius, inner) for other in others.values()]
            found.append(engine.clipped_difference_sum(params, previous, case.records, radius, inner=inner))
            moved = [float((one - two).norm()) / (2 * bound) for one in found for two in found]
            assert max(moved) <= 1 + tolerance
            worst = max(worst, *moved)
    assert worst > 0.5  # the probe reaches the bound's order: a doubled contribution would show


# Pairs of points: at 1e150 the second record below has no finite gradient, at 1.0 only the norm of it is not finite.
SPOILT = {
    "now": (1e150, 0.0),
    "before": (0.0, 1e150),
    "now, in the norm alone": (1.0, 0.0),
    "before, in the norm alone": (0.0, 1.0),
    "both": (1e150, -1e150),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", SPOILT)
@pytest.mark.parametrize("radius", [1.0, math.inf])
def test_a_record_without_a_finite_gradient_at_either_iterate_counts_as_zero(kind, where, radius):
    case = identity_case(torch.tensor([[1.0, 1.0], [1e100, 0.0], [0.5, -2.0]], dtype=torch.float64))
    params, previous = (torch.tensor([value, 0.0], dtype=torch.float64) for value in SPOILT[where])
    engine = engines(case)[KINDS.index(kind)]
    good = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    value = engine.clipped_difference_sum(params, previous, case.records, radius, inner=0.5)
    expected = engine.clipped_difference_sum(params, previous, case.records._replace(weights=good), radius, inner=0.5)
    assert torch.isfinite(value).all()
    assert torch.equal(value, expected)
    rest = Case(case.model, case.inputs[[0, 2]], case.targets[[0, 2]])
    alone = engines(rest)[2].clipped_difference_sum(params, previous, rest.records, radius, inner=0.5)
    assert torch.allclose(value, alone, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", ["mlp", "conv2d", "sequence, wide", "layer norm", "group norm"])
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_record_that_is_not_finite_inside_the_network_counts_as_zero(name, bad):
    case = make_case(name, count=5)
    params = start_of(case.model)
    previous = step_from(params, 0.1)
    inputs = case.inputs.clone()
    inputs[2] = bad
    rest = Records(*(part[[0, 1, 3, 4]] for part in case.records))
    for engine in engines(case):
        value = engine.clipped_difference_sum(params, previous, case.records._replace(inputs=inputs), 0.1, inner=0.5)
        expected = engine.clipped_difference_sum(params, previous, rest, 0.1, inner=0.5)
        assert relative_error(value, expected) < 1e-12


# What is kept from round to round


@with_fast_engines("mlp", "conv2d", "transformer", "embedding", "layer norm", "frozen bias", "frozen layer")
@DTYPES
def test_the_cache_changes_no_byte_whatever_the_inner_radius_of_the_round_before(name, kind, dtype):
    case = make_case(name, dtype=dtype)
    points = [start_of(case.model)]
    for distance in (1e-1, 1e-3, 1e-1, 1e-5, 1e-2):
        points.append(step_from(points[-1], distance, seed=len(points)))
    records = case.weighted()
    engine, plain = (fast_engine(kind, case.model, case.loss, records, chunk_rows=5) for _ in range(2))
    cache = FeatureCache()
    engine.clipped_gradient_sum(points[0], records, 0.5, cache=cache)
    for (previous, params), inner in zip(pairwise(points), (0.3, 0.3, math.inf, 0.2, 1.0), strict=True):
        value = engine.clipped_difference_sum(params, previous, records, 1e-3, cache=cache, inner=inner)
        assert cache.holds(params)
        assert torch.equal(value, plain.clipped_difference_sum(params, previous, records, 1e-3, inner=inner))


@both_fast
def test_norms_at_the_previous_iterate_are_kept(monkeypatch, kind):
    """A telescoped round costs one more norm of a gradient than a plain one: that of the new iterate."""
    case = make_case("mlp")
    engine, cache, norms = fast_engine(kind, case.model, case.loss, case.records, chunk_rows=4), FeatureCache(), []
    part = ColumnTerms if kind == "columns" else GhostEngine
    terms = part._terms

    def counting(self, *arguments):
        norms.append("gradient" if arguments[-1] is None else "difference")
        return terms(self, *arguments)

    monkeypatch.setattr(part, "_terms", counting)
    points = [step_from(start_of(case.model), 0.1, seed=seed) for seed in range(5)]

    def asked(compute):
        norms.clear()
        compute()
        return norms.count("gradient"), norms.count("difference")

    def difference(r, inner):
        return asked(
            lambda: engine.clipped_difference_sum(points[r], points[r - 1], case.records, 0.1, cache=cache, inner=inner)
        )

    assert asked(lambda: engine.clipped_gradient_sum(points[0], case.records, 1.0, cache=cache)) == (3, 0)
    assert difference(1, inner=0.5) == (3, 3)
    assert difference(2, inner=0.5) == (3, 3)
    assert difference(3, inner=math.inf) == (0, 3)
    assert difference(4, inner=0.5) == (6, 3)  # the plain round before found no norm of a gradient


# A gradient at an iterate whose features are known


@with_fast_engines("mlp", "conv2d", "transformer", "embedding", "layer norm", "frozen bias")
@DTYPES
@pytest.mark.parametrize("inner", [math.inf, 0.3])
@pytest.mark.parametrize("remember", [True, False])
def test_a_gradient_after_a_difference_runs_no_model_and_changes_no_byte(name, kind, dtype, inner, remember):
    case = make_case(name, dtype=dtype)
    points = [step_from(start_of(case.model), 0.1, seed=seed) for seed in range(3)]
    records, loss = case.weighted(), counted(case.loss)
    engine, plain = (fast_engine(kind, case.model, loss, records, chunk_rows=5) for _ in range(2))
    cache = FeatureCache()
    engine.clipped_difference_sum(points[1], points[0], records, 0.1, cache=cache, inner=inner)
    loss.calls = 0
    values = [
        engine.clipped_gradient_sum(points[1], records, radius, cache=cache, remember=remember)
        for radius in (0.5, 0.1, math.inf)
    ]
    assert loss.calls == 0
    assert cache.holds(points[1])
    for value, radius in zip(values, (0.5, 0.1, math.inf), strict=True):
        assert torch.equal(value, plain.clipped_gradient_sum(points[1], records, radius))
    # The features are still there for the next round.
    loss.calls = 0
    value = engine.clipped_difference_sum(points[2], points[1], records, 0.1, cache=cache, inner=inner)
    assert loss.calls == 3
    assert torch.equal(value, plain.clipped_difference_sum(points[2], points[1], records, 0.1, inner=inner))


@both_fast
def test_a_gradient_at_another_iterate_runs_the_model(kind):
    case = make_case("mlp")
    points = [step_from(start_of(case.model), 0.1, seed=seed) for seed in range(3)]
    loss = counted(squared)
    engine, cache = fast_engine(kind, case.model, loss, case.records, chunk_rows=4), FeatureCache()
    engine.clipped_difference_sum(points[1], points[0], case.records, 0.1, cache=cache)
    nearly = points[1].clone()
    nearly[3] = torch.nextafter(nearly[3], nearly[3] + 1)
    for point in (points[0], points[2], nearly):
        loss.calls = 0
        value = engine.clipped_gradient_sum(point, case.records, 0.5, cache=cache)
        assert loss.calls == 3
        assert torch.equal(value, engine.clipped_gradient_sum(point, case.records, 0.5))
        assert cache.holds(point)
        engine.clipped_difference_sum(points[1], point, case.records, 0.1, cache=cache)


def test_features_of_one_mask_serve_no_other():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 20), nn.Dropout(0.5), nn.Tanh(), nn.Linear(20, 1)).double()
    records = Records.of(torch.randn(8, 4, dtype=torch.float64), torch.randn(8, 1, dtype=torch.float64))
    params = start_of(model)
    previous = step_from(params, 0.1)
    engine, cache = GhostEngine(model, squared, records, chunk_rows=3), FeatureCache()
    for held in (params, previous):
        for masks in (None, Masks(b"1")):  # with these, or without any, features are computed and perhaps kept
            engine.clipped_gradient_sum(held, records, 1.0, cache=cache, masks=masks)
            value = engine.clipped_gradient_sum(params, records, 1.0, cache=cache, masks=Masks(b"2"))
            assert torch.equal(value, engine.clipped_gradient_sum(params, records, 1.0, masks=Masks(b"2")))
            engine.clipped_gradient_sum(held, records, 1.0, cache=cache, masks=masks)
            value = engine.clipped_difference_sum(params, previous, records, 1.0, cache=cache, masks=Masks(b"2"))
            assert torch.equal(value, engine.clipped_difference_sum(params, previous, records, 1.0, masks=Masks(b"2")))


@both_fast
@pytest.mark.parametrize("at", ["params", "previous"])
def test_a_gradient_uses_no_features_of_an_interrupted_pass(kind, at):
    case = make_case("mlp")
    params = start_of(case.model)
    previous = step_from(params, 0.1)

    def loss(outputs, targets):
        loss.calls += 1
        if loss.calls == loss.fails_at:
            raise KeyboardInterrupt
        return squared(outputs, targets)

    loss.calls, loss.fails_at = 0, -1
    engine, cache = fast_engine(kind, case.model, loss, case.records, chunk_rows=4), FeatureCache()
    engine.clipped_gradient_sum(previous, case.records, 1.0, cache=cache)
    loss.fails_at = loss.calls + 2  # in the second chunk: the first is that of the new iterate
    with pytest.raises(KeyboardInterrupt):
        engine.clipped_difference_sum(params, previous, case.records, 0.1, cache=cache, inner=0.5)
    point = {"params": params, "previous": previous}[at]
    value = engine.clipped_gradient_sum(point, case.records, 1.0, cache=cache)
    assert torch.equal(value, engine.clipped_gradient_sum(point, case.records, 1.0))


@both_fast
@pytest.mark.parametrize("then", ["gradient", "difference"])
def test_a_gradient_of_known_features_that_is_interrupted_leaves_them_whole(monkeypatch, kind, then):
    case = make_case("mlp")
    params = start_of(case.model)
    previous, following = step_from(params, 0.1), step_from(params, 0.2)
    engine, cache = fast_engine(kind, case.model, case.loss, case.records, chunk_rows=4), FeatureCache()
    engine.clipped_difference_sum(params, previous, case.records, 0.1, cache=cache)
    part, name = (ColumnTerms, "add") if kind == "columns" else (GhostEngine, "_add")
    add, calls = getattr(part, name), []

    def failing(self, *arguments):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return add(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(part, name, failing)
        with pytest.raises(KeyboardInterrupt):
            engine.clipped_gradient_sum(params, case.records, 1.0, cache=cache)

    def ask(**options):
        if then == "gradient":
            return engine.clipped_gradient_sum(params, case.records, 1.0, **options)
        return engine.clipped_difference_sum(following, params, case.records, 0.1, inner=0.5, **options)

    assert torch.equal(ask(cache=cache), ask())
