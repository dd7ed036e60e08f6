"""The general engines: write out one gradient a record, with ``torch.func.vmap`` or one record after the other.

They need memory for chunk x parameters and the time for it, and serve every module for which the fast engine has no
rule. ``LoopEngine`` is the plainest possible reading of the paper: the tests hold the other two against it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from .._types import Loss, Vector
from .flat import FlatModule
from .records import FeatureCache, Records, clip_factors, inner_factors
from .stochastic import Masks, seeded
from .sums import chunk_size, product_sum

CHUNK_NUMBERS = 1 << 23  # numbers in the written-out gradients of a chunk


class _PerRecordEngine:
    """Clipped sums from a matrix of per-record gradients, ``self._gradients(params, chunk)``.

    With ``grouped``, a record is an owner with several rows (``groups.py``), as many as the inputs of a call have.
    """

    name = "per-record"

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        chunk_rows: int | None = None,
        grouped: bool = False,
    ):
        self.flat = FlatModule(module, dtype=dtype, device=device)
        self.chunk_rows = chunk_rows or chunk_size(CHUNK_NUMBERS // len(self.flat))
        self._loss = loss
        self._grouped = grouped

    def clipped_sum(self, question, records, *, cache=None, masks=None):  # type: ignore[no-untyped-def]
        if question.kind == "gradient":
            return self.clipped_gradient_sum(
                question.params, records, question.radius, cache=cache, masks=masks, remember=question.remember
            )
        return self.clipped_difference_sum(
            question.params, question.previous, records, question.radius, cache=cache, masks=masks
        )

    def clipped_gradient_sum(
        self,
        params: Vector,
        records: Records,
        radius: float,
        *,
        cache: FeatureCache | None = None,
        masks: Masks | None = None,
        remember: bool = True,
    ) -> Vector:
        """Return the weighted sum of the per-record gradients at ``params``, each clipped to ``radius``."""
        return self._sum(records, radius, masks, lambda chunk: self._gradients(params, chunk))

    def clipped_difference_sum(
        self,
        params: Vector,
        previous: Vector,
        records: Records,
        radius: float,
        *,
        cache: FeatureCache | None = None,
        masks: Masks | None = None,
        inner: float = math.inf,
    ) -> Vector:
        """Return the weighted sum of gradient(params) - gradient(previous), each record's difference clipped.

        With a finite ``inner``, both gradients of a record are clipped to it before their difference is taken.
        """
        return self._sum(
            records,
            radius,
            masks,
            lambda chunk: _shortened(self._gradients(params, chunk), inner),
            lambda chunk: _shortened(self._gradients(previous, chunk), inner),
        )

    def _sum(
        self, records: Records, radius: float, masks: Masks | None, *passes: Callable[[Records], Tensor]
    ) -> Vector:
        out = torch.zeros(len(self.flat), dtype=torch.float64, device=self.flat.device)
        for index, chunk in enumerate(records.chunks(self.chunk_rows)):
            values = []
            for compute in passes:
                with seeded(masks, index):
                    values.append(compute(chunk))
            vectors = values[0] if len(values) == 1 else values[0] - values[1]
            squared_norm = vectors.square().sum(1)
            usable = torch.isfinite(squared_norm)
            if not usable.all():  # a record with a non-finite gradient counts as zero
                vectors = torch.where(usable.unsqueeze(1), vectors, torch.zeros_like(vectors))
                squared_norm = torch.where(usable, squared_norm, torch.zeros_like(squared_norm))
            weights = chunk.weights * clip_factors(squared_norm, radius)
            out += product_sum(weights.unsqueeze(1), vectors).view(-1)
        return out

    def _gradients(self, params: Vector, chunk: Records) -> Tensor:
        raise NotImplementedError

    def _loss_of_one(self, params: Vector, inputs: Tensor, target: Tensor) -> Tensor:
        """The loss of one record, as a batch of one, or of its rows: no layer can see another record."""
        if not self._grouped:
            inputs, target = inputs.unsqueeze(0), target.unsqueeze(0)
        outputs = functional_call(self.flat.module, self.flat.unflatten(params), (inputs,))
        return self._loss(outputs, target).sum()


class VmapEngine(_PerRecordEngine):
    """Per-record gradients by ``torch.func.vmap``."""

    name = "vmap"

    def _gradients(self, params: Vector, chunk: Records) -> Tensor:
        per_record = vmap(grad(self._loss_of_one), in_dims=(None, 0, 0), randomness="different")
        result: Tensor = per_record(params, chunk.inputs, chunk.targets)
        return result.detach()


class LoopEngine(_PerRecordEngine):
    """Per-record gradients one after the other: slow, and right for whatever PyTorch can differentiate."""

    name = "loop"

    def _gradients(self, params: Vector, chunk: Records) -> Tensor:
        rows = []
        for inputs, target in zip(chunk.inputs, chunk.targets, strict=True):
            point = params.detach().clone().requires_grad_()
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(self._loss_of_one(point, inputs, target), point)
            rows.append(gradient)
        return torch.stack(rows)


def _shortened(vectors: Tensor, inner: float) -> Tensor:
    """Return the vectors clipped to ``inner``."""
    return vectors if inner == math.inf else vectors * inner_factors(vectors.square().sum(1), inner).unsqueeze(1)
