r"""Records on their way through an engine: in chunks, with weights; and what is kept of them between rounds.

The engines clip what one record contributes. With ``grouped``, a record is a group, say all visits of a patient: inputs
and targets have the shape (groups, rows, ...), and the loss of a group is the **sum** of the losses of its rows, and so
is its gradient:

.. math::
    \nabla \ell_i(x) = \sum_{t=1}^{k} \nabla \ell_{it}(x).

The module itself sees rows, not groups: nothing about it has to change. Groups with the same number of rows go through
in one call, which has a cache of its own. A group with a row that has no finite gradient counts as zero. Where the
gradient of a row depends on its batch (``nn.Embedding`` with ``scale_grad_by_freq``), the batch is the group.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._vectors import Loss, Vector

ALIGNMENT = 64  # bytes, of memory that PyTorch gives out
UNDERFLOW = 2.0**-110  # 2^16 times the least normal number of single precision; 2^-10 of the least squared radius


class Records(NamedTuple):
    """Inputs, targets and one weight per record, at most 1. A weighted *sum* is computed, never a mean of means."""

    inputs: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor

    @property
    def size(self) -> int:
        return self.inputs.shape[0]

    def chunks(self, rows: int) -> Iterator[Records]:
        """Yield the records ``rows`` at a time, in order, as views."""
        if self.size <= rows:
            if self.size:
                yield self
            return
        for start in range(0, self.size, rows):
            yield Records(*(part[start : start + rows] for part in self))

    @classmethod
    def of(cls, inputs: torch.Tensor, targets: torch.Tensor) -> Records:
        """Return records of weight one."""
        dtype = inputs.dtype if inputs.dtype.is_floating_point else torch.get_default_dtype()
        return cls(inputs, targets, torch.ones(inputs.shape[0], dtype=dtype, device=inputs.device))


class FeatureCache:
    """What an engine keeps of one set of records from round to round.

    ``chunks``: the passes at the last iterate, by chunk, so that a difference costs one pass over the records, not two.
    ``statics``: what depends on the records and the transform alone, by chunk.
    """

    def __init__(self) -> None:
        self.transform: object = None  # of the coordinates that all is in
        self.params: Vector | None = None  # the iterate that the passes belong to
        self.chunks: dict[int, Any] = {}
        self.statics: dict[int, Any] = {}

    def holds(self, params: Vector) -> bool:
        """Whether the passes are those at this very iterate."""
        return self.params is not None and torch.equal(self.params, params)

    def use(self, transform: object) -> None:
        """Drop what is in other coordinates than those of this transform."""
        if transform is not self.transform:
            self.forget()
            self.statics.clear()
            self.transform = transform

    def forget(self) -> None:
        """Drop the passes; keep what depends on the records alone."""
        self.params = None
        self.chunks.clear()


def zeroed(values: torch.Tensor, usable: torch.Tensor) -> torch.Tensor:
    """Return the values with those that are not usable set to zero, in memory of the same layout and alignment.

    Matrix products may round differently in another layout, and one record would then show in the sums of all others.
    """
    span = 1 + sum((size - 1) * stride for size, stride in zip(values.shape, values.stride(), strict=True))
    offset = values.data_ptr() % ALIGNMENT // values.element_size()
    copy = values.new_empty(offset + span).as_strided(values.shape, values.stride(), offset)
    return torch.where(usable, values, torch.zeros_like(values[:1]), out=copy)


def clip_factors(squared_norm: torch.Tensor, radius: float) -> torch.Tensor:
    """Return min(1, radius / norm) for each record; 1 for a zero vector.

    A squared norm is a sum of numbers that may each have underflowed. What they lose together is below ``UNDERFLOW``,
    for fewer than 2^16 of them in single precision, and that is a thousandth of the least squared radius.
    """
    return (squared_norm + UNDERFLOW).rsqrt().mul_(radius).clamp_(max=1.0)


def row_by_row(loss: Loss) -> Loss:
    """Return one loss per row, each computed by itself, whatever ``loss`` does with a batch (average it, rank it)."""

    def losses_of_rows(outputs: Tensor, targets: Tensor) -> Tensor:
        pairs = zip(outputs.split(1), targets.split(1), strict=True)
        return torch.stack([loss(output, target).sum() for output, target in pairs])

    return losses_of_rows
