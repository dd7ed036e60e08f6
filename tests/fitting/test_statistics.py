"""No record moves a statistic further than it states, whatever the record and the released matrices are."""

from __future__ import annotations

import math
from functools import lru_cache
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diff2.fitting.columns import bin_edges, column_of, uniform_column
from diff2.fitting.curve import OutputSums, OutputWeights, Tails
from diff2.fitting.linear import CurvedModel, LinearModel
from diff2.fitting.preparation import Preparation, Projections, Whitening
from diff2.fitting.second_moment import as_matrix, as_vector, length_limited
from diff2.fitting.statistics import (
    FREE,
    LENGTHS,
    ClassShares,
    ClippedDescent,
    ColumnHistograms,
    Design,
    FeatureLengths,
    Gram,
    MeanResidual,
    NormHistogram,
    Residuals,
    TargetMean,
    WhiteningMoment,
)
from diff2.fitting.tree_model import Binning, Half, Tree, TreeModel
from diff2.fitting.trees import LeafSums, LeafWeights, PairScores, ResidualSizes, random_contrast
from diff2.tables.rows import Rows

NUMERIC, CATEGORIES, CLASSES = 3, (4,), 3
WILD = st.one_of(st.floats(-10, 10), st.just(math.nan), st.sampled_from([-10.0, 0.0, 10.0, 1e-300]))
SCALES = st.sampled_from([0.0, 1e-12, 1.0, 1e6, 1e29])


@st.composite
def record(draw: st.DrawFn) -> Rows:
    numeric = np.array([[draw(WILD) for _ in range(NUMERIC)]])
    codes = np.array([[draw(st.integers(0, CATEGORIES[0] - 1))]])
    return Rows(numeric, codes, np.array([float(draw(st.integers(0, CLASSES - 1)))]))


def preparation(scale: float = 1.0, seed: int = 0) -> Preparation:
    rng = np.random.default_rng(seed)
    edges = bin_edges(-10.0, 10.0)
    columns = tuple(column_of(edges, rng.exponential(size=len(edges) - 1), 0.0) for _ in range(NUMERIC))
    width = NUMERIC + CATEGORIES[0] + NUMERIC
    return Preparation(
        columns, CATEGORIES, tuple(range(NUMERIC)),
        Whitening(rng.standard_normal(NUMERIC), scale * rng.standard_normal((NUMERIC, NUMERIC))),
        Projections(rng.standard_normal((width, 5)), rng.standard_normal((NUMERIC, 5)), rng.uniform(0, 6, 5)),
    )  # fmt: skip


def design(scale: float, *, matrix: bool = True) -> Design:
    prepared = preparation(scale)
    size = 1 + prepared.width + 5
    found = scale * np.random.default_rng(1).standard_normal((size, size))
    return Design(prepared, 0.5, 0.5, matrix=found if matrix else None)


@lru_cache
def statistics(scale: float) -> list:
    linear, classes = design(scale), design(scale)
    size = len(linear.matrix)
    rng = np.random.default_rng(2)
    numbers = Residuals(linear, scale * rng.standard_normal(size), np.array(0.5), (0.0, 2.0))
    scores = Residuals(classes, scale * rng.standard_normal((size, CLASSES)), rng.standard_normal(CLASSES))
    trees = tree_model(linear, numbers.theta)
    halves = [Half(rng.integers(0, 10, 3), rng.integers(0, 249, 3)) for _ in range(2)]
    tree = Tree(*halves, np.zeros(64))
    several = tree._replace(values=np.zeros((64, CLASSES)))
    class_trees = tree_model(classes, scores.theta, scores.offset)
    edges, cuts = np.array([1e-3, 0.1, 1.0, 10.0]), np.array([-1.0, 0.5, 0.6])
    curved = CurvedModel(linear, numbers.theta, 0.5, np.array([-1.0, 1.0]), np.array([0.0, scale]))
    return [
        ColumnHistograms((bin_edges(-10.0, 10.0),) * NUMERIC),
        WhiteningMoment(preparation()),
        TargetMean(0.0, 2.0),
        ClassShares(CLASSES),
        Gram(design(scale, matrix=False)),
        FeatureLengths(design(scale, matrix=False)),
        NormHistogram(numbers, edges),
        ClippedDescent(numbers, 0.7),
        ClippedDescent(scores, 0.7),
        MeanResidual(numbers, 0.4),
        ResidualSizes(trees, (0.0, 2.0), edges),
        LeafSums(trees, tree, 0.3, (0.0, 2.0)),
        LeafWeights(trees, tree),
        LeafSums(class_trees, several, 0.3, (-math.inf, math.inf)),
        Tails(trees.linear, (0.0, 2.0), cuts),
        OutputWeights(trees.linear, cuts),
        OutputSums(trees.linear, (0.0, 2.0), cuts, 0.2, 0.9),
        LeafSums(TreeModel(curved, trees.binning), tree, 0.3, (0.0, 2.0)),
    ]


