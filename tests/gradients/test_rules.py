"""A contract table: for every kind of layer, all engines that fit give what the definition of a clipped sum gives."""

import math

import pytest
import torch
from torch import nn

from diff2.errors import InvalidArgument
from diff2.gradients import Masks, Records, Rule, build_engine, register_rule
from diff2.gradients.rules import RULES
from diff2.models.losses import squared
from helpers import (
    MODELS,
    Scale,
    clipped_sum,
    difference,
    engines,
    gradient,
    gradient_rows,
    kinds_for,
    make_case,
    make_engine,
    relative_error,
    start_of,
    step_from,
    with_fast_engines,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),  # of vmap with attention
]
ALL = pytest.mark.parametrize("name", MODELS)


def test_every_registered_rule_is_in_the_table():
    with torch.random.fork_rng():
        layers = {type(layer) for build in MODELS.values() for layer in build()[0].modules()}
    assert {kind for kind in RULES if kind.__module__.startswith("torch")} | {Scale} <= layers


@ALL
def test_engines_give_the_clipped_sums_of_the_definition(name):
    case = make_case(name, count=4)
    previous = start_of(case.model)
    before, served = gradient_rows(case, previous), list(engines(case))
    for distance, tolerance in ((0.3, 1e-9), (1e-6, 1e-7)):
        params = step_from(previous, distance)
        now = gradient_rows(case, params)
        for rows in (now, now - before) if distance == 0.3 else (now - before,):
            median = float(rows.norm(dim=1).median())
            records = case.weighted()
            for radius in (median, math.inf):
                expected = clipped_sum(rows, records.weights, radius)
                for engine in served:
                    points = (params, previous) if rows is not now else (params,)
                    value = (difference if rows is not now else gradient)(engine, *points, records, radius)
                    assert relative_error(value, expected) < tolerance, (engine.name, len(points), radius)


@ALL
@pytest.mark.parametrize("rows", [1, 3], ids=["records", "groups"])
def test_no_rule_clips_less_in_single_precision(name, rows):
    """One record, or group, alone is never longer than the radius, which is set around its true length."""
    case = make_case(name, count=2 * rows, dtype=torch.float32)
    groups = Records.of(*(part.unflatten(0, (-1, rows)) for part in case.records[:2])) if rows > 1 else case.records
    engine = make_engine("ghost", case.model, case.loss, groups, grouped=rows > 1)
    previous = start_of(case.model)
    for one in groups.chunks(1):
        asks = [lambda radius, one=one: gradient(engine, previous, one, radius)]
        for distance in (0.3, 1e-4):
            params = step_from(previous, distance)
            asks.append(lambda radius, one=one, at=params: difference(engine, at, previous, one, radius))
        for ask in asks:
            length = float(ask(math.inf).norm())
            for radius in (0.01 * length, 0.999999 * length, length):
                clipped = float(ask(radius).norm())
                assert clipped <= radius * (1 + 1e-5)
                assert clipped >= radius * (1 - 1e-2) or length < 1e-5


@ALL
def test_the_fast_engine_is_chosen_for_every_model_of_the_table(name):
    case = make_case(name, count=1)
    engine, stochastic = build_engine(case.model, case.loss, case.shapes)
    assert engine.name == kinds_for(case)[0]
    assert engine.name in ("columns", "ghost")
    assert not stochastic


@with_fast_engines(*MODELS)
def test_sums_do_not_depend_on_chunks_order_or_split_of_the_records(name, kind):
    case = make_case(name, count=8)
    previous = start_of(case.model)
    params = step_from(previous, 0.1)
    records = case.weighted()
    order = torch.randperm(records.size, generator=torch.Generator().manual_seed(3))
    whole = make_engine(kind, case.model, case.loss, records)
    radius = float(gradient_rows(case, params).norm(dim=1).median())

    def sums(engine, part):
        found = gradient(engine, params, part, radius), difference(engine, params, previous, part, radius / 4)
        return torch.cat(found)

    def part(rows):
        return Records(*(values[rows] for values in records))

    expected = sums(whole, records)
    for rows in (1, 5):
        engine = make_engine(kind, case.model, case.loss, records, chunk_rows=rows)
        assert relative_error(sums(engine, records), expected) < 1e-12
    assert relative_error(sums(whole, part(order)), expected) < 1e-12
    workers = [slice(0, 1), slice(1, 5), slice(5, None)]
    assert relative_error(sum(sums(whole, part(rows)) for rows in workers), expected) < 1e-12


