r"""How the gradient of one record looks in a layer: one small rule a layer type.

A layer receives ``a`` and its output gets the back-propagated error ``g``. The gradient of record i is a sum over
positions t (words, pixels) of :math:`a_{it} \otimes g_{it}`, so its norm and its weighted sum over records are had without
a tensor of size records x parameters. For the **difference** between two iterates, with :math:`da = a - a'` and
:math:`dg = g - g'`,

.. math::
    a \otimes g - a' \otimes g' = da \otimes g + a' \otimes dg,

every term of which is already small. The norm and the sum are computed from these very terms: a record that is clipped
to the radius in the norm is clipped in the sum.

Every rule returns a :class:`Term`. Its ``magnitude`` is the size of what was added up to the squared norm, hence of its
rounding error; the engine adds a multiple of it, so that a norm is never underestimated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._types import Vector


class Feature(NamedTuple):
    """What a layer saw and what came back, for a chunk of records."""

    a: Tensor
    g: Tensor
    a_square: Tensor | None = None  # |a|^2 of each record, kept where the layer reads the records themselves


class Term(NamedTuple):
    """A layer's share of the clipped sum: squared norms first, then the sum with the weights found from them."""

    squared_norm: Tensor
    magnitude: Tensor
    add_sum: Callable[[Tensor, Vector], None]  # (weights, out): out += weighted sum over records


class Rule:
    """A layer type's gradient. ``weight`` and ``bias`` say where the parameters stand in the flat vector."""

    def __init__(self, module: nn.Module, weight: slice | None, bias: slice | None):
        self.module = module
        self.weight = weight
        self.bias = bias

    def capture(self, layer_input: Tensor) -> Tensor:
        """Return what is kept of the layer's input."""
        return layer_input

    def gradient(self, feature: Feature) -> Term:
        """Return the term of the per-record gradients."""
        raise NotImplementedError

    def difference(self, feature: Feature, previous: Feature) -> Term:
        """Return the term of the per-record differences to the gradients at the previous iterate."""
        raise NotImplementedError

    def workspace(self, feature: Feature) -> int:
        """Return how many numbers a record needs beyond its features, for the choice of the chunk size."""
        return 0


class Linear(Rule):
    """``nn.Linear``: one outer product a record, or a sum of them over positions for inputs of three dimensions or more."""

    def gradient(self, feature: Feature) -> Term:
        a, g, a_square = feature
        if a.dim() != 2:
            return self._positions(a, g, g)
        return self._one_outer(a, _square(a) if a_square is None else a_square, g)

    def difference(self, feature: Feature, previous: Feature) -> Term:
        dg = feature.g - previous.g
        if feature.a_square is not None:  # the layer reads the records: da = 0
            return self.gradient(feature._replace(g=dg))
        da = feature.a - previous.a
        if feature.a.dim() == 2:
            return self._two_outers(da, feature.g, previous.a, dg)
        return self._positions(torch.cat([da, previous.a], dim=1), torch.cat([feature.g, dg], dim=1), dg)

    def workspace(self, feature: Feature) -> int:
        positions = feature.a[0].numel() // feature.a.shape[-1]
        if feature.a.dim() == 2:
            return 0
        size = feature.a.shape[-1] * feature.g.shape[-1]
        return size if _materialise(size, 2 * positions) else 8 * positions**2

    def _one_outer(self, a: Tensor, a_square: Tensor, g: Tensor) -> Term:
        g_square = _square(g)
        norm = g_square * (a_square * (self.weight is not None) + (self.bias is not None))

        def add_sum(weights: Tensor, out: Vector) -> None:
            weighted = g * weights.unsqueeze(1)
            if self.weight is not None:
                out[self.weight] += (weighted.t() @ a).view(-1)
            if self.bias is not None:
                out[self.bias] += weighted.sum(0)

        return Term(norm, norm, add_sum)

    def _two_outers(self, da: Tensor, g: Tensor, a: Tensor, dg: Tensor) -> Term:
        """Da (x) g + a (x) dg, and dg for the bias."""
        dg_square = _square(dg)
        norm = magnitude = torch.zeros_like(dg_square)
        if self.weight is not None:
            magnitude = _square(da) * _square(g) + _square(a) * dg_square
            norm = magnitude + 2 * _dot(da, a) * _dot(g, dg)
        if self.bias is not None:
            norm, magnitude = norm + dg_square, magnitude + dg_square

        def add_sum(weights: Tensor, out: Vector) -> None:
            column = weights.unsqueeze(1)
            weighted = dg * column
            if self.weight is not None:
                out[self.weight] += torch.addmm((g * column).t() @ da, weighted.t(), a).view(-1)
            if self.bias is not None:
                out[self.bias] += weighted.sum(0)

        return Term(norm, magnitude, add_sum)

    def _positions(self, a: Tensor, g: Tensor, bias: Tensor) -> Term:
        left = a.reshape(a.shape[0], 1, -1, a.shape[-1])
        right = g.reshape(g.shape[0], 1, -1, g.shape[-1])
        weight = None if self.weight is None else outer_sum(left, right, self.weight)
        return _joined(weight, self._bias_term(bias.reshape(g.shape[0], -1, g.shape[-1]).sum(1)))

    def _bias_term(self, bias: Tensor) -> Term | None:
        return None if self.bias is None else explicit(bias, self.bias)


