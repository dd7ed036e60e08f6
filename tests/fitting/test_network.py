"""``method="network"``: priced, bounded, saved without code; no table makes its steps diverge."""

from __future__ import annotations

import math
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from test_steps import BOUNDS, HARDEST, HIGH, LOW, TABLES, Asker, N
from torch import nn

import diff2
from diff2 import FittedModel, InvalidArgument
from diff2.fitting.asking import Answer
from diff2.fitting.network import REACH, ROUNDS, fit_network, made_up_inputs, network_of
from diff2.fitting.network_records import (
    Learner,
    NetworkGradients,
    NetworkNorms,
    Spread,
    Task,
    class_task,
    regression_task,
    shapes_of,
)
from diff2.fitting.preparation import Preparation
from diff2.gradients import Factors, Transform, build_engine
from diff2.models.losses import squared
from diff2.tables.kinds import Classes, Counts, Regression
from diff2.tables.rows import Rows
from diff2.tables.schema import Schema
from fitted import TARGETS, fitted, schema, table

WIDTH = schema("regression").width


def linear(outputs=1):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(WIDTH, outputs)


class Sine(nn.Module):
    """A module of somebody's own, that no fast engine knows."""

    def __init__(self, outputs=1):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 4), nn.Linear(4, outputs)
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("shift", torch.full((4,), 0.5))

    def forward(self, x):
        return self.last(torch.sin(self.first(x)) * self.scale + self.shift)


@pytest.fixture(scope="module", params=sorted(TARGETS))
def model(request):
    return fitted(request.param, method="network", rows=4000)


@pytest.fixture
def short(monkeypatch):
    """What a test says then holds after every round."""
    monkeypatch.setattr("diff2.fitting.network.ROUNDS", 20)


# The product


def test_a_network_learns_what_there_is(model):
    rows = table(2000, seed=1)
    truth = rows[model.schema.target_name]
    if isinstance(model.schema.target, Classes):
        assert np.mean(model.predict(rows) == truth) > 0.7
    else:
        assert np.mean((model.predict(rows) - truth) ** 2) < 0.3 * truth.var()


def test_counts_are_learnt():
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, 2000)
    known = Schema.from_arguments(["x"], bounds=[(0, 1)], max_count=40, target="y")
    found = diff2.fit({"x": x, "y": rng.poisson(np.exp(2 * x))}, known, epsilon=3.0, seed=0, method="network")
    assert found.predict({"x": [0.9]})[0] > 2 * found.predict({"x": [0.1]})[0] > 0


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("kind", sorted(TARGETS))
def test_records_without_a_target_count_as_null_records(kind):
    rows = table(400)
    rows[kind] = rows[kind].astype(object)
    rows[kind][:20] = None
    found = diff2.fit(rows, schema(kind), epsilon=8.0, seed=0, method="network", score=False)
    assert np.isfinite(found._outputs(rows)).all()


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("unit", ["group", "client"])
def test_groups_and_clients_are_protected_as_one(unit):
    known = schema("regression", groups="person", clients="hospital")
    found = diff2.fit(table(400), known, epsilon=8.0, seed=0, method="network", unit=unit, weighting="clients")
    assert found.guarantee.unit == unit
    heaviest = 1 / 2 if unit == "client" else 1 / min(found.ledger.header["client_sizes"]) / 2
    descent = [release for release in found.ledger.releases if release.purpose == "descent"]
    for release in descent:
        assert release.sensitivity == pytest.approx(2 * release.clip * heaviest)


def test_everything_is_in_the_ledger_and_within_the_budget(model):
    purposes = [release.purpose for release in model.ledger.releases]
    assert purposes.count("descent") == ROUNDS
    assert {"histogram", "whitening", "target", "norms", "descent", "score"} == set(purposes)
    assert model.epsilon == pytest.approx(8.0, rel=1e-3)
    assert model.epsilon <= 8.0
    assert model.ledger.header["algorithm"]["method"] == "network"
    assert "network, as asked for" in str(model.health)


