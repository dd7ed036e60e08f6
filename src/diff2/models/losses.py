"""Losses: one number per record."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .._validate import one_of
from .._vectors import Loss
from ..errors import InvalidArgument, unusable


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return (z - y)^2 of each record, summed over its outputs; no factor 1/2.

    >>> squared(torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [4.0]]))
    tensor([0., 4.])
    """
    if outputs.shape != targets.shape:
        raise InvalidArgument(
            f"expected targets of the shape of the model's outputs, {tuple(outputs.shape)} for these records, got "
            f"{tuple(targets.shape)}; a column of targets is targets.reshape(-1, 1)"
        )
    error = (outputs - targets).square()
    return error.flatten(1).sum(1) if error.dim() > 1 else error


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return -log softmax(z)_y of each record, for class numbers y from 0."""
    if outputs.dim() != 2 or targets.dim() != 1:
        raise InvalidArgument(
            "expected outputs of shape (records, classes) and class numbers of shape (records,), got "
            f"{tuple(outputs.shape)} and {tuple(targets.shape)}"
        )
    return F.cross_entropy(outputs, targets, reduction="none")


LOSSES: dict[str, Loss] = {"squared": squared, "cross_entropy": cross_entropy}


def resolve_loss(loss: Any) -> tuple[str, Loss]:
    """Return the name and the function of a loss given by name or as a callable (outputs, targets) -> losses."""
    if callable(loss):
        return getattr(loss, "__name__", type(loss).__name__), loss
    one_of("loss", loss, LOSSES)
    return loss, LOSSES[loss]


def check_targets(loss: Loss, targets: Tensor, outputs_shape: torch.Size) -> None:
    """Require class numbers within the model's outputs, for all records at once."""
    if loss is not cross_entropy or len(outputs_shape) != 2:
        return
    if targets.numel() and (int(targets.min()) < 0 or int(targets.max()) >= outputs_shape[1]):
        raise unusable("clients")
