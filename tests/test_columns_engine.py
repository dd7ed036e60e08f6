"""Records as columns: which models run so, the functions between layers, sums of columns, memory that is used again."""

import math
import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from diff2.gradients import ColumnsEngine, FeatureCache, Records, build_engine
from diff2.gradients.activations import RULES, activation_rule
from diff2.gradients.sums import BLOCK, Columns, column_sum, rounding_allowance
from diff2.models.losses import cross_entropy, squared
from helpers import Case, clipped_sum, gradient_rows, paper_network, relative_error, start_of, step_from


def a_case(model, *, inputs=5, outputs=1, count=30, classes=False, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, inputs, generator=generator, dtype=torch.float64).to(dtype)
    if classes:
        return Case(model.to(dtype), x, torch.randint(0, outputs, (count,), generator=generator), cross_entropy)
    return Case(model.to(dtype), x, torch.randn(count, outputs, generator=generator, dtype=torch.float64).to(dtype))


def seeded(build):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build()


def assert_right_sums(engine, case):
    params = start_of(case.model)
    previous = step_from(params, 0.1)
    now, before = (gradient_rows(case, point) for point in (params, previous))
    records = case.weighted()
    for rows, compute in (
        (now, lambda radius: engine.clipped_gradient_sum(params, records, radius)),
        (now - before, lambda radius: engine.clipped_difference_sum(params, previous, records, radius)),
    ):
        for radius in (float(rows.norm(dim=1).median()), math.inf):
            assert relative_error(compute(radius), clipped_sum(rows, records.weights, radius)) < 1e-9


# Which models


CHOSEN = {
    "linear": lambda: nn.Linear(5, 1),
    "two linear layers": lambda: nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 1)),
    "sequences within": lambda: nn.Sequential(nn.Sequential(nn.Linear(5, 6), nn.SiLU()), nn.Linear(6, 1, bias=False)),
    "wide": lambda: nn.Sequential(nn.Linear(5, 70), nn.ReLU(), nn.Linear(70, 40), nn.GELU(), nn.Linear(40, 1)),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_a_sequence_of_linear_layers_and_known_functions_runs_as_columns(name):
    case = a_case(seeded(CHOSEN[name]))
    engine, _ = build_engine(case.model, case.loss, case.inputs, case.targets)
    assert engine.name == "columns"
    assert_right_sums(engine, case)


@pytest.mark.parametrize("outputs", [2, 7])
@pytest.mark.parametrize("hidden", [(), (6,), (40, 3)])
def test_classes_run_as_columns(outputs, hidden):
    widths = [5, *hidden, outputs]
    layers = seeded(lambda: [nn.Linear(*pair) for pair in pairwise(widths)])
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())))[:-1]
    case = a_case(model, outputs=outputs, classes=True)
    engine, _ = build_engine(case.model, case.loss, case.inputs, case.targets)
    assert engine.name == "columns"
    assert_right_sums(engine, case)


OTHERS = {
    "an unknown function": lambda: nn.Sequential(nn.Linear(5, 4), nn.Hardtanh(), nn.Linear(4, 1)),
    "another softplus": lambda: nn.Sequential(nn.Linear(5, 4), nn.Softplus(beta=2), nn.Linear(4, 1)),
    "an early threshold": lambda: nn.Sequential(nn.Linear(5, 4), nn.Softplus(threshold=1), nn.Linear(4, 1)),
    "another gelu": lambda: nn.Sequential(nn.Linear(5, 4), nn.GELU(approximate="tanh"), nn.Linear(4, 1)),
    "a function at the end": lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1), nn.Sigmoid()),
    "two functions": lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Sigmoid(), nn.Linear(4, 1)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_model_runs_by_the_ghost_engine(name):
    case = a_case(seeded(OTHERS[name]))
    engine, _ = build_engine(case.model, case.loss, case.inputs, case.targets)
    assert engine.name == "ghost"
    assert_right_sums(engine, case)


CHANGED = {
    "a hook": lambda model: model[0].register_forward_hook(lambda module, inputs, output: 2 * output),
    "a hook before": lambda model: model[2].register_forward_pre_hook(lambda module, inputs: (2 * inputs[0],)),
    "a hook that the tried records do not show": lambda model: model[2].register_forward_hook(
        lambda module, inputs, output: output.clamp(max=1e3)
    ),
    "another forward": lambda model: setattr(model[1], "forward", lambda z: torch.tanh(z).clamp(max=1e3)),
}