class Conv(Linear):
    """``nn.Conv1d`` and ``nn.Conv2d``: a linear layer whose positions are the places of the kernel."""

    module: nn.Conv1d | nn.Conv2d

    def gradient(self, feature: Feature) -> Term:
        return self._places([feature.a], [feature.g], feature.g)

    def difference(self, feature: Feature, previous: Feature) -> Term:
        dg = feature.g - previous.g
        if feature.a_square is not None:
            return self._places([feature.a], [dg], dg)
        return self._places([feature.a - previous.a, previous.a], [feature.g, dg], dg)

    def workspace(self, feature: Feature) -> int:
        places = feature.g[0, 0].numel()
        patch = self.module.weight[0].numel() * self.module.groups
        size = self.module.weight.numel()
        return 2 * places * patch + (size if _materialise(size, 2 * places) else 8 * places**2)

    def _places(self, inputs: list[Tensor], errors: list[Tensor], bias: Tensor) -> Term:
        weight = None
        if self.weight is not None:
            left = torch.cat([self._patches(a) for a in inputs], dim=2)
            right = torch.cat([self._channels(g) for g in errors], dim=2)
            weight = outer_sum(left, right, self.weight)
        return _joined(weight, self._bias_term(bias.flatten(2).sum(2)))

    def _patches(self, a: Tensor) -> Tensor:
        """Return (records, groups, places, patch): what the kernel sees at each place. Linear in ``a``."""
        conv = self.module
        mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
        a = F.pad(a, conv._reversed_padding_repeated_twice, mode=mode)
        one = a.dim() == 3  # Conv1d is Conv2d of height one
        kernel, dilation, stride = (
            (1, *size) if one else size for size in (conv.kernel_size, conv.dilation, conv.stride)
        )
        patches = F.unfold(a.unsqueeze(2) if one else a, kernel, dilation=dilation, stride=stride)
        return patches.view(a.shape[0], conv.groups, -1, patches.shape[-1]).transpose(2, 3)

    def _channels(self, g: Tensor) -> Tensor:
        """Return (records, groups, places, output channels of the group)."""
        return g.reshape(g.shape[0], self.module.groups, g.shape[1] // self.module.groups, -1).transpose(2, 3)


class Embedding(Rule):
    """``nn.Embedding``: the gradient of a record has one row for each index it holds."""

    module: nn.Embedding

    def gradient(self, feature: Feature) -> Term:
        return self._rows(feature.a, feature.g)

    def difference(self, feature: Feature, previous: Feature) -> Term:
        if torch.equal(feature.a, previous.a):
            return self._rows(feature.a, feature.g - previous.g)
        indices = torch.cat([feature.a.flatten(1), previous.a.flatten(1)], dim=1)
        return self._rows(indices, torch.cat([_by_position(feature.g), -_by_position(previous.g)], dim=1))

    def workspace(self, feature: Feature) -> int:
        return 4 * feature.a[0].numel() ** 2

    def _rows(self, indices: Tensor, values: Tensor) -> Term:
        indices, values = indices.reshape(indices.shape[0], -1), _by_position(values)
        if self.module.padding_idx is not None:
            values = values * (indices != self.module.padding_idx).unsqueeze(-1)
        if indices.shape[1] == 1:
            norm = magnitude = values.square().sum((1, 2))
        else:
            same = indices.unsqueeze(1) == indices.unsqueeze(2)
            norm = (torch.bmm(values, values.transpose(1, 2)) * same).sum((1, 2))
            magnitude = torch.linalg.vector_norm(values, dim=2).sum(1).square()

        def add_sum(weights: Tensor, out: Vector) -> None:
            rows = (values * weights.view(-1, 1, 1)).flatten(0, 1).to(out.dtype)
            out[self.weight].view(self.module.weight.shape).index_add_(0, indices.flatten(), rows)

        return Term(norm, magnitude, add_sum)


class LayerNorm(Rule):
    """``nn.LayerNorm``: the per-record gradient is as small as the layer, so it is written out."""

    module: nn.LayerNorm

    def capture(self, layer_input: Tensor) -> Tensor:
        return F.layer_norm(layer_input, self.module.normalized_shape, eps=self.module.eps)

    def gradient(self, feature: Feature) -> Term:
        return self._terms(feature.a * feature.g, feature.g)

    def difference(self, feature: Feature, previous: Feature) -> Term:
        dg = feature.g - previous.g
        return self._terms((feature.a - previous.a) * feature.g + previous.a * dg, dg)

    def _terms(self, weight: Tensor, bias: Tensor) -> Term:
        return _joined(
            None if self.weight is None else explicit(self._sum_positions(weight), self.weight),
            None if self.bias is None else explicit(self._sum_positions(bias), self.bias),
        )

    def _sum_positions(self, values: Tensor) -> Tensor:
        return values.reshape(values.shape[0], -1, self.module.weight.numel()).sum(1)


class GroupNorm(LayerNorm):
    """``nn.GroupNorm``: one scale a channel, summed over the places of the channel."""

    module: nn.GroupNorm  # type: ignore[assignment]

    def capture(self, layer_input: Tensor) -> Tensor:
        return F.group_norm(layer_input, self.module.num_groups, eps=self.module.eps)

    def _sum_positions(self, values: Tensor) -> Tensor:
        return values.reshape(values.shape[0], values.shape[1], -1).sum(2)


RULES: dict[type[nn.Module], type[Rule]] = {
    nn.Linear: Linear,
    nn.Conv1d: Conv,
    nn.Conv2d: Conv,
    nn.Embedding: Embedding,
    nn.LayerNorm: LayerNorm,
    nn.GroupNorm: GroupNorm,
}


def explicit(values: Tensor, part: slice) -> Term:
    """Return the term of per-record gradients that are written out: (records, size of the part)."""
    norm = _square(values)

    def add_sum(weights: Tensor, out: Vector) -> None:
        out[part] += weights @ values

    return Term(norm, norm, add_sum)


def outer_sum(left: Tensor, right: Tensor, part: slice) -> Term:
    """Return the term of sum over t of left_t (x) right_t, for (records, groups, t, inputs) and (.., t, outputs).

    The norm is taken from the written-out gradients or from the t x t products of the rows, whichever is smaller.
    """
    size = left.shape[1] * left.shape[3] * right.shape[3]
    if _materialise(size, left.shape[2]):
        return explicit((right.transpose(2, 3) @ left).flatten(1), part)
    left_products, right_products = left @ left.transpose(2, 3), right @ right.transpose(2, 3)
    norm = (left_products * right_products).sum((1, 2, 3))
    lengths = left_products.diagonal(dim1=2, dim2=3) * right_products.diagonal(dim1=2, dim2=3)
    magnitude = lengths.clamp(min=0).sqrt().sum(2).square().sum(1)

    def add_sum(weights: Tensor, out: Vector) -> None:
        weighted = (right * weights.view(-1, 1, 1, 1)).transpose(0, 1).flatten(1, 2)  # (groups, records t, outputs)
        out[part] += (weighted.transpose(1, 2) @ left.transpose(0, 1).flatten(1, 2)).reshape(-1)

    return Term(norm, magnitude, add_sum)


def _joined(first: Term | None, second: Term | None) -> Term:
    """Return two terms of one layer as one."""
    if first is None or second is None:
        only = first or second
        if only is None:
            raise ValueError("a rule needs a trainable weight or bias")
        return only

    def add_sum(weights: Tensor, out: Vector) -> None:
        first.add_sum(weights, out)
        second.add_sum(weights, out)

    return Term(first.squared_norm + second.squared_norm, first.magnitude + second.magnitude, add_sum)


def _materialise(size: int, positions: int) -> bool:
    return size <= 2 * positions**2


def _by_position(values: Tensor) -> Tensor:
    return values.reshape(values.shape[0], -1, values.shape[-1])


def _square(x: Tensor) -> Tensor:
    return _dot(x, x)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    """Return the dot product of each row. A product with ones is twice as fast as ``sum(1)`` for narrow rows."""
    product = x * y
    return product.squeeze(1) if product.shape[1] == 1 else product @ product.new_ones(product.shape[1])
