"""Groups with several rows: a group contributes the sum over its rows, clipped, for every layer and number of rows."""

import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from written_models import FALLBACKS, LOSSES, MIXING, mixing, vectors

from diff2.errors import GradientFallbackWarning, UnsupportedModel
from diff2.gradients import FeatureCache, Masks, Records, build_engine
from diff2.gradients.rules import Rule
from diff2.models.losses import squared
from helpers import (
    MODELS,
    clipped_sum,
    difference,
    gradient,
    gradient_rows,
    make_case,
    make_engine,
    relative_error,
    start_of,
    step_from,
)

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
KINDS = pytest.mark.parametrize("kind", ["ghost", "vmap", "loop"])
SIZES = (1, 3)  # rows of a group
GROUPS = 3


def groups_of(case, rows):
    """Return the records as groups with this many rows each."""
    return Records.of(*(part.unflatten(0, (-1, rows)) for part in (case.inputs, case.targets)))


def weighted(records):
    weights = torch.linspace(0.2, 1.0, records.size, dtype=torch.float64)
    return records._replace(weights=weights.to(records.weights))


def grouped_engine(kind, case, **options):
    return make_engine(kind, case.model, case.loss, groups_of(case, 1), grouped=True, **options)


def build(case, **options):
    return build_engine(case.model, case.loss, case.shapes, grouped=True, **options)


def assert_right_sums(engine, case, *sizes, tolerance=1e-9):
    """Compare gradient and difference with the definition: the sum over the rows of a group, each by itself."""
    params = start_of(case.model)
    previous = step_from(params, 0.1)
    alone = [gradient_rows(case, point) for point in (params, previous)]
    for rows in sizes:
        count = GROUPS * rows
        records = weighted(groups_of(case.part(slice(count)), rows))
        now, before = (found[:count].unflatten(0, (-1, rows)).sum(1) for found in alone)
        for expected, points in ((now, (params,)), (now - before, (params, previous))):
            for radius in (float(expected.norm(dim=1).median()), math.inf):
                found = (gradient if len(points) == 1 else difference)(engine, *points, records, radius)
                right = clipped_sum(expected, records.weights, radius)
                assert relative_error(found, right) < tolerance, (engine.name, rows)


# Right sums


@pytest.mark.parametrize("name", MODELS)
def test_the_fast_engine_gives_the_clipped_sums_of_groups_whatever_their_number_of_rows(name):
    case = make_case(name, count=GROUPS * max(SIZES))
    engine, stochastic = build(case)
    assert (engine.name, stochastic) == ("ghost", False)
    assert_right_sums(engine, case, *SIZES)  # one engine for all sizes


@pytest.mark.parametrize("kind", ["vmap", "loop"])
@pytest.mark.parametrize("name", ["mlp", "conv2d", "transformer"])
def test_slow_engines_give_the_clipped_sums_of_groups_too(name, kind):
    case = make_case(name, count=GROUPS * 2)
    assert_right_sums(grouped_engine(kind, case), case, 1, 2)