def test_what_was_chosen_and_why_is_said():
    found = fitted("regression")
    assert found.health.method.startswith("features, ")
    assert "features, not a network" in str(found.health)
    assert "method" not in found.ledger.header["algorithm"]


def test_it_comes_back_bit_for_bit(model, tmp_path):
    again = FittedModel.load(model.save(tmp_path / "model"))
    rows = table(300, seed=1)
    np.testing.assert_array_equal(again._outputs(rows), model._outputs(rows))
    assert again.health == model.health


def test_a_perceptron_predicts_without_pytorch(model, tmp_path):
    model.save(tmp_path / "model")
    code = f"""
import sys
import diff2
found = diff2.FittedModel.load({str(tmp_path / "model")!r})
assert len(found.predict({{name: [None] for name in found.schema.columns}})) == 1
assert "torch" not in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_features_load_no_tensors():
    code = """
import sys
import numpy as np, diff2
from diff2.tables.schema import Schema
x = np.linspace(0, 1, 200)
known = Schema.from_arguments(["x"], bounds=[(0, 1)], classes=[False, True], target="y")
diff2.fit({"x": x, "y": x > 0.5}, known, epsilon=1.0)
assert "torch" not in sys.modules
"""
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=False).returncode == 0


def test_the_graph_of_a_perceptron_predicts_the_same(model, tmp_path):
    pytest.importorskip("onnxruntime")
    model.to_onnx(tmp_path / "model.onnx")  # compares both on made-up rows
    assert (tmp_path / "model.onnx").exists()


def test_estimators_take_a_method():
    sklearn = pytest.importorskip("diff2.sklearn")
    x = np.random.default_rng(2).random((1000, 1))
    found = sklearn.PrivateRegressor(
        epsilon=3.0, bounds=[(0, 1)], target_bounds=(0, 5), method="network", random_state=0
    ).fit(x, 5 * x[:, 0])
    assert found.model_.ledger.header["algorithm"]["method"] == "network"
    assert abs(found.predict([[0.5]])[0] - 2.5) < 1
    with pytest.raises(InvalidArgument, match="method"):
        sklearn.PrivateRegressor(bounds=[(0, 1)], target_bounds=(0, 5), method="forest").fit(x, x[:, 0])


# A module of the caller's own


@pytest.mark.usefixtures("short")
@pytest.mark.filterwarnings("ignore::diff2.errors.GradientFallbackWarning")
@pytest.mark.parametrize("module", [linear(), Sine(), nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.LazyLinear(1))])
def test_a_module_of_ones_own_is_fitted_saved_and_loaded(module, tmp_path):
    before = [
        value.clone()
        for value in module.state_dict().values()
        if not isinstance(value, torch.nn.UninitializedParameter)
    ]
    found = fitted("regression", method="network", model=module, rows=200)
    for old, new in zip(before, module.state_dict().values(), strict=False):
        assert torch.equal(old, new)  # the caller's own is never changed
    folder = found.save(tmp_path / "model")
    rows = table(50, seed=1)
    again = FittedModel.load(folder, module=module)
    np.testing.assert_allclose(again._outputs(rows), found._outputs(rows), rtol=1e-12)
    with pytest.raises(InvalidArgument, match=r"whose code is not saved; load it in Python, with module="):
        FittedModel.load(folder)
    with pytest.raises(InvalidArgument, match="not the one that was fitted"):
        FittedModel.load(folder, module=nn.Sequential(nn.Linear(WIDTH, 7), nn.Linear(7, 1)))
    with pytest.raises(InvalidArgument, match="has no ONNX graph here"):
        found.to_onnx(tmp_path / "model.onnx")


class Keeper(nn.Module):
    """Keeps what it sees, as an attribute and, if it is not merely tried, as a buffer, which is saved."""

    def __init__(self):
        super().__init__()
        self.linear, self.hidden = nn.Linear(WIDTH, 1), []
        self.register_buffer("seen", torch.zeros(WIDTH))

    def forward(self, x):
        self.hidden.append(x)
        if x.ndim == 2 and len(x) > 100:
            self.seen = x.detach()[0].to(self.seen)
        return self.linear(x)


@pytest.mark.usefixtures("short")
def test_a_module_that_keeps_what_it_sees_has_seen_no_record(tmp_path):
    """Neither of the fit nor of its score, nor of an evaluation. All 400 records were in it."""
    keeper = Keeper()
    found = fitted("regression", method="network", model=keeper, directory=tmp_path)
    diff2.evaluate(found, table(seed=1), epsilon=8.0, seed=0)
    found.predict(table(200))
    for module in (keeper, found.model.module, FittedModel.load(tmp_path, module=keeper).model.module):
        assert not any(x.any() for x in module.hidden)
        assert not module.seen.any()
    assert not found.model.state[0].any()


class Centring(nn.Module):
    """Takes off the mean of its batch, in training or when it predicts."""

    def __init__(self, training):
        super().__init__()
        self.linear, self.when = nn.Linear(WIDTH, 1), training

    def forward(self, x):
        return self.linear(x - x.mean(0) if self.training == self.when else x)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("training", [True, False])
def test_a_module_that_mixes_records_is_neither_fitted_nor_loaded(training, tmp_path):
    """Tried in training alone, one record moved the errors that a score is made of by 95 times the sensitivity."""
    with pytest.raises(diff2.errors.UnsupportedModel, match="the model mixes records"):
        fitted("regression", method="network", model=Centring(training), directory=tmp_path / "mixing")
    assert not (tmp_path / "mixing").exists()
    if not training:
        fitted("regression", method="network", model=linear(), rows=200, directory=tmp_path / "plain")
        with pytest.raises(diff2.errors.UnsupportedModel, match="the model mixes records"):
            FittedModel.load(tmp_path / "plain", module=Centring(training))


def test_a_model_that_needs_no_module_refuses_one(model, tmp_path):
    folder = model.save(tmp_path / "model")
    with pytest.raises(InvalidArgument, match="needs no module"):
        FittedModel.load(folder, module=linear())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "forest"}, "method"),
        ({"method": "features", "model": linear()}, "model goes with method='network'"),
        ({"model": linear()}, "model goes with method='network', got method='auto'"),
        ({"method": "network", "model": "mlp"}, "expected model to be a torch.nn.Module, got str"),
        ({"method": "network", "model": nn.Linear(3, 1)}, f"cannot be applied to the {WIDTH} inputs"),
        ({"method": "network", "model": linear(2)}, r"give 1 number\(s\) for a record, got \(3, 2\)"),
        ({"method": "network", "model": nn.Sequential(nn.Dropout(), linear())}, "draws random numbers"),
        ({"method": "network", "model": nn.Sequential(nn.BatchNorm1d(WIDTH), linear())}, "BatchNorm1d"),
        ({"method": "network", "model": nn.Flatten()}, "shape|trainable|number"),
    ],
)
def test_what_cannot_be_fitted_is_refused_before_anything_is_released(options, message, tmp_path):
    with pytest.raises(diff2.Diff2Error, match=message):
        fitted("regression", directory=tmp_path, **options)
    assert not list(tmp_path.iterdir())


# Sensitivity

RECORDS = 6


def a_learner(module, outputs=1, scale=1.0):
    preparation = Preparation((), (5,), (0, 1, 2))

    def targets(values):
        return torch.from_numpy(values * scale).unsqueeze(1) if outputs == 1 else torch.from_numpy(values.astype(int))

    loss = squared if outputs == 1 else nn.CrossEntropyLoss(reduction="none")
    engine, _ = build_engine(module.double(), loss, shapes_of(preparation.width, outputs))
    return Learner(preparation, Task(outputs, 1.0, 0.0, loss, targets, lambda z, g: z), engine, 1 / RECORDS)


def rows_of(seed, wild=1.0):
    rng = np.random.default_rng(seed)
    numeric = np.where(rng.random((RECORDS, 3)) < 0.3, np.nan, 1.0)
    return Rows(numeric, rng.integers(0, 5, (RECORDS, 1)), wild * rng.integers(0, 2, RECORDS).astype(float))


@pytest.mark.parametrize("size", [1e-20, 1.0, 1e20, 0.0])
@pytest.mark.parametrize("wild", [1.0, 1e12])
@pytest.mark.parametrize("make", [lambda: nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 1)), nn.LayerNorm])
def test_replacing_a_record_moves_the_gradients_by_at_most_what_is_stated(make, wild, size):
    """And by nearly that much for some: nothing is paid for that cannot happen."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        module = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 1)) if make is nn.LayerNorm else make()
    learner = a_learner(module, scale=wild)
    name = next(name for name, layer in learner.engine.flat.module.named_modules() if type(layer) is nn.Linear)
    layer = dict(learner.engine.flat.module.named_modules())[name]
    rng = torch.Generator().manual_seed(2)
    matrix = [torch.randn(k, k, generator=rng, dtype=torch.float64) * size for k in (9, layer.out_features)]
    transform = Transform({name: Factors(*matrix)})
    params, farthest = learner.engine.flat.vector.clone(), 0.0
    for radius in (1e-6, 1.0, 1e6):
        asked = NetworkGradients(learner, params, transform, radius)
        weights = np.full(RECORDS, learner.heaviest)
        for seed in range(8):
            rows, other = rows_of(seed), rows_of(seed + 100)
            replaced = Rows(*(np.concatenate([new[:1], old[1:]]) for new, old in zip(other, rows, strict=True)))
            moved = np.linalg.norm(asked.total(rows, weights, {}) - asked.total(replaced, weights, {}))
            assert moved <= asked.diameter * learner.heaviest * (1 + 1e-12)
            farthest = max(farthest, moved / (asked.diameter * learner.heaviest))
        assert asked.diameter == pytest.approx(2 * radius, rel=1e-3)
    if size >= 1 and wild > 1:
        assert farthest > 0.5