def tree_model(linear: Design, theta: np.ndarray, offset: np.ndarray | float = 0.5) -> TreeModel:
    rng = np.random.default_rng(3)
    binning = Binning(rng.standard_normal((NUMERIC, 5)), (rng.permutation(CATEGORIES[0]),), 0.5)
    return TreeModel(LinearModel(linear, theta, offset), binning)


NAMES = [f"{type(one).__name__} {k}" for k, one in enumerate(statistics(1.0))]


class TestSensitivity:
    @settings(deadline=None, max_examples=30)
    @pytest.mark.parametrize("which", range(len(NAMES)), ids=NAMES)
    @given(one=record(), other=record(), scale=SCALES)
    def test_two_records_are_no_further_apart_than_the_diameter(self, which, one, other, scale):
        statistic, weight = statistics(scale)[which], np.array([0.25])
        first, second = statistic.total(one, weight, {}), statistic.total(other, weight, {})
        assert np.isfinite(first).all()
        assert np.linalg.norm(first - second) <= 0.25 * statistic.diameter * (1 + 1e-12)
        assert np.linalg.norm(first) <= 0.25 * statistic.longest * (1 + 1e-12)

    def test_second_moments_of_orthogonal_vectors_are_a_diameter_apart(self):
        one, other = np.array([[3.0, 0.0]]), np.array([[0.0, 3.0]])
        apart = as_vector(one.T @ one) - as_vector(other.T @ other)
        assert np.linalg.norm(apart) == pytest.approx(math.sqrt(2) * 9)

    def test_opposite_features_are_a_diameter_apart(self):
        large = Design(Preparation((uniform_column(-1.0, 1.0),), (), ()), 100.0, 0.0)
        one, other = (Rows(np.array([[x]]), np.zeros((1, 0), int), np.zeros(1)) for x in (-1.0, 1.0))
        apart = FeatureLengths(large).total(one, np.ones(1), {}) - FeatureLengths(large).total(other, np.ones(1), {})
        assert np.linalg.norm(apart) == pytest.approx(FeatureLengths(large).diameter)

    def test_no_features_are_further_apart_with_their_lengths(self):
        """Red with lengths that count for 2 in place of 1.5: opposite features of lengths .87 and .3 are."""
        one, other = np.meshgrid(*[np.linspace(0, FREE, 200)] * 2)
        squared = (one + other) ** 2 + LENGTHS**2 * (one**2 - other**2) ** 2
        assert math.sqrt(squared.max()) <= FeatureLengths(design(0.0)).diameter * (1 + 1e-12)

    def test_leaf_sums_of_opposite_residuals_in_one_leaf_are_a_diameter_apart(self):
        trees = tree_model(design(0.0), np.zeros(1 + preparation().width + 5))
        tree = Tree(Half(np.zeros(3, int), np.full(3, 249)), Half(np.zeros(3, int), np.full(3, 249)), np.zeros(64))
        statistic = LeafSums(trees, tree, 0.3, (0.0, 2.0))
        low, high = (Rows(np.zeros((1, NUMERIC)), np.zeros((1, 1), int), np.array([y])) for y in (0.0, 2.0))
        apart = statistic.total(low, np.ones(1), {}) - statistic.total(high, np.ones(1), {})
        assert np.linalg.norm(apart) == pytest.approx(statistic.diameter)

    def test_sums_of_residuals_at_both_ends_in_one_bin_are_a_diameter_apart(self):
        model = LinearModel(design(0.0), np.zeros(1 + preparation().width + 5), 0.5)
        statistic = OutputSums(model, (0.0, 2.0), np.array([0.0, 1.0]), 0.4, 0.5)
        low, high = (Rows(np.zeros((1, NUMERIC)), np.zeros((1, 1), int), np.array([y])) for y in (0.0, 2.0))
        apart = statistic.total(low, np.ones(1), {}) - statistic.total(high, np.ones(1), {})
        assert np.linalg.norm(apart) == pytest.approx(statistic.diameter)

    @pytest.mark.parametrize("kind", ["weights", "sums"])
    def test_two_records_on_either_side_of_a_cut_are_a_diameter_apart(self, kind):
        model = LinearModel(design(1.0), statistics(1.0)[6].residuals.theta, 0.5)
        rows = [Rows(np.full((1, NUMERIC), x), np.zeros((1, 1), int), np.array([1e9])) for x in (-5.0, 5.0)]
        cut = np.array([np.mean([model.outputs(one, {})[0] for one in rows])])
        statistic = OutputWeights(model, cut) if kind == "weights" else OutputSums(model, (0.0, 1e9), cut, 0.2, 0.9)
        one, other = (statistic.total(part, np.ones(1), {}) for part in rows)
        assert np.linalg.norm(one - other) == pytest.approx(statistic.diameter)

    def test_mean_residuals_from_none_to_the_bound_are_a_diameter_apart(self):
        residuals = Residuals(design(0.0), np.zeros(1 + preparation().width + 5), np.array(0.0), (0.0, 2.0))
        low, high = (Rows(np.zeros((1, NUMERIC)), np.zeros((1, 1), int), np.array([y])) for y in (0.0, 2.0))
        apart = [MeanResidual(residuals, 0.4).total(rows, np.ones(1), {})[0] for rows in (low, high)]
        assert apart[1] - apart[0] == pytest.approx(MeanResidual(residuals, 0.4).diameter)

    def test_leaf_sums_of_opposite_classes_in_one_leaf_are_a_diameter_apart(self):
        trees = tree_model(design(0.0), np.zeros((1 + preparation().width + 5, 2)), np.zeros(2))
        halves = [Half(np.zeros(3, int), np.full(3, 249))] * 2
        statistic = LeafSums(trees, Tree(*halves, np.zeros((64, 2))), 0.3, (-math.inf, math.inf))
        low, high = (Rows(np.zeros((1, NUMERIC)), np.zeros((1, 1), int), np.array([y])) for y in (0.0, 1.0))
        apart = statistic.total(low, np.ones(1), {}) - statistic.total(high, np.ones(1), {})
        assert np.linalg.norm(apart) == pytest.approx(statistic.diameter)

    @settings(deadline=None, max_examples=30)
    @pytest.mark.parametrize("classes", [0, 2, CLASSES])
    @given(one=record(), other=record(), weight=st.floats(0, 1))
    def test_no_record_moves_a_score_further_than_stated(self, classes, one, other, weight):
        rng, size = np.random.default_rng(4), 1 + preparation().width + 5
        halves = [tuple(Half(rng.integers(0, 10, 3), rng.integers(0, 249, 3)) for _ in range(3)) for _ in range(2)]
        if classes:
            one, other = (rows._replace(target=np.minimum(rows.target, classes - 1)) for rows in (one, other))
            trees = tree_model(design(1.0), rng.standard_normal((size, classes)), np.zeros(classes))
            scores = PairScores(trees, *halves, 0.3, (0.0, 2.0), random_contrast(classes, rng))
        else:
            trees = tree_model(design(1.0), np.ones(size))
            scores = PairScores(trees, *halves, 0.3, (0.0, 2.0))
        rest = scores.total(one, np.array([0.9]), {}) * 7
        found = [scores.scores(rest + scores.total(rows, np.array([weight]), {})) for rows in (one, other)]
        assert np.abs(found[0] - found[1]).max() <= scores.sensitivity

    @pytest.mark.parametrize("contrast", [None, np.array([-1.0, 1.0]) / math.sqrt(2)], ids=["numbers", "classes"])
    def test_opposite_residuals_in_one_leaf_move_a_score_as_far_as_stated(self, contrast):
        size = 1 + preparation().width + 5
        theta, offset = (np.zeros(size), 0.5) if contrast is None else (np.zeros((size, 2)), np.zeros(2))
        half = (Half(np.zeros(3, int), np.full(3, 249)),)
        scores = PairScores(tree_model(design(0.0), theta, offset), half, half, 0.3, (0.0, 2.0), contrast)
        ends = (0.0, 2.0) if contrast is None else (0.0, 1.0)
        low, high = (Rows(np.zeros((1, NUMERIC)), np.zeros((1, 1), int), np.array([y])) for y in ends)
        one, other = (scores.total(rows, np.ones(1), {}) for rows in (low, high))
        found = [scores.scores(7 * other + total)[0] for total in (one, other)]
        assert found[1] - found[0] == scores.sensitivity

    @pytest.mark.parametrize("records", [1, 2, 700, 1021, 3000])
    def test_no_unit_of_many_records_moves_a_score_further_than_stated(self, records):
        """Red where every record is rounded to the nearest: 2,042 for a stated 1,022 with 1,021 records."""
        trees = tree_model(design(0.0), np.zeros(1 + preparation().width + 5))
        half = (Half(np.zeros(3, int), np.full(3, 249)),)
        scores = PairScores(trees, half, half, 0.3, (0.0, 2.0))
        units = [
            Rows(np.zeros((records, NUMERIC)), np.zeros((records, 1), int), np.full(records, y)) for y in (0.0, 2.0)
        ]
        one, other = (scores.total(rows, np.full(records, 1 / records), {}) for rows in units)
        rest = 7 * scores.total(units[1], np.ones(records), {})
        found = [scores.scores(rest + total)[0] for total in (one, other)]
        assert found[1] - found[0] <= scores.sensitivity


