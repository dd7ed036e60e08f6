r"""The problems on which algorithms are compared over sizes: two public tables, and a quadratic without records.

What the noise of DP-GD and DIFF2 depends on is :math:`N \mu` alone, for records that are repeated change no mean. So
the records of a table stand for more of them: a run at :math:`N \mu` has the budget :math:`\mu' = N \mu / n` on the n
records at hand, which gives the noise of N records. Where batches are drawn (DP-SGD, BVR-L-SGD) that does not hold, and
a point is what it says: n records, and the epsilon of :math:`\mu'`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from diff2.algorithms import Algorithm
from diff2.data.loading import EncodedClients
from diff2.errors import PrivacyLeakWarning, WeakDeltaWarning
from diff2.models.mlp import mlp
from diff2.privacy import Budget
from diff2.privacy.accounting import gdp_epsilon
from diff2.training.build import prepare
from diff2.training.loop import Training

from .files import find_file, load_public, read_tune_file

DELTA = 1e-5
CLIENTS = 10
READINGS = {"california_housing": "california_housing_own", "covertype": "covertype"}  # of experiments/paper


@dataclass(frozen=True)
class Problem:
    """A table or a quadratic, with the clipping radii for all methods.

    Args:
        records: n, at hand; of a table as many as are used.
        clip_gradient, clip_smoothness: C1 and C2. Rounds are R.
    """

    name: str
    label: str
    records: int
    rounds: int
    clip_gradient: float
    clip_smoothness: float
    dimension: int

    def epsilon(self, size: float) -> float:
        """Return the epsilon, for the records at hand, at N mu = ``size``."""
        return gdp_epsilon(size / self.records, DELTA)

    def prepared(self, algorithm: Algorithm, size: float, seed: int, every: int, data_dir: Path | None) -> Training:
        """Return a run that is measured exactly every so many rounds."""
        model, loss, clients = self._quadratic() if self.name == "quadratic" else self._table(seed, data_dir)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivacyLeakWarning)
            warnings.simplefilter("ignore", WeakDeltaWarning)
            return prepare(
                model, loss, clients, algorithm, Budget(self.epsilon(size), DELTA), seed=seed, metrics_every=every
            )

    def _table(self, seed: int, data_dir: Path | None) -> tuple[nn.Module, Any, Sequence[Any]]:
        tables = _loaded(self.name, data_dir)
        shares = self.records // CLIENTS
        clients = [(inputs[:shares], targets[:shares]) for inputs, targets in tables.clients]
        return mlp(len(tables.encoding.inputs), tables.encoding.outputs, seed=seed), tables.encoding.loss, clients

    def _quadratic(self) -> tuple[nn.Module, Any, Sequence[Any]]:
        curvature = torch.logspace(-2, 0, self.dimension)
        model = nn.Linear(1, self.dimension, bias=False)
        nn.init.constant_(model.weight, self.clip_gradient / 2 / float(curvature.norm()))  # the gradient is C1 / 2 long

        def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return (outputs.square() * curvature).sum(1) / 2

        ones = torch.ones(self.records // CLIENTS, 1)
        return model, loss, [(ones, torch.zeros(len(ones)))] * CLIENTS


PROBLEMS = {
    one.name: one
    for one in (
        Problem("quadratic", "Quadratic", 100, 2000, 1.0, 1.0, 100),
        Problem("california_housing", "California Housing", 16_510, 2000, 3.0, 10.0, 101),
        Problem("covertype", "Cover Type", 10_000, 1000, 3.0, 3.0, 627),
    )
}


@lru_cache(maxsize=2)
def _loaded(name: str, data_dir: Path | None) -> EncodedClients:
    """Return the table as in the repetition of the paper: ten clients, scaled by its own means and deviations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)  # said at the beginning
        return load_public(read_tune_file(find_file("paper", READINGS[name]), data_dir), "A COMPARISON OF ALGORITHMS")
