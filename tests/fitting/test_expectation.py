"""Before anything is spent, public numbers say whether a model can be worth it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from diff2.errors import WeakModelWarning
from diff2.fitting import fit
from diff2.fitting.expectation import expected_share, warning_of
from diff2.privacy.accounting import gdp_mu
from diff2.tables.schema import Schema


class TestRule:
    @pytest.mark.parametrize("classes", [None, 2, 7])
    def test_more_records_and_more_budget_help_and_columns_and_classes_cost(self, classes):
        assert expected_share(1000, 0.3, 8, classes) < expected_share(2000, 0.3, 8, classes)
        assert expected_share(1000, 0.3, 8, classes) < expected_share(1000, 0.6, 8, classes)
        assert expected_share(1000, 0.3, 8, classes) > expected_share(1000, 0.3, 16, classes)
        assert 0 <= expected_share(10, 0.01, 8, classes) < 0.05
        assert expected_share(10**7, 1.0, 8, classes) > 0.85

    def test_the_sentence_names_what_would_help(self):
        said = warning_of(0.5, 1e-4, 1 / 200, 8)
        assert "200 records and epsilon 0.5" in said
        assert "an R^2 of about 0.07" in said
        assert "records or epsilon" in said
        assert warning_of(0.5, 1e-6, 1e-5, 8) is None
        assert "epsilon" not in warning_of(0.5, 1e-3, 1 / 60, 30).partition("records would give")[2]

    def test_it_does_not_warn_of_few_records_of_classes_that_are_known_to_do(self):
        """Breast cancer, 455 records of 30 columns at epsilon 1: .7 of what can be explained in the benchmark."""
        assert warning_of(1.0, 1e-4, 1 / 455, 30, 2) is None
        assert 0.3 < expected_share(455, gdp_mu(1.0, 1e-4), 30, 2) < 0.9


class TestFit:
    def table(self, n):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(n, 4))
        return {**{f"x{j}": x[:, j] for j in range(4)}, "y": x[:, 0] + rng.normal(size=n)}

    SCHEMA = Schema.from_arguments([f"x{j}" for j in range(4)], bounds=[(-5, 5)] * 4, target_bounds=(-6, 6), target="y")

    def test_it_warns_before_the_first_release_and_the_score_agrees(self):
        asked = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = fit(
                self.table(100), self.SCHEMA, epsilon=0.3, seed=0,
                progress=lambda spent, purpose: asked.append(len(caught)),
            )  # fmt: skip
        assert [one.category for one in caught] == [WeakModelWarning]
        assert asked[0] == 1
        assert model.health.worthless or model.health.score.hidden
        assert "expect little more than a constant" in str(model.health)

    def test_it_says_nothing_where_records_are_many(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fit(self.table(4000), self.SCHEMA, epsilon=1.0, seed=0, score=False)
