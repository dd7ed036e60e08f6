"""Records on their way through an engine: in chunks, with weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from .._types import Vector


class Records(NamedTuple):
    """Inputs, targets and one weight a record, at most 1. A weighted *sum* is computed, never a mean of means."""

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
    """What is kept of one set of records from round to round.

    ``chunks``: what the layers saw at the previous iterate, so that a difference costs one pass, not two, and the
    squared norms of the gradients there, where they were needed.
    ``statics``: what depends on the records alone and never changes.
    """

    def __init__(self) -> None:
        self.params: Vector | None = None  # the iterate the features belong to
        self.chunks: dict[int, Any] = {}
        self.statics: dict[tuple[int, int], Any] = {}  # by (chunk, layer)

    def holds(self, params: Vector) -> bool:
        """Whether the features are those of this very iterate."""
        return self.params is not None and torch.equal(self.params, params)

    def forget(self) -> None:
        """Drop the features of the previous iterate."""
        self.params = None
        self.chunks.clear()


def clip_factors(squared_norm: torch.Tensor, radius: float) -> torch.Tensor:
    """Return min(1, radius / norm) for each record; 1 for a zero vector."""
    return (squared_norm.rsqrt() * radius).clamp_(max=1.0)


def inner_factors(squared_norm: torch.Tensor, inner: float) -> torch.Tensor:
    """Return ``clip_factors`` for a vector that is to be subtracted from another; NaN where its norm is not finite.

    So the difference is not finite either, and the record counts as zero: it has no gradient at one of the iterates.
    """
    return clip_factors(squared_norm, inner).masked_fill_(~torch.isfinite(squared_norm), torch.nan)
