"""Counts: positive predictions that beat the mean, and no table on which they run away."""

from __future__ import annotations

import math

import numpy as np
import pytest

from diff2.errors import WeakModelWarning
from diff2.fitting import fit
from diff2.fitting.asking import Answer
from diff2.fitting.counts import REACH, CountResiduals, LogMean, RatioMean, expected_counts, mean_and_bound
from diff2.fitting.linear import LinearModel
from diff2.fitting.preparation import Preparation
from diff2.fitting.scoring import poisson_deviance
from diff2.fitting.statistics import Design
from diff2.tables.rows import Rows
from diff2.tables.schema import Schema


def schema(columns, high):
    names = [f"x{j}" for j in range(columns)]
    return Schema.from_arguments(names, bounds=[(-4, 4)] * columns, max_count=high, target="y")


def table(x, y):
    return {**{f"x{j}": x[:, j] for j in range(x.shape[1])}, "y": y}


class TestSensitivity:
    def test_logarithms_and_ratios_are_bounded_and_attained(self):
        empty = np.zeros((2, 0))
        counts = Rows(empty, empty.astype(np.int64), np.array([0.0, 7.0]))
        low, high = (LogMean(7.0).total(Rows(*(p[i : i + 1] for p in counts)), np.ones(1), {})[0] for i in range(2))
        assert high - low == pytest.approx(LogMean(7.0).diameter) == pytest.approx(math.log(8))
        model = LinearModel(Design(Preparation((), (), ()), 1.0, 1.0), np.array([1e6]), 0.5)
        assert RatioMean(model).total(counts, np.array([0.5, 0.5]), {})[0] == pytest.approx(RatioMean(model).diameter)

    def test_residuals_are_bounded_wherever_theta_is(self):
        design = Design(Preparation((), (), ()), 1.0, 1.0)
        rows = Rows(np.zeros((2, 0)), np.zeros((2, 0), np.int64), np.array([0.0, 1e9]))
        for theta in (-1e300, 0.0, 1e300):
            found = CountResiduals(design, np.array([theta]), np.array(math.log(2.0)), (0.0, 50.0)).of(rows, {})
            assert found.min() >= -math.exp(REACH)
            assert found.max() <= 25


class TestBound:
    def test_a_bound_is_not_taken_from_the_few_counts_that_stand_out(self):
        """Zeros stood out, all others were below the noise: the bound was 1 at a mean of 6."""
        counts = np.concatenate([np.zeros(15), np.resize([2, 3, 5, 7, 9, 12, 17, 24], 85)]).astype(float)
        rows = Rows(np.zeros((100, 0)), np.zeros((100, 0), np.int64), counts)

        def ask(statistic, mu):
            return Answer(statistic.total(rows, np.full(100, 0.01), {}), 0.03 if mu < 0.15 else 0.2)

        mean, high = mean_and_bound(ask, 1.0, 100.0)
        assert mean == pytest.approx(counts.mean(), rel=0.2)
        assert high > counts.max()


class TestFit:
    def test_it_beats_the_mean(self):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(4000, 3))
        y = rng.poisson(np.exp(0.5 + 0.7 * x[:, 0] - 0.4 * x[:, 1] ** 2))
        model = fit(table(x, y), schema(3, 200), epsilon=1.0, seed=0)
        x = rng.normal(size=(4000, 3))
        new = rng.poisson(np.exp(0.5 + 0.7 * x[:, 0] - 0.4 * x[:, 1] ** 2))
        found = model.predict(table(x, new))
        assert (found > 0).all()
        assert poisson_deviance(new, found).mean() < 0.8 * poisson_deviance(new, np.full(4000, y.mean())).mean()
        assert found.mean() == pytest.approx(new.mean(), rel=0.25)
        assert model.health.score.what == "deviance"
        assert model.epsilon <= 1.0

    @pytest.mark.parametrize("seed", range(4))
    def test_of_few_records_it_is_hardly_worse_than_the_mean(self, seed):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(3250, 3))
        y = rng.poisson(np.exp(1 + 0.5 * x[:, 0]) * rng.gamma(1.0, 1.0, len(x)))
        with pytest.warns(WeakModelWarning, match="expect little more than a constant"):
            model = fit(table(x[:250], y[:250]), schema(3, 100), epsilon=0.5, delta=1e-5, seed=seed)
        found, mean = model.predict(table(x[250:], y[250:])), np.full(3000, y[:250].mean())
        assert poisson_deviance(y[250:], found).mean() < 1.15 * poisson_deviance(y[250:], mean).mean()

    @pytest.mark.parametrize("name", ["all zero", "all at the bound", "two ends", "one huge", "rare"])
    def test_adversarial_counts_cannot_make_it_diverge(self, name):
        rng = np.random.default_rng(1)
        x = np.repeat(rng.choice([-4.0, 4.0], size=(100, 2)), 10, axis=0)
        counts = {
            "all zero": np.zeros(1000),
            "all at the bound": np.full(1000, 1e6),
            "two ends": np.where(x[:, 0] > 0, 1e6, 0),
            "one huge": np.eye(1, 1000, 3)[0] * 1e6,
            "rare": rng.random(1000) < 0.01,
        }[name]
        model = fit(table(x, counts), schema(2, 1e6), epsilon=8.0, seed=2)
        found = model.predict(table(x, counts))
        assert np.isfinite(found).all()
        assert (found >= 0).all()
        most = math.exp(model.model.offset) * math.exp(REACH)
        assert found.max() <= min(1e6, most)
        if name == "two ends":
            assert found[x[:, 0] > 0].mean() > 3 * found[x[:, 0] < 0].mean()

    def test_outputs_beyond_reach_are_limited(self):
        model = LinearModel(Design(Preparation((), (), ()), 1.0, 1.0), np.zeros(1), 1.0)
        assert expected_counts(model, np.array([-1e9, 1e9])).tolist() == pytest.approx([math.exp(-2), math.exp(4)])
