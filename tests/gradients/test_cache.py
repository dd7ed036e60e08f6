"""What is kept from round to round changes no byte, saves passes, and is never used for another iterate."""

import random
from itertools import pairwise

import pytest
import torch
from torch import nn

from diff2.gradients import FeatureCache, Masks, Records
from diff2.gradients.column_terms import ColumnTerms
from diff2.gradients.ghost import GhostEngine
from diff2.models.losses import squared
from helpers import (
    FAST,
    difference,
    engines,
    gradient,
    make_case,
    make_engine,
    paper_case,
    start_of,
    step_from,
    with_fast_engines,
)

both_fast = pytest.mark.parametrize("kind", FAST)
with_models = with_fast_engines(
    "mlp", "conv2d", "transformer", "embedding", "layer norm", "frozen bias", "sequence, wide", "bare parameters",
    "attention", "encoder, records second", "tied",
)  # fmt: skip


class Counted:
    """A loss that counts its calls, and can be made to fail in one of them."""

    def __init__(self, loss=squared):
        self.loss, self.calls, self.fails_at = loss, 0, -1

    def __call__(self, outputs, targets):
        self.calls += 1
        if self.calls == self.fails_at:
            raise KeyboardInterrupt
        return self.loss(outputs, targets)


def points_near(model, count, distance=0.1):
    return [step_from(start_of(model), distance, seed=seed) for seed in range(count)]


@with_models
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_the_cache_changes_no_byte_and_saves_passes(name, kind, dtype):
    case = make_case(name, dtype=dtype)
    points = [start_of(case.model)]
    for distance in (1e-1, 1e-3, 1e-5):
        points.append(step_from(points[-1], distance, seed=len(points)))
    records, loss, cache = case.weighted(), Counted(case.loss), FeatureCache()
    engine = make_engine(kind, case.model, loss, records, chunk_rows=5)
    plain = make_engine(kind, case.model, case.loss, records, chunk_rows=5)
    loss.calls = 0
    first = gradient(engine, points[0], records, 0.5, cache=cache, remember=True)
    assert torch.equal(first, gradient(plain, points[0], records, 0.5))
    for previous, params in pairwise(points):
        value = difference(engine, params, previous, records, 1e-3, cache=cache)
        assert cache.holds(params)
        assert torch.equal(value, difference(plain, params, previous, records, 1e-3))
    assert loss.calls == 3 * len(points)  # chunks times rounds
    # A gradient at the last iterate runs no model, and leaves the passes for the next round.
    for radius, remember in ((0.5, True), (0.1, False)):
        value = gradient(engine, points[-1], records, radius, cache=cache, remember=remember)
        assert torch.equal(value, gradient(plain, points[-1], records, radius))
        assert cache.holds(points[-1])
    assert loss.calls == 3 * len(points)
    value = difference(engine, points[0], points[-1], records, 0.1, cache=cache)
    assert loss.calls == 3 * (len(points) + 1)
    assert torch.equal(value, difference(plain, points[0], points[-1], records, 0.1))


@both_fast
@pytest.mark.parametrize(("cache_bytes", "passes"), [(1 << 20, [3, 3, 3]), (100, [3, 6, 6]), (0, [3, 6, 6])])
def test_a_cache_beyond_the_memory_limit_is_not_kept_and_a_difference_costs_two_passes(kind, cache_bytes, passes):
    case, loss, cache, seen = make_case("mlp"), Counted(), FeatureCache(), []
    engine = make_engine(kind, case.model, loss, case.records, chunk_rows=4, cache_bytes=cache_bytes)
    points = points_near(case.model, 3)
    for r, point in enumerate(points):
        loss.calls = 0
        if r == 0:
            gradient(engine, point, case.records, 1.0, cache=cache, remember=True)
        else:
            difference(engine, point, points[r - 1], case.records, 1.0, cache=cache)
        seen.append(loss.calls)
        assert cache.holds(point) == bool(cache.chunks) == (cache_bytes > 100)
    assert seen == passes


@both_fast
def test_a_gradient_is_kept_only_where_a_difference_may_follow(kind):
    case, cache = make_case("mlp"), FeatureCache()
    engine = make_engine(kind, case.model, case.loss, case.records)
    gradient(engine, start_of(case.model), case.records, 1.0, cache=cache)
    assert cache.params is None
    assert not cache.chunks