@pytest.mark.parametrize("halved", [2, RECORDS])
def test_a_unit_of_several_records_moves_the_gradients_no_further(halved):
    """Two records of half the weight each are one unit; the others of their chunk may be such units, too."""
    learner = a_learner(nn.Linear(8, 1))
    asked = NetworkGradients(learner, learner.engine.flat.vector.clone(), None, 1e-3)
    weights = np.full(RECORDS, learner.heaviest)
    weights[:halved] /= 2
    sums = []
    for target in (1e9, -1e9):
        rows = rows_of(0)
        rows.numeric[1], rows.codes[1], rows.target[:2] = rows.numeric[0], rows.codes[0], target
        sums.append(asked.total(rows, weights, {}))
    moved = np.linalg.norm(sums[0] - sums[1])
    assert 0.9 * asked.diameter * learner.heaviest < moved <= asked.diameter * learner.heaviest * (1 + 1e-12)


def test_one_count_of_a_histogram_moves_whatever_the_record_is():
    learner = a_learner(nn.Linear(8, 1), scale=1e300)
    params, weights = learner.engine.flat.vector.clone(), np.full(RECORDS, 1 / RECORDS)
    edges = np.array([1.0, 2.0, 4.0])
    for asked in (NetworkNorms(learner, params, None, edges), Spread(0.0, edges, (-1e300, 1e300))):
        counts = [asked.total(rows_of(seed), weights, {}) for seed in (0, 1)]
        assert [one.sum() for one in counts] == pytest.approx([1.0, 1.0])
        assert len(counts[0]) == 4
        assert asked.diameter == math.sqrt(2)