@pytest.mark.parametrize("name", ["mlp", "conv2d", "transformer", "layer norm", "sequence, wide"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_a_group_with_one_row_is_a_record(name, dtype):
    case = make_case(name, dtype=dtype)
    params = start_of(case.model)
    previous = step_from(params, 1e-3)
    groups = groups_of(case, 1)
    plain, grouped = make_engine("ghost", case.model, case.loss, case.records), grouped_engine("ghost", case)
    assert torch.equal(gradient(grouped, params, groups, 0.5), gradient(plain, params, case.records, 0.5))
    value = difference(grouped, params, previous, groups, 1e-3)
    assert torch.equal(value, difference(plain, params, previous, case.records, 1e-3))


@pytest.mark.parametrize("name", ["mlp", "conv1d", "embedding", "group norm", "transformer"])
def test_sums_of_groups_do_not_depend_on_the_chunks(name):
    case = make_case(name, count=14)
    params, records = start_of(case.model), weighted(groups_of(case, 2))
    first, *others = (
        difference(grouped_engine("ghost", case, chunk_rows=rows), params, step_from(params, 0.1), records, 0.05)
        for rows in (None, 1, 3)
    )
    assert all(relative_error(value, first) < 1e-12 for value in others)


def test_the_more_rows_a_group_has_the_fewer_groups_make_a_chunk():
    case = make_case("conv2d", count=40)
    calls = []

    def loss(outputs, targets):
        calls.append(outputs.shape[0])
        return squared(outputs, targets)

    engine = grouped_engine("ghost", case._replace(loss=loss))
    for rows in (1, 40):
        calls.clear()
        inputs, targets = case.inputs[:1].expand(6000, 2, 6, 7), case.targets[:1].expand(6000, 2)
        groups = Records.of(inputs.reshape(-1, rows, 2, 6, 7), targets.reshape(-1, rows, 2))
        gradient(engine, start_of(case.model), groups, 1.0)
        assert max(calls) < 6000
        assert sum(calls) == 6000


@pytest.mark.parametrize("name", ["mlp", "conv2d", "transformer", "layer norm", "sequence, long"])
def test_the_cache_changes_no_byte_for_groups(name):
    case = make_case(name, dtype=torch.float32)
    points = [step_from(start_of(case.model), 0.1, seed=seed) for seed in range(4)]
    records, cache = weighted(groups_of(case, 3)), FeatureCache()
    engine, plain = (grouped_engine("ghost", case, chunk_rows=3) for _ in range(2))
    gradient(engine, points[0], records, 0.5, cache=cache, remember=True)
    for r in (1, 2, 3):
        value = difference(engine, points[r], points[r - 1], records, 0.1, cache=cache)
        assert torch.equal(value, difference(plain, points[r], points[r - 1], records, 0.1))
    assert cache.holds(points[3])
    value = gradient(engine, points[3], records, 0.5, cache=cache)
    assert torch.equal(value, gradient(plain, points[3], records, 0.5))


def test_the_memory_of_the_cache_counts_rows():
    case = make_case("mlp", count=12)
    numbers = 7 + (7 + 4) + (4 + 2)  # of a row: errors of all layers, inputs of all but the first
    for rows in (1, 2, 6):
        for limit, kept in ((12 * numbers * 8, True), (12 * numbers * 8 - 1, False)):
            engine, cache = grouped_engine("ghost", case, cache_bytes=limit), FeatureCache()
            gradient(engine, start_of(case.model), groups_of(case, rows), 1.0, cache=cache, remember=True)
            assert cache.holds(start_of(case.model)) == kept


# Privacy; that no group alone exceeds the radius, in test_rules.py for every layer


@KINDS
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_replacing_all_rows_of_a_group_moves_a_sum_by_at_most_twice_the_radius(kind, dtype):
    case = make_case("mlp", count=10, dtype=dtype)
    params = start_of(case.model)
    previous = step_from(params, 0.01)
    engine, radius = grouped_engine(kind, case, chunk_rows=2), 0.02
    tolerance = 1e-9 if dtype == torch.float64 else 1e-5

    def sums(group, target, size=1.0):
        records = Records.of(*(part.clone() for part in groups_of(case, 2)[:2]))
        records.inputs[group], records.targets[group] = size, target
        found = gradient(engine, params, records, radius), difference(engine, params, previous, records, radius)
        return torch.stack(found)

    for group in (0, 4):
        found = [sums(group, target) for target in (0.0, 1e4, -1e4, math.inf, math.nan)]
        found.append(sums(group, 0.0, size=1e9))
        moved = torch.stack([(one - two).norm(dim=1) / (2 * radius) for one in found for two in found]).amax(0)
        assert float(moved.max()) <= 1 + tolerance
        assert float(moved.min()) > 0.5
        assert float(moved[0]) > 0.99  # +C u against -C u


@KINDS
@pytest.mark.parametrize("row", [0, 2])
def test_a_group_with_one_row_that_is_not_finite_counts_as_zero(kind, row):
    case = make_case("mlp", count=12)
    params = start_of(case.model)
    previous = step_from(params, 0.1)
    records, engine = groups_of(case, 3), grouped_engine(kind, case, chunk_rows=3)
    without = records._replace(weights=torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64))
    for bad in (math.nan, math.inf, 1e200):
        targets = records.targets.clone()
        targets[1, row] = bad
        spoilt = records._replace(targets=targets)
        assert torch.equal(gradient(engine, params, spoilt, 1.0), gradient(engine, params, without, 1.0))
        value = difference(engine, params, previous, spoilt, 0.1)
        assert torch.equal(value, difference(engine, params, previous, without, 0.1))


def test_a_long_group_whose_rows_cancel_is_summed_in_double_precision():
    """Products that are together 80 times as long as their sum; in single precision their rounding would be, too."""
    generator = torch.Generator().manual_seed(0)
    rows, inputs, outputs = 10, 200, 110  # too wide to write the gradient out
    model = nn.Linear(inputs, outputs, bias=False)
    nn.init.zeros_(model.weight)
    signs = torch.tensor([1.0, -1.0]).repeat(rows // 2).unsqueeze(1)
    errors = (signs + 1 / 80) * torch.randn(1, outputs, generator=generator)
    group = Records.of(torch.randn(1, 1, inputs, generator=generator).expand(1, rows, inputs), -errors.unsqueeze(0) / 2)
    double = Records.of(group.inputs.double(), group.targets.double())
    loop = make_engine("loop", model, squared, group, dtype=torch.float64, grouped=True)
    exact = gradient(loop, torch.zeros(inputs * outputs, dtype=torch.float64), double)
    engine = make_engine("ghost", model, squared, group, grouped=True)
    assert relative_error(gradient(engine, torch.zeros(inputs * outputs), group), exact) < 1e-12


# The user's own module


def test_the_parameters_are_those_of_the_users_own_module():
    case = make_case("frozen layer", count=6)
    for engine in (build(case)[0], grouped_engine("vmap", case), grouped_engine("loop", case)):
        gradient(engine, start_of(case.model) + 1, groups_of(case, 2), 1.0)
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
def test_a_model_that_mixes_rows_is_refused(name):
    with pytest.raises(UnsupportedModel, match="mixes records"):
        build(vectors(mixing(MIXING[name]), 3, count=8))


def test_batch_normalisation_is_refused_for_groups_too():
    with pytest.raises(UnsupportedModel, match="others of its batch"):
        build(vectors(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), 3, count=8))


@pytest.mark.parametrize("name", [name for name in FALLBACKS if "frequency" not in name])
def test_a_model_without_a_rule_gets_a_slower_engine_and_right_sums(name):
    case = FALLBACKS[name]().part(slice(6))
    with pytest.warns(GradientFallbackWarning, match="slower") as caught:
        engine, _ = build(case)
    assert len(caught) == 1
    assert engine.name in ("vmap", "loop")
    assert_right_sums(engine, case, 1, 3)


@pytest.mark.filterwarnings("ignore::diff2.GradientFallbackWarning")
def test_where_a_gradient_depends_on_the_batch_the_batch_is_the_group():
    case = FALLBACKS["embedding scaled by frequency"]().part(slice(6))
    engine, _ = build(case)
    groups = groups_of(case, 3)
    expected = 0
    for inputs, targets in zip(*groups[:2], strict=True):
        loss = case.loss(case.model(inputs), targets).sum()
        vector = torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, list(case.model.parameters()))])
        expected = expected + vector * (0.5 / vector.norm()).clamp(max=1.0)
    assert relative_error(gradient(engine, start_of(case.model), groups, 0.5), expected) < 1e-9


