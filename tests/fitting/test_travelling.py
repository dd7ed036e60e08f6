"""Statistics travel as names, numbers and arrays; whoever holds the records believes none of their bounds."""

import importlib
import itertools
import json
import math
import pkgutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import diff2
import diff2.fitting
from diff2.errors import InvalidArgument
from diff2.fitting.bounds import Magnitudes, Zoom
from diff2.fitting.columns import Column
from diff2.fitting.counts import CountResiduals, LogMean, RatioMean
from diff2.fitting.curve import OutputSums, OutputWeights, Tails
from diff2.fitting.evaluate import Moments, ScoreHistogram
from diff2.fitting.linear import LinearModel
from diff2.fitting.preparation import Preparation
from diff2.fitting.statistics import ClassShares, ClippedDescent, Design, MeanResidual, Residuals, TargetMean
from diff2.fitting.travelling import STATISTICS, Unpacked, dimension_of, packed
from diff2.fitting.tree_model import Half
from diff2.fitting.trees import LeafSums, LeafWeights, PairScores, ResidualSizes
from diff2.tables.encode import encode
from diff2.tables.kinds import Counts, Number, Regression
from diff2.tables.rows import Rows
from diff2.tables.schema import Schema
from fitted import changed_statistics, every_statistic, few_trees, schema, table, watched

SCHEMAS = {
    "regression": schema("regression"),
    "classes": schema("classes"),
    "counts": replace(schema("regression"), target=Counts(10)),
    "no bounds": Schema({"age": Number(), "income": Number()}, "regression", Regression()),
}


def statistics_of_the_library():
    """All classes that a recipe could ask for: they have a total and a purpose."""
    for module in pkgutil.iter_modules(diff2.fitting.__path__, "diff2.fitting."):
        for found in vars(importlib.import_module(module.name)).values():
            named = isinstance(found, type) and found.__module__ == module.name and hasattr(found, "total")
            of_network = ".network" in module.name  # asked in one process alone
            if named and not of_network and "purpose" in getattr(found, "__dataclass_fields__", {}):
                yield found


@pytest.fixture(scope="module", params=sorted(SCHEMAS))
def asked(request):
    """A schema, and all statistics that a fit of it asks for."""
    with few_trees(), watched() as found:
        diff2.fit(table(), SCHEMAS[request.param], epsilon=8.0, seed=0)
    return SCHEMAS[request.param], found


def sent(statistic):
    """What arrives: bytes of JSON, and arrays."""
    tree, arrays = packed(statistic)
    return json.loads(json.dumps(tree, allow_nan=False)), arrays


def test_every_statistic_is_listed():
    """One line in travelling.py: a site refuses what it does not know."""
    found = set(statistics_of_the_library())
    assert len(found) >= 19
    assert found == set(STATISTICS)


def test_what_a_fit_asks_for_arrives_as_it_was_sent(asked):
    known, statistics = asked
    rows, unpacked = encode(table(), known).rows, Unpacked(known)
    weights, before = np.full(rows.size, 1 / rows.size), {}
    for statistic in statistics:
        tree, arrays = sent(statistic)
        new = {name: array for name, array in arrays.items() if name not in before}
        arrived, dimension = unpacked.statistic(tree, new)
        assert type(arrived) is type(statistic)
        expected = statistic.total(rows, weights, {})
        np.testing.assert_array_equal(arrived.total(rows, weights, {}), expected)
        assert expected.shape == (dimension,) == (dimension_of(statistic, known),)
        for name in ("longest", "diameter", "sensitivity", "purpose"):
            assert getattr(arrived, name, None) == getattr(statistic, name, None)
        before = arrays


def test_parts_that_come_again_are_the_same_objects(asked):
    """So that features are computed once, not in every round."""
    known, statistics = asked
    unpacked, designs = Unpacked(known), []
    for statistic in statistics:
        if isinstance(statistic, ClippedDescent):
            designs.append(unpacked.statistic(*sent(statistic))[0].residuals.design)
    assert len(designs) > 1
    assert all(one is designs[0] for one in designs)


CELLS = st.one_of(
    st.floats(-1e4, 1e6), st.floats(), st.sampled_from(["", "f", "m", "yes", "1990-02-03", "low", "high", 1, 3, 10**40])
)


