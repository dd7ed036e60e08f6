"""No unit moves an answer further than its sensitivity says: a record, a group with many records, a client."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diff2.fitting.cohort import TableCohort
from diff2.fitting.statistics import ClassShares, TargetMean
from diff2.tables.encode import Encoded
from diff2.tables.rows import Rows

LOW, HIGH = 0.0, 2.0


def client(targets, groups, usable):
    size = len(targets)
    rows = Rows(np.zeros((size, 0)), np.zeros((size, 0), dtype=np.int64), np.asarray(targets, dtype=np.float64))
    return Encoded(rows, np.asarray(usable), None, np.asarray(groups))


@pytest.mark.parametrize("weighting", ["records", "clients"])
@pytest.mark.parametrize("unit", ["record", "group", "client"])
@pytest.mark.parametrize("statistic", [TargetMean(LOW, HIGH), ClassShares(3)], ids=["mean", "classes"])
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_replacing_a_whole_unit(statistic, unit, weighting, seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 9, 2)
    groups = [rng.permutation(np.arange(size) // rng.integers(1, 5)).astype(str) for size in sizes]
    targets = [rng.integers(0, 3, size) for size in sizes]
    usable = [rng.random(size) < 0.8 for size in sizes]

    def answer():
        clients = [client(*each) for each in zip(targets, groups, usable, strict=True)]
        return TableCohort(clients, unit=unit, weighting=weighting).answer(statistic, 1)

    before = answer()
    p = rng.integers(2)
    chosen = {
        "record": np.arange(sizes[p]) == rng.integers(sizes[p]),
        "group": groups[p] == rng.choice(groups[p]),
        "client": np.ones(sizes[p], dtype=bool),
    }[unit]
    targets[p], usable[p] = np.where(chosen, rng.integers(0, 3), targets[p]), usable[p] | chosen
    after = answer()
    moved = np.linalg.norm(after.value - before.value)
    assert moved <= before.release.sensitivity * (1 + before.rounding) + 1e-15
    assert np.linalg.norm(after.value) <= before.release.clip * (1 + 1e-12)
