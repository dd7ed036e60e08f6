"""Worlds that differ in one record, one group of them or one client, and how far apart the answers are."""

import numpy as np
import torch

from diff2.cohorts.clients import Client

SIZES = (9, 4, 13)  # the smallest client in the middle


def make_clients(dtype, sizes=SIZES, inputs=8):
    generator = torch.Generator().manual_seed(0)
    return [
        Client(
            torch.randn(size, inputs, generator=generator, dtype=torch.float64).to(dtype),
            3 * torch.randn(size, 1, generator=generator, dtype=torch.float64).to(dtype),
        )
        for size in sizes
    ]


def replaced(clients, place, inputs, target):
    """Return the clients with one record exchanged."""
    client, row = place
    changed = list(clients)
    changed[client] = Client(clients[client].inputs.clone(), clients[client].targets.clone())
    changed[client].inputs[row] = inputs
    changed[client].targets[row] = target
    return changed


def adversaries(dtype):
    """Records meant to break something: nothing, much, the opposite, what overflows in the loss or in the norm."""
    ones = torch.ones(8, dtype=dtype)
    top = torch.finfo(dtype).max
    return {
        "zero": (0 * ones, 0.0),
        "huge input": (1e6 * ones, 0.0),
        "huge target": (ones, 1e7),
        "huge opposite target": (ones, -1e7),
        "infinite loss": (ones, top / 2),
        "infinite norm": (ones * top**0.75, 1.0),
        "not a number": (ones * top * torch.tensor([1.0, -1.0] * 4, dtype=dtype), 0.0),
    }


def movement(one, two):
    """Return how far the mean moved, in units of its sensitivity."""
    assert one.release == two.release
    return float(np.linalg.norm(one.value - two.value)) / one.release.sensitivity