@pytest.mark.parametrize("kind", SCHEMAS)
def test_every_statistic_is_accepted_for_some_target_and_none_is_two_dimensional(kind):
    made, accepted = every_statistic(SCHEMAS[kind]), set()
    assert {type(one) for one in made} == set(STATISTICS)
    for one in made:
        try:
            found, dimension = Unpacked(SCHEMAS[kind]).statistic(*sent(one))
        except InvalidArgument:
            continue
        accepted.add(type(found))
        rows = encode(table(), SCHEMAS[kind]).rows
        assert found.total(rows, np.ones(rows.size), {}).shape == (dimension,)
    numbers, labels = {TargetMean, MeanResidual, Moments, ResidualSizes}, {ClassShares, ScoreHistogram}
    curve = {Tails, OutputWeights, OutputSums}
    refused = {"classes": numbers | curve | {LogMean, RatioMean}, "counts": labels | curve}
    assert set(STATISTICS) - accepted == refused.get(kind, labels | {LogMean, RatioMean})


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_accepted_is_within_its_bounds_for_every_record(asked, data):
    known, statistics = asked
    of_recipe = data.draw(st.booleans())
    made = data.draw(st.sampled_from(statistics if of_recipe else every_statistic(known)))
    tree, arrays = data.draw(changed_statistics(made))
    try:
        statistic, dimension = Unpacked(known).statistic(tree, arrays)
    except InvalidArgument:
        return
    cells = {name: data.draw(st.lists(CELLS, min_size=3, max_size=3)) for name in known.names}
    rows = encode(cells, known, least=0).rows
    records = [Rows(*(part[i : i + 1] for part in rows)) for i in range(3)]
    with np.errstate(all="ignore"):
        vectors = [statistic.total(one, np.ones(1), {}) for one in records]
    for vector in vectors:
        assert vector.shape == (dimension,)
        assert np.isfinite(vector).all()
    for one, other in itertools.combinations(vectors, 2):
        if isinstance(statistic, PairScores):
            moved = np.abs(statistic.scores(one + vectors[0]) - statistic.scores(other + vectors[0]))
            assert moved.max() <= statistic.sensitivity
        else:
            assert max(np.linalg.norm(one), np.linalg.norm(other)) <= statistic.longest * (1 + 1e-11)
            assert np.linalg.norm(one - other) <= max(statistic.diameter, statistic.longest) * (1 + 1e-11)


def of_kind(asked, kind):
    return next((one for one in asked[1] if type(one) is kind), None)


BOUNDED = schema("regression")


def only_at(value):
    """A column whose score is -3.09 around this value, and 0 elsewhere: no made-up record is there."""
    edges = np.array([0.0, value - 2, value - 1, value, value + 8, 100.0])
    ranks = np.array([0.5, 0.5, 0.5, 0.001, 0.5, 0.5])
    column = Column(edges, ranks, np.zeros(5, bool), 0.0, 1.0, 0.0, 1.0, False)
    return Preparation((column,), (), (0,), whiten_scores=True)


class TestOneRecordThatNoMadeUpOneIsLike:
    """All of these were accepted, and one record showed through any noise."""

    @pytest.mark.parametrize("offset", [-746.0, -750.0, 0.0, 709.0, 710.0])
    def test_no_mean_is_lost_to_an_exponential_that_vanishes(self, offset):
        """0 / 0 for a person of 42 alone: the answer of a site to the whole question was no number."""
        model = LinearModel(Design(only_at(42.0), 0.1, 0.0), np.array([4.0, 30.0, 0.0]), offset)
        for age in (0.0, 41.9, 42.0, 43.0, 100.0, math.nan):
            record = Rows(np.array([[age]]), np.zeros((1, 0), int), np.ones(1))
            assert 0 < RatioMean(model).total(record, np.ones(1), {})[0] <= RatioMean(model).longest

    @pytest.mark.parametrize("scale", [1e-150, 1e-154, 1e-155, 1e-161, 4e-163, 1e-165, 5e-324])
    def test_features_whose_squares_underflow_are_clipped(self, scale):
        """9.3e10 times the radius with 4e-163, where counts may be as large as 1e100."""
        known = Schema({"age": Number(0, 100)}, "visits", Counts(1e100))
        design = Design(only_at(42.0), 1.0, 0.0, 0.0, np.array([[0.0], [scale], [0.0]]))
        residuals = CountResiduals(design, np.zeros(1), np.array(-100.0), (-math.inf, math.inf))
        statistic, _ = Unpacked(known).statistic(*sent(ClippedDescent(residuals, 1e-30)))
        record = Rows(np.array([[42.0]]), np.zeros((1, 0), int), np.array([1e100]))
        for flushed in (False, True):  # subnormal numbers taken for zero
            torch.set_flush_denormal(flushed)
            found = statistic.total(record, np.ones(1), {})
            torch.set_flush_denormal(False)
            assert np.linalg.norm(found) <= statistic.longest * (1 + 1e-11)


@pytest.mark.parametrize("bounds", [{"longest": 0.9}, {"diameter": 1.3}])
def test_a_statistic_that_breaks_its_own_bounds_is_refused(bounds):
    """Each bound is tried on the made-up records; none of those that are listed breaks one."""
    known = SCHEMAS["classes"]
    classes = len(known.target.values)
    assert dimension_of(ClassShares(classes), known) == classes
    with pytest.raises(InvalidArgument, match="within its bounds"):
        dimension_of(ClassShares(classes, **bounds), known)


