"""Transforms before clipping: every engine sums the transformed gradients, none longer than the radius."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from diff2.errors import InvalidArgument
from diff2.federation.wire.request import Request
from diff2.gradients import Factors, FeatureCache, FlatModule, Transform, from_probes
from diff2.models.losses import cross_entropy, squared
from diff2.questions import Question
from helpers import (
    Case,
    clipped_sum,
    engines,
    gradient_rows,
    kinds_for,
    make_case,
    make_engine,
    paper_case,
    relative_error,
    start_of,
    step_from,
)

ALLOWED = 1 + 1e-5
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # of vmap with attention


def classes_case(count=20, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    case = paper_case(count, dtype)
    model = nn.Sequential(nn.Linear(8, 10), nn.Softplus(), nn.Linear(10, 3)).to(dtype)
    return Case(model, case.inputs, torch.randint(0, 3, (count,), generator=generator), cross_entropy)


CASES = {
    "paper": lambda: paper_case(40),
    "paper, classes": classes_case,
    "paper, double": lambda: paper_case(20, torch.float64),
    **{
        name: lambda name=name: make_case(name)
        for name in (
            "mlp", "mlp without biases", "inplace relu", "sequence, wide", "sequence, long", "layer norm", "conv1d",
            "frozen layer", "frozen first layer", "transformer", "encoder, records second",
        )
    },
}  # fmt: skip


def linear_layers(model):
    """Return the linear layers of which all parameters are trained, by name."""
    return {
        name: layer
        for name, layer in model.named_modules()
        if type(layer) is nn.Linear and all(parameter.requires_grad for parameter in layer.parameters())
    }


def made_up(model, size=1.0, seed=0, rank=None):
    """Return a random transform of all linear layers, of this size and, with ``rank``, singular."""
    generator, layers = torch.Generator().manual_seed(seed), {}

    def matrix(width):
        values = torch.randn(width, width, generator=generator, dtype=torch.float64)
        if rank is not None:
            values = values[:, :rank] @ values[:rank]
        return values * size

    for name, layer in linear_layers(model).items():
        outputs, inputs = layer.weight.shape
        layers[name] = Factors(matrix(inputs + (layer.bias is not None)), matrix(outputs))
    return Transform(layers)


def transformed(case, transform, rows):
    """Return G M A^T of each record's gradients, written out in double precision."""
    rows, start = rows.double().clone(), 0
    for name, parameter in case.model.named_parameters():
        owner, _, own = name.rpartition(".")
        if not parameter.requires_grad:
            continue
        if own == "weight" and owner in transform.layers:
            factors, layer = transform.layers[owner], dict(case.model.named_modules())[owner]
            size = sum(one.numel() for one in layer.parameters())
            matrices = rows[:, start : start + parameter.numel()].unflatten(1, parameter.shape)
            if layer.bias is not None:
                matrices = torch.cat([matrices, rows[:, start + parameter.numel() : start + size].unsqueeze(2)], 2)
            rows[:, start : start + size] = (factors.errors @ matrices @ factors.inputs.t()).flatten(1)
        start += parameter.numel()
    return rows


def ask(engine, records, radius, transform, params, previous=None, **options):
    question = Question.gradient(radius) if previous is None else Question.difference(radius)
    asked = question.at(1, params, previous, remember=True)
    return engine.clipped_sum(_with(asked, transform), records, **options)


def _with(question, transform):
    return replace(question, transform=transform)


@pytest.mark.parametrize("name", CASES)
def test_every_engine_sums_what_the_definition_says(name):
    """Also where the first or the last linear layer has no factors, and stays as it is."""
    case = CASES[name]()
    records, served, previous = case.weighted(), engines(case), start_of(case.model)
    params = step_from(previous, 0.1)
    plain = [gradient_rows(case, point) for point in (params, previous)]
    tolerance = 2e-4 if params.dtype == torch.float32 else 1e-9
    for left_out in (None, 0, -1):
        transform = made_up(case.model)
        if left_out is not None:
            del transform.layers[list(transform.layers)[left_out]]
        now, before = (transformed(case, transform, rows) for rows in plain)
        for engine in served:
            for rows, point in ((now, None), (now - before, previous)):
                for radius in (math.inf, float(rows.norm(dim=1).median())):
                    found, right = (
                        ask(engine, records, radius, transform, params, point),
                        clipped_sum(rows, records.weights, radius),
                    )
                    assert relative_error(found, right) < tolerance, (engine.name, left_out)


@pytest.mark.parametrize("name", ["paper, double", "mlp", "frozen first layer", "sequence, long", "transformer"])
def test_norms_are_those_of_the_transformed_gradients(name):
    case = CASES[name]()
    params, transform = start_of(case.model), made_up(case.model)
    rows = gradient_rows(case, params)
    for engine in engines(case):
        for moved, expected in ((transform, transformed(case, transform, rows)), (None, rows)):
            found = engine.norms(params, case.records, moved)
            assert torch.allclose(found, expected.norm(dim=1), rtol=1e-8), engine.name


