"""One compiled pass over tiles of records: nothing of the guarantee is lost."""

import math
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from diff2.gradients import FeatureCache, Records, compiled
from diff2.gradients.columns import ColumnsEngine
from diff2.gradients.compiled import CompiledEngine
from diff2.gradients.per_record import VmapEngine
from diff2.gradients.sums import BLOCK, TILE, rounding_allowance
from diff2.models.losses import cross_entropy, squared
from helpers import Case, difference, gradient, relative_error, start_of, step_from
from probes import adversaries

kernels = pytest.importorskip("diff2.gradients.kernels")
UNIT = torch.finfo(torch.float32).eps / 2

both_kinds = pytest.mark.parametrize("of", ["gradient", "difference"])
both_losses = pytest.mark.parametrize("outputs", [1, 3, -3], ids=["one output", "three outputs", "classes"])


def a_case(*, inputs=5, units=4, outputs=1, count=30, seed=0, scale=1.0):
    """Return a network with one hidden layer; negative outputs are classes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(inputs, units), nn.Softplus(), nn.Linear(units, abs(outputs)))
    x = scale * torch.randn(count, inputs, generator=generator)
    if outputs < 0:
        return Case(model, x, torch.randint(0, -outputs, (count,), generator=generator), cross_entropy)
    return Case(model, x, 3 * torch.randn(count, outputs, generator=generator), squared)


def ask(engine, of, params, previous, records, radius=math.inf, **options):
    if of == "gradient":
        return gradient(engine, params, records, radius, **options)
    return difference(engine, params, previous, records, radius, **options)


# The numbers


@settings(deadline=None, max_examples=60)
@given(
    inputs=st.integers(1, 13),
    units=st.integers(1, 11),
    outputs=st.sampled_from([1, 2, 3, 5, -2, -3, -7]),
    count=st.integers(1, 40) | st.sampled_from([TILE - 1, TILE, TILE + 1]),
    radius=st.sampled_from([1e-3, 0.5, 3.0, math.inf]),
    seed=st.integers(0, 1000),
)
def test_sums_are_those_of_written_out_gradients(inputs, units, outputs, count, radius, seed):
    case = a_case(inputs=inputs, units=units, outputs=outputs, count=count, seed=seed)
    params = start_of(case.model)
    previous = step_from(params, 0.1)
    records = case.weighted()
    engine = CompiledEngine(case.model, case.loss)
    exact = VmapEngine(case.model, case.loss, dtype=torch.float64)
    double = Records(*(part.double() if part.dtype.is_floating_point else part for part in records))
    size = min(radius, 10.0) * float(records.weights.sum())
    for of in ("gradient", "difference"):
        mine = ask(engine, of, params, previous, records, radius)
        right = ask(exact, of, params.double(), previous.double(), double, radius)
        assert float((mine - right).norm()) <= 1e-4 * float(right.norm()) + 3e-6 * size, of


@pytest.mark.parametrize("outputs", [1, -3])
def test_an_evaluation_is_that_of_the_columns_engine(outputs):
    case = a_case(outputs=outputs, count=TILE + 37)
    params, records = start_of(case.model), case.weighted()
    mine, right = (kind(case.model, case.loss).evaluate(params, records) for kind in (CompiledEngine, ColumnsEngine))
    assert torch.equal(mine.hits, right.hits)
    assert torch.allclose(mine.losses, right.losses, rtol=1e-5, atol=1e-6)
    assert relative_error(mine.gradient, right.gradient) < 1e-5
    engine, cache = CompiledEngine(case.model, case.loss, chunk_rows=TILE), FeatureCache()
    for with_gradient in (True, False):
        again = engine.evaluate(params, records, cache=cache, gradient=with_gradient)
        assert torch.equal(again.losses, mine.losses)
        assert torch.equal(again.hits, mine.hits)


def test_softplus_and_its_slope_are_those_of_torch():
    far = [-1e30, -1e4, -200.0, -100.0, -87.0, -30.0, 30.0, 90.0, 1e4, 1e30]
    z = torch.cat([torch.linspace(-12, 12, 9601), torch.tensor([0.0, 1e-30, -1e-30, *far])])
    points = z.double().requires_grad_()
    expected = torch.where(points > 30, points, torch.log1p(points.clamp(max=30).exp()))
    value, slope = z.clone().numpy(), np.full(len(z), np.nan, np.float32)
    kernels._softplus(value, slope)
    error = np.abs(value - expected.detach().numpy())
    assert (error <= 8 * UNIT * np.maximum(np.abs(expected.detach().numpy()), 1e-30)).all()
    assert np.abs(slope - torch.sigmoid(points.detach()).numpy()).max() <= 4 * UNIT
    lost = np.array([np.nan], np.float32)
    kernels._softplus(lost, lost.copy())
    assert np.isnan(lost).all()


# The guarantee


SIZES = [(*shape, outputs) for shape in ((8, 10), (1, 1), (64, 32), (7, 3)) for outputs in (1, 3, 12, -12)]
LARGEST = [(1024, 10, 1), (1024, 3, -34), (41, 10, -23), (5, 1, 43), (5, 22, -22)]  # features, or units and outputs


@pytest.mark.parametrize("size", SIZES + LARGEST, ids=str)
@both_kinds
def test_one_record_alone_never_exceeds_the_radius(size, of):
    """Not by a unit of rounding: squared norms are raised by more than all that comes after them."""
    case = a_case(inputs=size[0], units=size[1], outputs=size[2], count=120)
    case.inputs[:40] = torch.linspace(0.1, 7, 40).unsqueeze(1)  # numbers that all round the same way
    previous = start_of(case.model)
    engine = CompiledEngine(case.model, case.loss)
    for distance in (1e-4, 0.3):
        params, cache = step_from(previous, distance), FeatureCache()
        for row in range(0, 120, 7):
            one = case.records._replace(weights=torch.eye(120)[row])
            length = float(ask(engine, of, params, previous, one, cache=cache).norm())
            for factor in (0.01, 0.5, 0.999999, 1.0):
                radius = length * factor
                value = float(ask(engine, of, params, previous, one, radius, cache=cache).norm())
                assert radius * (1 - 1e-5) <= value <= radius, (row, factor, value / radius - 1)


@both_losses
@both_kinds
@pytest.mark.parametrize("head", [1e-3, 1.0, 1e3], ids=["last layer", "both layers", "first layer"])
def test_squared_norms_are_never_underestimates(outputs, of, head):
    """Against the same numbers in double precision, whichever layer has the larger gradient."""
    case = a_case(inputs=33, units=20, outputs=outputs, count=TILE, scale=3.0)
    with torch.no_grad():
        case.model[2].weight.mul_(head)
    engine = CompiledEngine(case.model, case.loss)
    tiles, limits = engine._arranged(case.records), engine._limits
    now = np.empty((2, engine._rows, TILE), np.float32)
    previous = start_of(case.model)
    params = step_from(previous, 0.05)
    units, count, lines = 20, abs(outputs), np.empty((6, TILE), np.float32)
    for at, point in enumerate((params, previous)):
        slope, classes = np.empty((units, TILE), np.float32), outputs < 0
        kernels._run(point.numpy(), tiles.inputs[0], tiles.targets[0], classes, now[at], slope, lines, lines[:0])
    norm, x = np.empty(TILE, np.float32), tiles.inputs[0].astype(float)
    if of == "gradient":
        kernels._gradient_norm(now[0], units, count, tiles.gain[0], tiles.floor[0], limits, norm, lines)
        g, e, a = np.split(now[0].astype(float), [units, units + count])
        exact = (g**2).sum(0) * ((x**2).sum(0) + 1) + (e**2).sum(0) * ((a**2).sum(0) + 1)
    else:
        d = np.empty((units + count + units * count, TILE), np.float32)
        norm[:] = tiles.floor[0]
        rows = [now[0][: units + count], now[0][units + count :], now[1][: units + count], now[1][units + count :]]
        kernels._difference(*rows, d, tiles.gain[0], limits, norm, lines[0])
        dg, rest = d[:units].astype(float), d[units:].astype(float)
        exact = (dg**2).sum(0) * ((x**2).sum(0) + 1) + (rest**2).sum(0)
        assert np.array_equal(now[1], now[0])  # the new pass has taken the place of the old one
    assert (norm >= exact).all()
    assert (norm <= exact * (1 + 2e-5) + 1e-30).all()  # a record whose gradient underflows has more than nothing


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("count", [BLOCK, 3 * BLOCK + 1, TILE + 40, 5 * TILE])
@both_kinds
def test_replacing_a_record_among_many_alike_moves_a_sum_by_no_more_than_is_allowed(outputs, count, of):
    """Clipped vectors in single precision, all of one direction, one of which turns around."""
    case = a_case(inputs=4, units=3, outputs=outputs, count=1)
    previous = start_of(case.model)
    params = step_from(previous, 0.05)
    target = torch.full((1, outputs), 20.0)
    radius = 1e-3  # far below: every record is clipped
    engine = CompiledEngine(case.model, squared)
    same = Records.of(case.inputs.repeat(count, 1), target.repeat(count, 1))
    value = ask(engine, of, params, previous, same, radius)
    worst = 0.0
    for row in (0, count // 2, count - 1):
        targets = same.targets.clone()
        targets[row] = -target
        moved = ask(engine, of, params, previous, same._replace(targets=targets), radius) - value
        worst = max(worst, float(moved.norm()))
    assert 1.9 * radius < worst <= 2 * radius * (1 + rounding_allowance(torch.float32))


@both_kinds
def test_no_bad_record_moves_a_sum_further_than_any_other(of):
    case = a_case(inputs=8, units=10, count=100)
    previous = start_of(case.model)
    params, radius = step_from(previous, 0.05), 0.02
    engine = CompiledEngine(case.model, squared)
    before = ask(engine, of, params, previous, case.records, radius)
    for name, (inputs, target) in adversaries(torch.float32).items():
        for row in (0, 64, 99):
            x, y = case.inputs.clone(), case.targets.clone()
            x[row], y[row] = inputs, target
            after = ask(engine, of, params, previous, Records.of(x, y), radius)
            assert float((after - before).norm()) <= 2 * radius * (1 + 1e-5), name


def test_many_records_alike_are_added_without_a_long_chain():
    """The bound on a block of 64, whatever the number of records."""
    count = 1000 * TILE
    case = a_case(inputs=3, units=2, count=1)
    many = Records.of(case.inputs.repeat(count, 1), case.targets.repeat(count, 1))
    engine, params = CompiledEngine(case.model, squared), start_of(case.model)
    alone, together = (gradient(engine, params, records, 0.1) for records in (case.records, many))
    # One product and one sum over a tile in single precision; a record alone is rounded too.
    assert float((together / (count * alone) - 1).abs().max()) <= (BLOCK + 4) * UNIT


def test_a_small_record_among_many_is_not_rounded_away():
    """In single precision the last bit of such a sum is worth more than the record."""
    count, weight = 300 * TILE, 1e-2
    case = a_case(inputs=3, units=2, count=1)
    many = Records.of(case.inputs.repeat(count, 1), case.targets.repeat(count, 1))
    engine, params, sums = CompiledEngine(case.model, squared), start_of(case.model), []
    for last in (0.0, weight):
        many.weights[-1] = last
        sums.append(gradient(engine, params, many, 0.1))
    assert relative_error(sums[1] - sums[0], weight * gradient(engine, params, case.records, 0.1)) < 0.02


@both_losses
def test_what_has_not_changed_has_the_difference_zero(outputs):
    case = a_case(outputs=outputs)
    params, cache = start_of(case.model), FeatureCache()
    engine = CompiledEngine(case.model, case.loss)
    for _ in range(2):
        assert not difference(engine, params, params.clone(), case.records, 1.0, cache=cache).any()


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, 1e38, 1e30])
@pytest.mark.parametrize("where", ["inputs", "targets"])
@both_kinds
def test_a_record_whose_gradient_is_not_finite_counts_as_zero(bad, where, of):
    case = a_case(count=TILE + 11)
    previous = start_of(case.model)
    params, engine = step_from(previous, 0.1), CompiledEngine(case.model, case.loss)
    for row in (0, 70, TILE + 10):
        spoilt, weights = getattr(case, where).clone(), torch.ones(case.records.size)
        spoilt[row], weights[row] = bad, 0
        expected = ask(engine, of, params, previous, case.records._replace(weights=weights), 0.1)
        records, cache = case.records._replace(**{where: spoilt}), FeatureCache()
        gradient(engine, params if of == "gradient" else previous, records, 0.1, cache=cache, remember=True)
        for kept in (None, cache):
            assert torch.equal(ask(engine, of, params, previous, records, 0.1, cache=kept), expected)


def test_a_record_that_is_finite_at_one_iterate_only_counts_as_zero_in_the_difference():
    case = a_case(count=3)
    case.inputs[1] = 1e15
    params = start_of(case.model)
    previous = params.clone()
    previous[-1] = 1e30  # the bias of the output: the squared error overflows for every record
    engine = CompiledEngine(case.model, squared)
    for points in ((params, previous), (previous, params)):
        assert not difference(engine, *points, case.records, 1.0).any()


# Chunks, threads, caches


@both_kinds
@pytest.mark.parametrize("outputs", [1, -3])
def test_no_bit_depends_on_chunks_threads_or_the_cache(of, outputs, monkeypatch):
    monkeypatch.setattr(compiled, "PART_NUMBERS", 1)
    case = a_case(outputs=outputs, count=9 * TILE + 17)
    points = [step_from(start_of(case.model), 0.1, seed) for seed in range(4)]
    records, results = case.weighted(), []
    for chunk_rows, threads, cache_bytes in (
        (None, 1, 1 << 30),
        (TILE, 1, 1 << 30),
        (3 * TILE, 2, 1 << 30),
        (None, 3, 1 << 30),
        (None, 2, 0),
    ):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            engine = CompiledEngine(case.model, case.loss, chunk_rows=chunk_rows, cache_bytes=cache_bytes)
            cache = FeatureCache()
            pairs = zip(points[1:], points, strict=False)
            results.append([ask(engine, of, now, then, records, 0.5, cache=cache) for now, then in pairs])
        finally:
            torch.set_num_threads(before)
    assert all(torch.equal(*pair) for other in results[1:] for pair in zip(other, results[0], strict=True))


def test_an_interrupted_pass_is_not_used():
    case = a_case(count=3 * TILE)
    first, second = (step_from(start_of(case.model), 0.1, seed) for seed in range(2))
    engine, cache = CompiledEngine(case.model, squared, chunk_rows=TILE), FeatureCache()
    expected = difference(engine, second, first, case.records, 0.1)
    gradient(engine, first, case.records, 0.1, cache=cache, remember=True)
    prepared = [engine._prepare(next(case.records.chunks(TILE)), 0, cache), KeyboardInterrupt]
    with mock.patch.object(engine, "_prepare", side_effect=prepared), pytest.raises(KeyboardInterrupt):
        difference(engine, second, first, case.records, 0.1, cache=cache)
    assert torch.equal(difference(engine, second, first, case.records, 0.1, cache=cache), expected)


def test_kernels_are_compiled_where_nothing_can_be_kept_on_disk():
    names = {}
    exec("def double(x):\n    return x + x", names)  # a function without a file
    assert kernels.compiled(top=True)(names["double"])(2) == 4
