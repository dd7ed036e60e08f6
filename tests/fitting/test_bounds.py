"""Bounds that nobody gave are found privately: from released histograms, never from the range of the data."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from diff2.fitting import fit
from diff2.fitting.bounds import BINS, EDGES, Magnitudes, Zoom, found_bounds, share_of_bounds
from diff2.fitting.cohort import TableCohort
from diff2.fitting.statistics import TargetMean
from diff2.tables.encode import Encoded
from diff2.tables.rows import Rows
from diff2.tables.schema import Schema


def rows(values, target=None):
    values = np.asarray(values, dtype=np.float64).reshape(len(values), -1)
    target = np.zeros(len(values)) if target is None else np.asarray(target, dtype=np.float64)
    return Rows(values, np.zeros((len(values), 0), dtype=np.int64), target)


def bounds_of(values, noise=0.002, target=None, names=None, seed=0):
    """Return the bounds of columns under noise of this deviation."""
    rng = np.random.default_rng(seed)
    table = rows(values, target)

    def ask(statistic, mu):
        from diff2.fitting.asking import Answer

        total = statistic.total(table, np.full(table.size, 1 / table.size), {})
        return Answer(total + noise * rng.standard_normal(total.shape), noise)

    count = table.numeric.shape[1]
    return found_bounds(
        ask, 1.0, np.full((count, 2), np.nan), names or [f"x{j}" for j in range(count)], target is not None
    )


class TestSensitivity:
    """Replacing one record moves one count of each column: sqrt(2 u) of its weight, and no less."""

    @pytest.mark.parametrize(
        "make", [lambda: Magnitudes((0, 2), True), lambda: Zoom((0, 2), np.array([[1.0, 2.0]] * 3), True)]
    )
    def test_it_is_attained_and_not_exceeded(self, make):
        statistic, weight = make(), np.array([0.25])
        one = statistic.total(rows([[1.1, 0.0, 1.1]], [1.1]), weight, {})
        other = statistic.total(rows([[1.9, 5.0, 1.9]], [1.9]), weight, {})
        assert np.linalg.norm(one - other) == pytest.approx(0.25 * math.sqrt(2 * 3), rel=1e-12)
        assert statistic.diameter == pytest.approx(math.sqrt(2 * 3))
        assert statistic.longest == pytest.approx(math.sqrt(3))
        missing = statistic.total(rows([[math.nan, 0.0, math.nan]], [1.5]), weight, {})
        assert np.linalg.norm(missing - one) <= 0.25 * statistic.diameter

    def test_the_ledger_states_it(self):
        x = np.random.default_rng(0).normal(size=(500, 2))
        table = {"a": x[:, 0], "b": x[:, 1], "y": x[:, 0]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = fit(table, Schema.from_arguments(["a", "b"], target="y"), epsilon=3.0, seed=0)
        line = next(one for one in model.ledger.releases if one.purpose == "bounds")
        assert line.sensitivity == pytest.approx(math.sqrt(2 * 3) / 500)
        assert model.epsilon <= 3.0

    def test_a_target_far_from_zero_pays_for_its_range(self):
        """It was 101 for the bounds (100, 101): a null record counted as zero."""
        client = Encoded(rows(np.zeros((50, 1)), np.full(50, 100.5)), np.arange(50) > 0, None, None)
        mean = TableCohort([client]).answer(TargetMean(100.0, 101.0), 1)
        assert mean.release.sensitivity == pytest.approx(1 / 50)
        assert mean.value[0] == pytest.approx(0.0)


class TestBounds:
    def test_edges_are_public_half_octaves(self):
        assert len(EDGES) + 1 == BINS
        assert EDGES[0] == -(2.0**40)
        assert EDGES[-1] == 2.0**40
        assert np.all(np.diff(EDGES) > 0)

    @pytest.mark.parametrize("scale", [1e-3, 1.0, 1e5])
    def test_heavy_tails_are_covered(self, scale):
        values = np.random.default_rng(1).standard_t(2, size=(20_000, 1)) * scale
        ((low, high),) = bounds_of(values).inputs
        assert np.mean((values > low) & (values < high)) > 0.98
        assert high - low < 60 * scale  # the data's own range is some hundred

    def test_the_range_of_the_data_does_not_matter(self):
        values = np.random.default_rng(2).normal(size=(5000, 1))
        more = values.copy()
        more[0] = 1e30
        assert bounds_of(values).inputs.tolist() == bounds_of(more).inputs.tolist()

    def test_numbers_far_from_zero_keep_their_resolution(self):
        years = np.random.default_rng(3).integers(1974, 1983, size=(5000, 1))
        ((low, high),) = bounds_of(years).inputs
        assert 1900 < low < 1974.5
        assert 1981.5 < high < 2030

    def test_a_skewed_column_keeps_its_tail(self):
        values = np.random.default_rng(3).lognormal(3, 1, size=(20_000, 1))
        ((low, high),) = bounds_of(values, noise=0.004).inputs
        assert np.mean((values > low) & (values < high)) > 0.98

    def test_a_constant_column(self):
        ((low, high),) = bounds_of(np.full((5000, 1), 7.0)).inputs
        assert low < 7 < high
        assert high - low < 7
        ((low, high),) = bounds_of(np.zeros((5000, 1))).inputs
        assert low <= 0 < high

    def test_a_column_that_is_always_missing_is_named(self):
        values = np.stack([np.full(5000, np.nan), np.random.default_rng(4).normal(size=5000)], axis=1)
        with pytest.warns(UserWarning, match="'empty'") as caught:
            found = bounds_of(values, names=["empty", "full"])
        assert len(caught) == 1
        assert "'full'" not in str(caught[0].message)
        assert np.isfinite(found.inputs).all()
        assert (found.inputs[:, 0] < found.inputs[:, 1]).all()

    def test_values_beyond_the_last_edge_are_named(self):
        with pytest.warns(UserWarning, match="'x0'.*beyond"):
            ((_, high),) = bounds_of(np.full((5000, 1), 1e20)).inputs
        assert high == 2.0**41

    def test_few_records_give_finite_bounds_and_a_warning(self):
        x = np.random.default_rng(5).normal(size=60)
        with pytest.warns(UserWarning, match="noise hides"):
            model = fit({"a": x, "y": x}, Schema.from_arguments(["a"], target="y"), epsilon=0.1, seed=0)
        assert np.isfinite(model.predict({"a": x})).all()
        assert np.isfinite(model.bounds).all()

    def test_the_share_grows_where_noise_would_hide_all_and_stays_small(self):
        assert share_of_bounds(8, 0.3, 1e-5) == pytest.approx(0.03)
        assert 0.03 < share_of_bounds(8, 0.3, 1e-3) < 0.2
        assert share_of_bounds(8, 0.3, 1e-2) == pytest.approx(0.2)
        assert share_of_bounds(0, 0.3, 1e-2) == 0


class TestFit:
    def test_with_found_bounds_it_is_about_as_good_as_with_given_ones(self):
        rng = np.random.default_rng(6)
        x = rng.lognormal(2, 1, size=(6000, 3))
        y = 1000 + np.log(x[:, 0]) - 0.5 * np.log(x[:, 1]) + 0.3 * rng.normal(size=6000)
        table = {"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "y": y}
        errors = []
        for given in ({}, {"bounds": [(0, 200)] * 3, "target_bounds": (994, 1006)}):
            model = fit(table, Schema.from_arguments(["a", "b", "c"], target="y", **given), epsilon=2.0, seed=1)
            errors.append(np.mean((model.predict(table) - y) ** 2) / y.var())
        assert errors[0] < min(0.4, errors[1] + 0.1), errors