@pytest.mark.filterwarnings("ignore::diff2.GradientFallbackWarning")
@pytest.mark.parametrize("name", CHANGED)
def test_a_layer_that_does_more_than_its_type_says_does_not_run_as_columns(name):
    case = a_case(seeded(lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))))
    CHANGED[name](case.model)
    engine, _ = build_engine(case.model, case.loss, case.inputs, case.targets)
    assert engine.name != "columns"
    assert_right_sums(engine, case)


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

    assert all(activation_rule(kind()) is not None for kind in ACTIVATIONS.values())


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
    value = column_sum(Columns.of(left), Columns.of(right))
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
    value = engine.clipped_difference_sum(params, previous, same, radius)
    worst = 0.0
    for row in (0, count // 2, count - 1):
        targets = same.targets.clone()
        targets[row] = -target
        moved = engine.clipped_difference_sum(params, previous, same._replace(targets=targets), radius) - value
        worst = max(worst, float(moved.norm()))
    assert 1.9 * radius < worst <= 2 * radius * (1 + rounding_allowance(torch.float32))


# Norms and products, from the inside


def passes(case, distance):
    """Return the engine's parts for all records of a case, and the passes at two iterates."""
    engine = ColumnsEngine(case.model, case.loss)
    network, terms = engine._network, engine._terms
    previous = start_of(case.model)
    with torch.inference_mode():
        fixed, done = terms.fixed(case.records), []
        for point in (step_from(previous, distance), previous):
            network.flat.load(point)
            done.append(network.run(fixed.x, case.targets, fixed.targets))
    return terms, fixed, done


@pytest.mark.parametrize("width", [1, 8, 33, 1000])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("of", ["gradient", "difference"])
def test_a_squared_norm_is_never_an_underestimate(width, outputs, of):
    """Against the same numbers in double precision; a few units of rounding too large, never too small."""
    model = seeded(lambda: nn.Sequential(nn.Linear(width, 40), nn.Softplus(), nn.Linear(40, outputs)))
    case = a_case(model, inputs=width, outputs=outputs, count=500, dtype=torch.float32)
    case.inputs[:100] = torch.linspace(0.1, 7, 100).unsqueeze(1)  # numbers that all round the same way
    terms, fixed, (now, before) = passes(case, 0.1)
    g, dg = [error.double() for error in now.errors], [error.double() for error in now.errors]
    a = [None, now.inputs[1].double() if outputs > 1 else None]
    written = now.stack.written[1].double() if outputs == 1 else None
    step = None
    with torch.inference_mode():
        if of == "difference":
            # As the engine takes them: in single precision.
            dg = [(one - other).double() for one, other in zip(now.errors, before.errors, strict=True)]
            if outputs == 1:
                written = (now.stack.written[1] - before.stack.written[1]).double()
            else:
                step = (now.inputs[1] - before.inputs[1]).double()
                a[1] = before.inputs[1].double()
        norm = terms._terms(fixed, now, before if of == "difference" else None).squared_norm.double()
    x = fixed.x.double()
    exact = dg[0].square().sum(0) * (x.square().sum(0) + 1) + dg[1].square().sum(0)
    if outputs == 1:
        exact += written.square().sum(0)
    else:
        vectors = torch.einsum("in,on->oin", a[1], dg[1])
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
    engine = ColumnsEngine(model, squared)
    network, terms = engine._network, engine._terms
    previous = start_of(model)
    with torch.inference_mode():
        fixed, done = terms.fixed(case.records), []
        for point in (torch.cat([previous[:36] * 1.1, previous[36:]]), previous):
            network.flat.load(point)
            done.append(network.run(fixed.x, case.targets, fixed.targets))
        products = terms._terms(fixed, *done).products[1]
        assert bool((products.cancelling > 0).all())
        space = terms._workspace(fixed.x)
        space.weights.fill_(1.0)
        value = terms._product_sum(products, space)
        exact = sum(left.double() @ right.double().t() for left, right in products.pairs)
        size = sum(float(left.double().norm() * right.double().norm()) for left, right in products.pairs)
        single = sum((left @ right.t()).double() for left, right in products.pairs)
    assert float((value - exact).norm()) < 1e-13 * size
    assert float((single - exact).norm()) > 1e-9 * size


# Memory


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_was_asked_before_an_answer_has_the_same_bytes(outputs, seed):
    """One engine, three sets of records with a cache each, questions in any order; a new engine is asked the same."""
    choose = random.Random(seed)
    model = seeded(lambda: nn.Sequential(nn.Linear(5, 4), nn.Softplus(), nn.Linear(4, outputs)))
    engine = ColumnsEngine(model, squared, chunk_rows=64)
    sets = [a_case(model, outputs=outputs, count=count, dtype=torch.float32).records for count in (150, 64, 150)]
    caches = [FeatureCache() for _ in sets]
    start = start_of(model)
    points = [step_from(start, 0.2, seed=k) for k in range(3)]
    held = [choose.choice(points) for _ in sets]
    for _ in range(40):
        index, point = choose.randrange(3), choose.choice(points)
        records, cache = sets[index], choose.choice([caches[index], caches[index], None])
        fresh = ColumnsEngine(model, squared, chunk_rows=64)
        what = choose.choice(["gradient", "difference", "telescoped", "evaluate"])
        if what == "gradient":
            options = {"remember": choose.random() < 0.5}
            value = engine.clipped_gradient_sum(point, records, 0.5, cache=cache, **options)
            expected = fresh.clipped_gradient_sum(point, records, 0.5)
        elif what == "evaluate":
            value = engine.evaluate(point, records, cache=cache).gradient
            expected = fresh.evaluate(point, records).gradient
        else:
            previous = choose.choice([held[index], choose.choice(points)])
            inner = 0.4 if what == "telescoped" else math.inf
            value = engine.clipped_difference_sum(point, previous, records, 0.1, cache=cache, inner=inner)
            expected = fresh.clipped_difference_sum(point, previous, records, 0.1, inner=inner)
        if what != "evaluate" and cache is not None:
            held[index] = point
        assert torch.equal(value, expected), what


def test_results_are_ordinary_tensors():
    model = paper_network(dtype=torch.float32)
    case = a_case(model, inputs=8, dtype=torch.float32)
    engine = ColumnsEngine(model, squared)
    for value in (
        engine.clipped_gradient_sum(start_of(model), case.records, 1.0),
        engine.clipped_difference_sum(start_of(model), start_of(model) + 0.1, case.records, 1.0),
        engine.evaluate(start_of(model), case.records).gradient,
    ):
        assert not value.is_inference()
        value += 1
