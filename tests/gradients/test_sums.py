"""Sums over many records: no record shows in what is computed for another, and rounding stays within what is paid."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from diff2.gradients import Records, rounding_allowance
from diff2.gradients.sums import TILE, Total, grid_step, position_sum, product_sum
from diff2.models.losses import squared
from helpers import Case, difference, gradient, make_case, make_engine, paper_case, start_of, step_from

try:
    from diff2.gradients import kernels
except ImportError:  # numba is not installed
    kernels = None

LIMIT = 1 + rounding_allowance(torch.float32, dimension=10_000, count=2_000_000)


@pytest.mark.parametrize(("dtype", "unit"), [(torch.float32, 2.0**-24), (torch.float64, 2.0**-53)])
def test_what_is_paid_is_what_the_proof_says(dtype, unit):
    """Sums stay far below it on records that were tried, so none of them would notice half of it."""
    rho = 5 * 64**2 * unit + 2.0**-44 * 1000 * math.sqrt(50)
    assert rounding_allowance(dtype, dimension=50, count=1000) == pytest.approx(rho, rel=1e-12)
    assert rounding_allowance(dtype, dimension=50, count=1000, change=1.0) == pytest.approx(2 * rho, rel=1e-12)


class Choice(nn.Module):
    """Which word is looked up depends on a parameter: an iterate may change the indices of a record."""

    def __init__(self):
        super().__init__()
        self.shift, self.words, self.head = nn.Linear(2, 1), nn.Embedding(8, 4), nn.Linear(4, 2)

    def forward(self, x):
        index = self.shift(x).round().long().remainder(8)
        return self.head(torch.tanh(self.words(index)).mean(1)) + self.shift(x)


def choices(count):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Case(Choice(), 3 * torch.randn(count, 2), torch.randn(count, 2))


def cases(count):
    """Return models for all kinds of sums, by name."""
    made = {
        name: lambda name=name: make_case(name, count=count, dtype=torch.float32)
        for name in (
            "mlp", "sequence, wide", "sequence, long", "conv2d, few places", "layer norm", "embedding", "rms norm",
            "bare parameters", "attention", "encoder, records second", "tied", "tied convolutions",
        )
    }  # fmt: skip
    return made | {"paper": lambda: paper_case(count), "moving indices": lambda: choices(count)}


NAMES = list(cases(0))
SLOW = ("moving indices", "attention", "encoder, records second", "conv2d, few places")  # vmap cannot, or takes long


def bad_records(case):
    """Return records meant to show in others: nothing, what overflows, what is not finite, what cancels."""
    x, y = case.inputs[0].clone(), case.targets[0].clone()
    if not x.dtype.is_floating_point:
        return {"nothing": (torch.zeros_like(x), y), "all alike": (torch.full_like(x, 3), y)}
    made = {
        name: (x, torch.full_like(y, value)) for name, value in (("inf", math.inf), ("nan", math.nan), ("far", 1e30))
    }
    made |= {f"inputs {size:g}": (x * size, y) for size in (0.0, 1e-30, 1e10, 1e20, 1e30)}
    if x.dim() > 1:
        folded = x.clone()
        folded[1::2] = -folded[: folded.shape[0] // 2 * 2 : 2] * (1 - 1e-5)
        made["cancelling"] = folded, y
    return made


def with_record(case, row, record):
    inputs, targets = case.inputs.clone(), case.targets.clone()
    inputs[row], targets[row] = record
    return case._replace(inputs=inputs, targets=targets)


def rest_of_sum(engine, case, row, ask):
    """Return the sum over all tiles but that of the record, exactly: the sums lie on one grid."""
    start, count = row - row % TILE, len(case.inputs)
    own = Records(*(part[start : start + TILE] for part in case.records))
    return ask(engine, case.records, count) - ask(engine, own, count)


def questions(case):
    previous = start_of(case.model)
    params = step_from(previous, 0.3)

    def of_gradient(engine, records, count):
        return gradient(engine, params, records, 0.37, count=count)

    def of_difference(engine, records, count):
        return difference(engine, params, previous, records, 0.01, count=count)

    return of_gradient, of_difference


def engines_for(name, case, *kinds, **options):
    """Yield the engines of these kinds that can run the case."""
    for kind in kinds:
        served = {"compiled": name == "paper", "columns": name in ("mlp", "paper"), "vmap": name not in SLOW}
        if served.get(kind, True) and not (kind == "compiled" and kernels is None):
            yield make_engine(kind, case.model, case.loss, case.records, **options)


@pytest.mark.parametrize("name", NAMES)
def test_no_record_shows_in_what_is_summed_of_other_tiles(name):
    """Bit for bit, in every engine: shapes, layouts and the way of computing follow from the record itself alone."""
    case, row = cases(2 * TILE + 100)[name](), TILE + 77
    for engine in engines_for(name, case, "compiled", "columns", "ghost", "vmap"):
        for ask in questions(case):
            expected = rest_of_sum(engine, case, row, ask)
            assert expected.any()
            for bad, record in bad_records(case).items():
                rest = rest_of_sum(engine, with_record(case, row, record), row, ask)
                assert torch.equal(rest, expected), (engine.name, bad)


@pytest.mark.parametrize("name", NAMES)
def test_no_bit_depends_on_chunks_nor_on_threads_but_for_ghost(name, monkeypatch):
    """There, products of other shapes or of several threads may round otherwise in a pass, on some processors."""
    monkeypatch.setattr("diff2.gradients.columns.LEAST_NUMBERS", 1)  # threads whatever they are worth
    case, threads = cases(3 * TILE + 100)[name](), torch.get_num_threads()
    try:
        for ask in questions(case):
            sums = {}
            for rows, count in ((None, 1), (TILE, 1), (2 * TILE, 1), (None, 2), (TILE, 2), (None, 3)):
                if count > 1 and name not in ("mlp", "paper"):
                    continue
                torch.set_num_threads(count)
                for engine in engines_for(
                    name, case, "compiled", "columns", *(("ghost",) * (count == 1)), chunk_rows=rows
                ):
                    value = ask(engine, case.records, 2000)
                    off = float((sums.setdefault(engine.name, value) - value).norm())
                    assert off <= (1e-5 * float(value.norm()) if engine.name == "ghost" else 0), (rows, count)
    finally:
        torch.set_num_threads(threads)


def folded_case(count, positions, seed):
    """Return records that all have the same gradient: the sum of the inputs at their positions, times one row."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        first, head = nn.Linear(4, 5, bias=False), nn.Linear(5 * positions, 1, bias=False).requires_grad_(False)
        nn.init.zeros_(first.weight)
        with torch.no_grad():
            head.weight.copy_(torch.rand(1, 5).repeat(1, positions))
        inputs = torch.rand(4).expand(count, positions, 4).clone()
    return Case(nn.Sequential(first, nn.Flatten(), head), inputs, torch.full((count, 1), -0.5), squared)


