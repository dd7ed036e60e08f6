"""Names for the few shapes that travel through the library, and the operations on vectors of parameters.

PyTorch is imported when one of these is called.
"""

from typing import TYPE_CHECKING, Any, TypeAlias

State: TypeAlias = dict[str, Any]  # of an algorithm or a routine, from round to round: tensors and numbers by name

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    Vector: TypeAlias = torch.Tensor  # one dimension: all trainable parameters, or a gradient with respect to them
    Loss: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (outputs, targets) -> one loss per record
else:
    Vector = Loss = Any


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
