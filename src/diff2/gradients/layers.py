"""The rules of PyTorch's own layers. The mathematics is in ``rules.py``."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .rules import CANCELLATION, Feature, Rule, Term, joined, register_rule, written_out
from .sums import BLOCK, ROUNDINGS, Total, product_sum, row_sum, written_alone


class Linear(Rule):
    """``nn.Linear``: one outer product per record; for inputs of three dimensions or more, a sum over positions."""

    def static(self, a: Tensor) -> Tensor:
        return self._gain(self._square(a)) if a.dim() == 2 else super().static(a)

    def gradient(self, feature: Feature) -> Term:
        if feature.a.dim() != 2:
            return self._positions(feature.a, feature.g, feature.g)
        gain = self._gain(self._square(feature.a)) if feature.static is None else feature.static
        return self._one_outer(feature.a, gain, feature.g)

    def difference(self, feature: Feature, previous: Feature) -> Term:
        dg = self._minus("dg", feature.g, previous.g)
        if feature.static is not None:  # the layer reads the records: da = 0
            return self.gradient(feature._replace(g=dg))
        da = self._minus("da", feature.a, previous.a)
        if feature.a.dim() == 2:
            return self._two_outers(da, feature.g, previous.a, dg)
        return self._positions(torch.cat([da, previous.a], dim=1), torch.cat([feature.g, dg], dim=1), dg)

    def written(self, name: str, feature: Feature) -> Tensor:
        a, g = (values.reshape(values.shape[0], -1, values.shape[-1]) for values in feature[:2])
        return g.sum(1) if name == "bias" else (g.transpose(1, 2) @ a).flatten(1)

    def workspace(self, feature: Feature) -> int:
        if feature.a.dim() == 2:
            return feature.a.shape[1] * feature.g.shape[1] // BLOCK  # the sums of the blocks
        positions = feature.a[0].numel() // feature.a.shape[-1]
        sizes = feature.a.shape[-1], feature.g.shape[-1]
        return math.prod(sizes) if written_out(*sizes, 2 * positions) else 8 * positions**2

    def _gain(self, a_square: Tensor) -> Tensor:
        """Return the squared norm of the gradient in units of |g|^2: |a|^2 for the weight and 1 for the bias."""
        gain = a_square * self.raise_by if self.weight is not None else torch.zeros_like(a_square)
        return gain + self.raise_by if self.bias is not None else gain

    def _one_outer(self, a: Tensor, gain: Tensor, g: Tensor) -> Term:
        def add_sum(weights: Tensor, out: Total) -> None:
            weighted = torch.mul(g, weights.unsqueeze(1), out=self._buffer("product", g))
            if self.weight is not None:
                out.add(self.weight, product_sum(weighted, a))
            if self.bias is not None:
                out.add(self.bias, row_sum(weighted))

        return Term(self._square(g) * gain, add_sum)

    def _two_outers(self, da: Tensor, g: Tensor, a: Tensor, dg: Tensor) -> Term:
        """Return the term of da (x) g + a (x) dg, and of dg for the bias."""
        if self.weight is None:
            return joined(None, self._bias_term(dg))
        bias = self._bias_term(dg)
        if g.shape[1] == 1:  # the gradient is no wider than its factors: write it out
            written = torch.mul(da, g, out=self._buffer("written", da)).addcmul_(a, dg)
            return joined(self.explicit(written, self.weight), bias)
        magnitude = (self._square(da) * self._square(g)).addcmul_(self._square(a), self._square(dg))
        cross = self._dot(da, a) * self._dot(g, dg)
        norm = magnitude.add(cross, alpha=2).clamp_(min=0)
        return joined(self._outer_pairs([(g, da), (dg, a)], norm, magnitude), bias)

    def _outer_pairs(self, pairs: list[tuple[Tensor, Tensor]], norm: Tensor, magnitude: Tensor) -> Term:
        """Return the term of a sum of products of rows.

        The products of a record may each be larger than their sum, and so may their rounding errors. The few records
        for which they are much larger are written out alone.
        """
        weight = self.parts["weight"]
        cancelling = magnitude > CANCELLATION * norm

        def add_sum(weights: Tensor, out: Total) -> None:
            for vectors in written_alone(pairs, weights, cancelling.nonzero().flatten()):
                out.add(weight, vectors)
            column = weights.masked_fill(cancelling, 0.0).unsqueeze(1)
            for left, right in pairs:
                # Scale the narrower factor.
                left, right = (left * column, right) if left.shape[1] <= right.shape[1] else (left, right * column)
                out.add(weight, product_sum(left, right))

        return Term(norm.add(magnitude, alpha=self.slack), add_sum)

    def _positions(self, a: Tensor, g: Tensor, bias: Tensor) -> Term:
        left = a.reshape(a.shape[0], 1, -1, a.shape[-1])
        right = g.reshape(g.shape[0], 1, -1, g.shape[-1])
        weight = None if self.weight is None else self.outer_sum(left, right, self.weight)
        return joined(weight, self._bias_term(bias))

    def _bias_term(self, bias: Tensor) -> Term | None:
        return None if self.bias is None else self.explicit(bias, self.bias)


class Conv(Linear):
    """``nn.Conv1d`` and ``nn.Conv2d``: a linear layer whose positions are the places of the kernel."""

    module: nn.Conv1d | nn.Conv2d

    def by_group(self, values: Tensor, groups: tuple[int, ...]) -> Tensor:
        return _channels_first(super().by_group(values, groups))

    def static(self, a: Tensor) -> Tensor:
        return a.new_empty(0)

    def gradient(self, feature: Feature) -> Term:
        return self._places([feature.a], [feature.g], feature.g)

    def difference(self, feature: Feature, previous: Feature) -> Term:
        dg = feature.g - previous.g
        if feature.static is not None:
            return self._places([feature.a], [dg], dg)
        return self._places([feature.a - previous.a, previous.a], [feature.g, dg], dg)

    def written(self, name: str, feature: Feature) -> Tensor:
        if name == "bias":
            return feature.g.flatten(2).sum(2)
        return (self._channels(feature.g).transpose(2, 3) @ self._patches(feature.a)).flatten(1)

    def workspace(self, feature: Feature) -> int:
        places = feature.g[0, 0].numel()
        patch = self.module.weight[0].numel() * self.module.groups
        sizes = patch, self.module.weight.numel() // patch
        return 2 * places * patch + (math.prod(sizes) if written_out(*sizes, 2 * places) else 8 * places**2)

    def _places(self, inputs: list[Tensor], errors: list[Tensor], bias: Tensor) -> Term:
        weight = None
        if self.weight is not None:
            left = torch.cat([self._patches(a) for a in inputs], dim=2)
            right = torch.cat([self._channels(g) for g in errors], dim=2)
            weight = self.outer_sum(left, right, self.weight)
        return joined(weight, self._bias_term(bias.flatten(2).sum(2)))

    def _patches(self, a: Tensor) -> Tensor:
        """Return (records, channel groups, places, patch): what the kernel sees at each place. Linear in ``a``."""
        conv = self.module
        if a.dim() > 2 + len(conv.kernel_size):  # (groups, channels, rows, ...): the kernel sees each row by itself
            patches = self._patches(a.transpose(1, 2).flatten(0, 1)).unflatten(0, (a.shape[0], a.shape[2]))
            return patches.transpose(1, 2).flatten(2, 3)
        mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
        a = F.pad(a, conv._reversed_padding_repeated_twice, mode=mode)
        one = a.dim() == 3  # Conv1d is Conv2d of height one
        kernel, dilation, stride = (
            (1, *size) if one else size for size in (conv.kernel_size, conv.dilation, conv.stride)
        )
        patches = F.unfold(a.unsqueeze(2) if one else a, kernel, dilation=dilation, stride=stride)
        return patches.view(a.shape[0], conv.groups, -1, patches.shape[-1]).transpose(2, 3)

    def _channels(self, g: Tensor) -> Tensor:
        """Return (records, channel groups, places, output channels per channel group)."""
        return g.reshape(g.shape[0], self.module.groups, g.shape[1] // self.module.groups, -1).transpose(2, 3)


class Embedding(Rule):
    """``nn.Embedding``: the gradient of a record has one row for each index it holds."""

    module: nn.Embedding

    @classmethod
    def unsuited(cls, module: nn.Module) -> str | None:
        if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.scale_grad_by_freq):
            return "uses max_norm or scale_grad_by_freq"
        return None

    def gradient(self, feature: Feature) -> Term:
        indices, values = self._positions(feature)
        return self._rows(indices, values)

    def difference(self, feature: Feature, previous: Feature) -> Term:
        """Return the term of the differences.

        Where an iterate changes the indices of a record, its two gradients are added row by row, and the sum of the
        lengths of all rows bounds the norm. Other records are none the wiser.
        """
        (indices, now), (old, before) = self._positions(feature), self._positions(previous)
        moved = (indices != old).any(1)
        term = self._rows(indices, (now - before).masked_fill_(moved.view(-1, 1, 1), 0.0))
        lengths = sum(
            torch.linalg.vector_norm(part, dim=2).add(math.sqrt(part.shape[2] * self.tiny)).sum(1)
            for part in (now, before)
        )

        def add_sum(weights: Tensor, out: Total) -> None:
            term.add_sum(weights, out)
            for index, values in ((indices, now), (old, -before)):
                self._add_rows(index[moved], values[moved], weights[moved], out)

        return Term(torch.where(moved, lengths.square() * self.raise_by, term.squared_norm), add_sum)

    def written(self, name: str, feature: Feature) -> Tensor:
        indices, values = self._positions(feature)
        rows = torch.arange(len(indices), device=indices.device).unsqueeze(1) * self.module.num_embeddings + indices
        table = values.new_zeros(len(indices) * self.module.num_embeddings, values.shape[2])
        return table.index_add_(0, rows.flatten(), values.flatten(0, 1)).view(len(indices), -1)

    def workspace(self, feature: Feature) -> int:
        return 4 * feature.a[0].numel() ** 2

    def _positions(self, feature: Feature) -> tuple[Tensor, Tensor]:
        """Return indices, (records, t), and the error at each of them, (records, t, width)."""
        indices = feature.a.reshape(feature.a.shape[0], -1)
        errors = feature.g.reshape(*indices.shape, feature.g.shape[-1])
        if self.module.padding_idx is not None:
            errors = errors * (indices != self.module.padding_idx).unsqueeze(-1)
        return indices, errors

    def _rows(self, indices: Tensor, values: Tensor) -> Term:
        if indices.shape[1] == 1:
            norm = magnitude = values.square().sum((1, 2))
        else:
            same = indices.unsqueeze(1) == indices.unsqueeze(2)
            norm = (torch.bmm(values, values.transpose(1, 2)) * same).sum((1, 2))
            magnitude = torch.linalg.vector_norm(values, dim=2).sum(1).square()
        slack = self.slack + values.shape[2] * self.unit  # a matrix product may add its rows up in one chain
        lost = indices.shape[1] ** 2 * values.shape[2] * self.tiny  # what may have underflowed

        def add_sum(weights: Tensor, out: Total) -> None:
            self._add_rows(indices, values, weights, out)

        return Term(norm.clamp_(min=0).add(magnitude, alpha=slack) + lost, add_sum)

    def _add_rows(self, indices: Tensor, values: Tensor, weights: Tensor, out: Total) -> None:
        rows, shape = values * weights.view(-1, 1, 1), self.module.weight.shape
        if indices.shape[1] <= ROUNDINGS / 2 * math.sqrt(shape[0]):
            out.add_rows(self.parts["weight"], shape, indices.flatten(), rows.flatten(0, 1))
            return
        for index, own in zip(
            indices, rows.double(), strict=True
        ):  # so long that each record is rounded to the grid once
            out.add(self.parts["weight"], own.new_zeros(1, *shape).index_add_(1, index, own.unsqueeze(0)))


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
        return joined(
            None if self.weight is None else self.explicit(weight, self.weight),
            None if self.bias is None else self.explicit(bias, self.bias),
        )


class RMSNorm(LayerNorm):
    """``nn.RMSNorm``: a layer norm without a mean and a bias."""

    module: nn.RMSNorm  # type: ignore[assignment]

    def capture(self, layer_input: Tensor) -> Tensor:
        return F.rms_norm(layer_input, self.module.normalized_shape, eps=self.module.eps)


class GroupNorm(LayerNorm):
    """``nn.GroupNorm``: one scale per channel, summed over the places of the channel."""

    module: nn.GroupNorm  # type: ignore[assignment]

    def by_group(self, values: Tensor, groups: tuple[int, ...]) -> Tensor:
        return _channels_first(super().by_group(values, groups))

    def capture(self, layer_input: Tensor) -> Tensor:
        return F.group_norm(layer_input, self.module.num_groups, eps=self.module.eps)

    def _terms(self, weight: Tensor, bias: Tensor) -> Term:
        return super()._terms(*(values.reshape(*values.shape[:2], -1).sum(2) for values in (weight, bias)))


def _channels_first(values: Tensor) -> Tensor:
    """Return (groups, channels, rows, places ...): the rows of a group are further places of its channels."""
    return values.transpose(1, 2)


for _layer, _rule in (
    (nn.Linear, Linear),
    (nn.Conv1d, Conv),
    (nn.Conv2d, Conv),
    (nn.Embedding, Embedding),
    (nn.LayerNorm, LayerNorm),
    (nn.RMSNorm, RMSNorm),
    (nn.GroupNorm, GroupNorm),
):
    register_rule(_layer, _rule)
