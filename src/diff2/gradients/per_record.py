"""The general engines: write out the gradient of every record, by ``torch.func.vmap`` or one record after the other.

They need memory and time for chunk x parameters, and serve every module for which a faster engine has no rule.
``LoopEngine`` is the plainest reading of the definition: the tests compare all other engines with it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from .._vectors import Loss, Vector
from .engine import Engine
from .records import Records, clip_factors, zeroed
from .sums import Total, chunk_size, product_sum

CHUNK_NUMBERS = 1 << 23  # numbers in the written-out gradients of a chunk


class _PerRecordEngine(Engine):
    """Clipped sums from a matrix of per-record gradients; nothing is kept between rounds."""

    def __init__(self, module: nn.Module, loss: Loss, **options: Any):
        super().__init__(module, loss, **options)
        self.chunk_rows = self.chunk_rows or chunk_size(CHUNK_NUMBERS // len(self.flat))

    def _may_keep(self, records: Records) -> bool:
        return False

    def _run(self, prepared: Records) -> Tensor:
        rows = self._gradients(prepared)
        for place in self._places.values():
            rows[:, place.part] = place.of_rows(rows[:, place.part])
        return rows

    def _squared_norms(self, prepared: Records, now: Tensor) -> Tensor:
        return torch.linalg.vector_norm(now, dim=1, dtype=torch.float64).square_().to(now.dtype)

    def _gradients(self, chunk: Records) -> Tensor:
        """Return the gradients, (records, parameters)."""
        raise NotImplementedError

    def _add(self, out: Total, prepared: Records, radius: float, now: Tensor, before: Tensor | None) -> None:
        vectors = now if before is None else now - before
        squared_norm = self._squared_norms(prepared, vectors)
        usable = torch.isfinite(squared_norm)
        if not usable.all():  # a record without a finite gradient counts as zero
            vectors, squared_norm = zeroed(vectors, usable.unsqueeze(1)), zeroed(squared_norm, usable)
        weights = prepared.weights * clip_factors(squared_norm, radius)
        out.add(slice(None), product_sum(weights.unsqueeze(1), vectors))

    def _loss_of_one(self, params: Vector, inputs: Tensor, target: Tensor) -> Tensor:
        """The loss of one record, as a batch of one, or of its rows: no layer can see another record."""
        if not self._grouped:
            inputs, target = inputs.unsqueeze(0), target.unsqueeze(0)
        outputs = functional_call(self._own.module, self._own.unflatten(params), (inputs,))
        return self._loss(outputs, target).sum()


class VmapEngine(_PerRecordEngine):
    """Per-record gradients by ``torch.func.vmap``."""

    name = "vmap"

    def _gradients(self, chunk: Records) -> Tensor:
        per_record = vmap(grad(self._loss_of_one), in_dims=(None, 0, 0), randomness="different")
        result: Tensor = per_record(self._own.vector, chunk.inputs, chunk.targets)
        return result.detach()


class LoopEngine(_PerRecordEngine):
    """Per-record gradients one after the other: slow, and right for whatever PyTorch can differentiate."""

    name = "loop"

    def _gradients(self, chunk: Records) -> Tensor:
        rows = []
        for inputs, target in zip(chunk.inputs, chunk.targets, strict=True):
            point = self._own.vector.detach().clone().requires_grad_()
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(self._loss_of_one(point, inputs, target), point)
            rows.append(gradient)
        return torch.stack(rows)
