r"""What a rule for a layer is, and the parts that rules are made of.

A layer receives ``a`` and its output gets the back-propagated error ``g``. The gradient of record i is a sum over
positions t (words, pixels) of :math:`a_{it} \otimes g_{it}`, so its norm and its weighted sum over records are had
without a tensor of size records x parameters. For the **difference** between two iterates, with :math:`da = a - a'`
and :math:`dg = g - g'`,

.. math::
    a \otimes g - a' \otimes g' = da \otimes g + a' \otimes dg,

every term of which is already small. The norm and the sum are computed from these very terms: a record that is clipped
to the radius in the norm is clipped in the sum.

Every rule returns a :class:`Term`. Its squared norm is never an underestimate: it is raised by ``SLACK`` units of
rounding of the *magnitude*, the size of what was added up to it. Where terms nearly cancel, the magnitude is much
larger than the norm, and the record is clipped a little more than it need be; nowhere is it clipped less.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._types import Vector
from .sums import BLOCK, product_sum

SLACK = 32  # units of rounding; 2e-6 of the norm in single precision
NARROW = 32  # columns that are added up in one chain
CANCELLATION = 8  # squared size of the products that make up a record's gradient, in units of its squared norm


class Feature(NamedTuple):
    """What a layer saw and what came back, for a chunk of records."""

    a: Tensor
    g: Tensor
    static: Tensor | None = None  # what the rule keeps of ``a`` where the layer reads the records themselves


class Term(NamedTuple):
    """A layer's share of the clipped sum: squared norms first, then the sum with the weights found from them."""

    squared_norm: Tensor  # rounded up
    add_sum: Callable[[Tensor, Vector], None]  # (weights, out): out += weighted sum over records


