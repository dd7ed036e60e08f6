r"""Groups of rows: what is protected is a group of records, say all visits of a patient.

The engines clip what one record contributes. With ``grouped``, a record is such a group: inputs and targets have the
shape (groups, rows, ...), and the loss of a group is the **sum** of the losses of its rows, and so is its gradient:

.. math::
    \nabla \ell_i(x) = \sum_{t=1}^{k} \nabla \ell_{it}(x).

The module itself sees rows, not groups: nothing about it has to change. Groups with the same number of rows go through
in one call, which has a cache of its own. A group with a row that has no finite gradient counts as zero. Where the
gradient of a row depends on its batch (``nn.Embedding`` with ``scale_grad_by_freq``), the batch is the group.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._vectors import Loss


def row_by_row(loss: Loss) -> Loss:
    """Return one loss per row, each computed by itself, whatever ``loss`` does with a batch (average it, rank it)."""

    def losses_of_rows(outputs: Tensor, targets: Tensor) -> Tensor:
        pairs = zip(outputs.split(1), targets.split(1), strict=True)
        return torch.stack([loss(output, target).sum() for output, target in pairs])

    return losses_of_rows
