"""Private evaluation: every score within its interval, for records that have a ledger of their own."""

from __future__ import annotations

import math
import warnings
from functools import lru_cache

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from test_scoring import TWO, Outputs, rows

import diff2
from diff2.errors import InvalidArgument
from diff2.fitting.asking import Answer
from diff2.fitting.evaluate import Moments, ScoreHistogram, area, calibration
from diff2.fitting.scoring import Errors
from diff2.privacy import Ledger
from diff2.tables.kinds import Classes, Regression
from diff2.tables.schema import Schema


def draw(n, seed, task):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    f = x[:, 0] + np.sin(2 * x[:, 1])
    noise = rng.logistic(size=n)
    y = {"numbers": f + 0.5 * noise, "two": f + noise > 0.5, "counts": rng.poisson(np.exp(0.5 * f))}
    y["three"] = np.digitize(f + noise, [-1.0, 1.0])
    return {"a": x[:, 0], "b": x[:, 1], "y": y[task]}


TARGETS = {
    "numbers": {"target_bounds": (-12, 12)},
    "two": {"classes": [False, True]},
    "three": {"classes": [0, 1, 2]},
    "counts": {"max_count": 60},
}


@lru_cache
def fitted(task):
    schema = Schema.from_arguments(["a", "b"], bounds=[(-5, 5)] * 2, target="y", **TARGETS[task])
    return diff2.fit(draw(4000, 0, task), schema, epsilon=3.0, seed=0, score=False)


class TestSensitivity:
    def test_scores_of_two_records_are_a_diameter_apart(self):
        one, other = (ScoreHistogram(TWO).total(rows([[0.0, z]], [1]), np.ones(1), {}) for z in (-3.0, 3.0))
        assert np.linalg.norm(one - other) == pytest.approx(ScoreHistogram(TWO).diameter)

    def test_moments_are_within_their_diameter(self):
        rng = np.random.default_rng(0)
        errors = Errors(Outputs(), Regression(-9, 9), (-9.0, 9.0), 0.0)
        ends = np.array([-9.0, -1.0, -0.5, 0.0, 0.5, 1.0, 9.0])
        pairs = np.stack(np.meshgrid(ends, ends), axis=-1).reshape(-1, 2)
        table = np.concatenate([pairs, rng.normal(size=(30, 2))])
        statistic = Moments(errors, 1.0)
        found = np.array([statistic.total(rows([[p]], [y]), np.ones(1), {}) for p, y in table])
        apart = np.linalg.norm(found[:, None] - found[None], axis=2).max()
        assert math.sqrt(6) == pytest.approx(apart)
        assert apart <= statistic.diameter
        assert np.linalg.norm(found, axis=1).max() <= statistic.longest


class TestScores:
    @pytest.mark.parametrize("task", TARGETS)
    def test_each_score_is_near_the_exact_one(self, task):
        model, held_out = fitted(task), draw(6000, 1, task)
        found = diff2.evaluate(model, held_out, epsilon=3.0, seed=2)
        y, slack = held_out["y"], 0.03
        assert found.guarantee.epsilon <= 3.0
        assert not found.score.worthless
        if task in ("two", "three"):
            right = np.mean(model.predict(held_out) == y)
            assert found.score.accuracy_low - slack < right < found.score.accuracy_high + slack
            assert len(found.calibration) >= 3
        else:
            predicted = model.predict(held_out)
            slope = np.sum((predicted - y.mean()) * (y - y.mean())) / np.sum((predicted - y.mean()) ** 2)
            assert found.slope.low - 0.1 < slope < found.slope.high + 0.1
            assert found.bias.low < np.mean(y - predicted) < found.bias.high
        if task == "two":
            exact = roc_auc_score(y, model.predict_proba(held_out)[:, 1])
            assert found.auc.low - 0.005 < exact < found.auc.high + 0.005
            assert found.auc.high - found.auc.low < 0.15
        else:
            assert found.auc is None
        if task == "numbers":
            exact = 1 - np.mean((y - predicted) ** 2) / y.var()
            assert found.score.low - slack < exact < found.score.high + slack
        assert "releases made by evaluate" in str(found)
        assert found.to_json()["guarantee"]["epsilon"] <= 3.0

    def test_the_interval_of_the_area_holds_it(self):
        rng, hits = np.random.default_rng(3), []
        z = rng.normal(size=200_000)
        truth = roc_auc_score(z + rng.normal(size=len(z)) > 0, z)
        for _ in range(60):
            z = rng.normal(size=1000)
            y = z + rng.normal(size=1000) > 0
            errors = Errors(Outputs(2), Classes((0, 1)), (-1.0, 1.0), np.zeros(2))
            exact = ScoreHistogram(errors).total(rows(np.stack([0 * z, z], axis=1), y), np.full(1000, 1e-3), {})
            auc = area(Answer(exact + 0.002 * rng.standard_normal(exact.shape), 0.002), 1e-3)
            hits.append(auc.low <= truth <= auc.high)
        assert np.mean(hits) >= 0.9

    def test_probabilities_that_are_right_are_found_right(self):
        rng, inside = np.random.default_rng(5), []
        z = 2 * rng.normal(size=20_000)
        for factor in (1.0, 2.0):
            y = rng.random(len(z)) < 1 / (1 + np.exp(-z))
            errors = Errors(Outputs(2), Classes((0, 1)), (-1.0, 1.0), np.zeros(2))
            table = rows(np.stack([0 * z, factor * z], axis=1), y)
            exact = ScoreHistogram(errors).total(table, np.full(len(z), 1 / len(z)), {})
            lines = calibration(Answer(exact + 0.0005 * rng.standard_normal(exact.shape), 0.0005), 1 / len(z))
            inside.append(np.mean([low - 0.01 <= chance <= high + 0.01 for chance, (_, low, high), _ in lines]))
        assert inside[0] >= 0.9
        assert inside[1] < 0.5

    def test_noise_that_hides_a_class_is_said(self):
        noise = np.random.default_rng(4).standard_normal(68)
        assert area(Answer(noise, 1.0), 1e-3)[1:] == (0.0, 1.0)
        assert len(calibration(Answer(noise, 1.0), 1e-3)) <= 1

    def test_few_records(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = diff2.evaluate(fitted("two"), draw(20, 5, "two"), epsilon=0.1, seed=0)
        assert found.score.hidden
        assert math.isfinite(found.score.share)


class TestLedger:
    def test_it_is_its_own_and_for_the_records_of_the_evaluation(self, tmp_path):
        model = fitted("numbers")
        before = len(model.ledger)
        found = diff2.evaluate(model, draw(500, 6, "numbers"), epsilon=0.5, delta=1e-4, directory=tmp_path)
        assert len(model.ledger) == before
        read = Ledger.read(tmp_path / "ledger.jsonl")
        assert read.epsilon() == found.guarantee.epsilon <= 0.5
        assert read.header["client_sizes"] == [500]
        assert found.guarantee.private

    def test_an_infinite_budget_is_refused(self):
        with pytest.raises(InvalidArgument, match="finite epsilon"):
            diff2.evaluate(fitted("numbers"), draw(500, 6, "numbers"), epsilon=math.inf, delta=1e-4)

    def test_a_table_without_the_target_is_refused(self):
        table = draw(500, 6, "numbers")
        del table["y"]
        with pytest.raises(InvalidArgument, match="'y' is missing"):
            diff2.evaluate(fitted("numbers"), table, epsilon=1.0)