class Rule:
    """A layer type's gradient. ``weight`` and ``bias`` say where the parameters stand in the flat vector."""

    module: Any  # the layer; every type that has a rule has a ``weight``

    def __init__(self, module: nn.Module, weight: slice | None, bias: slice | None, dtype: torch.dtype):
        self.module = module
        self.weight = weight
        self.bias = bias
        self.slack = SLACK * torch.finfo(dtype).eps
        self.raise_by = 1 + self.slack
        self.tiny = torch.finfo(dtype).tiny
        self._buffers: dict[tuple[Any, ...], Tensor] = {}
        self._ones = torch.ones(NARROW, dtype=dtype, device=self.module.weight.device)
        self._tiny = torch.full((1,), NARROW * self.tiny, dtype=dtype, device=self.module.weight.device)

    def capture(self, layer_input: Tensor) -> Tensor:
        """Return what is kept of the layer's input."""
        return layer_input

    def by_owner(self, values: Tensor, owners: tuple[int, ...]) -> Tensor:
        """Return (owners, rows, ...) from (owners x rows, ...), where a record is an owner with several rows.

        The rows are then positions like any others, over which the gradient is summed.
        """
        return values.unflatten(0, owners)

    def static(self, a: Tensor) -> Tensor:
        """Return what can be computed once where ``a`` is the records, which no iterate changes."""
        return a.new_empty(0)

    def gradient(self, feature: Feature) -> Term:
        """Return the term of the per-record gradients."""
        raise NotImplementedError

    def difference(self, feature: Feature, previous: Feature) -> Term:
        """Return the term of the per-record differences to the gradients at the previous iterate."""
        raise NotImplementedError

    def workspace(self, feature: Feature) -> int:
        """Return how many numbers a record needs beyond its features, for the choice of the chunk size."""
        return 0

    def scaled(self, name: str, feature: Feature, factors: Tensor) -> Feature:
        """Return the feature of gradients times a factor a record: a gradient is linear in ``g``."""
        column = factors.view(-1, *[1] * (feature.g.dim() - 1))
        return feature._replace(g=torch.mul(feature.g, column, out=self._buffer(name, feature.g)))

    def explicit(self, values: Tensor, part: slice) -> Term:
        """Return the term of per-record gradients that are written out: (records, size of the part)."""

        def add_sum(weights: Tensor, out: Vector) -> None:
            out[part].add_(product_sum(weights.unsqueeze(1), values).view(-1))

        return Term(self._square(values) * self.raise_by, add_sum)

    def outer_sum(self, left: Tensor, right: Tensor, part: slice) -> Term:
        """Return the term of sum over t of left_t (x) right_t, for (records, groups, t, inputs) and (.., t, outputs).

        The norm is taken from the written-out gradients or from the t x t products of the rows, whichever is smaller.
        """
        size, positions = left.shape[1] * left.shape[3] * right.shape[3], left.shape[2]
        if written_out(size, positions):
            return self.explicit((right.transpose(2, 3) @ left).flatten(1), part)
        left_products, right_products = left @ left.transpose(2, 3), right @ right.transpose(2, 3)
        norm = (left_products * right_products).sum((1, 2, 3)).clamp_(min=0)
        lengths = left_products.diagonal(dim1=2, dim2=3) * right_products.diagonal(dim1=2, dim2=3)
        magnitude = lengths.clamp(min=0).sqrt().sum(2).square().sum(1)
        # A matrix product adds long rows up in one chain.
        slack = self.slack * (1 + math.sqrt(left.shape[3] + right.shape[3]) / 8)
        # Products of one record may be larger than their sum; the fewer records a block holds, the less it matters. A
        # record that fills blocks of its own may still be no larger than the records of one block together.
        cancelling = bool((magnitude > max(CANCELLATION, min(positions, BLOCK) ** 2) * norm).any())

        def add_sum(weights: Tensor, out: Vector) -> None:
            weighted = right * weights.view(-1, 1, 1, 1)
            factors = [
                (r.flatten(0, 1), a.flatten(0, 1)) for r, a in zip(weighted.unbind(1), left.unbind(1), strict=True)
            ]
            if cancelling:
                sums = [r.double().t() @ a.double() for r, a in factors]
            else:
                sums = [product_sum(r, a) for r, a in factors]
            out[part].add_(torch.cat([value.view(-1) for value in sums]))

        return Term(norm.add(magnitude, alpha=slack), add_sum)

    def _buffer(self, name: str, like: Tensor) -> Tensor:
        """Return memory of this shape that is used again and again: fresh pages cost more than the sums."""
        key = (name, *like.shape)
        buffer = self._buffers.get(key)
        if buffer is None:
            if len(self._buffers) > 16:  # chunks of ever other sizes: do not keep them all
                self._buffers.clear()
            buffer = self._buffers[key] = torch.empty(key[1:], dtype=like.dtype, device=like.device)
        return buffer

    def _dot(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the dot product of each row.

        For narrow rows a product with ones is twice as fast as ``sum(1)``. For wide ones it is not, and would add up in
        one chain, whose rounding exceeds the slack.
        """
        product = torch.mul(x, y, out=self._buffer("product", x))
        return product.sum(1) if x.shape[1] > NARROW else torch.mv(product, self._ones[: x.shape[1]])

    def _square(self, x: Tensor) -> Tensor:
        """Return |x|^2 of each row, raised by what may have underflowed: it may be multiplied by something huge."""
        product = torch.mul(x, x, out=self._buffer("product", x))
        if x.shape[1] > NARROW:
            return product.sum(1).add_(x.shape[1] * self.tiny)
        return torch.addmv(self._tiny, product, self._ones[: x.shape[1]])

    def _minus(self, name: str, x: Tensor, y: Tensor) -> Tensor:
        return torch.sub(x, y, out=self._buffer(name, x))


def joined(first: Term | None, second: Term | None) -> Term:
    """Return two terms of one layer as one."""
    if first is None or second is None:
        only = first or second
        if only is None:
            raise ValueError("a rule needs a trainable weight or bias")
        return only

    def add_sum(weights: Tensor, out: Vector) -> None:
        first.add_sum(weights, out)
        second.add_sum(weights, out)

    return Term(first.squared_norm + second.squared_norm, add_sum)


def written_out(size: int, positions: int) -> bool:
    """Whether a gradient of this size is cheaper to write out than the products of all pairs of positions."""
    return size <= 2 * positions**2
