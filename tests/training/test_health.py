"""The health lines of a run: noise against estimate, from released values alone."""

import math

import numpy as np
import pandas
import pytest
import torch

import diff2
from diff2.training.result import health_of, noise_share


def history(signal, std, dimension, rounds=200, seed=0):
    rng = np.random.default_rng(seed)
    estimates = signal / math.sqrt(dimension) + std * rng.standard_normal((rounds, dimension))
    return {"estimate_norm": np.linalg.norm(estimates, axis=1), "estimate_std": np.full(rounds, std)}


@pytest.mark.parametrize(("signal", "std", "share"), [(0.0, 1.0, 1.0), (3.0, 0.3, 0.5), (3.0, 0.01, 0.00111)])
def test_the_share_of_noise_is_right_on_average(signal, std, share):
    assert noise_share(history(signal, std, 100), 100) == pytest.approx(share, rel=0.05)


def test_lines():
    assert health_of(history(0.0, 0.0, 10), 10) == ["no noise was added to the gradient estimates"]
    (line,) = health_of(history(3.0, 0.3, 100), 100)
    assert "first rounds" in line
    assert "mostly noise" in health_of(history(0.0, 1.0, 100), 100)[1]


def trained(epsilon, **options):
    x = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    algorithm = diff2.DPGD(20, 1.0, diff2.GradientDescent(0.1))
    return diff2.train(
        diff2.mlp(3, 1), "squared", (x, x[:, :1]), algorithm, diff2.Budget(epsilon, 1e-4), seed=0, progress=False,
        **options,
    )  # fmt: skip


def test_a_run_with_too_little_budget_says_so(tmp_path):
    """Red before: nothing told a model that is noise from one that is not."""
    poor, good = trained(0.05), trained(8.0)
    assert "mostly noise" in poor.health[1]
    assert len(good.health) == 1
    assert good.summary()["health"] == good.health
    assert pandas.read_csv(good.save(tmp_path) / "history.csv").shape[0] == 20
