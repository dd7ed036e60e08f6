r"""The engine for fully connected networks: records as columns, derivatives by hand.

What it computes is what the ghost engine computes, by the same rules (``rules.py``): norms that are never an
underestimate, and sums from the very numbers the norms were taken of. Three kinds of layers:

* the first reads the records, which no iterate changes: its difference is :math:`dg \otimes x`, of the norm
  :math:`|dg|^2 (|x|^2 + 1)`;
* a layer of one output has its gradients written out, and their difference is taken number by number;
* another one is :math:`da \otimes g + a' \otimes dg`; records whose two products nearly cancel are added in double
  precision.

Formal guarantee: that of the ghost engine. A record alone contributes a vector of norm at most ``radius`` to the sum,
and replacing one moves the sum by at most ``2 radius (1 + sums.rounding_allowance)``, times its weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .._types import Loss, Vector
from ..losses import squared
from .flat import FlatModule
from .network import Layer, Network, Pass
from .records import FeatureCache, Records, clip_factors, inner_factors
from .rules import CANCELLATION, NARROW, SLACK
from .stochastic import Masks
from .sums import chunk_size, column_product_sum, column_sum

CHUNK_NUMBERS = 1 << 20  # numbers a chunk holds in the rows of a pass
CACHE_BYTES = 4 << 30  # that may be kept: the records as columns, and the pass at the previous iterate


class _Fixed(NamedTuple):
    """What depends on the records of a chunk alone."""

    x: Tensor  # (inputs, records)
    gain: Tensor  # squared norm of the first layer's gradient in units of |g|^2, raised
    targets: Tensor | None  # as columns, for the squared loss


class _Products(NamedTuple):
    """The gradients of a layer with pairs: a sum of products error (x) input, and which of them nearly cancel."""

    layer: Layer
    pairs: list[tuple[Tensor, Tensor]]
    cancelling: Tensor | None  # how much longer the products are than allowed; above zero where they cancel


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
        numbers = network.rows + network.kept_inputs
        self._bytes_per_row = (numbers + network.layers[0].weight.shape[1]) * self.flat.vector.element_size()
        self._cache_bytes = cache_bytes
        self.chunk_rows = chunk_rows or chunk_size(max(1, CHUNK_NUMBERS // numbers))
        self._slack = SLACK * torch.finfo(self.flat.dtype).eps
        self._tiny = self.flat.vector.new_full((1, 1), network.rows * torch.finfo(self.flat.dtype).tiny)
        self._choices = self._row_choices()
        self._choice = self.flat.vector.new_zeros(len(self._choices), network.rows)
        for place, parts in enumerate(self._choices):
            for part in parts:
                self._choice[place, part] = 1 + self._slack if place == 1 else 1

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

    def _add_gradients(
        self, out: Vector, params: Vector, records: Records, radius: float, cache: FeatureCache | None, remember: bool
    ) -> None:
        network = self._network
        network.flat.load(params)
        known = cache.chunks if cache is not None and cache.holds(params) else {}
        if cache is not None and not known:
            cache.forget()
        for index, chunk in enumerate(records.chunks(self.chunk_rows)):
            fixed = self._fixed(chunk, index, cache)
            now = known.get(index) or network.run(fixed.x, chunk.targets, fixed.targets)
            squared_norm = self._add(out, fixed, chunk.weights, radius, now, None)
            if remember and cache is not None:
                cache.chunks[index] = now._replace(squared_norm=squared_norm)
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
        network = self._network
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
                now = now._replace(squared_norm=self._norm(now, fixed))
                shortened = self._shortened(now, fixed, inner), self._shortened(before, fixed, inner)
                self._add(out, fixed, chunk.weights, radius, *shortened)
            else:
                self._add(out, fixed, chunk.weights, radius, now, before)
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

    def _fixed(self, chunk: Records, index: int, cache: FeatureCache | None) -> _Fixed:
        """Return the records as columns; once for all rounds where they may be kept."""
        known = None if cache is None else cache.statics.get((index, 0))
        if known is not None and cache is not None:
            return _Fixed(known, cache.statics[index, 1], cache.statics.get((index, 2)))
        x, first = chunk.inputs.t().contiguous(), self._network.layers[0]
        gain = x.new_zeros(chunk.size)
        if first.weight_part is not None:
            gain += (x * x).sum(0) + len(x) * torch.finfo(x.dtype).tiny
        if first.bias_part is not None:
            gain += 1
        gain *= 1 + self._slack
        shape = (chunk.size, len(self._network.layers[-1].weight))
        targets = (
            chunk.targets.t().contiguous() if self._network.loss is squared and chunk.targets.shape == shape else None
        )
        if cache is not None:
            cache.statics[index, 0], cache.statics[index, 1] = x, gain
            if targets is not None:
                cache.statics[index, 2] = targets
        return _Fixed(x, gain, targets)

    def _norm(self, done: Pass, fixed: _Fixed) -> Tensor:
        return self._terms(fixed, done, None)[1] if done.squared_norm is None else done.squared_norm

    def _shortened(self, done: Pass, fixed: _Fixed, inner: float) -> Pass:
        """Return the pass of the gradients clipped to ``inner``."""
        return done.scaled(inner_factors(self._norm(done, fixed), inner))

    def _add(
        self, out: Vector, fixed: _Fixed, weights: Tensor, radius: float, now: Pass, before: Pass | None
    ) -> Tensor:
        """Add the clipped sum of the records to ``out``; return their squared norms, not finite where they are not."""
        rows, squared_norm, products = self._terms(fixed, now, before)
        found, x = squared_norm, fixed.x
        if not math.isfinite(float(squared_norm.sum())):
            # A record with a non-finite gradient counts as zero; 0 * inf would not.
            usable = torch.isfinite(squared_norm)
            rows, x, squared_norm = (_only(usable, values) for values in (rows, x, squared_norm))
            products = [_usable(usable, product) for product in products]
        if radius < math.inf:
            weights = weights * clip_factors(squared_norm, radius)
        sums = column_sum(weights, rows)
        for index, layer in enumerate(self._network.layers):
            if layer.bias_part is not None:
                out[layer.bias_part].add_(sums[layer.error])
            if layer.written is not None:
                out[layer.weight_part].add_(sums[layer.written])
            elif index == 0 and layer.weight_part is not None:
                out[layer.weight_part].add_(self._weighted(rows[layer.error], x, weights).view(-1))
        for product in products:
            self._add_products(out, product, weights)
        return found

    def _terms(self, fixed: _Fixed, now: Pass, before: Pass | None) -> tuple[Tensor, Tensor, list[_Products]]:
        """Return the rows of gradients or differences, their squared norms, and the products of layers with pairs."""
        network = self._network
        if before is None:
            rows = now.rows
        else:
            rows = torch.sub(now.rows, before.rows, out=network.memory("rows", network.rows, now.rows))
        squares = torch.mul(rows, rows, out=network.memory("squares", network.rows, rows))
        first, written, *errors = self._chosen_sums(squares)
        norm = torch.addcmul(written, first, fixed.gain)
        products = []
        for layer, dg_square in zip(self._with_pairs(), errors, strict=True):
            if before is None:
                a, g = now.inputs[layer.inputs], now.rows[layer.error]
                norm += self._square(a) * dg_square * (1 + self._slack)
                products.append(_Products(layer, [(g, a)], None))
                continue
            a, g, previous, dg = (
                now.inputs[layer.inputs], now.rows[layer.error], before.inputs[layer.inputs], rows[layer.error],
            )  # fmt: skip
            da = torch.sub(a, previous, out=network.memory(f"da {layer.inputs}", len(a), a))
            magnitude = (self._square(da) * self._square(g)).addcmul_(self._square(previous), dg_square)
            cross = self._dot(da, previous) * self._dot(g, dg)
            mine = magnitude.add(cross, alpha=2).clamp_(min=0)
            products.append(_Products(layer, [(g, da), (dg, previous)], magnitude.sub(mine, alpha=CANCELLATION)))
            norm += mine.add_(magnitude, alpha=self._slack)
        return rows, norm, products

    def _with_pairs(self) -> list[Layer]:
        return [layer for layer in self._network.layers if layer.inputs is not None]

    def _row_choices(self) -> list[list[slice]]:
        """Return which rows are added up: of the first layer, of what is written out, of each layer with pairs."""
        layers = self._network.layers
        first = [layers[0].error] if layers[0].error is not None else []
        written = [layer.written for layer in layers if layer.written is not None]
        written += [layer.error for layer in layers[1:] if layer.error is not None and layer.bias_part is not None]
        return [first, written, *([layer.error] for layer in self._with_pairs() if layer.error is not None)]

    def _chosen_sums(self, squares: Tensor) -> Sequence[Tensor]:
        """Return the sums of chosen squares, raised by what may underflow, and what is written out by rounding."""
        if len(squares) <= NARROW:  # a product with ones, many times as fast as sums
            return torch.addmm(self._tiny, self._choice, squares).unbind()
        sums = []
        for parts in self._choices:
            total = squares.new_full(squares.shape[1:], float(self._tiny))
            for part in parts:
                total += squares[part].sum(0)
            sums.append(total)
        sums[1] *= 1 + self._slack
        return sums

    def _square(self, x: Tensor) -> Tensor:
        return self._dot(x, x).add_(len(x) * torch.finfo(x.dtype).tiny)

    def _dot(self, x: Tensor, y: Tensor) -> Tensor:
        product = torch.mul(x, y, out=self._network.memory("product", len(x), x))
        return product.sum(0)

    def _weighted(self, left: Tensor, right: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sum of products; the narrower factor is scaled."""
        narrow = min(left, right, key=len)
        scaled = torch.mul(narrow, weights, out=self._network.memory("scaled", len(narrow), narrow))
        return column_product_sum(scaled, right) if narrow is left else column_product_sum(left, scaled)

    def _add_products(self, out: Vector, product: _Products, weights: Tensor) -> None:
        part, cancelling = product.layer.weight_part, product.cancelling
        if cancelling is not None and float(cancelling.max()) > 0:
            # The products of a record may each be larger than their sum, and so may be their rounding.
            apart = (cancelling > 0).nonzero().squeeze(1)
            chosen = weights[apart].double()
            for left, right in product.pairs:
                out[part].add_(((left[:, apart] * chosen) @ right[:, apart].double().t()).view(-1))
            weights = weights.masked_fill(cancelling > 0, 0.0)
        for left, right in product.pairs:
            out[part].add_(self._weighted(left, right, weights).view(-1))


def _only(usable: Tensor, values: Tensor) -> Tensor:
    """Return the values with the columns that are not usable set to zero."""
    return torch.where(usable, values, torch.zeros_like(values))


def _usable(usable: Tensor, product: _Products) -> _Products:
    pairs = [(_only(usable, left), _only(usable, right)) for left, right in product.pairs]
    cancelling = None if product.cancelling is None else _only(usable, product.cancelling)
    return product._replace(pairs=pairs, cancelling=cancelling)
