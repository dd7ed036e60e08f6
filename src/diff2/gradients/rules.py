r"""Layer rules: the norm and the weighted sum of per-record gradients of one layer type.

A layer receives ``a``, and the back-propagated error at its output is ``g``. The gradient of record i is a sum over
positions t (words, pixels) of :math:`a_{it} \otimes g_{it}`, so its norm and its weighted sum over records can be
computed without materialising a tensor of size records x parameters. For the **difference** between two iterates, with
:math:`da = a - a'` and :math:`dg = g - g'`,

.. math::
    a \otimes g - a' \otimes g' = da \otimes g + a' \otimes dg,

every term of which is small where the iterates are close. The norm and the sum are computed from these very terms: a
record that is clipped to the radius in the norm is clipped in the sum.

Every rule returns a :class:`Term`. Its squared norm is never an underestimate: it is raised by ``SLACK`` units of
rounding of the *magnitude*, the sum of the sizes of what was added up. Where terms nearly cancel, the magnitude is much
larger than the norm, and the record is clipped a little more than necessary; it is never clipped less.

A layer of your own gets a rule by :func:`register_rule`. A layer whose per-record gradient is no larger than its input
can write it out, and :meth:`Rule.explicit` does the rest:

>>> class Scale(nn.Module):
...     def __init__(self, width):
...         super().__init__()
...         self.weight = nn.Parameter(torch.ones(width))
...     def forward(self, x):
...         return x * self.weight
>>> class ScaleRule(Rule):
...     def gradient(self, feature):
...         return self.explicit(feature.a * feature.g, self.parts["weight"])
...     def difference(self, feature, previous):
...         da, dg = feature.a - previous.a, feature.g - previous.g
...         return self.explicit(da * feature.g + previous.a * dg, self.parts["weight"])
>>> register_rule(Scale, ScaleRule)
>>> from diff2.gradients import Shapes, build_engine
>>> from diff2.models.losses import squared
>>> model = nn.Sequential(nn.Linear(3, 4), Scale(4), nn.Linear(4, 1))
>>> engine, stochastic = build_engine(model, squared, Shapes((3,), (1,)))
>>> engine.name
'ghost'

Before a rule is used it must reproduce, on three made-up records, what autograd gives for each of them alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import InvalidArgument
from .sums import BLOCK, Total, position_sum, product_sum

SLACK = 32  # units of rounding; 2e-6 of the norm in single precision
NARROW = 32  # columns that are added up in one chain
WRITING = 32  # multiplications that take as long as writing and reading one number
CANCELLATION = 8  # squared size of the products that make up a record's gradient, in units of its squared norm


class Feature(NamedTuple):
    """The input of a layer and the error at its output, for a chunk of records; the first dimension counts records."""

    a: Tensor
    g: Tensor
    static: Tensor | None = None  # what :meth:`Rule.static` returned, where the layer reads the records themselves


class Term(NamedTuple):
    """What a layer adds to the clipped sum: squared norms first, then the sum with the weights found from them."""

    squared_norm: Tensor  # one per record, never an underestimate
    add_sum: Callable[[Tensor, Total], None]  # (weights, out): add the weighted sum over records to the total


class Rule:
    """The gradients of one layer. A rule overrides at least :meth:`gradient` and :meth:`difference`.

    ``parts`` says where the layer's trainable parameters stand in the flat vector, by name; frozen ones are missing.
    """

    module: Any  # the layer

    def __init__(self, module: nn.Module, parts: Mapping[str, slice], dtype: torch.dtype):
        self.module = module
        self.parts = parts
        self.weight, self.bias = parts.get("weight"), parts.get("bias")
        self.unit = torch.finfo(dtype).eps / 2
        self.slack = 2 * SLACK * self.unit
        self.raise_by = 1 + self.slack
        self.tiny = torch.finfo(dtype).tiny
        self._buffers: dict[tuple[Any, ...], Tensor] = {}
        device = next(module.parameters()).device
        self._ones = torch.ones(NARROW, dtype=dtype, device=device)
        self._tiny = torch.full((1,), NARROW * self.tiny, dtype=dtype, device=device)

    @classmethod
    def unsuited(cls, module: nn.Module) -> str | None:
        """Return why the rule does not hold for this layer ("uses max_norm", say), or None."""
        return None

    def capture(self, layer_input: Tensor) -> Tensor:
        """Return what is kept of the layer's input, ``a`` of the feature."""
        return layer_input

    def by_group(self, values: Tensor, groups: tuple[int, ...]) -> Tensor:
        """Return (groups, rows, ...) from (groups x rows, ...), where a record is a group of several rows.

        The rows are then positions like any others, over which the gradient is summed.
        """
        return values.unflatten(0, groups)

    def static(self, a: Tensor) -> Tensor:
        """Return what can be computed once where ``a`` is the records, which no iterate changes."""
        return a.new_empty(0)

    def gradient(self, feature: Feature) -> Term:
        """Return the term of the per-record gradients."""
        raise NotImplementedError

    def difference(self, feature: Feature, previous: Feature) -> Term:
        """Return the term of the per-record differences to the gradients at the previous iterate."""
        raise NotImplementedError

    def written(self, name: str, feature: Feature) -> Tensor:
        """Return the gradients of a parameter that other layers use as well, (records, size): for :class:`Shared`."""
        raise NotImplementedError

    def workspace(self, feature: Feature) -> int:
        """Return how many numbers a record needs beyond its features, for the choice of the chunk size."""
        return 0

    def explicit(self, values: Tensor, part: slice) -> Term:
        """Return the term of per-record gradients that are written out: (records, size of the part).

        Dimensions in between are positions, over which the gradient is summed.
        """
        size = part.stop - part.start
        if values.numel() != size * values.shape[0]:
            values = values.reshape(values.shape[0], -1, size).sum(1)
        elif values.dim() > 2:
            values = values.flatten(1)

        def add_sum(weights: Tensor, out: Total) -> None:
            out.add(part, product_sum(weights.unsqueeze(1), values))

        return Term(self._square(values) * self.raise_by, add_sum)

    def outer_sum(self, left: Tensor, right: Tensor, part: slice) -> Term:
        """Return the term of sum over t of left_t (x) right_t, for (records, k, t, inputs) and (.., t, outputs).

        The gradients of the k parts, the channel groups of a convolution, stand one after the other.

        The norm is taken from the written-out gradients or from the t x t products of the rows, whichever is smaller.
        """
        positions = left.shape[2]
        if written_out(left.shape[1] * left.shape[3], right.shape[3], positions):
            return self.explicit((right.transpose(2, 3) @ left).flatten(1), part)
        left_products, right_products = left @ left.transpose(2, 3), right @ right.transpose(2, 3)
        norm = (left_products * right_products).sum((1, 2, 3)).clamp_(min=0)
        inputs, outputs = left.shape[3] * self.tiny, right.shape[3] * self.tiny  # what may underflow in a product
        left_lengths = left_products.diagonal(dim1=2, dim2=3).clamp(min=0).add(inputs).sqrt()
        right_lengths = right_products.diagonal(dim1=2, dim2=3).clamp(min=0).add(outputs).sqrt()
        magnitude = (left_lengths * right_lengths).sum(2).square().sum(1)
        # A product of rows that underflows may be multiplied by a huge one.
        lost = (left_lengths.sum(2) * math.sqrt(outputs)).square() + (right_lengths.sum(2) * math.sqrt(inputs)).square()
        # A matrix product may add its rows up in one chain.
        slack = self.slack + (left.shape[3] + right.shape[3]) * self.unit
        # The products of a record may be larger than their sum. The fewer records a block holds, the less that matters;
        # a record that fills blocks of its own may be as large as the records of one block together.
        cancelling = magnitude > max(CANCELLATION, min(positions, BLOCK) ** 2) * norm

        def add_sum(weights: Tensor, out: Total) -> None:
            for row in cancelling.nonzero().flatten().tolist():  # each by itself: no other record shows in it
                products = right[row].double().transpose(1, 2) @ left[row].double()
                out.add(part, products.unsqueeze(0) * weights[row].double())
            weighted = right * weights.masked_fill(cancelling, 0.0).view(-1, 1, 1, 1)
            start, size = part.start, left.shape[3] * right.shape[3]
            for r, a in zip(weighted.unbind(1), left.unbind(1), strict=True):
                out.add(slice(start, start + size), position_sum(r, a))
                start += size

        return Term(norm.add(magnitude, alpha=slack) + lost.sum(1), add_sum)

    def _buffer(self, name: str, like: Tensor) -> Tensor:
        """Return memory of this shape, reused from call to call: fresh pages cost more than the sums."""
        key = (name, *like.shape)
        buffer = self._buffers.get(key)
        if buffer is None:
            if len(self._buffers) > 16:  # the sizes of chunks keep changing: do not keep them all
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


