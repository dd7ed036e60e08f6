r"""Norms and weighted sums of per-record gradients with records as columns; the mathematics is in ``rules.py``.

Three kinds of layers:

* the first reads the records, which no iterate changes: its difference is :math:`dg \otimes x`, of the squared norm
  :math:`|dg|^2 (|x|^2 + 1)`, bias included;
* a layer of one output has its gradients written out, and their difference is taken number by number;
* the difference of any other layer is :math:`da \otimes g + a' \otimes dg`; records whose two products nearly cancel
  are written out alone, in double precision.

A squared norm is never an underestimate: it is raised by ``SLACK`` units of rounding of what it is the sum of.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..models.losses import squared
from .column_passes import Pass, Passes, Stack
from .records import Records, clip_factors, zeroed
from .rules import CANCELLATION, SLACK
from .sums import Columns, Total, column_sum, written_alone


class Fixed(NamedTuple):
    """What depends on the records of a chunk alone."""

    x: Tensor  # (inputs, records)
    columns: Columns  # of x
    gain: Tensor  # squared norm of the first layer's gradient in units of |g|^2, rounded up
    floor: Tensor  # at least what may have underflowed in a squared norm
    targets: Tensor | None  # as columns, for the squared loss


class _Products(NamedTuple):
    """The gradients of a layer as a sum of products error (x) input."""

    pairs: list[tuple[Tensor, Tensor]]
    cancelling: Tensor | None = None  # above zero where the products are much longer than their sum


class _Terms(NamedTuple):
    """Per-record gradients or differences, before they are weighted."""

    stack: Stack
    squared_norm: Tensor
    products: dict[int, _Products]  # by layer


class _Workspace:
    """Memory of a chunk, reused from sum to sum: fresh pages cost more than the sums."""

    def __init__(self, passes: Passes, like: Tensor):
        def rows(count: int) -> Tensor:
            return like.new_empty(count, like.shape[1])

        layers, places = passes.network.layers, passes.places
        self.squares = rows(passes.rows)
        self.squares_of_first = None if places[0].error is None else self.squares[places[0].error]
        self.squares_written = [self.squares[part] for part in _order(passes, 1) if isinstance(part, slice)]
        self.squares_of_errors = {
            index: self.squares[place.error] for index, place in enumerate(places) if place.inputs and place.error
        }
        self.weights = rows(1)
        self.weight_row = self.weights[0]
        self.weight_columns = Columns.of(self.weights)
        self.scaled = rows(min(layers[0].weight.shape))
        self.scaled_columns = Columns.of(self.scaled)
        self.steps = {  # a - a'
            index: rows(layers[index].weight.shape[1]) for index, place in enumerate(places) if place.inputs
        }
        self._scratch = rows(max(max(layer.weight.shape) for layer in layers))

    def scratch(self, like: Tensor) -> Tensor:
        """Return memory of this shape, valid until the next call."""
        return self._scratch[: like.shape[0]]


class ColumnTerms:
    """Clipped sums from passes over the records of a chunk."""

    def __init__(self, passes: Passes):
        self._passes = passes
        self._network = passes.network
        self._slack = SLACK * torch.finfo(self._network.flat.dtype).eps
        self._tiny = torch.finfo(self._network.flat.dtype).tiny
        self._order = _order(passes)
        self._with_products = [index for index, place in enumerate(passes.places) if place.inputs is not None]
        self._workspaces: dict[int, _Workspace] = {}

    def fixed(self, chunk: Records) -> Fixed:
        """Return the records as columns, with what follows from them alone."""
        network, x = self._network, _apart(chunk.inputs.t().contiguous())
        first = network.layers[0]
        gain = x.new_zeros(chunk.size)
        if first.weight_part is not None:
            gain += (x * x).sum(0) + x.shape[0] * self._tiny
        if first.bias_part is not None:
            gain += 1
        gain *= 1 + self._slack
        targets = None
        if network.loss is squared and chunk.targets.shape == (chunk.size, network.layers[-1].width):
            targets = chunk.targets.t().contiguous()
        return Fixed(x, Columns.of(x), gain, (gain + 1) * (self._passes.rows * self._tiny), targets)

    def add(
        self, out: Total, fixed: Fixed, weights: Tensor, radius: float, now: Pass, before: Pass | None = None
    ) -> None:
        """Add the clipped sum of gradients, or of their differences to ``before``, which is overwritten."""
        space = self._workspace(fixed.x)
        terms = self._terms(fixed, now, before)
        if not math.isfinite(float(terms.squared_norm.sum())):
            # A record without a finite gradient counts as zero; 0 * inf would not.
            fixed, terms = self._usable(fixed, terms, torch.isfinite(terms.squared_norm))
        if radius < math.inf:
            torch.mul(clip_factors(terms.squared_norm, radius), weights, out=space.weight_row)
        else:
            space.weight_row.copy_(weights)
        sums, start = column_sum(space.weight_columns, terms.stack.columns), 0
        for what in self._order:
            if isinstance(what, slice):
                size, tiles = what.stop - what.start, iter([sums[:, :, what]])
            else:
                size = self._network.layers[what].weight.numel()
                first = what == 0
                tiles = (
                    self._first_sum(fixed, terms.stack, space)
                    if first
                    else self._product_sum(terms.products[what], space)
                )
            for some in tiles:
                out.add(slice(start, start + size), some)
            start += size

    def squared_norms(self, fixed: Fixed, now: Pass) -> Tensor:
        """Return the squared norm of each record's gradient."""
        return self._terms(fixed, now, None).squared_norm

    def _terms(self, fixed: Fixed, now: Pass, before: Pass | None) -> _Terms:
        space, stack = self._workspace(fixed.x), now.stack
        if before is not None:  # it is read for the last time here: the difference takes its place
            stack = before.stack
            torch.sub(now.stack.rows, stack.rows, out=stack.rows)
        torch.mul(stack.rows, stack.rows, out=space.squares)
        norm = fixed.floor
        for squares in space.squares_written:
            norm = torch.add(norm, squares.sum(0), alpha=1 + self._slack)
        if space.squares_of_first is not None:
            norm = torch.addcmul(norm, space.squares_of_first.sum(0), fixed.gain)
        products = {}
        for index in self._with_products:
            square, products[index] = self._products(index, now, before, stack, space)
            norm = norm + square
        return _Terms(stack, norm, products)

    def _products(
        self, index: int, now: Pass, before: Pass | None, stack: Stack, space: _Workspace
    ) -> tuple[Tensor, _Products]:
        """Return the squared norm of a layer's weight gradients, and the products they are sums of."""
        a, g = now.inputs[index], now.errors[index]
        error_square = space.squares_of_errors[index].sum(0).add_(g.shape[0] * self._tiny)
        if before is None:
            return self._square(a, space) * error_square * (1 + self._slack), _Products([(g, a)])
        previous, dg = before.inputs[index], stack.errors[index]
        da = torch.sub(a, previous, out=space.steps[index])
        magnitude = (self._square(da, space) * self._square(g, space)).addcmul_(
            self._square(previous, space), error_square
        )
        cross = self._dot(da, previous, space) * self._dot(g, dg, space)
        norm = magnitude.add(cross, alpha=2).clamp_(min=0)
        # The products of a record may each be larger than their sum, and so may their rounding errors.
        cancelling = magnitude.sub(norm, alpha=CANCELLATION)
        return norm.add_(magnitude, alpha=self._slack), _Products([(g, da), (dg, previous)], cancelling)

    def _first_sum(self, fixed: Fixed, stack: Stack, space: _Workspace) -> Iterator[Tensor]:
        """Yield the weighted sums of error (x) record over the tiles; the narrower factor is scaled."""
        error = stack.errors[0]
        if error.shape[0] <= fixed.x.shape[0]:
            torch.mul(error, space.weights, out=space.scaled)
            yield column_sum(space.scaled_columns, fixed.columns)
            return
        torch.mul(fixed.x, space.weights, out=space.scaled)
        yield column_sum(stack.first_columns, space.scaled_columns)

    def _product_sum(self, products: _Products, space: _Workspace) -> Iterator[Tensor]:
        """Yield the weighted sums of products over the tiles; of records whose products nearly cancel, alone."""
        weights, cancelling = space.weights, products.cancelling
        if cancelling is not None and float(cancelling.max()) > 0:  # few, and rarely any
            rows = [(left.t(), right.t()) for left, right in products.pairs]
            yield from written_alone(rows, weights[0], (cancelling > 0).nonzero().flatten())
            weights = weights.masked_fill(cancelling > 0, 0.0)
        for left, right in products.pairs:
            narrow = left if left.shape[0] <= right.shape[0] else right
            scaled = torch.mul(narrow, weights, out=space.scratch(narrow))
            both = (scaled, right) if narrow is left else (left, scaled)
            yield column_sum(*map(Columns.of, both))

    def _usable(self, fixed: Fixed, terms: _Terms, usable: Tensor) -> tuple[Fixed, _Terms]:
        """Set everything that belongs to other records to zero."""
        x = zeroed(fixed.x, usable)
        stack = Stack(self._passes, x)
        stack.rows.copy_(zeroed(terms.stack.rows, usable))
        products = {
            index: _Products(
                [(zeroed(left, usable), zeroed(right, usable)) for left, right in product.pairs],
                None if product.cancelling is None else zeroed(product.cancelling, usable),
            )
            for index, product in terms.products.items()
        }
        fixed = fixed._replace(x=x, columns=Columns.of(x))
        return fixed, _Terms(stack, zeroed(terms.squared_norm, usable), products)

    def _workspace(self, like: Tensor) -> _Workspace:
        found = self._workspaces.get(like.shape[1])
        if found is None:
            if len(self._workspaces) > 3:  # the sizes of chunks keep changing: do not keep them all
                self._workspaces.clear()
            found = self._workspaces[like.shape[1]] = _Workspace(self._passes, like)
        return found

    def _square(self, x: Tensor, space: _Workspace) -> Tensor:
        return self._dot(x, x, space).add_(x.shape[0] * self._tiny)

    def _dot(self, x: Tensor, y: Tensor, space: _Workspace) -> Tensor:
        return torch.mul(x, y, out=space.scratch(x)).sum(0)


def _apart(x: Tensor) -> Tensor:
    """Return many rows of a round length a little apart: else all of them compete for the same cache lines."""
    if x.shape[0] < 32 or x.stride(0) * x.element_size() % 2048:
        return x
    return x.new_empty(x.shape[0], x.shape[1] + 64 // x.element_size())[:, : x.shape[1]].copy_(x)


def _order(passes: Passes, start: int = 0) -> list[int | slice]:
    """Return where the parts of the flat vector come from: rows of a stack, or the products of a layer (its index)."""
    order: list[int | slice] = []

    def rows(part: slice) -> None:
        last = order[-1] if order else None
        if isinstance(last, slice) and last.stop == part.start:
            order[-1] = slice(last.start, part.stop)
        else:
            order.append(part)

    for index in range(start, len(passes.places)):
        layer, place = passes.network.layers[index], passes.places[index]
        if place.written is not None:
            rows(place.written)
        elif layer.weight_part is not None:
            order.append(index)
        if layer.bias_part is not None and place.error is not None:
            rows(place.error)
    return order
