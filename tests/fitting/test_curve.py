"""A curve where tails are heavy: what clipping hides comes back, and nothing else changes."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import diff2
from diff2 import Budget
from diff2.errors import InvalidArgument
from diff2.fitting.asking import Answer
from diff2.fitting.curve import (
    Bins,
    OutputSums,
    OutputWeights,
    Tails,
    bins_of,
    clipping,
    increasing,
    rises_of,
    tail_ratio,
)
from diff2.fitting.linear import CurvedModel
from diff2.fitting.travelling import Unpacked, packed
from diff2.fitting.trees import SHARES, TREE_SHARE, tree_count
from diff2.planning.filter import Filter
from diff2.privacy.accounting import gdp_mu
from diff2.tables.schema import Schema
from fitted import watched

SCHEMA = Schema.from_arguments(["x", "z"], bounds=[(-4, 4)] * 2, target_bounds=(0, 1000), target="y")
CURVE = {"curve", "curve weights"}


def table(tails: float, rows: int = 6000, seed: int = 0) -> dict[str, np.ndarray]:
    """Return numbers whose residuals have the heavier tails the larger the number is; 0: normal ones."""
    rng = np.random.default_rng(seed)
    x, z, noise = rng.standard_normal((3, rows))
    return {"x": x, "z": z, "y": target(x, noise, tails)}


def target(x: np.ndarray, noise: np.ndarray, tails: float) -> np.ndarray:
    return np.clip(4 * np.exp(tails * (x + noise)) if tails else 500 + 80 * (x + noise), 0, 1000)


@pytest.fixture(scope="module")
def heavy():
    """A model of heavy tails, and what it asked for."""
    with watched() as asked:
        return diff2.fit(table(1.5, 20_000), SCHEMA, epsilon=1.0, seed=0), asked


class TestFit:
    def test_a_curve_brings_back_what_clipping_hides(self, heavy):
        model, fresh = heavy[0], table(1.5, seed=1)
        straight = replace(model.model.linear, rises=np.zeros_like(model.model.linear.rises))
        without = replace(model, model=replace(model.model, linear=straight))
        noise = np.random.default_rng(2).standard_normal((500, 1))
        expected = target(fresh["x"], noise, 1.5).mean(axis=0)
        errors = [np.mean((expected - one.predict(fresh)) ** 2) for one in (model, without)]
        assert isinstance(model.model.linear, CurvedModel)
        assert errors[0] < 0.6 * errors[1]

    def test_normal_residuals_need_none(self):
        model = diff2.fit(table(0.0), SCHEMA, epsilon=1.0, seed=0)
        purposes = [one.purpose for one in model.ledger.releases]
        assert purposes.count("tails") == 1
        assert not CURVE & set(purposes)

    def test_trees_pay_for_it(self, heavy):
        model = heavy[0]
        trees = tree_count(20_000 * gdp_mu(1.0, model.ledger.delta) * math.sqrt(0.98))  # the rest is for the score
        shares = dict.fromkeys(("tails", *CURVE, *SHARES), 0.0)
        for one in model.ledger.releases:
            if one.purpose in shares:
                shares[one.purpose] += (one.multiplier * Filter(Budget(1.0, model.ledger.delta)).mu) ** -2
        assert sum(shares.values()) == pytest.approx(TREE_SHARE * trees * 0.98, rel=1e-6)
        assert shares["tails"] + shares["curve"] + shares["curve weights"] <= 0.12
        assert model.epsilon == pytest.approx(1.0, abs=1e-6)

    def test_few_records_have_none(self):
        purposes = {one.purpose for one in diff2.fit(table(1.5, 1000), SCHEMA, epsilon=1.0, seed=0).ledger.releases}
        assert not (CURVE | {"tails"}) & purposes

    def test_it_is_saved_and_exported(self, heavy, tmp_path):
        onnxruntime = pytest.importorskip("onnxruntime")
        model, rows = heavy[0], table(1.5, seed=2)
        again = diff2.FittedModel.load(model.save(tmp_path / "model"))
        assert (again.predict(rows) == model.predict(rows)).all()
        model.to_onnx(tmp_path / "model.onnx")
        session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
        found = session.run(None, {name: rows[name][:, None] for name in ("x", "z")})[0]
        assert (np.abs(found - model.predict(rows)) < 1e-4).mean() > 0.99  # thresholds may fall on the other side


class TestTravelling:
    @pytest.mark.parametrize("kind", [Tails, OutputWeights, OutputSums])
    def test_what_a_fit_asks_for_arrives_as_it_was_sent(self, heavy, kind):
        statistic = next(one for one in heavy[1] if type(one) is kind)
        tree, arrays = packed(statistic)
        found, dimension = Unpacked(SCHEMA).statistic(json.loads(json.dumps(tree)), arrays)
        assert type(found) is kind
        assert (found.longest, found.diameter) == (statistic.longest, statistic.diameter)
        assert dimension == len(statistic.cuts) + 1

    @pytest.mark.parametrize("name", ["below", "above"])
    @pytest.mark.parametrize("value", [0.0, -1.0, 1e31])
    def test_a_side_that_has_no_length_is_refused(self, heavy, name, value):
        statistic = next(one for one in heavy[1] if type(one) is OutputSums)
        with pytest.raises(InvalidArgument):
            Unpacked(SCHEMA).statistic(*packed(replace(statistic, **{name: value})))

    @pytest.mark.parametrize("knots", [[0.0, 0.0], [1.0, 0.0], [0.0, 1e-308], [0.0, 1.0, 2.0], []])
    def test_knots_that_do_not_increase_are_refused(self, heavy, knots):
        linear = replace(heavy[0].model.linear, knots=np.array(knots), rises=np.array([1.0, 2.0]))
        with pytest.raises(InvalidArgument, match="curve"):
            Unpacked(SCHEMA).statistic(*packed(OutputWeights(linear, np.array([0.0]))))


class TestPieces:
    def test_the_ratio_of_normal_sizes_is_below_the_limit(self):
        sizes = 2.0 ** np.arange(-8, 4)
        drawn = np.abs(np.random.default_rng(0).standard_normal(100_000))
        mass = np.bincount(np.searchsorted(sizes, drawn), minlength=13) / 1e5
        assert tail_ratio(mass, sizes) == pytest.approx(1.28, abs=0.02)

    def test_clipping_follows_each_side(self):
        sizes = 2.0 ** np.arange(6)
        below, above = np.array([0.3, 0, 0, 0, 0, 0, 0]), np.array([0, 0.2, 0.2, 0.1, 0.1, 0.1, 0])
        assert clipping(below, above, sizes, 1e-6) == (1.0, 32.0)
        assert clipping(below, above, sizes, 1.0) == (1.0, 1.0)

    def test_bins_double_from_either_end(self):
        cuts = np.arange(1.0, 25.0)
        found = bins_of(Answer(np.full(25, 0.04), 0.005), cuts, 1.0)
        assert found.weights.sum() == pytest.approx(1.0)
        assert found.weights.round(2).tolist() == [0.04, 0.04, 0.08, 0.16, 0.2, 0.16, 0.16, 0.08, 0.04, 0.04]
        assert (np.diff(found.centres) > 0).all()

    @pytest.mark.parametrize("noise", [0.001, 0.3, 50.0])
    def test_any_noise_gives_bins_and_knots_that_increase(self, noise):
        rng = np.random.default_rng(0)
        for _ in range(50):
            answer = Answer(0.04 + noise * rng.standard_normal(25), noise * math.sqrt(2))
            found = bins_of(answer, np.sort(rng.standard_normal(24)), 1.0)
            assert (np.diff(found.centres) > 0).all()
            assert len(found.centres) == len(found.cuts) + 1 >= 2
            assert (found.weights > 0).all()

    def test_noise_is_drawn_to_zero_and_signal_stays(self):
        bins = Bins(np.arange(3.0), np.full(4, 0.25), np.arange(4.0))
        assert rises_of(bins, Answer(np.array([0.1, -0.1, 0.1, -0.1]), 0.2)).tolist() == [0.0] * 4
        assert rises_of(bins, Answer(np.array([0.0, 0.0, 0.25, 2.5]), 1e-6)).round(3).tolist() == [0, 0, 1, 10]

    def test_predictions_keep_the_order_of_the_outputs(self):
        bins = Bins(np.arange(2.0), np.full(3, 1 / 3), np.arange(3.0))
        rises = rises_of(bins, Answer(np.array([3.0, 0.0, -3.0]), 1e-6))
        assert (np.diff(bins.centres + rises) >= -1e-12).all()
        assert increasing(np.array([3.0, 1.0]), np.array([1.0, 3.0])).tolist() == [1.5, 1.5]
