"""A contract table: for every kind of layer, all engines that fit give what the definition of a clipped sum gives."""

import pytest
import torch
from torch import nn

from diff2.gradients import GhostEngine, LoopEngine, Masks, Records, VmapEngine, build_engine
from diff2.models.losses import squared
from helpers import (
    MODELS,
    clipped_sum,
    columns_fit,
    engines,
    fast_engine,
    gradient_rows,
    make_case,
    relative_error,
    start_of,
    step_from,
    with_fast_engines,
)

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
ALL = pytest.mark.parametrize("name", MODELS)


@ALL
@pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
def test_engines_give_the_clipped_gradients_of_the_definition(name, weighted):
    case = make_case(name)
    params = start_of(case.model)
    rows = gradient_rows(case, params)
    records = case.weighted() if weighted else case.records
    for radius in (float(rows.norm(dim=1).median()), torch.inf):
        expected = clipped_sum(rows, records.weights, radius)
        for engine in engines(case):
            assert relative_error(engine.clipped_gradient_sum(params, records, radius), expected) < 1e-9, engine.name


@ALL
@pytest.mark.parametrize(("distance", "tolerance"), [(1e-6, 1e-7), (0.3, 1e-9)])
def test_engines_give_the_clipped_differences_of_the_definition(name, distance, tolerance):
    case = make_case(name)
    previous = start_of(case.model)
    params = step_from(previous, distance)
    rows = gradient_rows(case, params) - gradient_rows(case, previous)
    records = case.weighted()
    for radius in (float(rows.norm(dim=1).median()), torch.inf):
        expected = clipped_sum(rows, records.weights, radius)
        for engine in engines(case):
            value = engine.clipped_difference_sum(params, previous, records, radius)
            assert relative_error(value, expected) < tolerance, engine.name


@ALL
def test_the_fast_engine_is_chosen_for_every_model_of_the_table(name):
    case = make_case(name)
    engine, stochastic = build_engine(case.model, case.loss, case.inputs, case.targets)
    assert engine.name == ("columns" if columns_fit(case) else "ghost")
    assert not stochastic


@with_fast_engines(*MODELS)
def test_sums_do_not_depend_on_chunks_order_or_split_of_the_records(name, kind):
    case = make_case(name)
    previous = start_of(case.model)
    params = step_from(previous, 0.1)
    records = case.weighted()
    order = torch.randperm(records.size, generator=torch.Generator().manual_seed(3))
    whole = fast_engine(kind, case.model, case.loss, records)
    radius = float(gradient_rows(case, params).norm(dim=1).median())

    def sums(engine, part):
        return torch.cat(
            [
                engine.clipped_gradient_sum(params, part, radius),
                engine.clipped_difference_sum(params, previous, part, radius / 4),
            ]
        )

    def part(rows):
        return Records(*(values[rows] for values in records))

    expected = sums(whole, records)
    for rows in (1, 5, 11, 100):
        engine = fast_engine(kind, case.model, case.loss, records, chunk_rows=rows)
        assert relative_error(sums(engine, records), expected) < 1e-12
    assert relative_error(sums(whole, part(order)), expected) < 1e-12
    workers = [slice(0, 1), slice(1, 8), slice(8, None)]
    assert relative_error(sum(sums(whole, part(rows)) for rows in workers), expected) < 1e-12


@pytest.mark.parametrize("name", ["mlp", "conv2d", "transformer", "embedding with padding", "group norm"])
def test_slow_engines_do_not_depend_on_the_chunks_either(name):
    case = make_case(name, count=7)
    params = start_of(case.model)
    previous = step_from(params, 0.1)
    for kind in (VmapEngine, LoopEngine):
        values = [
            kind(case.model, case.loss, chunk_rows=rows).clipped_difference_sum(params, previous, case.weighted(), 0.05)
            for rows in (1, 3, 100)
        ]
        assert relative_error(values[1], values[0]) < 1e-12
        assert relative_error(values[2], values[0]) < 1e-12


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
    ghost, *slow = (
        GhostEngine(model, squared, records, chunk_rows=1),
        VmapEngine(model, squared, chunk_rows=1),
        LoopEngine(model, squared, chunk_rows=1),
    )
    for engine in slow:
        for radius in (0.5, torch.inf):
            expected = engine.clipped_gradient_sum(params, records, radius, masks=masks)
            assert relative_error(ghost.clipped_gradient_sum(params, records, radius, masks=masks), expected) < 1e-9
            expected = engine.clipped_difference_sum(params, previous, records, radius / 4, masks=masks)
            value = ghost.clipped_difference_sum(params, previous, records, radius / 4, masks=masks)
            assert relative_error(value, expected) < 1e-9


@pytest.mark.parametrize("kind", ["ghost", "vmap", "loop"])
def test_masks_are_the_same_at_both_iterates_and_others_in_another_round(kind):
    model, records = dropout_case()
    params = start_of(model)
    options = {"chunk_rows": 3}
    engine = {
        "ghost": lambda: GhostEngine(model, squared, records, **options),
        "vmap": lambda: VmapEngine(model, squared, **options),
        "loop": lambda: LoopEngine(model, squared, **options),
    }[kind]()
    first, again, other = (
        engine.clipped_gradient_sum(params, records, torch.inf, masks=Masks(key)) for key in (b"1", b"1", b"2")
    )
    assert torch.equal(first, again)
    assert relative_error(other, first) > 1e-2
    same = engine.clipped_difference_sum(params, params.clone(), records, 1.0, masks=Masks(b"1"))
    assert torch.equal(same, torch.zeros_like(same))


def test_masks_leave_the_global_generator_where_it_was():
    model, records = dropout_case()
    engine = GhostEngine(model, squared, records)
    before = torch.get_rng_state()
    engine.clipped_gradient_sum(start_of(model), records, 1.0, masks=Masks(b"1"))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    first = engine.clipped_gradient_sum(start_of(model), records, 1.0, masks=Masks(b"1"))
    torch.manual_seed(2)
    assert torch.equal(engine.clipped_gradient_sum(start_of(model), records, 1.0, masks=Masks(b"1")), first)
