"""Records as columns: the functions between layers, sums of columns, norms and products from the inside."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from diff2.gradients import Records
from diff2.gradients.activations import RULES, activation_rule
from diff2.gradients.columns import ColumnsEngine
from diff2.gradients.sums import BLOCK, Columns, column_sum, rounding_allowance
from diff2.models.losses import squared
from helpers import Case, difference, start_of, step_from

# Functions between layers


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_a_function_and_its_slope_are_those_of_torch(kind, dtype):
    far = [-1e4, -200.0, -100.0, -30.0, 30.0, 90.0, 100.0, 200.0, 1e4]
    z = torch.cat([torch.linspace(-12, 12, 9601), torch.tensor([0.0, 1e-30, -1e-30, *far])]).to(dtype).view(1, -1)
    points = z.detach().clone().double().requires_grad_()
    expected = kind()(points)
    (slope_expected,) = torch.autograd.grad(expected.sum(), points)
    value, slope = torch.full_like(z, math.nan), torch.full_like(z, math.nan)
    activation_rule(kind())(z.clone(), value, slope)
    unit = torch.finfo(dtype).eps
    # Softplus returns z above its threshold: 2e-9 too little.
    extra = 3e-9 if kind is nn.Softplus else 0.0
    assert bool(((value - expected).abs() <= 4 * unit * expected.abs().clamp(min=1) + extra).all())
    assert bool(((slope - slope_expected).abs() <= 8 * unit * (1 + z.abs().clamp(max=12)) + extra).all())


def test_the_rules_cover_what_the_library_builds():
    from diff2.models.mlp import ACTIVATIONS

    assert all(activation_rule(getattr(nn, kind)()) is not None for kind in ACTIVATIONS.values())


def test_softplus_is_finite_wherever_it_should_be():
    z = torch.tensor([[-1e30, -1e5, 0.0, 1e5, 1e30]])
    value, slope = torch.empty_like(z), torch.empty_like(z)
    activation_rule(nn.Softplus())(z.clone(), value, slope)
    assert torch.equal(value, F.softplus(z))
    assert torch.equal(slope, torch.tensor([[0.0, 0.0, 0.5, 1.0, 1.0]]))


# Sums of columns


@pytest.mark.parametrize("count", [1, 63, 64, 65, 511, 512, 1000, 70_000])
@pytest.mark.parametrize("rows", [(1, 5), (3, 2)])
def test_sums_of_columns_are_off_by_no_more_than_the_blocks_allow(count, rows):
    """All numbers push the same way, so the rounding of a long chain would show."""
    left, right = (torch.full((q, count), value) for q, value in zip(rows, (0.1, 0.7), strict=True))
    exact = left.double() @ right.double().t()
    value = column_sum(Columns.of(left), Columns.of(right)).double().sum(0)
    unit = torch.finfo(torch.float32).eps / 2
    # Sums of 64 products, of eight of these, and the product itself.
    assert float(((value - exact) / exact).abs().max()) <= (BLOCK + 8 + 1) * unit


def test_one_long_chain_would_be_off_by_more():
    left, right = torch.full((1, 1 << 20), 0.1), torch.full((1, 1 << 20), 0.7)
    chain = float(np.cumsum((left * right).numpy()[0], dtype=np.float32)[-1])
    exact = float(left.double() @ right.double().t())
    assert abs(chain / exact - 1) > 100 * (BLOCK + 9) * torch.finfo(torch.float32).eps / 2


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("count", [64, 3 * 64 + 1, 8 * 64 + 40])
def test_replacing_a_record_among_many_alike_moves_a_sum_by_no_more_than_is_allowed(outputs, count):
    """Clipped differences in single precision, all of one direction, one of which turns around."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Softplus(), nn.Linear(3, outputs))
    previous = start_of(model)
    params = step_from(previous, 0.05)
    one, target = torch.randn(1, 4), torch.full((1, outputs), 20.0)
    radius = 1e-3  # far below: every record is clipped
    engine = ColumnsEngine(model, squared)
    same = Records.of(one.repeat(count, 1), target.repeat(count, 1))
    value = difference(engine, params, previous, same, radius)
    worst = 0.0
    for row in (0, count // 2, count - 1):
        targets = same.targets.clone()
        targets[row] = -target
        moved = difference(engine, params, previous, same._replace(targets=targets), radius) - value
        worst = max(worst, float(moved.norm()))
    assert 1.9 * radius < worst <= 2 * radius * (1 + rounding_allowance(torch.float32))


# Norms and products, from the inside


def terms_and_passes(case, *points):
    """Return the engine's terms, the records as columns, and the passes at these iterates."""
    engine = ColumnsEngine(case.model, case.loss)
    fixed, chunk = engine._prepare(case.records, 0, None)
    passes = [engine._run_at(point, (fixed, chunk), 0, None) for point in points]
    return engine._columns.terms, fixed.plain, passes


@pytest.mark.parametrize("width", [1, 8, 33, 1000])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("of", ["gradient", "difference"])
def test_a_squared_norm_is_never_an_underestimate(width, outputs, of):
    """Against the same numbers in double precision; a few units of rounding too large, never too small."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, 40), nn.Softplus(), nn.Linear(40, outputs))
    case = Case(model, torch.randn(500, width), torch.randn(500, outputs))
    case.inputs[:100] = torch.linspace(0.1, 7, 100).unsqueeze(1)  # numbers that all round the same way
    previous = start_of(model)
    with torch.inference_mode():
        terms, fixed, (now, before) = terms_and_passes(case, step_from(previous, 0.1), previous)
        g, dg = [error.double() for error in now.errors], [error.double() for error in now.errors]
        a = now.inputs[1].double() if outputs > 1 else None
        written = now.stack.written[1].double() if outputs == 1 else None
        step = None
        if of == "difference":
            # As the engine takes them: in single precision.
            dg = [(one - other).double() for one, other in zip(now.errors, before.errors, strict=True)]
            if outputs == 1:
                written = (now.stack.written[1] - before.stack.written[1]).double()
            else:
                step, a = (now.inputs[1] - before.inputs[1]).double(), before.inputs[1].double()
        norm = terms._terms(fixed, now, before if of == "difference" else None).squared_norm.double()
    exact = dg[0].square().sum(0) * (fixed.x.double().square().sum(0) + 1) + dg[1].square().sum(0)
    if outputs == 1:
        exact += written.square().sum(0)
    else:
        vectors = torch.einsum("in,on->oin", a, dg[1])
        if step is not None:
            vectors += torch.einsum("in,on->oin", step, g[1])
        exact += vectors.square().sum((0, 1))
    assert bool((norm >= exact).all())
    assert float((norm / exact).max()) < 1 + (2e-5 if of == "gradient" else 1e-2)


def test_records_whose_two_products_nearly_cancel_are_added_in_double_precision():
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 2, bias=False))
    inputs = 1e-4 * torch.randn(1, 6, generator=generator) * (1 + 0.1 * torch.rand(256, 1, generator=generator))
    with torch.no_grad():
        model[0].weight.copy_(1e4 * torch.eye(6) + 1e3 * torch.randn(6, 6, generator=generator))
        model[1].weight.copy_(torch.randn(2, 6, generator=generator))
        outputs = model(inputs)
    case = Case(model, inputs, outputs + outputs * 1.1 * (1 + 1e-3))
    previous = start_of(model)
    params = torch.cat([previous[:36] * 1.1, previous[36:]])
    with torch.inference_mode():
        terms, fixed, passes = terms_and_passes(case, params, previous)
        products = terms._terms(fixed, *passes).products[1]
        assert bool((products.cancelling > 0).all())
        space = terms._workspace(fixed.x)
        space.weights.fill_(1.0)
        value = sum(tiles.double().sum(0) for tiles in terms._product_sum(products, space))
        exact = sum(left.double() @ right.double().t() for left, right in products.pairs)
        size = sum(float(left.double().norm() * right.double().norm()) for left, right in products.pairs)
        single = sum((left @ right.t()).double() for left, right in products.pairs)
    assert float((value - exact).norm()) < 1e-13 * size
    assert float((single - exact).norm()) > 1e-9 * size
