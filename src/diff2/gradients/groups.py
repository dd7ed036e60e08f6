r"""Records that are several rows: the privacy unit is an owner, say a patient with k visits.

The engines clip what one record contributes. Here a record is an owner: inputs of shape (owners, rows, ...), targets
likewise, and the loss of an owner is the **sum** of the losses of its rows, so its gradient is the sum of theirs,

.. math::
    \nabla \ell_i(x) = \sum_{t=1}^{k} \nabla \ell_{it}(x).

The module itself sees rows, not owners: nothing about it has to change. Owners with different numbers of rows go
through in one call a number, each with a cache of its own. An owner one of whose rows has no finite gradient counts as
zero. Where the gradient of a row depends on its batch (``nn.Embedding`` with ``scale_grad_by_freq``), the batch is the
owner.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .._types import Loss


class Grouped(nn.Module):
    """A module applied to every row of every owner: (owners, rows, ...) -> (owners, rows, outputs).

    >>> Grouped(nn.Linear(3, 2))(torch.zeros(5, 4, 3)).shape
    torch.Size([5, 4, 2])
    """

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.module(inputs.flatten(0, 1))
        return outputs.unflatten(0, inputs.shape[:2])


def grouped_loss(loss: Loss) -> Loss:
    """Return the loss of owners, one number each: the sum over its rows of ``loss``, which gives one number a row.

    >>> absolute = grouped_loss(lambda outputs, targets: (outputs - targets).abs().sum(1))
    >>> absolute(torch.ones(2, 3, 1), torch.zeros(2, 3, 1))
    tensor([3., 3.])
    """

    def loss_of_owners(outputs: Tensor, targets: Tensor) -> Tensor:
        return loss(outputs.flatten(0, 1), targets.flatten(0, 1)).unflatten(0, outputs.shape[:2]).sum(1)

    return loss_of_owners


def row_by_row(loss: Loss) -> Loss:
    """Return one loss a row, each computed by itself, whatever ``loss`` does with a batch (average it, rank it)."""

    def losses_of_rows(outputs: Tensor, targets: Tensor) -> Tensor:
        pairs = zip(outputs.split(1), targets.split(1), strict=True)
        return torch.stack([loss(output, target).sum() for output, target in pairs])

    return losses_of_rows
