"""Whole fits and evaluations, each answer of which is also asked of tables with another unit, filled with rubbish."""

import math
import warnings

import numpy as np
import pytest

import diff2
from diff2.fitting.cohort import TableCohort
from diff2.fitting.opening import by_client
from diff2.tables.encode import encode
from diff2.tables.kinds import Classes, Counts, Number, Regression
from diff2.tables.schema import Schema
from fitted import COLUMNS, few_trees, table

RUBBISH = [math.nan, math.inf, 1e300, -1e300, -0.0, 5e-324, 10**400, "x", "", None, b"3", True, "9999-12-31", 1j, [1]]
TARGETS = {
    "regression": Regression(0, 10),
    "unbounded": Regression(),
    "classes": Classes(("low", "high")),
    "counts": Counts(99),
}
UNITS = [("record", "records"), ("record", "clients"), ("group", "records"), ("client", "clients")]


def rows_of(data, unit, row):
    same = {"record": np.arange(len(data["age"])), "client": data["hospital"]}.get(unit)
    if same is None:  # a group is one at a client
        same = np.char.add(data["hospital"].astype(str), data["person"].astype(str))
    return np.flatnonzero(same == same[row])


@pytest.mark.parametrize(("unit", "weighting"), UNITS)
@pytest.mark.parametrize("kind", TARGETS)
def test_no_unit_moves_an_answer_of_a_fit_further_than_its_line_says(monkeypatch, kind, unit, weighting):
    rng, target = np.random.default_rng(1), {"unbounded": "regression", "counts": "regression"}.get(kind, kind)
    known = Schema({**COLUMNS, "income": Number()}, target, TARGETS[kind], clients="hospital", groups="person")
    data, others = {name: column.astype(object) for name, column in table().items()}, []
    for _ in range(4):
        changed = {name: column.copy() for name, column in data.items()}
        for name in (*known.columns, target):
            value = RUBBISH[rng.integers(len(RUBBISH))] if rng.random() < 0.7 else data[name][rng.integers(400)]
            for row in rows_of(data, unit, 7):
                changed[name][row] = value
        others.append(TableCohort(by_client(encode(changed, known)), unit=unit, weighting=weighting))
    asked, answer, scores = [], TableCohort.answer, TableCohort.scores

    def answered(self, statistic, *rest):
        mean = answer(self, statistic, *rest)
        for other in others:
            theirs = answer(other, statistic, *rest)
            assert (theirs.release, theirs.rounding) == (mean.release, mean.rounding)
            moved = np.linalg.norm(theirs.value - mean.value)
            assert moved <= mean.release.sensitivity * (1 + mean.rounding), statistic
            asked.append(statistic.purpose)
        return mean

    def scored(self, asking, *rest):
        found = scores(self, asking, *rest)
        assert max(np.abs(scores(other, asking, *rest) - found).max() for other in others) <= asking.sensitivity
        return found

    monkeypatch.setattr(TableCohort, "answer", answered)
    monkeypatch.setattr(TableCohort, "scores", scored)
    terms = {"epsilon": 4.0, "delta": 1e-4, "unit": unit, "weighting": weighting, "seed": 1}
    with few_trees(), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for public in (diff2.WeakModelWarning, diff2.WeakDeltaWarning, UserWarning):
            warnings.simplefilter("ignore", public)
        diff2.evaluate(diff2.fit(data, known, **terms), data, **terms)
    assert {"target", "score", "calibration"} <= set(asked)
