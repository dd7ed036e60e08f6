"""The promise of restart_interval="auto" is checked at every rate, and a rate that drowns DP-GD itself is left out."""

from __future__ import annotations

import math

import pytest

from diff2_experiments.which_problems import PROBLEMS
from diff2_experiments.which_rule import chosen_interval, compared, pairs


def a_pair(interval, seed, losses):
    place = {"problem": "quadratic", "size": 1e4, "rate": 0.5, "seed": seed}
    return tuple(
        {**place, "interval": T, "train_loss": loss, "squared_gradient_norm": loss}
        for T, loss in zip((1, interval), losses, strict=True)
    )


def test_ratios_are_of_means_over_the_seeds():
    (row,) = compared([a_pair(20, 0, (1.0, 0.5)), a_pair(20, 1, (3.0, 3.3))])
    assert row["loss"] == pytest.approx(0.95)
    assert row["worst_loss"] == pytest.approx(1.1)
    assert (row["interval"], row["seeds"]) == (20, 2)


def test_a_run_of_diff2_that_diverges_counts_and_one_of_dpgd_does_not():
    assert compared([a_pair(20, 0, (1.0, None))])[0]["loss"] == math.inf
    assert compared([a_pair(20, 0, (None, 1.0))]) == []


def test_runs_are_wanted_where_the_rule_takes_diff2():
    assert chosen_interval(PROBLEMS["quadratic"], 1e3, 0.5) == 1
    assert list(pairs("quadratic", [1e3], range(2))) == []
    some = list(pairs("quadratic", [1e5], (10, 11)))
    assert {one.seed for one, _ in some} == {10, 11}
    assert all(one.method == "dpgd" and other.interval > 2 and one.rate == other.rate for one, other in some)
