"""A routine on its way: from one start along given estimates, through a file or not, and PyTorch on the same way."""

import io
from types import SimpleNamespace

import numpy as np
import torch

from diff2 import Estimate

ROUNDS, DIMENSION = 9, 5


def at(number, total=ROUNDS):
    """Return what a routine may know of a round."""
    return SimpleNamespace(number=number, total=total)


def start(dtype=torch.float64):
    return torch.linspace(-1.0, 2.0, DIMENSION, dtype=torch.float64).to(dtype)


def estimates(count=ROUNDS, seed=0, variance=0.01):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(count, DIMENSION, generator=generator, dtype=torch.float64)
    return [Estimate(value, variance * (r + 1)) for r, value in enumerate(values)]


def stored(value):
    """Return a value as a checkpoint gives it back."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def path_of(routine, given_estimates, params=None, between=lambda state: state):
    """Return the query points and the outputs after each round."""
    params = start() if params is None else params
    state, points, outputs = routine.init(params), [], []
    for r, estimate in enumerate(given_estimates, start=1):
        params, state = routine.step(between(state), params, estimate, at(r, len(given_estimates)))
        points.append(params)
        outputs.append(routine.output(state, params))
    return points, outputs


def torch_path(optimizer, given_estimates, learning_rates=None, **options):
    """Return the points of a PyTorch optimiser that is used as PyTorch means it to be."""
    params = start()
    optimizer, points = optimizer([params], **options), []
    for r, estimate in enumerate(given_estimates):
        if learning_rates is not None:
            optimizer.param_groups[0]["lr"] = learning_rates[r]
        params.grad = estimate.value.clone()
        optimizer.step()
        points.append(params.clone())
    return points


def assert_same_path(points, expected):
    assert len(points) == len(expected) > 0
    for point, other in zip(points, expected, strict=True):
        np.testing.assert_allclose(point.numpy(), other.numpy(), rtol=1e-12, atol=1e-12)