def test_the_compiled_engine_tells_no_norms():
    case = paper_case(4)
    pytest.importorskip("diff2.gradients.kernels")
    engine = make_engine("compiled", case.model, case.loss, case.records)
    with pytest.raises(InvalidArgument, match="the 'compiled' engine returns no norms"):
        engine.norms(start_of(case.model), case.records)


@pytest.mark.parametrize("name", ["paper", "paper, classes", "mlp", "sequence, wide"])
def test_a_cache_serves_one_transform_at_a_time(name):
    """Plain, transformed, transformed otherwise and plain again: each as if nothing had been kept."""
    case = CASES[name]()
    previous = start_of(case.model)
    params, transforms = step_from(previous, 0.1), (None, made_up(case.model), made_up(case.model, seed=1), None)
    for engine in engines(case):
        cache = FeatureCache()
        for transform in transforms:
            fresh = make_engine(engine.name, case.model, case.loss, case.records)
            for point in (None, previous, previous):
                kept = ask(engine, case.records, 1.0, transform, params, point, cache=cache)
                assert torch.equal(kept, ask(fresh, case.records, 1.0, transform, params, point)), engine.name
            assert engine.evaluate(params, case.records, cache=cache) is None or torch.equal(
                engine.evaluate(params, case.records, cache=cache).losses,
                fresh.evaluate(params, case.records).losses,
            )


def test_factors_of_the_identity_change_nothing_but_the_order():
    case = paper_case(70, torch.float64)
    flat = FlatModule(case.model)
    same = Transform({name: Factors(torch.eye(k), torch.eye(o)) for name, k, o in (("0", 9, 10), ("2", 11, 1))})
    for engine in engines(case):
        plain = ask(engine, case.records, 1.0, None, flat.vector.clone())
        found = same.back(flat, ask(engine, case.records, 1.0, same, flat.vector.clone()))
        assert relative_error(found, plain) < 1e-12


def test_a_step_is_mapped_back_by_the_transposed_transform():
    """<T v, m> = <v, T' m>: what was released in one basis moves the parameters in the other."""
    case = make_case("mlp")
    transform, rows = made_up(case.model), gradient_rows(case, start_of(case.model))
    there = transformed(case, transform, rows)
    moved = torch.randn(rows.shape[1], dtype=torch.float64)
    back = transform.back(FlatModule(case.model), moved)
    assert torch.allclose(there @ moved, rows @ back)


# Sensitivity

sizes = st.floats(-38, 38).map(lambda power: 10.0**power)
WIDE = {
    "paper": lambda: paper_case(4),
    "classes": lambda: classes_case(4),
    "mlp": lambda: make_case("mlp", count=4, dtype=torch.float32),
    "positions": lambda: make_case("sequence, wide", count=4, dtype=torch.float32),
}


@pytest.mark.parametrize("name", WIDE)
@settings(max_examples=6, deadline=None)  # and the four below
@given(
    size=sizes, inputs=sizes, radius=st.floats(-15, 8), distance=st.floats(-6, 1), rank=st.sampled_from([None, 1, 0])
)
@example(size=1e18, inputs=1e-30, radius=-10.0, distance=0.0, rank=None)
@example(size=1e-30, inputs=1e30, radius=-15.0, distance=-1.0, rank=1)
@example(size=1.0, inputs=1.0, radius=-2.0, distance=-3.0, rank=1)
@example(size=1e3, inputs=1.0, radius=0.0, distance=-6.0, rank=None)
def test_no_transform_lets_a_record_exceed_its_radius(name, size, inputs, radius, distance, rank):
    """Nearly singular, huge or zero: a record alone adds a vector of at most the radius."""
    case = WIDE[name]()
    case = case._replace(inputs=(case.inputs.double() * inputs).float())
    transform, previous = made_up(case.model, size, rank=rank), start_of(case.model)
    if not all(torch.isfinite(matrix.float()).all() for one in transform.layers.values() for matrix in one):
        return  # refused, as below
    params = step_from(previous, 10.0**distance)
    for engine in engines(case):
        for record in case.one_by_one():
            for point in (None, previous):
                found = ask(engine, record, 10.0**radius, transform, params, point)
                assert float(found.norm()) <= ALLOWED * 10.0**radius, engine.name


