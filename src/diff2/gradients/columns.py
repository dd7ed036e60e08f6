r"""The engine for fully connected networks: records as columns, derivatives by hand.

What it computes is what the ghost engine computes, by the same rules: the passes are in ``network.py``, the norms and
the sums in ``column_terms.py``.

Formal guarantee: that of the ghost engine. A record alone contributes a vector of norm at most ``radius`` to the sum,
and replacing one moves the sum by at most ``2 radius (1 + sums.rounding_allowance)``, times its weight. With ``inner``,
a difference is that of two clipped gradients.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .._types import Loss, Vector
from ..models.losses import cross_entropy
from .column_terms import ColumnTerms, Fixed
from .flat import FlatModule
from .network import Network
from .records import FeatureCache, Records
from .stochastic import Masks
from .sums import chunk_size

CHUNK_NUMBERS = 1 << 20  # numbers a chunk holds, records included: 4 MB in single precision
CACHE_BYTES = 4 << 30  # that may be kept: the records as columns, and the pass at the previous iterate


class Evaluation(NamedTuple):
    """What the records say of a model, without clipping and noise."""

    losses: Tensor  # one a record
    hits: int  # records whose class has the largest output; 0 where the loss is no cross entropy
    gradient: Vector  # weighted sum


class ColumnsEngine:
    """Clipped sums for modules that are a sequence of linear layers and known functions between them."""

    name = "columns"

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        chunk_rows: int | None = None,
        cache_bytes: int = CACHE_BYTES,
    ):
        self.flat = FlatModule(module, dtype=dtype, device=device)
        self._network = network = Network(FlatModule(module, dtype=dtype, device=device), loss)
        self._terms = ColumnTerms(network)
        numbers = network.rows + network.kept_inputs + network.layers[0].weight.shape[1]
        self._bytes_per_row = numbers * self.flat.vector.element_size()
        self._cache_bytes = cache_bytes
        self.chunk_rows = chunk_rows or chunk_size(max(1, CHUNK_NUMBERS // numbers))

    def clipped_sum(self, question, records, *, cache=None, masks=None):  # type: ignore[no-untyped-def]
        if question.kind == "gradient":
            return self.clipped_gradient_sum(
                question.params, records, question.radius, cache=cache, masks=masks, remember=question.remember
            )
        return self.clipped_difference_sum(
            question.params, question.previous, records, question.radius, cache=cache, masks=masks
        )

    @staticmethod
    def fits(module: nn.Module) -> bool:
        """Whether the engine can run the module."""
        return Network.fits(module)

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
        """Return the weighted sum of the per-record gradients at ``params``, each clipped to ``radius``.

        Where the cache holds the pass at this iterate, the model is not run again. ``masks``: no such model has any.
        """
        out = self._zero_sum()
        with torch.inference_mode():  # less overhead in each of many small operations
            self._add_gradients(out, params, records, radius, self._kept(cache, records), remember)
        return out

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
        out = self._zero_sum()
        with torch.inference_mode():
            self._add_differences(out, params, previous, records, radius, self._kept(cache, records), inner)
        return out

    def evaluate(
        self, params: Vector, records: Records, *, cache: FeatureCache | None = None, gradient: bool = True
    ) -> Evaluation:
        """Return losses, hits and the gradient at ``params``, from one pass. **Leaks**: for exact metrics only."""
        out, losses, hits = self._zero_sum(), [], 0
        with torch.inference_mode():
            network, kept = self._network, self._kept(cache, records)
            network.flat.load(params)
            for index, chunk in enumerate(records.chunks(self.chunk_rows)):
                fixed = self._fixed(chunk, index, kept)
                if gradient:
                    done = network.run(fixed.x, chunk.targets, fixed.targets)
                    outputs = done.outputs
                    self._terms.add(out, fixed, chunk.weights, math.inf, done)
                    network.take_back(done)
                else:
                    outputs = network.outputs(fixed.x)
                losses.append(network.loss(outputs.t().contiguous(), chunk.targets))
                if network.loss is cross_entropy:
                    hits += _hits(outputs, chunk.targets)
            return Evaluation(torch.cat(losses), hits, out)

    def _add_gradients(
        self, out: Vector, params: Vector, records: Records, radius: float, cache: FeatureCache | None, remember: bool
    ) -> None:
        network = self._network
        network.flat.load(params)
        known = cache.chunks if cache is not None and cache.holds(params) else {}
        if cache is not None and not known:
            for old in cache.chunks.values():
                network.take_back(old)
            cache.forget()
        for index, chunk in enumerate(records.chunks(self.chunk_rows)):
            fixed = self._fixed(chunk, index, cache)
            now = known.get(index) or network.run(fixed.x, chunk.targets, fixed.targets)
            now.squared_norm = self._terms.add(out, fixed, chunk.weights, radius, now)
            if remember and cache is not None:
                cache.chunks[index] = now
            elif index not in known:
                network.take_back(now)
        if remember and cache is not None:
            cache.params = params.clone()

    def _add_differences(
        self,
        out: Vector,
        params: Vector,
        previous: Vector,
        records: Records,
        radius: float,
        cache: FeatureCache | None,
        inner: float,
    ) -> None:
        network, terms = self._network, self._terms
        known = cache.chunks if cache is not None and cache.holds(previous) else {}
        if cache is not None:
            cache.params = None  # until the pass is complete, the chunks belong to two iterates
        for index, chunk in enumerate(records.chunks(self.chunk_rows)):
            fixed = self._fixed(chunk, index, cache)
            before = known.get(index)
            if before is None:
                network.flat.load(previous)
                before = network.run(fixed.x, chunk.targets, fixed.targets)
            if index == 0 or not known:
                network.flat.load(params)
            now = network.run(fixed.x, chunk.targets, fixed.targets)
            if inner < math.inf:
                now.squared_norm = terms.squared_norm(fixed, now)
                shortened = terms.shortened(fixed, now, inner), terms.shortened(fixed, before, inner)
                terms.add(out, fixed, chunk.weights, radius, *shortened)
            else:
                terms.add(out, fixed, chunk.weights, radius, now, before)  # which overwrites ``before``
            if cache is not None:
                cache.chunks[index] = now
            else:
                network.take_back(now)
            network.take_back(before)
        if cache is not None:
            cache.params = params.clone()

    def _zero_sum(self) -> Vector:
        return torch.zeros(len(self.flat), dtype=torch.float64, device=self.flat.device)

    def _kept(self, cache: FeatureCache | None, records: Records) -> FeatureCache | None:
        """Return the cache, or None where it would grow too large."""
        return cache if self._bytes_per_row * records.size <= self._cache_bytes else None

    def _fixed(self, chunk: Records, index: int, cache: FeatureCache | None) -> Fixed:
        """Return the records of a chunk as columns; once for all rounds where they may be kept."""
        known: Fixed | None = None if cache is None else cache.statics.get((index, 0))
        if known is None:
            known = self._terms.fixed(chunk)
            if cache is not None:
                cache.statics[index, 0] = known
        return known


def _hits(outputs: Tensor, classes: Tensor) -> int:
    """Return how many records have their class first. ``argmax`` takes longer than all the rest of a pass."""
    first = outputs == outputs.amax(0)
    if int(first.sum()) == classes.shape[0]:  # no ties
        return int(first.gather(0, classes.unsqueeze(0)).sum())
    return int((outputs.argmax(0) == classes).sum())
