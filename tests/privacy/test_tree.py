"""Noise of a binary tree: a sum of first leaves carries that of its few nodes, and a record pays for one release."""

import math
from functools import cache

import numpy as np
import pytest

from diff2.errors import LedgerError
from diff2.privacy import Mechanism, NoiseSource, epsilon_of
from diff2.privacy.release import tree_levels
from reference import binary_parts
from stubs import DELTA, DrawnNoise, Untouchable, in_memory_ledger, is_normal, mean_of

SENSITIVITY, MULTIPLIER = 0.25, 3.0


def leaf_of(values, j, count, *, first_round=1, **changes):
    fields = {"sensitivity": SENSITIVITY, "round": first_round + j, "step": j, "leaves": count, "members": (j,)}
    return mean_of(values[j % len(values)], **{**fields, **changes})


def release(values, *, seed=1, first_round=1, ledger=None, leaves=None, skip=0, source=None, asked=None):
    """Release the leaves of a tree, one per round; return the sums of the first ones, and the releases."""
    mechanism = Mechanism(in_memory_ledger() if ledger is None else ledger, source or NoiseSource.from_seed(seed))
    count = len(values) if leaves is None else leaves
    made = [
        mechanism.release(
            leaf_of(values, j, count, first_round=first_round, asked=(asked or {}).get(j, b"")), MULTIPLIER
        )
        for j in range(skip, len(values))
    ]
    return np.stack([one.value for one in made]).cumsum(0), [one.release for one in made]