@pytest.mark.parametrize("positions", [2, 3])
def test_a_record_whose_products_cancel_leaves_the_sum_of_the_others_alone(positions):
    """Because of it all the others were added in double precision, and rounded otherwise, all in one direction."""
    count, moved = 300_000 // positions, []
    for seed in range(4):
        case = folded_case(count, positions, seed)
        engine = make_engine("ghost", case.model, case.loss, case.records, chunk_rows=1 << 20)
        x = case.inputs[0].clone()
        x[0] = -1.1 * x[1:].sum(0)  # opposite to all the others together, and a little more
        worlds = case, with_record(case, count - 1, (x, 1e4 * case.targets[0]))
        for radius in (0.17, 0.2, 0.23):
            plus, minus = (gradient(engine, start_of(case.model), world.records, radius) for world in worlds)
            moved.append(float((plus - minus).norm()) / (2 * radius))
    assert 0.99 < max(moved) <= LIMIT


# The grid


@settings(max_examples=50, deadline=None)
@given(radius=st.floats(-15, 30), count=st.integers(1, 10**9))
def test_sums_on_the_grid_are_exact_in_double_precision(radius, count):
    radius = 10.0**radius
    step = grid_step(radius, count)
    assert math.frexp(step)[0] == 0.5  # a power of two
    assert 1.01 * radius * count <= 2**50 * step <= 2.03 * radius * count


def test_tiles_are_rounded_to_the_grid_and_added_exactly_in_any_order():
    generator = torch.Generator().manual_seed(0)
    tiles = torch.randn(1000, 7, generator=generator, dtype=torch.float64)
    sums = []
    for order in (torch.arange(1000), torch.randperm(1000, generator=generator)):
        total = Total(9, 1.0, 10_000)
        for some in tiles[order].split(37):
            total.add(slice(2, 9), some)
        sums.append(total.value)
    assert torch.equal(*sums)
    assert torch.equal(sums[0] / total.step, (sums[0] / total.step).round())
    assert float((sums[0][2:] - tiles.sum(0)).abs().max()) <= 500.5 * total.step
    assert not sums[0][:2].any()


@pytest.mark.parametrize("positions", [1, 2, 3, 8, 33, 64, 65, 200, 700])
@pytest.mark.parametrize("count", [1, 7, 64, 600])
def test_sums_over_positions_are_those_of_the_definition(positions, count):
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.rand(count, positions, width, generator=generator) for width in (3, 5))
    exact = left.double().flatten(0, 1).t() @ right.double().flatten(0, 1)
    for sums in (position_sum(left, right), product_sum(left.flatten(0, 1), right.flatten(0, 1))):
        assert float(((sums.double().sum(0) - exact) / exact).abs().max()) <= 80 * 2.0**-24


@pytest.mark.parametrize("kind", ["compiled", "columns", "ghost"])
def test_replacing_or_leaving_out_one_of_many_records_moves_the_sum_by_what_is_paid_for(kind):
    many_records(kind, 70_000, (1.1, 1.7))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["compiled", "columns", "ghost"])
def test_the_same_for_1280000_records(kind):
    many_records(kind, 1_280_000, (1.1, 1.4, 1.9))


def many_records(kind, count, lengths):
    """All records push the same way, so the rounding of their sum is largest; one of them is replaced, or left out."""
    if kind == "compiled":
        pytest.importorskip("diff2.gradients.kernels")
    case = paper_case(1)
    point, once = start_of(case.model), {"dimension": 101, "count": count, "change": 1.0}
    for length in lengths:
        inputs = (length * case.inputs).expand(count, -1).contiguous()
        records = Records.of(inputs, case.targets.expand(count, -1).contiguous())
        engine = make_engine(kind, case.model, case.loss, records)
        radius = 0.3 * float(gradient(engine, point, Records(*(part[:1] for part in records))).norm())
        value = gradient(engine, point, records, radius)
        for row in (0, count // 3, count - 1):
            weights = records.weights.clone()
            weights[row] = 0
            apart = float((value - gradient(engine, point, records._replace(weights=weights), radius)).norm()) / radius
            assert 0.99 < apart <= 1 + rounding_allowance(torch.float32, **once)
            opposite = records.targets.clone()
            opposite[row] *= -1e3
            apart = float((value - gradient(engine, point, records._replace(targets=opposite), radius)).norm()) / radius
            assert 0.5 < apart <= 2 * LIMIT
