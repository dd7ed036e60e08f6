"""Owners with several rows: an owner contributes the sum over its rows, clipped, for every layer and number of rows."""

import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from diff2.errors import GradientFallbackWarning, InvalidArgument, UnsupportedModel
from diff2.gradients import (
    FeatureCache,
    GhostEngine,
    Grouped,
    LoopEngine,
    Masks,
    Records,
    VmapEngine,
    build_engine,
    grouped_loss,
)
from diff2.gradients.rules import Rule
from diff2.models.losses import squared
from helpers import MODELS, Case, clipped_sum, gradient_rows, make_case, relative_error, start_of, step_from
from test_inspection import FALLBACKS, LOSSES, MIXING, mixing, vectors

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
ALL = pytest.mark.parametrize("name", MODELS)
SIZES = (1, 2, 5)  # rows of an owner
OWNERS = 4


def owners_of(case, rows):
    """Return the records as owners with so many rows each."""
    return Records.of(*(part.unflatten(0, (-1, rows)) for part in (case.inputs, case.targets)))


def weighted(records):
    weights = torch.linspace(0.2, 1.0, records.size, dtype=torch.float64)
    return records._replace(weights=weights.to(records.weights))


def owner_rows(case, params, rows):
    """Return the gradient of every owner by nothing but autograd: the sum of those of its rows, each by itself."""
    return gradient_rows(case, params).unflatten(0, (-1, rows)).sum(1)


def grouped_engines(case, **options):
    example = owners_of(case, 1)
    return (
        GhostEngine(case.model, case.loss, example, grouped=True, **options),
        VmapEngine(case.model, case.loss, grouped=True, **options),
        LoopEngine(case.model, case.loss, grouped=True, **options),
    )


def build(case, rows=2, **options):
    inputs, targets, _ = owners_of(case, rows)
    return build_engine(case.model, case.loss, inputs, targets, grouped=True, **options)


def clipped(rows, radius):
    norms = rows.norm(dim=1, keepdim=True)
    return torch.where(norms > radius, rows * (radius / norms), rows)


def assert_right_sums(engine, case, rows, tolerance=1e-9):
    """Hold gradient, difference and telescoped difference against the definition, with and without the outer clip."""
    params = start_of(case.model)
    previous = step_from(params, 0.1)
    records = weighted(owners_of(case, rows))
    now, before = (owner_rows(case, point, rows) for point in (params, previous))
    inner = float(now.norm(dim=1).median())
    for vectors_, compute in (
        (now, lambda radius: engine.clipped_gradient_sum(params, records, radius)),
        (now - before, lambda radius: engine.clipped_difference_sum(params, previous, records, radius)),
        (
            clipped(now, inner) - clipped(before, inner),
            lambda radius: engine.clipped_difference_sum(params, previous, records, radius, inner=inner),
        ),
    ):
        for radius in (float(vectors_.norm(dim=1).median()), math.inf):
            expected = clipped_sum(vectors_, records.weights, radius)
            assert relative_error(compute(radius), expected) < tolerance, (engine.name, rows)


# The wrappers


def test_the_module_sees_rows_and_the_loss_of_an_owner_is_the_sum_over_them():
    model = nn.Linear(3, 2)
    inputs, targets = torch.randn(4, 5, 3), torch.randn(4, 5, 2)
    outputs = Grouped(model)(inputs)
    assert torch.equal(outputs, model(inputs.reshape(20, 3)).reshape(4, 5, 2))
    losses = grouped_loss(squared)(outputs, targets)
    expected = [squared(outputs[owner], targets[owner]).sum() for owner in range(4)]
    assert torch.allclose(losses, torch.stack(expected))


# Right sums


@ALL
def test_engines_give_the_clipped_sums_of_owners_whatever_their_number_of_rows(name):
    case = make_case(name, count=OWNERS * max(SIZES))
    for engine in grouped_engines(case):  # one engine for all sizes
        for rows in SIZES:
            part = case._replace(inputs=case.inputs[: OWNERS * rows], targets=case.targets[: OWNERS * rows])
            assert_right_sums(engine, part, rows)