# Steps


@pytest.mark.parametrize("name", TABLES)
def test_outputs_stay_near_the_targets_on_adversarial_tables(name):
    inputs, target = TABLES[name]
    ask = Asker(inputs, target, 3.0 if name in HARDEST else 0.0)
    preparation = Preparation((), (), (0, 1, 2))
    task = regression_task(ask, 400.0, 1 / N, (LOW, HIGH))
    model = fit_network(ask, 400.0, 1 / N, preparation, BOUNDS, task, np.random.default_rng(2))
    assert ask.steps == ROUNDS
    outputs = model.outputs(ask.rows, {})
    assert np.abs(outputs).max() < 2 * (HIGH - LOW)
    assert np.mean((outputs - target) ** 2) < target.var() + 0.02


@pytest.mark.parametrize("name", HARDEST)
def test_probabilities_stay_bounded_on_adversarial_tables(name):
    inputs, target = TABLES[name]
    labels = (target > 0).astype(np.float64)
    ask = Asker(inputs, labels, 1.0)
    task = class_task(ask, 400.0, 1 / N, 2)
    model = fit_network(ask, 400.0, 1 / N, Preparation((), (), (0, 1, 2)), BOUNDS, task, np.random.default_rng(2))
    outputs = model.outputs(ask.rows, {})
    assert np.abs(outputs - outputs.mean(axis=1, keepdims=True)).max() < 50