@pytest.mark.parametrize("length", [2, 3, 6])
def test_positions_without_a_batch_dimension_are_noticed_whatever_their_number(length):
    """Also where there are as many positions as rows are tried."""
    case = FALLBACKS["positions without a batch dimension"]().part(slice(6))
    case = case._replace(inputs=torch.randint(0, 6, (6, length), generator=torch.Generator().manual_seed(0)))
    with pytest.warns(GradientFallbackWarning):
        engine, _ = build(case)
    assert_right_sums(engine, case, 2)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("model", ["mlp", "gru"])
def test_a_loss_that_mixes_rows_is_called_once_per_row(name, model):
    """A group's loss stays the sum of the losses of its rows, each by itself."""
    network = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    case = vectors(network, 3, count=6) if model == "mlp" else FALLBACKS["gru"]().part(slice(6))
    case = case._replace(loss=LOSSES[name])
    with pytest.warns(GradientFallbackWarning):
        engine, _ = build(case)
    assert engine.name in ("vmap", "loop")
    assert_right_sums(engine, case, 1, 3)


class _FunctionalDropout(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5)


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
    params, groups, masks = start_of(case.model), groups_of(case, 2), Masks(b"1")
    previous = step_from(params, 0.1)
    value, expected = (
        difference(one, params, previous, groups, 0.1, masks=masks)
        for one in (engine, grouped_engine("loop", case, chunk_rows=1))
    )
    assert relative_error(value, expected) < 1e-9
    assert not difference(engine, params, params.clone(), groups, 1.0, masks=masks).any()


def test_the_fast_engine_is_tried_on_groups_with_several_rows(monkeypatch):
    """Were the rows of groups mixed up, it would be seen."""
    case = make_case("mlp", count=6)
    assert build(case)[0].name == "ghost"
    monkeypatch.setattr(
        Rule, "by_group", lambda self, values, groups: values.unflatten(0, groups[::-1]).transpose(0, 1)
    )
    with pytest.warns(GradientFallbackWarning):
        engine, _ = build(case)
    assert_right_sums(engine, case, 2)