@pytest.mark.parametrize("name", ["paper", "paper, classes", "mlp", "sequence, wide"])
def test_replacing_a_record_moves_the_sum_by_twice_the_radius_at_most(name):
    """And by nearly that much where a record is replaced by one with the opposite gradient."""
    case = CASES[name]()
    transform, params = made_up(case.model, 1e3), start_of(case.model)
    huge = case._replace(inputs=case.inputs.clone())
    huge.inputs[0] *= 1e6
    for engine in engines(case):
        sums = [ask(engine, one.records, 1e-3, transform, params) for one in (case, huge)]
        assert float((sums[0] - sums[1]).norm()) <= 2e-3 * 1.0013, engine.name
        alone = ask(engine, next(case.one_by_one()), 1e-3, transform, params)
        assert float(alone.norm()) >= 1e-3 * (1 - 1e-3)  # clipped no more than needed


@pytest.mark.parametrize("name", ["paper", "mlp", "sequence, wide"])
def test_a_record_without_a_finite_gradient_counts_as_zero(name):
    case = CASES[name]()
    transform, params = made_up(case.model), start_of(case.model)
    broken = case._replace(inputs=case.inputs.clone())
    broken.inputs[1] = math.nan
    weights = torch.ones(len(case.inputs), dtype=params.dtype)
    weights[1] = 0
    for engine in engines(case):
        found = ask(engine, broken.records, 1.0, transform, params)
        expected = ask(engine, case.records._replace(weights=weights), 1.0, transform, params)
        assert relative_error(found, expected) < 1e-5


# Refusals, before any pass


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ({"5": Factors(torch.eye(2), torch.eye(2))}, "layer '5' of the transform is no layer of the model"),
        ({"1": Factors(torch.eye(2), torch.eye(2))}, "layer '1' of the transform is a Softplus of the model"),
        ({"0": Factors(torch.eye(8), torch.eye(10))}, r"factor for inputs of layer '0' to be \(9, 9\)"),
        ({"0": Factors(torch.eye(9), torch.eye(9))}, r"factor for errors of layer '0' to be \(10, 10\)"),
        ({"2": Factors(torch.eye(11), torch.full((1, 1), math.inf))}, r"\(1, 1\) finite numbers"),
    ],
)
def test_a_transform_that_does_not_fit_the_model_is_refused(layers, message):
    case = paper_case(4)
    for kind in kinds_for(case):
        engine = make_engine(kind, case.model, case.loss, case.records)
        with pytest.raises(InvalidArgument, match=message):
            ask(engine, case.records, 1.0, Transform(layers), start_of(case.model))


def test_a_layer_with_a_frozen_parameter_is_refused():
    case = make_case("frozen first layer")
    transform = Transform({"0": Factors(torch.eye(6), torch.eye(7))})
    with pytest.raises(InvalidArgument, match="layer '0' of the transform has a frozen parameter"):
        ask(engines(case)[0], case.records, 1.0, transform, start_of(case.model))


def test_a_layer_that_shares_a_parameter_is_refused_and_probes_leave_it_out():
    case = make_case("tied")
    flat, eye = FlatModule(case.model), torch.eye(5)
    with pytest.raises(InvalidArgument, match="layer 'first' of the transform shares a parameter; leave it out"):
        Transform({"first": Factors(eye, eye[:4, :4])}).places(flat)
    assert list(from_probes(flat, case.loss, case.records, start_of(case.model)).layers) == ["head"]


def test_a_question_with_a_transform_does_not_travel_to_sites():
    case = paper_case(4)
    question = _with(Question.gradient(1.0).at(1, start_of(case.model)), made_up(case.model))
    with pytest.raises(InvalidArgument, match="sites clip gradients as they are"):
        Request("run", ((1.0, question),)).message()


# Probes


@pytest.mark.parametrize("name", ["paper, double", "mlp", "transformer"])
def test_probes_make_inputs_and_errors_of_every_layer_round(name):
    """With no damping the second moment of transformed inputs, and of errors, is the identity."""
    case = make_case(name, count=400) if name in ("mlp", "transformer") else paper_case(400, torch.float64)
    flat, params = FlatModule(case.model), start_of(case.model)
    transform = from_probes(flat, case.loss, case.records, params, damping=1e-12)
    assert set(transform.layers) == set(linear_layers(case.model))
    if name == "transformer":
        return
    layer = next(iter(transform.layers))
    inputs = torch.cat([case.inputs, torch.ones(400, 1)], dim=1) @ transform.layers[layer].inputs.t()
    assert torch.allclose(inputs.t() @ inputs / 400, torch.eye(inputs.shape[1], dtype=torch.float64), atol=1e-6)


def test_probes_of_a_layer_without_errors_leave_it_as_it_is():
    """The last layer is zero: no error reaches the first."""
    case = paper_case(100, torch.float64)
    with torch.no_grad():
        case.model[2].weight.zero_()
    transform = from_probes(FlatModule(case.model), squared, case.records, start_of(case.model))
    assert torch.equal(transform.layers["0"].errors, torch.eye(10, dtype=torch.float64))