@pytest.mark.parametrize("leaves", [1, 2, 3, 5, 8, 13])
def test_prefix_sums_carry_exactly_the_noise_of_the_nodes(monkeypatch, leaves):
    values = np.linspace(-1, 1, 6 * leaves).reshape(leaves, 6)
    drawn = DrawnNoise(monkeypatch)
    sums, made = release(values, seed=3, first_round=40)
    assert made[0].noise_std == pytest.approx(MULTIPLIER * math.sqrt(tree_levels(leaves)) * SENSITIVITY, rel=1e-8)
    for count in range(1, leaves + 1):
        noise = sum(
            drawn("tree", 40, "gradient", int(math.log2(length)), start // length)
            for start, length in binary_parts(count)
        )
        expected = values[:count].sum(0) + made[0].noise_std * noise
        np.testing.assert_allclose(sums[count - 1], expected, rtol=0, atol=1e-8)


@cache
def many():
    return release(np.zeros((8, 20_000)), seed=5)


@pytest.mark.parametrize(("factor", "is_right"), [(1.0, True), (0.95, False), (1.05, False)])
@pytest.mark.parametrize("count", [1, 3, 4, 7])
def test_the_noise_of_a_prefix_has_the_variance_of_its_nodes(count, factor, is_right):
    sums, _ = many()
    scale = factor * MULTIPLIER * SENSITIVITY * 2 * math.sqrt(count.bit_count())  # 2: the root of four levels
    assert is_normal(sums[count - 1], scale) == is_right


def test_nodes_and_trees_are_independent():
    sums, _ = many()
    other, _ = release(np.zeros((8, 20_000)), seed=5, first_round=9)
    parts = [sums[3], sums[5] - sums[3], sums[6] - sums[5], sums[0], sums[1], sums[7], other[3], other[7]]
    correlations = np.corrcoef(np.stack(parts)) - np.eye(len(parts))
    assert np.abs(correlations).max() < 5 / math.sqrt(20_000)


@pytest.mark.parametrize("leaves", [1, 2, 3, 5, 7, 8, 13, 16, 19])
def test_no_leaf_is_more_visible_than_one_release(leaves):
    """All prefix sums together, with their covariance: how far apart are two worlds that differ in leaf j."""
    nodes = sorted({part for count in range(1, leaves + 1) for part in binary_parts(count)})
    holds = np.array([[node in binary_parts(count) for node in nodes] for count in range(1, leaves + 1)], dtype=float)
    precision = np.linalg.inv(holds @ holds.T * tree_levels(leaves) * MULTIPLIER**2)
    distances = []
    for j in range(leaves):
        shift = (np.arange(1, leaves + 1) > j).astype(float)
        distances.append(math.sqrt(shift @ precision @ shift))
    assert max(distances) <= 1 / MULTIPLIER * (1 + 1e-12)
    if leaves.bit_count() == 1:  # the first leaf of a full tree is in a node of every level
        assert distances[0] == pytest.approx(1 / MULTIPLIER, rel=1e-12)


@pytest.mark.parametrize("runs", [200, pytest.param(20_000, marks=pytest.mark.slow)])
def test_a_canary_in_the_first_leaf_is_as_visible_as_the_ledger_says(runs):
    """+C u against -C u in the first of four leaves; the first, second and fourth sum tell the worlds apart best."""

    def statistic(sign, seed):
        values = np.zeros((4, 1))
        values[0] = sign * SENSITIVITY / 2
        sums, _ = release(values, seed=seed)
        return float(sums[[0, 1, 3]].sum())

    plus = np.array([statistic(1, seed) for seed in range(runs)])
    minus = np.array([statistic(-1, seed) for seed in range(runs, 2 * runs)])
    measured = (plus.mean() - minus.mean()) / np.sqrt((plus.var(ddof=1) + minus.var(ddof=1)) / 2)
    assert measured == pytest.approx(1 / MULTIPLIER, abs=4 * math.sqrt(2 / runs))


def test_an_epoch_costs_what_one_release_costs():
    ledger = in_memory_ledger()
    for epoch in range(3):
        release(np.zeros((5, 2)), ledger=ledger, first_round=1 + 5 * epoch)
    assert len(ledger) == 15
    assert ledger.epsilon() == epsilon_of([MULTIPLIER] * 3, DELTA)


def source(trees=None):
    return NoiseSource(b"1" * 32, private=True, trees=trees)


def test_a_tree_goes_on_in_another_process():
    values, whole, ledger, one = np.linspace(-1, 1, 14).reshape(7, 2), in_memory_ledger(), in_memory_ledger(), source()
    sums, _ = release(values, ledger=whole, source=source())
    first, _ = release(values[:3], ledger=ledger, leaves=7, source=one)
    with pytest.raises(LedgerError, match="is unknown; nothing was released"):
        release(values, ledger=ledger, skip=3, source=source())
    rest, _ = release(values, ledger=ledger, skip=3, source=source(one.trees))
    np.testing.assert_allclose(first[-1] + rest, sums[3:], rtol=0, atol=1e-12)
    assert ledger.releases == whole.releases


@pytest.mark.parametrize("changed", ["value", "question"])
def test_from_a_leaf_with_another_value_or_question_on_all_noise_is_fresh(changed):
    """Every node that holds the leaf has other noise, and costs the units of all leaves in it: lines for everybody."""
    values, ledger = np.zeros((4, 20_000)), in_memory_ledger(budget={"epsilon": 9.0, "delta": DELTA})
    sums, _ = release(values, ledger=ledger, source=source())
    values[1, 0] = 1e-9 if changed == "value" else 0.0
    ledger.rewind(0)
    again, made = release(values, ledger=ledger, source=source(), asked={1: b"other" if changed == "question" else b""})
    assert np.array_equal(sums[0], again[0])
    for count in (1, 2, 3):
        assert abs(np.corrcoef(sums[count], again[count])[0, 1]) < 5 / math.sqrt(20_000)
    assert [line.members for line in made] == [(0,), None, None, None]
    assert len(ledger) == 7
    assert ledger.epsilon() == epsilon_of([MULTIPLIER] * 4, DELTA)


REFUSED = {
    "another sensitivity": dict(sensitivity=0.26),
    "another multiplier": dict(multiplier=3.1),
    "another purpose": dict(purpose="difference"),
    "another number of leaves": dict(leaves=4),
    "a leaf again": dict(step=1),
    "a leaf left out": dict(step=3),
    "a leaf beyond the tree": dict(step=5),
    "no leaf": dict(step=-1),
    "a leaf of a tree that began elsewhere": dict(round=4),
}


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
def test_a_leaf_that_does_not_fit_is_refused_and_nothing_leaves(change):
    ledger, values = in_memory_ledger(), np.zeros((7, 2))
    release(values[:2], ledger=ledger, leaves=5)
    change = dict(change)
    multiplier = change.pop("multiplier", MULTIPLIER)
    with pytest.raises(LedgerError, match=r"[Nn]othing was released"):
        Mechanism(ledger, Untouchable()).release(leaf_of(values, 2, 5, **change), multiplier)
    assert len(ledger) == 2