class TestRefused:
    def refuses(self, statistic, known=BOUNDED, match=None, change=lambda tree, arrays: None):
        tree, arrays = sent(statistic)
        change(tree, arrays)
        with pytest.raises(InvalidArgument, match=match):
            Unpacked(known).statistic(tree, arrays)

    @pytest.mark.parametrize("name", ["longest", "diameter"])
    def test_bounds_that_somebody_else_states(self, name):
        self.refuses(ClassShares(3), schema("classes"), change=lambda tree, _: tree.update({name: 1e-9}))
        arrived, _ = Unpacked(schema("classes")).statistic(*sent(replace(ClassShares(3), **{name: 1e-9})))
        assert getattr(arrived, name) == getattr(ClassShares(3), name)

    def test_what_is_not_listed(self):
        for part in ("Session", "FittedModel", "os.system", "", None, 3):
            self.refuses(TargetMean(0.0, 1.0), match="not known here", change=lambda t, _, p=part: t.update(part=p))
        with pytest.raises(InvalidArgument):
            Unpacked(BOUNDED).statistic(["TargetMean"], {})

    @pytest.mark.parametrize(
        "statistic",
        [
            TargetMean(1.0, 0.0), TargetMean(0.0, 1e31), LogMean(-0.5), Magnitudes((9,), False), ClassShares(2),
            Zoom((0,), np.array([[1.0, 1.0]]), False), Zoom((0,), np.array([[0.0, 1.0]]), True),
        ],
        ids=repr,
    )  # fmt: skip
    def test_what_no_record_of_the_columns_could_answer(self, statistic):
        self.refuses(statistic, schema("classes") if isinstance(statistic, ClassShares) else BOUNDED)

    def test_an_array_under_the_name_of_another(self, asked):
        def change(tree, arrays):
            first, second = list(arrays)[:2]
            arrays[first] = arrays[second]

        self.refuses(asked[1][-1], asked[0], "not the one", change)
        self.refuses(asked[1][-1], asked[0], "not those", lambda tree, arrays: arrays.popitem())
        unused = packed(Zoom((0,), np.array([[0.5, 1.0]]), False)).arrays
        self.refuses(asked[1][-1], asked[0], "not those", lambda tree, arrays: arrays.update(unused))

    @pytest.mark.parametrize("value", [0.0, -1.0, 1e-200, 1e31, math.inf])
    def test_a_radius_that_hides_or_overflows(self, asked, value):
        for kind in (ClippedDescent, LeafSums, PairScores):
            statistic = of_kind(asked, kind)
            if statistic is not None:
                self.refuses(replace(statistic, radius=value), asked[0])

    @pytest.mark.parametrize("value", [1e31, math.nan, math.inf])
    def test_numbers_that_could_overflow(self, asked, value):
        statistic = of_kind(asked, ClippedDescent)
        theta = statistic.residuals.theta.copy()
        theta[0] = value
        self.refuses(replace(statistic, residuals=replace(statistic.residuals, theta=theta)), asked[0])

    @pytest.mark.parametrize("offset", [-1e20, -750.0, -300.0, -100.1, 750.0])
    def test_an_offset_of_counts_that_would_overflow(self, asked, offset):
        """Also where the target is none: residuals of 1e230 times features whose squares vanish are not clipped."""
        residuals = of_kind(asked, ClippedDescent).residuals
        if residuals.theta.ndim == 1:
            names = ("design", "theta", "bounds")
            changed = CountResiduals(**{name: getattr(residuals, name) for name in names}, offset=np.array(offset))
            self.refuses(ClippedDescent(changed, 1.0), asked[0], "offset|another kind|cannot be computed")

    def test_shapes_that_are_not_those_of_the_columns(self, asked):
        statistic = of_kind(asked, ClippedDescent)
        residuals: Residuals = statistic.residuals
        shorter = replace(residuals, theta=residuals.theta[:-1])
        self.refuses(replace(statistic, residuals=shorter), asked[0], "theta")

    def test_trees_that_ask_more_than_three_questions(self, asked):
        """Their leaves would be more than there are places, for some records only."""
        statistic = of_kind(asked, PairScores)
        if statistic is not None:
            deep = Half(np.zeros(9, dtype=np.int64), np.arange(9))
            self.refuses(replace(statistic, first=(deep, *statistic.first[1:])), asked[0], "2 or 3 questions")
            other = Half(*(part[:2] if len(part) == 3 else np.resize(part, 3) for part in statistic.second[0]))
            self.refuses(replace(statistic, second=(*statistic.second[1:], other)), asked[0], "columns of a tree")

    def test_a_tree_with_fewer_leaves_than_its_questions_reach(self, asked):
        """Its sums would be longer for some records than for others."""
        statistic = of_kind(asked, LeafWeights)
        if statistic is not None:
            small = statistic.tree._replace(values=statistic.tree.values[:4])
            self.refuses(replace(statistic, tree=small), asked[0], "leaves of a tree")
