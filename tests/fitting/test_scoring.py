"""A private score says how good a model is, within its interval, and pays for what one record can move."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from diff2.fitting import fit
from diff2.fitting.asking import Answer
from diff2.fitting.evaluate import Moments, ScoreHistogram
from diff2.fitting.health import Health, Stage, Watch
from diff2.fitting.scoring import CutDeviances, Errors, ErrorSizes, poisson_deviance, score_of
from diff2.tables.kinds import Classes, Counts, Regression
from diff2.tables.rows import Rows
from diff2.tables.schema import Schema


class Outputs:
    """A model whose outputs are the first column, or columns."""

    offset = 0.0

    def __init__(self, width=None):
        self.width = width

    def outputs(self, rows, cache):
        return rows.numeric[:, 0] if self.width is None else rows.numeric[:, : self.width]


def rows(outputs, target):
    outputs = np.asarray(outputs, dtype=np.float64).reshape(len(target), -1)
    return Rows(outputs, np.zeros((len(target), 0), dtype=np.int64), np.asarray(target, dtype=np.float64))


NUMBERS = Errors(Outputs(), Regression(0, 4), (0.0, 4.0), 0.0)
TWO = Errors(Outputs(2), Classes((0, 1)), (-math.inf, math.inf), np.array([0.0, -100.0]))
# The first record has no error under the model and a large one under the constant; the second the other way round.
PAIRS = {
    "numbers": (NUMBERS, rows([[4.0]], [4.0]), rows([[4.0]], [0.0])),
    "classes": (TWO, rows([[0.0, 100.0]], [1]), rows([[0.0, 100.0]], [0])),
}


class TestSensitivity:
    @pytest.mark.parametrize("name", PAIRS)
    def test_two_records_are_a_diameter_apart_and_no_further(self, name):
        errors, one, other = PAIRS[name]
        for statistic in (ErrorSizes(errors, np.array([0.1, 1.0])), CutDeviances(errors, 2.0)):
            first, second = (statistic.total(record, np.array([0.5]), {}) for record in (one, other))
            assert np.linalg.norm(first - second) == pytest.approx(0.5 * statistic.diameter, rel=1e-12)
            assert max(np.linalg.norm(first), np.linalg.norm(second)) <= 0.5 * statistic.longest * (1 + 1e-12)

    @pytest.mark.parametrize("output", [math.nan, math.inf, -math.inf, 1.7e308, -1.7e308, 5e-324])
    @pytest.mark.parametrize("other", [0.0, math.inf, -1.7e308])
    def test_a_model_that_somebody_else_made_singles_no_record_out(self, output, other):
        """Of classes, one record for which outputs overflow made the whole score -17,729,524."""
        counts = Errors(Outputs(), Counts(9), (0.0, 9.0), 2.0)
        record, usual = rows([[output, other]], [1]), rows([[0.5, 0.2]], [1])
        for errors in (NUMBERS, TWO, replace(TWO, model=Outputs(3)), counts, replace(counts, bounds=(0.0, math.inf))):
            if errors.target is TWO.target and errors.model.width == 3:
                record, usual = rows([[output, other, 1.0]], [1]), rows([[0.5, 0.2, 0.1]], [1])
            numbers = errors.target is not TWO.target
            asked = [ErrorSizes(errors, np.array([0.1, 1.0])), CutDeviances(errors, 0.5)]
            for statistic in [*asked, Moments(errors, 2.0) if numbers else ScoreHistogram(errors)]:
                first, second = (statistic.total(one, np.ones(1), {}) for one in (record, usual))
                assert np.linalg.norm(first) <= statistic.longest * (1 + 1e-12)
                assert np.linalg.norm(first - second) <= statistic.diameter * (1 + 1e-12)

    def test_no_output_makes_a_record_longer(self):
        rng = np.random.default_rng(0)
        for errors in (NUMBERS, TWO, Errors(Outputs(), Counts(9), (0.0, 9.0), 2.0)):
            wild = rows(rng.standard_cauchy((500, 2)) * 1e3, rng.integers(0, 2, 500))
            for statistic in (ErrorSizes(errors, np.array([0.1, 1.0])), CutDeviances(errors, 0.5)):
                for i in range(0, 500, 25):
                    one = Rows(*(part[i : i + 1] for part in wild))
                    assert np.linalg.norm(statistic.total(one, np.ones(1), {})) <= statistic.longest * (1 + 1e-12)


def score(errors, table, noise, seed=0):
    rng = np.random.default_rng(seed)

    def ask(statistic, mu):
        total = statistic.total(table, np.full(table.size, 1 / table.size), {})
        std = noise * statistic.diameter / mu
        return Answer(total + std * rng.standard_normal(total.shape), std)

    return score_of(ask, 1.0, 1 / table.size, errors)


class TestScore:
    @pytest.mark.parametrize(("noise", "least"), [(0.0, 0.9), (0.002, 0.9)])
    def test_the_interval_holds_r_squared_in_nine_of_ten(self, noise, least):
        hits, widths = [], []
        for seed in range(60):
            rng = np.random.default_rng(seed)
            f = rng.normal(size=2000)
            table = rows(f[:, None] + 50, 50 + f + 0.7 * rng.normal(size=2000))
            found = score(Errors(Outputs(), Regression(0, 100), (0.0, 100.0), 50.0), table, noise, seed)
            hits.append(found.low <= 1 - 0.49 / 1.49 <= found.high)
            widths.append(found.high - found.low)
        assert np.mean(hits) >= least
        assert np.mean(widths) < 0.35

    def test_classes_have_an_accuracy(self):
        rng = np.random.default_rng(1)
        z = 2 * rng.normal(size=5000)
        y = rng.random(5000) < 1 / (1 + np.exp(-z))
        found = score(
            Errors(Outputs(2), Classes((0, 1)), (-1.0, 1.0), np.log([0.5, 0.5])),
            rows(np.stack([0 * z, z], axis=1), y), 0.001,
        )  # fmt: skip
        assert found.accuracy_low < np.mean((z > 0) == y) < found.accuracy_high
        assert 0.2 < found.low < found.high < 0.5
        assert not found.worthless

    def test_a_model_that_says_nothing_is_worthless(self):
        rng = np.random.default_rng(2)
        table = rows(np.full((5000, 1), 0.5), rng.random(5000))
        found = score(Errors(Outputs(), Regression(0, 1), (0.0, 1.0), 0.5), table, 0.001)
        assert found.worthless
        assert "worthless: not distinguishable from predicting the mean" in str(found)

    def test_noise_that_hides_all_is_said_and_is_not_called_worthless(self):
        table = rows(np.zeros((100, 1)), np.random.default_rng(3).random(100))
        found = score(Errors(Outputs(), Regression(0, 1), (0.0, 1.0), 0.5), table, 1.0)
        assert found.hidden
        assert not found.worthless
        assert "noise hides" in str(found)

    def test_poisson_deviance(self):
        assert poisson_deviance(np.array([0.0, 3.0]), np.array([2.0, 3.0])).round(3).tolist() == [4.0, 0.0]


class TestHealth:
    def test_of_a_fit(self):
        rng = np.random.default_rng(4)
        x = rng.random(3000)
        table = {"x": x, "y": x + 0.2 * rng.normal(size=3000)}
        schema = Schema.from_arguments(["x"], bounds=[(0, 1)], target_bounds=(-1, 2), target="y")
        model = fit(table, schema, epsilon=3.0, seed=0)
        health = model.health
        truth = 1 - np.mean((model.predict(table) - table["y"]) ** 2) / table["y"].var()
        assert health.score.low - 0.02 < truth < health.score.high + 0.02
        assert str(health).startswith("explains about 0.")
        assert "at the radius" in str(health)
        assert not health.worthless
        assert Health.from_json(health.to_json()) == health
        assert {release.purpose for release in model.ledger.releases} >= {"score"}
        assert model.epsilon <= 3.0
        unscored = fit(table, schema, epsilon=3.0, seed=0, score=False)
        assert unscored.health.score is None
        assert "score" not in {release.purpose for release in unscored.ledger.releases}
        assert 0.999 * 3.0 < unscored.epsilon <= 3.0

    def test_noise_is_told_from_signal(self):
        rng = np.random.default_rng(5)

        class Sum:
            purpose = "sum"

        for length, share in ((0.0, 1.0), (30.0, 0.1)):
            watch = Watch(lambda statistic, mu, length=length: Answer(length / 10 + rng.standard_normal(100), 1.0))
            watch(Sum(), 1.0)
            (stage,) = watch.stages()
            assert stage.noise_share == pytest.approx(share, abs=0.2)

    def test_records_beyond_the_radius(self):
        answers = iter([Answer(np.array([0.5, 0.3, 0.2, 0.001]), 0.001), Answer(np.ones(3), 0.1)])
        watch = Watch(lambda statistic, mu: next(answers))

        class Sizes:
            purpose, edges = "norms", np.array([1.0, 2.0, 4.0])

        class Step:
            purpose, radius = "descent", 2.0

        watch(Sizes(), 1.0)
        watch(Step(), 1.0)
        noise, clipped = pytest.approx(math.sqrt(0.03)), pytest.approx(0.2)
        assert watch.stages()[1] == Stage("descent", 1, math.sqrt(3), noise, clipped)
