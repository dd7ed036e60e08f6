r"""Passes over a fully connected network with records as columns: features x records.

Products of a small matrix with a wide one are several times faster than those of a long one with a small one, sums over
features go over whole rows, and hand-written derivatives need no graph. One pass over a chunk fills a stack of *rows*,
one number per record each, all of them linear in the error of the record's output:

* the error ``g`` at the output of every layer;
* for a layer of one output, its gradient :math:`g\, a`, written out, which is no larger than its input ``a``.

Other layers beyond the first also keep their inputs, from which, with ``g``, their gradient follows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..models.losses import cross_entropy, squared
from .network import Network
from .sums import Columns


class Place(NamedTuple):
    """Where the rows of a layer stand in a stack, and those of its inputs among the inputs that are kept."""

    error: slice | None = None  # rows of g
    written: slice | None = None  # rows of the gradient of the weight
    inputs: slice | None = None  # rows of a


class Stack:
    """The rows of a pass, or of the difference of two, with views of its parts."""

    def __init__(self, passes: Passes, like: Tensor):
        self.rows = like.new_empty(passes.rows, like.shape[1])
        self.columns = Columns.of(self.rows)
        places = list(enumerate(passes.places))
        self.errors = {index: self.rows[place.error] for index, place in places if place.error is not None}
        self.written = {index: self.rows[place.written] for index, place in places if place.written is not None}
        self.first_columns = Columns.of(self.errors.get(0, self.rows))


class Pass:
    """The result of one pass over a chunk."""

    outputs: Tensor  # valid until the next pass

    def __init__(self, passes: Passes, like: Tensor):
        self.owner = passes  # of the memory
        self.stack = Stack(passes, like)
        kept = like.new_empty(passes.kept_inputs, like.shape[1])
        places = list(enumerate(passes.places))
        self.inputs = {index: kept[place.inputs] for index, place in places if place.inputs is not None}
        self.errors = [  # also of frozen layers, on the way back to others
            self.stack.errors[index] if index in self.stack.errors else like.new_empty(layer.width, like.shape[1])
            for index, layer in enumerate(passes.network.layers)
        ]

    @property
    def size(self) -> int:
        return self.stack.rows.shape[1]

    def free(self) -> None:
        """Give the memory back: it will not be read again."""
        self.owner.take_back(self)


class _Workspace:
    """Memory of a chunk, reused from pass to pass: fresh pages cost more than the sums."""

    def __init__(self, network: Network, like: Tensor):
        def rows(count: int) -> Tensor:
            return like.new_empty(count, like.shape[1])

        layers = network.layers
        self.values = [rows(layer.width) for layer in layers]
        self.sums = [
            value if layer.activation is None else rows(layer.width)
            for layer, value in zip(layers, self.values, strict=True)
        ]
        self.slopes = [None if layer.activation is None else rows(layer.width) for layer in layers]


class Passes:
    """Forward and backward passes, and the memory for them."""

    values: list[Tensor]  # of the last pass: the input of every layer, with the outputs at the end

    def __init__(self, network: Network):
        self.network = network
        self.rows = self.kept_inputs = 0
        self.places = [self._place(index) for index in range(len(network.layers))]
        trained = [layer.weight_part is not None or layer.bias_part is not None for layer in network.layers]
        self._first = trained.index(True)
        self._workspaces: dict[int, _Workspace] = {}
        self._spare: dict[int, list[Pass]] = {}  # by the number of records

    def outputs(self, x: Tensor) -> Tensor:
        """Return the outputs, (outputs, records), in memory that the next call overwrites."""
        done = self.fresh(x)
        outputs = self._forward(x, self._workspace(x), done)[-1]
        done.free()
        return outputs

    def run(self, x: Tensor, targets: Tensor, target_columns: Tensor | None) -> Pass:
        """Do one forward and one backward pass over (inputs, records)."""
        done, space = self.fresh(x), self._workspace(x)
        layers, values = self.network.layers, self._forward(x, space, done)
        error = self._error(values[-1], targets, target_columns, done.errors[-1])
        for index in range(len(layers) - 1, self._first - 1, -1):
            written = done.stack.written.get(index)
            if written is not None:
                torch.mul(values[index], error, out=written)
            if index > self._first:
                weight, slope = layers[index].weight, space.slopes[index - 1]
                multiply = torch.mul if weight.shape[0] == 1 else torch.mm
                error = multiply(weight.t(), error, out=done.errors[index - 1])
                if slope is not None:
                    error.mul_(slope)
        done.outputs, self.values = values[-1], values
        return done

    def take_back(self, done: Pass) -> None:
        """Take the memory of a pass that will not be read again."""
        self._spare.setdefault(done.size, []).append(done)

    def fresh(self, x: Tensor) -> Pass:
        """Return memory for a pass, reused where there is some of this size."""
        spare = self._spare.get(x.shape[1])
        if spare:
            return spare.pop()
        if len(self._spare) > 3:  # the sizes of chunks keep changing: do not keep them all
            self._spare.clear()
        return Pass(self, x)

    def _workspace(self, x: Tensor) -> _Workspace:
        found = self._workspaces.get(x.shape[1])
        if found is None:
            if len(self._workspaces) > 3:
                self._workspaces.clear()
            found = self._workspaces[x.shape[1]] = _Workspace(self.network, x)
        return found

    def _forward(self, x: Tensor, space: _Workspace, done: Pass) -> list[Tensor]:
        """Return the input of every layer, with the outputs at the end."""
        values = [x]
        for index, layer in enumerate(self.network.layers):
            value, z, slope = space.values[index], space.sums[index], space.slopes[index]
            kept = done.inputs.get(index + 1)
            if kept is not None:
                z = kept if z is value else z
                value = kept
            if layer.bias is None:
                torch.mm(layer.weight, values[-1], out=z)
            else:
                torch.addmm(layer.bias, layer.weight, values[-1], out=z)
            if layer.activation is not None and slope is not None:
                layer.activation(z, value, slope)
            values.append(value)
        return values

    def _error(self, outputs: Tensor, targets: Tensor, columns: Tensor | None, slot: Tensor) -> Tensor:
        """Write the derivative of the losses with respect to the outputs."""
        loss = self.network.loss
        if loss is squared and columns is not None:
            return torch.sub(outputs, columns, out=slot).mul_(2)
        if loss is cross_entropy and targets.dim() == 1:
            torch.sub(outputs, outputs.amax(0), out=slot).mul_(1 / math.log(2)).exp2_()
            slot.mul_(slot.sum(0).reciprocal_())
            return slot.scatter_add_(0, targets.unsqueeze(0), slot.new_full((1, 1), -1.0).expand(1, len(targets)))
        with torch.inference_mode(False), torch.enable_grad():
            # A copy, with records as rows: what any loss expects.
            points = outputs.t().clone(memory_format=torch.contiguous_format).requires_grad_()
            losses = loss(points, targets)
            (error,) = torch.autograd.grad(losses.sum(), points)
        return slot.copy_(error.t())

    def _place(self, index: int) -> Place:
        """Give a layer its rows: first the gradient of the weight, then the error, as in the flat vector."""
        layer, place = self.network.layers[index], Place()
        outputs, inputs = layer.weight.shape
        if index and layer.weight_part is not None:
            if outputs == 1:
                place = Place(written=slice(self.rows, self.rows + inputs))
                self.rows += inputs
            else:
                place = Place(inputs=slice(self.kept_inputs, self.kept_inputs + inputs))
                self.kept_inputs += inputs
        if layer.bias_part is not None or (layer.weight_part is not None and place.written is None):
            place = place._replace(error=slice(self.rows, self.rows + outputs))
            self.rows += outputs
        return place