def test_features_and_their_lengths_are_those_of_one_design(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory ran out between the two, gradients of the design before were clipped by the lengths of others."""
    rows, cache = Rows(np.zeros((2, 3)), np.zeros((2, 1), dtype=np.int64), np.zeros(2)), {}
    before, other = design(1.0), design(9.0)
    expected = before.features(rows, cache).copy()

    def fail(value: float) -> float:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("diff2.fitting.statistics.math", SimpleNamespace(sqrt=fail))
        with pytest.raises(MemoryError):
            other.features(rows, cache)
    np.testing.assert_array_equal(before.features(rows, cache), expected)


class TestSecondMoment:
    @given(st.integers(1, 6), st.integers(0, 99))
    def test_a_matrix_survives_and_keeps_its_length(self, size, seed):
        root = np.random.default_rng(seed).standard_normal((size, size))
        matrix = root + root.T
        assert np.allclose(as_matrix(as_vector(matrix)), matrix)
        assert np.linalg.norm(as_vector(matrix)) == pytest.approx(np.linalg.norm(matrix))

    def test_lengths_are_limited(self):
        found = length_limited(np.array([[3.0, 4.0], [0.0, 0.0], [0.3, 0.4]]), 1.0)
        assert np.linalg.norm(found, axis=1).tolist() == pytest.approx([1.0, 0.0, 0.5])
