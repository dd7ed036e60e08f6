"""Small tables as people have them, their schemas, and models fitted to them without long choices of trees."""

import json
import math
from contextlib import contextmanager
from datetime import date
from unittest.mock import patch

import numpy as np
from hypothesis import strategies as st

import diff2
from diff2.fitting.bounds import Magnitudes, Zoom
from diff2.fitting.columns import uniform_column
from diff2.fitting.counts import CountResiduals, LogMean, RatioMean
from diff2.fitting.curve import OutputSums, OutputWeights, Tails
from diff2.fitting.evaluate import Moments, ScoreHistogram
from diff2.fitting.linear import LinearModel
from diff2.fitting.preparation import Preparation
from diff2.fitting.scoring import CutDeviances, Errors, ErrorSizes
from diff2.fitting.session import Session
from diff2.fitting.statistics import (
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
from diff2.fitting.travelling import packed
from diff2.fitting.tree_model import Binning, Half, Tree, TreeModel
from diff2.fitting.trees import LeafSums, LeafWeights, PairScores, ResidualSizes
from diff2.tables.kinds import Category, Classes, Date, Flag, Number, Regression
from diff2.tables.schema import Schema

COLUMNS = {
    "age": Number(0, 100),
    "income": Number(-1e4, 1e6),
    "sex": Category(("f", "m")),
    "born": Date(date(1950, 1, 1), date(2005, 1, 1)),
    "smoker": Flag(),
    "region": Category((1, 2, 3)),
}
TARGETS = {"regression": Regression(0, 10), "classes": Classes(("low", "middle", "high"))}


def table(rows=400, seed=0):
    """Return columns of mixed kinds, some cells of which are missing, unknown or out of bounds."""
    rng = np.random.default_rng(seed)
    age = rng.uniform(0, 120, rows)
    age[::17] = np.nan
    signal = np.nan_to_num(age, nan=50) / 12
    days = rng.integers(-7305, 12784, rows)
    born = [str(np.datetime64("1970-01-01") + int(day)) for day in days]
    born[3] = "unknown"
    return {
        "age": age,
        "income": np.exp(rng.normal(10, 1, rows)),
        "sex": rng.choice(np.array(["f", "m", "d", ""], dtype=object), rows),
        "born": np.array(born, dtype=object),
        "smoker": rng.choice(np.array(["yes", "no", ""], dtype=object), rows),
        "region": rng.integers(0, 5, rows),
        "regression": np.clip(signal + rng.normal(0, 0.5, rows), 0, 10),
        "classes": np.array(["low", "middle", "high"], dtype=object)[np.clip(signal // 3, 0, 2).astype(int)],
        "hospital": rng.choice(np.array(["north", "south"], dtype=object), rows),
        "person": rng.integers(0, rows // 4, rows),
    }


def schema(kind, **roles):
    return Schema(COLUMNS, kind, TARGETS[kind], **roles)


@contextmanager
def few_trees():
    """Choose two trees among 16 candidates, however few the records are."""
    with (
        patch("diff2.fitting.trees.HALVES", 4),
        patch("diff2.fitting.regression.tree_count", lambda signal: 2),
        patch("diff2.fitting.classification.class_trees", lambda signal, prior: 2),
    ):
        yield


@contextmanager
def watched():
    """Collect all that sessions are asked for."""
    asked, ask, choose = [], Session.ask, Session.choose

    def note(method):
        return lambda session, statistic, mu: (asked.append(statistic), method(session, statistic, mu))[1]

    with patch.object(Session, "ask", note(ask)), patch.object(Session, "choose", note(choose)):
        yield asked


def every_statistic(known):
    """Every statistic that is listed, also those that no recipe asks about such a target, in shapes that fit it."""
    rng, classes = np.random.default_rng(3), len(known.target.values) if isinstance(known.target, Classes) else 0
    ends = [(0.0, 1.0) if np.isnan(pair).any() else pair for pair in known.bounds]
    preparation = Preparation(tuple(uniform_column(*pair) for pair in ends), known.widths, known.nullable)
    design, shape = Design(preparation, 0.3, 0.0), (classes,) if classes else ()
    linear = LinearModel(design, rng.normal(size=(preparation.width + 1, *shape)), np.zeros(shape))
    parts = {"design": design, "theta": linear.theta, "offset": linear.offset}
    half = Half(np.array([0, 1]), np.array([60, 180]))
    tree, halves = Tree(half, half, np.zeros((16, *shape))), (half, half)
    oblique = np.eye(len(known.bounds))
    model = TreeModel(linear, Binning(oblique, tuple(np.arange(width) for width in known.widths), 1.0), (tree,))
    errors, bounds, edges = (
        Errors(linear, known.target, (0.0, 10.0), np.zeros(shape)),
        (0.0, 10.0),
        np.array([0.1, 1.0]),
    )
    found = [ClippedDescent(kind(**parts, bounds=bounds), 0.5) for kind in (Residuals, CountResiduals)]
    residuals = [one.residuals for one in found]
    found += [one for part in residuals for one in (NormHistogram(part, edges), MeanResidual(part, 2.0))]
    found += [ColumnHistograms((edges,) * len(known.bounds)), WhiteningMoment(preparation), Gram(design)]
    found += [FeatureLengths(design)]
    found += [TargetMean(0.0, 10.0), ClassShares(classes or 11), LogMean(10.0), RatioMean(linear)]
    found += [Magnitudes((0,), True), Zoom((0,), np.array([[0.0, 1.0]]), False)]
    found += [ResidualSizes(model, bounds, edges), LeafSums(model, tree, 0.5, bounds), LeafWeights(model, tree)]
    found += [PairScores(model, halves, halves, 0.5, bounds, np.ones(classes) / classes if classes else None)]
    found += [Tails(linear, bounds, edges), OutputWeights(linear, edges), OutputSums(linear, bounds, edges, 0.2, 0.9)]
    return [*found, ErrorSizes(errors, edges), CutDeviances(errors, 0.5), ScoreHistogram(errors), Moments(errors, 1.0)]


@st.composite
def changed_statistics(draw, statistic):
    """A statistic as it may arrive: numbers and arrays changed, also to what overflows or has other shapes."""
    tree, arrays = packed(statistic)
    tree, arrays = json.loads(json.dumps(tree)), dict(arrays)
    factors = st.sampled_from([0.0, 1.0, -1.0, 5e-324, 1e-162, 1e-40, 1e15, 1e26, 1e29, 1e31, 1e200, math.nan])
    for name in draw(st.lists(st.sampled_from(sorted(arrays)), max_size=2)) if arrays else []:
        with np.errstate(all="ignore"):
            changed = np.asarray(arrays.pop(name, np.zeros(1)).astype(np.float64) * draw(factors))
        changed = changed[: draw(st.sampled_from([None, None, None, -1]))] if changed.ndim else changed
        ((new, array),) = packed(Zoom((0,), changed, False)).arrays.items()
        arrays[new] = array
        tree = json.loads(json.dumps(tree).replace(name, new))
    numbers = list(_numbers(tree))
    if numbers and draw(st.booleans()):
        table, key = draw(st.sampled_from(numbers))
        table[key] = draw(st.sampled_from([0, 0.0, 1, -1.0, 5e-324, 1e-31, 1e-30, 1e30, -746.0, "inf", True, 9]))
    if draw(st.sampled_from([False] * 9 + [True])):
        tree[draw(st.sampled_from([*tree, "longest"]))] = draw(st.sampled_from([None, [], "x", 1e-9, dict(tree)]))
    return tree, arrays


def _numbers(tree):
    """The places of all numbers within plain values."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, dict | list):
            yield from _numbers(value)
        elif isinstance(value, int | float):
            yield tree, key


def fitted(kind, *, epsilon=8.0, seed=0, rows=400, **options):
    """Return a model of the table above."""
    with few_trees():
        return diff2.fit(table(rows), schema(kind), epsilon=epsilon, seed=seed, **options)