@both_fast
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_was_asked_before_an_answer_has_the_same_bytes(kind, outputs, seed):
    """One engine, three sets of records with a cache each, questions in any order; a new engine is asked the same."""
    choose, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 4), nn.Softplus(), nn.Linear(4, outputs))
    sets = [
        Records.of(torch.randn(count, 5, generator=generator), torch.randn(count, outputs, generator=generator))
        for count in (150, 64, 150)
    ]
    engine = make_engine(kind, model, squared, sets[0], chunk_rows=64)
    caches, points = [FeatureCache() for _ in sets], points_near(model, 3, 0.2)
    held = [choose.choice(points) for _ in sets]
    for _ in range(40):
        index, point = choose.randrange(3), choose.choice(points)
        records, cache = sets[index], choose.choice([caches[index], caches[index], None])
        fresh = make_engine(kind, model, squared, sets[0], chunk_rows=64)
        what = choose.choice(["gradient", "difference", "evaluate"])
        if what == "gradient":
            value = gradient(engine, point, records, 0.5, cache=cache, remember=choose.random() < 0.5)
            expected = gradient(fresh, point, records, 0.5)
        elif what == "difference":
            previous = choose.choice([held[index], choose.choice(points)])
            value = difference(engine, point, previous, records, 0.1, cache=cache)
            expected = difference(fresh, point, previous, records, 0.1)
        else:
            value, expected = engine.evaluate(point, records, cache=cache), fresh.evaluate(point, records)
            assert (value is None) == (expected is None) == (kind == "ghost")
            value, expected = (torch.zeros(1) if found is None else found.gradient for found in (value, expected))
        if what != "evaluate" and cache is not None:
            held[index] = point
        assert torch.equal(value, expected), what


def test_passes_of_another_iterate_are_not_used():
    case = paper_case(600)
    points = points_near(case.model, 3)
    nearly = points[1].clone()
    nearly[3] = torch.nextafter(nearly[3], nearly[3] + 1)
    for engine in engines(case, chunk_rows=512)[:-2]:  # vmap and loop keep nothing
        cache = FeatureCache()
        for point in (points[0], points[2], nearly):
            difference(engine, points[1], points[0], case.records, 0.1, cache=cache)
            value = gradient(engine, point, case.records, 0.5, cache=cache)
            assert torch.equal(value, gradient(engine, point, case.records, 0.5))
            gradient(engine, points[1], case.records, 0.5, cache=cache, remember=True)
            value = difference(engine, points[2], point, case.records, 0.1, cache=cache)
            assert torch.equal(value, difference(engine, points[2], point, case.records, 0.1))


@both_fast
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("then", ["gradient", "gradient before", "difference"])
def test_passes_of_an_interrupted_round_are_not_used(kind, known, then):
    """Ctrl-C in the middle of a round leaves passes at two iterates; the round done again must not mix them."""
    case, loss, cache = make_case("mlp"), Counted(), FeatureCache()
    params, previous, other = points_near(case.model, 3)
    engine = make_engine(kind, case.model, loss, case.records, chunk_rows=4)
    cached = previous if known else other
    gradient(engine, cached, case.records, 1.0, cache=cache, remember=True)
    loss.fails_at = loss.calls + (2 if known else 4)  # in the second chunk: the first is that of the new iterate
    with pytest.raises(KeyboardInterrupt):
        difference(engine, params, previous, case.records, 0.1, cache=cache)

    def ask(**options):
        if then == "difference":
            return difference(engine, params, cached, case.records, 0.1, **options)
        return gradient(engine, params if then == "gradient" else cached, case.records, 1.0, **options)

    assert torch.equal(ask(cache=cache), ask())


@both_fast
@pytest.mark.parametrize("then", ["gradient", "difference"])
def test_a_gradient_from_the_cache_that_is_interrupted_leaves_nothing_wrong(monkeypatch, kind, then):
    case, cache = make_case("mlp"), FeatureCache()
    params, previous, following = points_near(case.model, 3)
    engine = make_engine(kind, case.model, case.loss, case.records, chunk_rows=4)
    difference(engine, params, previous, case.records, 0.1, cache=cache)
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
            gradient(engine, params, case.records, 1.0, cache=cache, remember=True)

    def ask(**options):
        if then == "gradient":
            return gradient(engine, params, case.records, 1.0, **options)
        return difference(engine, following, params, case.records, 0.1, **options)

    assert torch.equal(ask(cache=cache), ask())


def test_passes_with_one_mask_serve_no_other():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 20), nn.Dropout(0.5), nn.Tanh(), nn.Linear(20, 1)).double()
    records = Records.of(torch.randn(8, 4, dtype=torch.float64), torch.randn(8, 1, dtype=torch.float64))
    params, previous = points_near(model, 2)
    engine, cache, other = make_engine("ghost", model, squared, records, chunk_rows=3), FeatureCache(), Masks(b"2")
    for held in (params, previous):
        for masks in (None, Masks(b"1")):  # with these, or without any, passes are computed and perhaps kept
            gradient(engine, held, records, 1.0, cache=cache, masks=masks, remember=True)
            value = gradient(engine, params, records, 1.0, cache=cache, masks=other)
            assert torch.equal(value, gradient(engine, params, records, 1.0, masks=other))
            gradient(engine, held, records, 1.0, cache=cache, masks=masks, remember=True)
            value = difference(engine, params, previous, records, 1.0, cache=cache, masks=other)
            assert torch.equal(value, difference(engine, params, previous, records, 1.0, masks=other))
