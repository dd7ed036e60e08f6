"""The promise of restart_interval="auto" is checked at every rate, and a rate that drowns DP-GD itself is left out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from diff2_experiments.which_problems import PROBLEMS
from diff2_experiments.which_rule import chosen_interval, compared, contests


def a_contest(seed, losses):
    """DP-GD, DIFF2 with early restarts, and without."""
    place = {"problem": "quadratic", "size": 1e4, "rate": 0.5, "seed": seed}
    return [
        {**place, "interval": T, "train_loss": loss, "squared_gradient_norm": loss}
        for T, loss in zip((1, 20, 20), losses, strict=True)
    ]


def test_ratios_are_of_means_over_the_seeds():
    (row,) = compared([a_contest(0, (1.0, 0.5, 2.0)), a_contest(1, (3.0, 3.3, 4.0))])
    assert row["loss"] == row["norm"] == pytest.approx(0.95)
    assert row["loss_without"] == row["norm_without"] == pytest.approx(1.5)
    assert row["worst_loss"] == pytest.approx(1.1)
    assert (row["interval"], row["seeds"]) == (20, 2)


def test_interval_is_that_of_ratios_of_means():
    """Reference: the variance of a ratio of means, by its derivatives; one 20 % off is told apart."""
    losses = np.random.default_rng(1).gamma(50.0, size=(400, 2))
    (row,) = compared([a_contest(seed, (*pair, 1.0)) for seed, pair in enumerate(losses)])
    ratio = losses[:, 1].mean() / losses[:, 0].mean()
    deviation = np.std(losses[:, 1] - ratio * losses[:, 0]) / losses[:, 0].mean() / math.sqrt(400)
    assert row["norm_high"] - row["norm_low"] == pytest.approx(2 * 1.96 * deviation, rel=0.1)
    assert row["norm_low"] < row["norm"] < row["norm_high"]


def test_a_run_of_diff2_that_diverges_counts_and_one_of_dpgd_does_not():
    (row,) = compared([a_contest(0, (1.0, None, 1.0))])
    assert row["loss"] == row["norm_high"] == math.inf
    assert compared([a_contest(0, (None, 1.0, 1.0))]) == []


def test_runs_are_wanted_where_the_rule_takes_diff2():
    assert chosen_interval(PROBLEMS["quadratic"], 1e3, 0.5) == 1
    assert list(contests("quadratic", [1e3], range(2))) == []
    some = list(contests("quadratic", [1e3], (0,), [0.3], [5, 7]))
    assert {(early.rate, early.interval) for _, early, _ in some} == {(0.3, 5), (0.3, 7)}
    some = list(contests("quadratic", [1e5], (10, 11)))
    assert {single.seed for single, _, _ in some} == {10, 11}
    for single, early, plain in some:
        assert (single.method, early.method, plain.method) == ("dpgd", "diff2_early", "diff2")
        assert early.interval == plain.interval > 2
        assert single.rate == early.rate == plain.rate
