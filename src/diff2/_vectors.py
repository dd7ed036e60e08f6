"""The few operations on parameter vectors that algorithms and routines need. PyTorch is imported when one is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._types import Vector


def norm(vector: Vector) -> float:
    """Return the Euclidean length."""
    import torch

    return float(torch.linalg.vector_norm(vector))


def distance(params: Vector, previous: Vector) -> float:
    """Return how far two iterates are apart, in double precision: in single, close ones could seem equal."""
    return norm(params.double() - previous.double())


def zeros(params: Vector) -> Vector:
    """Return zeros of the same shape, in double precision."""
    import torch

    return torch.zeros_like(params, dtype=torch.float64)


def moved(params: Vector, step: Vector) -> Vector:
    """Return params - step, computed in double precision: a single-precision step would lose its small end."""
    return (params.double() - step).to(params.dtype)