@pytest.mark.parametrize("kind", ["vmap", "loop"])
@pytest.mark.parametrize("name", ["mlp", "conv2d", "transformer", "group norm"])
def test_slow_engines_do_not_depend_on_the_chunks_either(name, kind):
    case = make_case(name, count=7)
    params = start_of(case.model)
    first, *others = (
        difference(
            make_engine(kind, case.model, case.loss, case.records, chunk_rows=rows),
            params,
            step_from(params, 0.1),
            case.weighted(),
            0.05,
        )
        for rows in (1, 3, 100)
    )
    assert all(relative_error(value, first) < 1e-12 for value in others)


# Rules of one's own


@pytest.mark.parametrize(
    ("layer", "methods", "message"),
    [
        (Scale, ("gradient",), "has no method 'difference'"),
        (Scale, ("difference",), "has no method 'gradient'"),
        (torch.tanh, ("gradient", "difference"), r"layer to be a subclass of torch\.nn\.Module"),
    ],
)
def test_an_incomplete_rule_is_refused(layer, methods, message):
    rule = type("Mine", (Rule,), {name: lambda self, *features: None for name in methods})
    with pytest.raises(InvalidArgument, match=message):
        register_rule(layer, rule)


def test_something_that_is_no_rule_is_refused():
    with pytest.raises(InvalidArgument, match=r"rule to be a subclass of diff2\.gradients\.Rule"):
        register_rule(Scale, nn.Linear)


@pytest.mark.filterwarnings("ignore::diff2.GradientFallbackWarning")
def test_a_wrong_rule_is_not_used(monkeypatch):
    monkeypatch.setitem(RULES, Scale, type("Wrong", (RULES[nn.LayerNorm],), {"parts": {}}))
    case = make_case("a registered layer")
    assert build_engine(case.model, case.loss, case.shapes)[0].name == "vmap"
    doubled = type("Doubled", (RULES[nn.Linear],), {"_square": lambda self, x: 4 * x.square().sum(1)})
    monkeypatch.setitem(RULES, nn.Linear, doubled)
    case = make_case("layer norm")
    assert build_engine(case.model, case.loss, case.shapes)[0].name == "vmap"


# Random masks


def dropout_case(count=8):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 20), nn.Dropout(0.5), nn.Tanh(), nn.Linear(20, 6), nn.Dropout(0.3), nn.Linear(6, 1)
    )
    return model.double(), Records.of(
        torch.randn(count, 4, dtype=torch.float64), torch.randn(count, 1, dtype=torch.float64)
    )


def test_engines_agree_on_a_model_with_dropout():
    """Record by record: then the three draw the same masks from the same seed."""
    model, records = dropout_case()
    params, masks = start_of(model), Masks(b"round 1")
    previous = step_from(params, 0.1)
    ghost, *slow = (make_engine(kind, model, squared, records, chunk_rows=1) for kind in ("ghost", "vmap", "loop"))
    for engine in slow:
        for radius in (0.5, math.inf):
            value, expected = (gradient(one, params, records, radius, masks=masks) for one in (ghost, engine))
            assert relative_error(value, expected) < 1e-9
            value, expected = (
                difference(one, params, previous, records, radius / 4, masks=masks) for one in (ghost, engine)
            )
            assert relative_error(value, expected) < 1e-9


@pytest.mark.parametrize("kind", ["ghost", "vmap", "loop"])
def test_masks_are_the_same_at_both_iterates_and_others_in_another_round(kind):
    model, records = dropout_case()
    params = start_of(model)
    engine = make_engine(kind, model, squared, records, chunk_rows=3)
    first, again, other = (gradient(engine, params, records, masks=Masks(key)) for key in (b"1", b"1", b"2"))
    assert torch.equal(first, again)
    assert relative_error(other, first) > 1e-2
    assert not difference(engine, params, params.clone(), records, 1.0, masks=Masks(b"1")).any()


def test_masks_leave_the_global_generator_where_it_was():
    model, records = dropout_case()
    engine = make_engine("ghost", model, squared, records)
    before = torch.get_rng_state()
    first = gradient(engine, start_of(model), records, 1.0, masks=Masks(b"1"))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(gradient(engine, start_of(model), records, 1.0, masks=Masks(b"1")), first)
