"""No unit moves an answer further than its sensitivity says: a record, a group with many records, a client."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diff2.fitting.cohort import TableCohort
from diff2.fitting.directory import tag
from diff2.fitting.opening import by_client
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


def test_one_long_label_is_no_reason_to_fail():
    """In an array of texts every one takes as much room as the longest: 186 GiB here, for one record's sake."""
    labels = np.array(["a", "b"] * 2500, dtype=object)
    labels[7] = "b" * 10_000_000
    groups = Encoded(*client(np.ones(5000), labels, np.ones(5000, bool))[:2], labels, labels)
    assert TableCohort([groups], unit="group").census.sizes == (3,)
    assert [one.rows.size for one in by_client(groups)] == [2500, 2499, 1]
    assert tag(b"key", [labels]) != tag(b"key", [labels[::-1]])


def test_the_allowance_for_rounding_is_needed_and_is_enough():
    """The sums of neighbours are rounded differently: some are further apart than two exact sums can be."""
    rng, size = np.random.default_rng(0), 20_000
    targets, groups, usable = rng.random(size) * HIGH, np.arange(size), np.ones(size, bool)
    excess = []
    for row in rng.integers(0, size, 60):
        values = []
        for target in (LOW, HIGH):
            targets[row] = target
            found = TableCohort([client(targets, groups, usable)]).answer(TargetMean(LOW, HIGH), 1)
            values.append(found.value[0])
        excess.append((values[1] - values[0]) / found.release.sensitivity - 1)
    assert 0 < max(excess) <= found.rounding < 1e-6


class Narrow:
    """Records of length one that are alike."""

    purpose, longest, diameter = "narrow", 1.0, 0.01

    def total(self, rows, weights, cache):
        return np.array([weights @ np.clip(rows.target, 0.99, 1.0)])


def test_a_record_that_does_not_count_is_further_away_than_others_are():
    sums = [TableCohort([client([1, 1], [0, 1], [True, last])]).answer(Narrow(), 1) for last in (True, False)]
    assert abs(sums[0].value - sums[1].value) == pytest.approx(sums[0].release.sensitivity)