@pytest.mark.parametrize("target", [Regression(LOW, HIGH), Classes((0, 1)), Counts(1000)])
def test_answers_of_an_adversary_move_outputs_by_a_bounded_amount_per_round(target):
    """Released directions that always push the same way, of any length: outputs grow linearly, not geometrically."""
    seen = []

    class Adversary(Asker):
        def __call__(self, statistic, mu):
            answer = super().__call__(statistic, mu)
            if statistic.purpose != "descent":
                return answer
            seen.append(statistic.params)
            return Answer(np.full_like(answer.value, 1e6 * (-1) ** (len(seen) // 7)), answer.noise_std)

    inputs, values = TABLES["opposite bounds"]
    ask = Adversary(inputs, np.maximum(values, 0.0) if not isinstance(target, Regression) else values, 1.0)
    made = network_of(
        ask,
        400.0,
        1 / N,
        Preparation((), (), (0, 1, 2)),
        BOUNDS,
        target,
        (-math.inf, math.inf),
        np.random.default_rng(2),
    )[0]
    assert len(seen) == ROUNDS
    probes = torch.from_numpy(made_up_inputs(made.preparation, torch.Generator().manual_seed(0)))
    moved = [
        float((_outputs(made, late, probes) - _outputs(made, early, probes)).square().sum(1).mean().sqrt())
        for early, late in pairwise(seen)
    ]
    assert max(moved) < 3 * REACH  # other probes than those that the steps were shortened on
    assert np.isfinite(made.outputs(ask.rows, {})).all()
    assert np.abs(made.outputs(ask.rows, {}) - np.mean(made.offset)).max() < 3 * ROUNDS * REACH * made.scale + 10


def _outputs(model, params, probes):
    values, start = probes, 0
    for layer, (weight, bias) in enumerate(zip(model.weights, model.biases, strict=True)):
        part = [params[start : start + weight.size].view(weight.shape)]
        part.append(params[start + weight.size : start + weight.size + bias.size])
        start += weight.size + bias.size
        values = (torch.tanh(values) if layer else values) @ part[0].t() + part[1]
    return values


def test_probes_hold_no_record():
    """The same public seed gives the same probes, whatever the records are."""
    preparation = Preparation((), (3, 2), ())
    found = [made_up_inputs(preparation, torch.Generator().manual_seed(5)) for _ in range(2)]
    assert np.array_equal(*found)
    assert found[0].shape == (1000, 5)