class Shared:
    """A parameter that several layers use: a record's gradient is the sum of theirs, written out.

    The lengths of the parts say nothing about the length of their sum.
    """

    def __init__(self, part: slice, uses: list[tuple[int, str]], rules: list[Rule]):
        self.part = part
        self._uses = uses  # (layer, its name for the parameter)
        self._rules = rules

    def gradient(self, features: Sequence[Feature]) -> Term:
        return self._rules[self._uses[0][0]].explicit(self._written(features), self.part)

    def difference(self, features: Sequence[Feature], previous: Sequence[Feature]) -> Term:
        values = self._written(features) - self._written(previous)
        return self._rules[self._uses[0][0]].explicit(values, self.part)

    def _written(self, features: Sequence[Feature]) -> Tensor:
        first, *others = (self._rules[layer].written(name, features[layer]) for layer, name in self._uses)
        return sum(others, first)


RULES: dict[type[nn.Module], type[Rule]] = {}  # by the exact type of a layer


def register_rule(layer: type[nn.Module], rule: type[Rule]) -> None:
    """Let layers of exactly this type be computed by this rule; a type that is registered again gets the new rule."""
    if not (isinstance(layer, type) and issubclass(layer, nn.Module)):
        raise InvalidArgument(f"expected layer to be a subclass of torch.nn.Module, got {layer!r}")
    if not (isinstance(rule, type) and issubclass(rule, Rule)):
        raise InvalidArgument(f"expected rule to be a subclass of diff2.gradients.Rule, got {rule!r}")
    for method in ("gradient", "difference"):
        if getattr(rule, method) is getattr(Rule, method):
            raise InvalidArgument(f"rule {rule.__name__} has no method {method!r}; define it, see diff2.gradients.Rule")
    RULES[layer] = rule


def joined(*terms: Term | None) -> Term:
    """Return the terms of the parameters of one layer as one; None: a frozen or missing parameter."""
    first, *others = (term for term in terms if term is not None)
    if not others:
        return first

    def add_sum(weights: Tensor, out: Total) -> None:
        for term in (first, *others):
            term.add_sum(weights, out)

    return Term(sum((term.squared_norm for term in others), first.squared_norm), add_sum)


def written_out(inputs: int, outputs: int, positions: int) -> bool:
    """Whether a gradient of this size is cheaper to write out than the products of all pairs of positions."""
    size, pairs = inputs * outputs, positions**2
    return size <= 2 * pairs or WRITING * size <= (inputs + outputs) * pairs
