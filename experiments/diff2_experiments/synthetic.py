r"""Problems drawn at random whose gradient bound G and smoothness L are known, as the paper's theorems assume.

Both losses are smooth, bounded and not convex. With :math:`C_1 = G` and :math:`C_2 = L` clipping never changes a
record's gradient or difference, so that what is left of an estimate's error is noise.

* ``robust_mean``: where most points are. :math:`\ell(w; z) = \rho^2 / (1 + \rho^2)` with
  :math:`\rho = \lVert w - z \rVert` (Geman & McClure). The slope :math:`2\rho / (1 + \rho^2)^2` is largest at
  :math:`\rho = 1/\sqrt 3`, so :math:`G = 3\sqrt 3 / 8`; the curvature is largest at :math:`\rho = 0`, so
  :math:`L = 2`; and :math:`0 \le \ell < 1`.
* ``sigmoid_regression``: :math:`\ell(w; x, y) = (s(w \cdot x) - y)^2` with :math:`\lVert x \rVert = 1` and y in [0, 1].
  In :math:`a = w \cdot x`, :math:`|\ell'| = 2 |s - y| s (1-s)` is at most :math:`G = 8/27` (s = 2/3, y = 0), and
  :math:`\ell'' = 2 s^2 (1-s) (2 - 3s)` (y = 0) is largest at :math:`s = (15 - \sqrt{33})/24`. From w = 0, where
  s = 1/2, the loss can fall by 1/4 at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from diff2._validate import at_least, one_of
from diff2._vectors import Loss
from diff2.errors import InvalidArgument

STEEPEST = (15 - math.sqrt(33)) / 24  # the sigmoid's value where the curvature of its squared loss is largest


class Bounds(NamedTuple):
    """What the theorems take as known. None of it depends on the records drawn."""

    gradient: float  # G: no record's gradient is longer
    smoothness: float  # L: no record's gradient changes faster
    gap: float  # f(x_0) is at most so far above the least value of f


class Problem(NamedTuple):
    """Records, a model at its starting point, the loss, and what is known about them."""

    inputs: Tensor  # (records, ...), double precision
    targets: Tensor
    model: nn.Module
    loss: str | Loss
    bounds: Bounds


ROBUST_MEAN = Bounds(3 * math.sqrt(3) / 8, 2.0, 1.0)
SIGMOID_REGRESSION = Bounds(8 / 27, 2 * STEEPEST**2 * (1 - STEEPEST) * (2 - 3 * STEEPEST), 0.25)


def geman_mcclure(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return rho^2 / (1 + rho^2) of each record, rho being the distance of output and target.

    >>> geman_mcclure(torch.zeros(2, 3), torch.tensor([[1.0, 0, 0], [0, 0, 3]]))
    tensor([0.5000, 0.9000])
    """
    squared = (outputs - targets).square().sum(1)
    return squared / (1 + squared)


def robust_mean(records: int, dimension: int, seed: int) -> Problem:
    """Draw points: four fifths around 0, the rest around (-1.5, 0, ...). The start is (0, 1, 0, ...).

    The model is a linear map of the input 1, so that its weights are w and its output is w for every record.
    """
    generator = _generator(records, dimension, seed)
    points = generator.normal(scale=0.2 / math.sqrt(dimension), size=(records, dimension))
    points[generator.random(records) < 0.2, 0] -= 1.5
    start = torch.zeros(dimension, 1, dtype=torch.float64)
    start[1] = 1.0
    return Problem(
        torch.ones(records, 1, dtype=torch.float64),
        torch.from_numpy(points),
        _linear(start),
        geman_mcclure,
        ROBUST_MEAN,
    )


def sigmoid_regression(records: int, dimension: int, seed: int) -> Problem:
    """Draw directions x, and y around s(w* x) for a w* of length 1.5 sqrt(dimension). The start is 0."""
    generator = _generator(records, dimension, seed)
    inputs = generator.normal(size=(records, dimension))
    inputs *= (1 - 1e-12) / np.linalg.norm(inputs, axis=1, keepdims=True)  # the length is rounded, not above 1
    truth = generator.normal(size=dimension)
    truth *= 1.5 * math.sqrt(dimension) / np.linalg.norm(truth)
    noise = generator.normal(scale=0.2, size=records)
    targets = np.clip(1 / (1 + np.exp(-inputs @ truth)) + noise, 0, 1)
    return Problem(
        torch.from_numpy(inputs),
        torch.from_numpy(targets).reshape(-1, 1),
        nn.Sequential(_linear(torch.zeros(1, dimension, dtype=torch.float64)), nn.Sigmoid()),
        "squared",
        SIGMOID_REGRESSION,
    )


PROBLEMS: dict[str, Callable[[int, int, int], Problem]] = {
    "robust_mean": robust_mean,
    "sigmoid_regression": sigmoid_regression,
}


def draw_problem(name: str, records: int, dimension: int, seed: int) -> Problem:
    """Return the problem of this name; the same numbers give the same problem.

    >>> draw_problem("robust_mean", records=50, dimension=3, seed=0).bounds
    Bounds(gradient=0.649519052838329, smoothness=2.0, gap=1.0)
    """
    one_of("problem", name, PROBLEMS)
    return PROBLEMS[name](records, dimension, seed)


def _generator(records: int, dimension: int, seed: int) -> np.random.Generator:
    at_least("records", records, 1)
    at_least("seed", seed, 0)
    if dimension < 2:
        raise InvalidArgument(f"expected dimension >= 2, got dimension={dimension!r}")
    return np.random.default_rng([seed, records, dimension])


def _linear(weight: Tensor) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):  # its own start, drawn from the global generator, is not used
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
    return layer
