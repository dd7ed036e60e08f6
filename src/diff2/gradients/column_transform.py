"""Transformed gradients with records as columns: passes over the network itself, norms and sums of what they become.

To norms and sums (``column_terms.py``) the transformed features look like those of a network whose layers read one
input more, the constant of the bias, and have no bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from .column_passes import Pass, Passes
from .column_terms import ColumnTerms, Fixed
from .network import Layer, Network
from .records import Records
from .sums import Total
from .transform import Factors, Place


class Prepared(NamedTuple):
    """What depends on the records of a chunk, and on the transform."""

    plain: Fixed
    transformed: Fixed


class PlainColumns:
    """Passes, norms and sums of gradients as they are."""

    def __init__(self, network: Network):
        self.passes = Passes(network)
        self.terms = ColumnTerms(self.passes)

    def fixed(self, chunk: Records) -> Prepared:
        found = self.terms.fixed(chunk)
        return Prepared(found, found)

    def run(self, fixed: Prepared, targets: Tensor) -> Pass:
        return self.passes.run(fixed.plain.x, targets, fixed.plain.targets)

    def add(
        self, out: Total, fixed: Prepared, weights: Tensor, radius: float, now: Pass, before: Pass | None = None
    ) -> None:
        """Add the clipped sum of gradients, or of their differences to ``before``, which is overwritten."""
        self.terms.add(out, fixed.transformed, weights, radius, now, before)

    def squared_norms(self, fixed: Prepared, now: Pass) -> Tensor:
        return self.terms.squared_norms(fixed.transformed, now)


class TransformedColumns(PlainColumns):
    """The same for transformed gradients."""

    def __init__(self, plain: PlainColumns, places: Mapping[int, Place]):
        network = plain.passes.network
        self._plain = plain
        self._factors: list[Factors | None] = []
        layers: list[Layer] = []
        for layer in network.layers:
            place = None if layer.weight_part is None else places.get(layer.weight_part.start)
            self._factors.append(None if place is None else place.factors)
            if place is not None:
                width = place.factors.inputs.shape[0]
                layer = layer._replace(
                    weight=layer.weight.new_empty(layer.width, width), bias=None, weight_part=place.part, bias_part=None
                )
            layers.append(layer)
        super().__init__(network.seen_as(layers))

    def fixed(self, chunk: Records) -> Prepared:
        plain, first = self._plain.fixed(chunk).plain, self._factors[0]
        inputs = chunk.inputs if first is None else first.of_inputs(chunk.inputs)
        return Prepared(plain, self.terms.fixed(chunk._replace(inputs=inputs)))

    def run(self, fixed: Prepared, targets: Tensor) -> Pass:
        plain, passes = self._plain.run(fixed, targets), self._plain.passes
        done = self.passes.fresh(fixed.transformed.x)
        for index, factors in enumerate(self._factors):
            error, place = done.errors[index], self.passes.places[index]
            if place.error is None and place.written is None:
                continue  # frozen
            if factors is None:
                error.copy_(plain.errors[index])
            else:
                torch.mm(factors.errors, plain.errors[index], out=error)
            if not index or (place.inputs is None and place.written is None):
                continue
            a = passes.values[index]
            made = done.inputs[index] if place.inputs is not None else done.stack.written[index]
            if factors is None:
                made.copy_(a)
            elif factors.inputs.shape[1] == len(a):
                torch.mm(factors.inputs, a, out=made)
            else:
                torch.addmm(factors.inputs[:, -1:], factors.inputs[:, :-1], a, out=made)
            if place.written is not None:
                made.mul_(error)
        done.outputs = plain.outputs
        plain.free()
        return done