@ALL
def test_the_fast_engine_is_chosen_for_owners_wherever_it_is_for_records(name):
    case = make_case(name, count=6)
    engine, stochastic = build(case)
    assert engine.name == "ghost"
    assert not stochastic
    assert_right_sums(engine, case, 3)


@pytest.mark.parametrize("name", ["mlp", "conv2d", "transformer", "layer norm", "sequence, wide"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_an_owner_with_one_row_is_a_record(name, dtype):
    case = make_case(name, dtype=dtype)
    params = start_of(case.model)
    previous = step_from(params, 1e-3)
    owners = owners_of(case, 1)
    engine = GhostEngine(case.model, case.loss, case.records)
    grouped = GhostEngine(case.model, case.loss, owners, grouped=True)
    assert torch.equal(
        grouped.clipped_gradient_sum(params, owners, 0.5), engine.clipped_gradient_sum(params, case.records, 0.5)
    )
    for inner in (math.inf, 0.3):
        assert torch.equal(
            grouped.clipped_difference_sum(params, previous, owners, 1e-3, inner=inner),
            engine.clipped_difference_sum(params, previous, case.records, 1e-3, inner=inner),
        )


@pytest.mark.parametrize("name", ["mlp", "conv1d", "embedding", "group norm", "transformer"])
def test_sums_of_owners_do_not_depend_on_the_chunks(name):
    case = make_case(name, count=14)
    params = start_of(case.model)
    previous = step_from(params, 0.1)
    records = weighted(owners_of(case, 2))
    values = []
    for rows in (None, 1, 3):
        engine = GhostEngine(case.model, case.loss, records, grouped=True, chunk_rows=rows)
        values.append(engine.clipped_difference_sum(params, previous, records, 0.05, inner=0.5))
    assert relative_error(values[1], values[0]) < 1e-12
    assert relative_error(values[2], values[0]) < 1e-12


def test_the_more_rows_an_owner_has_the_fewer_owners_make_a_chunk():
    case = make_case("conv2d", count=40)
    calls = []

    def loss(outputs, targets):
        calls.append(outputs.shape[0])
        return squared(outputs, targets)

    engine = GhostEngine(case.model, loss, owners_of(case, 1), grouped=True)
    params = start_of(case.model)
    for rows in (1, 40):
        calls.clear()
        inputs, targets = case.inputs[:1].expand(6000, 2, 6, 7), case.targets[:1].expand(6000, 2)
        owners = Records.of(inputs.reshape(-1, rows, 2, 6, 7), targets.reshape(-1, rows, 2))
        engine.clipped_gradient_sum(params, owners, 1.0)
        assert max(calls) < 6000
        assert sum(calls) == 6000


@pytest.mark.parametrize("name", ["mlp", "conv2d", "transformer", "layer norm", "sequence, long"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_the_cache_changes_no_byte_for_owners(name, dtype):
    case = make_case(name, dtype=dtype)
    points = [step_from(start_of(case.model), 0.1, seed=seed) for seed in range(4)]
    records = weighted(owners_of(case, 3))
    calls = []

    def loss(outputs, targets):
        calls.append(1)
        return case.loss(outputs, targets)

    engine, plain = (
        GhostEngine(case.model, function, records, grouped=True, chunk_rows=3) for function in (loss, case.loss)
    )
    cache = FeatureCache()
    calls.clear()
    engine.clipped_gradient_sum(points[0], records, 0.5, cache=cache)
    for r, inner in ((1, 0.3), (2, math.inf), (3, 0.2)):
        value = engine.clipped_difference_sum(points[r], points[r - 1], records, 0.1, cache=cache, inner=inner)
        assert torch.equal(value, plain.clipped_difference_sum(points[r], points[r - 1], records, 0.1, inner=inner))
    assert len(calls) == 2 * 4  # chunks times rounds
    value = engine.clipped_gradient_sum(points[3], records, 0.5, cache=cache)
    assert len(calls) == 2 * 4
    assert torch.equal(value, plain.clipped_gradient_sum(points[3], records, 0.5))


def test_the_memory_of_the_cache_counts_rows():
    case = make_case("mlp", count=12)
    numbers = 7 + (7 + 4) + (4 + 2)  # of a row: what the layers give back, and what all but the first read
    for rows in (1, 2, 6):
        owners = owners_of(case, rows)
        for limit, kept in ((12 * numbers * 8, True), (12 * numbers * 8 - 1, False)):
            engine = GhostEngine(case.model, case.loss, owners, grouped=True, cache_bytes=limit)
            cache = FeatureCache()
            engine.clipped_gradient_sum(start_of(case.model), owners, 1.0, cache=cache)
            assert cache.holds(start_of(case.model)) == kept


# Privacy


@pytest.mark.parametrize("rows", [2, 5])
@pytest.mark.parametrize("name", ["mlp", "sequence, wide", "conv2d", "conv1d, few places", "transformer", "group norm"])
def test_one_owner_alone_never_exceeds_the_radius(name, rows):
    case = make_case(name, count=2 * rows, dtype=torch.float32)
    previous = start_of(case.model)
    engine = grouped_engines(case)[0]
    for owner in owners_of(case, rows).chunks(1):
        norm = float(engine.clipped_gradient_sum(previous, owner, math.inf).norm())
        for factor in (0.1, 0.999999, 1.0):
            assert float(engine.clipped_gradient_sum(previous, owner, norm * factor).norm()) <= norm * factor * (
                1 + 1e-5
            )
        for distance in (1.0, 1e-2, 1e-4):
            params = step_from(previous, distance)
            for inner in (math.inf, 0.5 * norm):
                points = params, previous, owner
                length = float(engine.clipped_difference_sum(*points, math.inf, inner=inner).norm())
                for factor in (0.01, 0.999999, 1.0):
                    value = float(engine.clipped_difference_sum(*points, length * factor, inner=inner).norm())
                    assert value <= length * factor * (1 + 1e-5)
                    assert value >= length * factor * (1 - 1e-2) or length < 1e-2 * distance


@pytest.mark.parametrize("kind", [0, 1, 2], ids=["ghost", "vmap", "loop"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_replacing_all_rows_of_an_owner_moves_a_sum_by_at_most_twice_the_radius(kind, dtype):
    case = make_case("mlp", count=10, dtype=dtype)
    params = start_of(case.model)
    previous = step_from(params, 0.01)
    engine = grouped_engines(case, chunk_rows=2)[kind]
    tolerance = 1e-9 if dtype == torch.float64 else 1e-5
    radii = torch.tensor([0.02, 0.02, 1e-3], dtype=torch.float64)

    def sums(owner, target, size=1.0):
        records = Records.of(*(part.clone() for part in owners_of(case, 2)[:2]))
        records.inputs[owner], records.targets[owner] = size, target
        return torch.stack(
            [
                engine.clipped_gradient_sum(params, records, 0.02),
                engine.clipped_difference_sum(params, previous, records, 0.02),
                engine.clipped_difference_sum(params, previous, records, 1e-3, inner=1.0),
            ]
        )

    for owner in (0, 4):
        found = [sums(owner, target) for target in (0.0, 1e4, -1e4, math.inf, math.nan)]
        found.append(sums(owner, 0.0, size=1e9))
        moved = torch.stack([(one - two).norm(dim=1) / (2 * radii) for one in found for two in found]).amax(0)
        assert float(moved.max()) <= 1 + tolerance
        assert float(moved.min()) > 0.5
        assert float(moved[0]) > 0.99  # +C u against -C u


@pytest.mark.parametrize("row", [0, 2])
def test_an_owner_with_one_row_that_is_not_finite_counts_as_zero(row):
    case = make_case("mlp", count=12)
    params = start_of(case.model)
    previous = step_from(params, 0.1)
    records = owners_of(case, 3)
    for bad in (math.nan, math.inf, 1e200):
        targets = records.targets.clone()
        targets[1, row] = bad
        without = records._replace(weights=torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64))
        spoilt = records._replace(targets=targets)
        for engine in grouped_engines(case, chunk_rows=3):
            assert torch.equal(
                engine.clipped_gradient_sum(params, spoilt, 1.0), engine.clipped_gradient_sum(params, without, 1.0)
            )
            for inner in (math.inf, 0.5):
                assert torch.equal(
                    engine.clipped_difference_sum(params, previous, spoilt, 0.1, inner=inner),
                    engine.clipped_difference_sum(params, previous, without, 0.1, inner=inner),
                )


def test_a_long_owner_whose_rows_cancel_is_summed_in_double_precision():
    """Products that are together 80 times as long as their sum; in single precision their rounding would be, too."""
    generator = torch.Generator().manual_seed(0)
    rows, inputs, outputs = 100, 200, 110  # too wide to write the gradient out
    model = nn.Linear(inputs, outputs, bias=False)
    nn.init.zeros_(model.weight)
    signs = torch.tensor([1.0, -1.0]).repeat(rows // 2).unsqueeze(1)
    errors = (signs + 1 / 80) * torch.randn(1, outputs, generator=generator)
    owner = Records.of(torch.randn(1, 1, inputs, generator=generator).expand(1, rows, inputs), -errors.unsqueeze(0) / 2)
    double = Records.of(owner.inputs.double(), owner.targets.double())
    exact = LoopEngine(model, squared, dtype=torch.float64, grouped=True).clipped_gradient_sum(
        torch.zeros(inputs * outputs, dtype=torch.float64), double, math.inf
    )
    engine = GhostEngine(model, squared, owner, grouped=True)
    assert relative_error(engine.clipped_gradient_sum(torch.zeros(inputs * outputs), owner, math.inf), exact) < 1e-12


# The user's own module


def test_the_parameters_are_those_of_the_users_own_module():
    case = make_case("frozen layer", count=6)
    for engine in (build(case)[0], *grouped_engines(case)[1:]):
        assert list(engine.flat.slices) == [name for name, p in case.model.named_parameters() if p.requires_grad]
        assert torch.equal(engine.flat.vector, start_of(case.model))
        assert torch.equal(engine.flat.module(case.inputs), case.model(case.inputs))  # rows, as everywhere else
        trained = engine.flat.trained_module(start_of(case.model) + 1)
        assert type(trained) is type(case.model)
        assert list(trained.state_dict()) == list(case.model.state_dict())
        assert torch.equal(start_of(trained), start_of(case.model) + 1)
        assert not any(layer._forward_hooks for layer in trained.modules())
    assert not any(layer._forward_hooks for layer in case.model.modules())


# Refused, or slower


@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("rows", [1, 2])
def test_a_model_that_mixes_rows_is_refused(name, rows):
    with pytest.raises(UnsupportedModel, match="mixes records"):
        build(vectors(mixing(MIXING[name]), 3, count=8), rows)


def test_batch_normalisation_is_refused_for_owners_too():
    with pytest.raises(UnsupportedModel, match="others of its batch"):
        build(vectors(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), 3, count=8))


@pytest.mark.parametrize("name", [name for name in FALLBACKS if "frequency" not in name])
def test_a_model_without_a_rule_gets_a_slower_engine_and_right_sums(name):
    case = FALLBACKS[name]()
    case = case._replace(inputs=case.inputs[:6], targets=case.targets[:6])
    with pytest.warns(GradientFallbackWarning, match="slower") as caught:
        engine, _ = build(case)
    assert len(caught) == 1
    assert engine.name in ("vmap", "loop")
    for rows in (1, 2, 3):
        assert_right_sums(engine, case, rows)


@pytest.mark.filterwarnings("ignore::diff2.GradientFallbackWarning")
def test_where_a_gradient_depends_on_the_batch_the_batch_is_the_owner():
    case = FALLBACKS["embedding scaled by frequency"]()
    case = case._replace(inputs=case.inputs[:6], targets=case.targets[:6])
    engine, _ = build(case)
    owners = owners_of(case, 3)
    expected = 0
    for inputs, targets in zip(*owners[:2], strict=True):
        loss = case.loss(case.model(inputs), targets).sum()
        gradient = torch.autograd.grad(loss, list(case.model.parameters()))
        gradient = torch.cat([part.reshape(-1) for part in gradient])
        expected = expected + gradient * (0.5 / gradient.norm()).clamp(max=1.0)
    assert relative_error(engine.clipped_gradient_sum(start_of(case.model), owners, 0.5), expected) < 1e-9


def test_positions_without_a_batch_dimension_are_noticed_whatever_their_number():
    """Also where there are as many positions as rows are tried."""
    for length in (2, 3, 6):
        case = FALLBACKS["positions without a batch dimension"]()
        case = case._replace(inputs=torch.randint(0, 6, (6, length), generator=torch.Generator().manual_seed(0)))
        case = case._replace(targets=case.targets[:6])
        with pytest.warns(GradientFallbackWarning):
            engine, _ = build(case)
        assert_right_sums(engine, case, 2)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("model", ["mlp", "gru"])
def test_a_loss_that_mixes_rows_is_called_once_a_row(name, model):
    """An owner's loss stays the sum of the losses of its rows, each by itself."""
    case = {
        "mlp": lambda: vectors(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)), 3, count=6),
        "gru": lambda: FALLBACKS["gru"](),
    }[model]()
    case = Case(case.model, case.inputs[:6], case.targets[:6], LOSSES[name])
    with pytest.warns(GradientFallbackWarning):
        engine, _ = build(case)
    assert engine.name in ("vmap", "loop")
    for rows in (1, 3):
        assert_right_sums(engine, case, rows)


@pytest.mark.parametrize("dropped", ["layer", "function"])
def test_dropout_draws_for_rows_and_the_same_at_both_iterates(dropped):
    torch.manual_seed(0)
    layer = nn.Dropout(0.5) if dropped == "layer" else _FunctionalDropout()
    case = vectors(nn.Sequential(nn.Linear(3, 20), layer, nn.Tanh(), nn.Linear(20, 1)), 3, count=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GradientFallbackWarning)
        engine, stochastic = build(case, chunk_rows=1)
    assert stochastic
    assert engine.name == "ghost" or dropped == "function"
    loop = LoopEngine(case.model, case.loss, grouped=True, chunk_rows=1)
    params, owners, masks = start_of(case.model), owners_of(case, 2), Masks(b"1")
    previous = step_from(params, 0.1)
    for inner in (math.inf, 0.5):
        value, expected = (
            one.clipped_difference_sum(params, previous, owners, 0.1, masks=masks, inner=inner)
            for one in (engine, loop)
        )
        assert relative_error(value, expected) < 1e-9
    assert not engine.clipped_difference_sum(params, params.clone(), owners, 1.0, masks=masks).any()


class _FunctionalDropout(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5)


@pytest.mark.parametrize(
    ("inputs", "targets"),
    [((6,), (6, 1)), ((6, 2, 3), (6,)), ((6, 2, 3), (6, 3, 1)), ((6, 2, 3), (5, 2, 1)), ((6, 0, 3), (6, 0, 1))],
    ids=["no rows", "one target an owner", "other rows", "other owners", "empty owners"],
)
def test_shapes_that_are_not_those_of_owners_are_refused(inputs, targets):
    with pytest.raises(InvalidArgument, match=r"\(owners, rows, \.\.\.\)"):
        build_engine(nn.Linear(3, 1), squared, torch.zeros(inputs), torch.zeros(targets), grouped=True)


def test_the_fast_engine_is_tried_on_owners_with_several_rows(monkeypatch):
    """Were the rows of owners mixed up, it would be seen, also if the owners at hand have one row each."""
    case = make_case("mlp", count=6)
    assert build(case, rows=1)[0].name == "ghost"
    monkeypatch.setattr(
        Rule, "by_owner", lambda self, values, owners: values.unflatten(0, owners[::-1]).transpose(0, 1)
    )
    with pytest.warns(GradientFallbackWarning):
        engine, _ = build(case, rows=1)
    assert_right_sums(engine, case, 2)
