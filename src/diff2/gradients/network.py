r"""A fully connected network, run with records as columns: features x records.

Products of a small matrix with a wide one are several times faster than those of a long one with a small one, sums over
features go over whole rows, and hand-written derivatives need no graph. One pass over a chunk fills a stack of *rows*
(numbers a record), everything in it linear in the error of the record's output:

* the error ``g`` at the output of every layer;
* for a layer of one output, its gradient :math:`g\, a`, written out, which is no larger than its input ``a``.

Other layers beyond the first also leave their inputs, from which, with ``g``, their gradient follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from .._types import Loss
from ..models.losses import cross_entropy, squared
from .activations import Activation, activation_rule
from .flat import FlatModule
from .sums import Columns


@dataclass
class Layer:
    """A linear layer, where its parameters stand in the flat vector, and where its rows stand in a stack."""

    weight: Tensor
    bias: Tensor | None  # as a column
    activation: Activation | None  # after it
    weight_part: slice | None
    bias_part: slice | None
    error: slice | None = None  # rows of g
    written: slice | None = None  # rows of the gradient of the weight
    inputs: slice | None = None  # rows of a among the inputs that are kept

    @property
    def trainable(self) -> bool:
        return self.weight_part is not None or self.bias_part is not None

    @property
    def width(self) -> int:
        return self.weight.shape[0]


class Stack:
    """The rows of a pass, or of the difference of two, with views of its parts."""

    def __init__(self, network: Network, like: Tensor):
        self.rows = like.new_empty(network.rows, like.shape[1])
        self.columns = Columns.of(self.rows)
        layers = list(enumerate(network.layers))
        self.errors = {index: self.rows[layer.error] for index, layer in layers if layer.error is not None}
        self.written = {index: self.rows[layer.written] for index, layer in layers if layer.written is not None}
        self.first_columns = Columns.of(self.errors.get(0, self.rows))


class Pass:
    """What one pass over a chunk leaves."""

    outputs: Tensor  # good until the next pass

    def __init__(self, network: Network, like: Tensor):
        self.stack = Stack(network, like)
        kept = like.new_empty(network.kept_inputs, like.shape[1])
        layers = list(enumerate(network.layers))
        self.inputs = {index: kept[layer.inputs] for index, layer in layers if layer.inputs is not None}
        self.errors = [  # also of layers of which nothing is asked, on the way back to others
            self.stack.errors[index] if index in self.stack.errors else like.new_empty(layer.width, like.shape[1])
            for index, layer in layers
        ]
        self.squared_norm: Tensor | None = None  # of every record's gradient, where it was needed

    @property
    def size(self) -> int:
        return self.stack.rows.shape[1]


class _Workspace:
    """Memory of a chunk that is used again and again: fresh pages cost more than the sums."""

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


class Network:
    """The layers of a module that is a sequence of linear layers and known functions between them."""

    def __init__(self, flat: FlatModule, loss: Loss):
        self.flat = flat
        self.loss = loss
        self.layers = _layers(flat)
        self.rows = self.kept_inputs = 0
        for index, layer in enumerate(self.layers):
            self._place(index, layer)
        self._first = next(index for index, layer in enumerate(self.layers) if layer.trainable)
        self._workspaces: dict[int, _Workspace] = {}
        self._spare: dict[int, list[Pass]] = {}  # by the number of records

    @staticmethod
    def fits(module: nn.Module) -> bool:
        """Whether the module is such a network."""
        steps = _steps(module)
        return (
            steps is not None
            and isinstance(steps[0], nn.Linear)
            and isinstance(steps[-1], nn.Linear)
            and all(isinstance(first, nn.Linear) or isinstance(second, nn.Linear) for first, second in pairwise(steps))
        )

    def outputs(self, x: Tensor) -> Tensor:
        """Return the outputs, (outputs, records), in memory that the next call uses again."""
        done = self._fresh(x)
        outputs = self._forward(x, self._workspace(x), done)[-1]
        self.take_back(done)
        return outputs

    def run(self, x: Tensor, targets: Tensor, target_columns: Tensor | None) -> Pass:
        """Do one forward and one backward pass over (inputs, records)."""
        done, space = self._fresh(x), self._workspace(x)
        layers, values = self.layers, self._forward(x, space, done)
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
        done.outputs = values[-1]
        return done

    def take_back(self, done: Pass) -> None:
        """Take the memory of a pass that nobody will read again."""
        self._spare.setdefault(done.size, []).append(done)

    def scaled(self, done: Pass, factors: Tensor) -> Pass:
        """Return the pass of gradients times a factor a record."""
        result = Pass(self, done.stack.rows)
        result.inputs = done.inputs
        torch.mul(done.stack.rows, factors, out=result.stack.rows)
        return result

    def _fresh(self, x: Tensor) -> Pass:
        """Return memory for a pass, that of one which is over where there is one of this size."""
        spare = self._spare.get(x.shape[1])
        if spare:
            done = spare.pop()
            done.squared_norm = None
            return done
        if len(self._spare) > 3:  # chunks of ever other sizes
            self._spare.clear()
        return Pass(self, x)

    def _workspace(self, x: Tensor) -> _Workspace:
        found = self._workspaces.get(x.shape[1])
        if found is None:
            if len(self._workspaces) > 3:  # chunks of ever other sizes: do not keep them all
                self._workspaces.clear()
            found = self._workspaces[x.shape[1]] = _Workspace(self, x)
        return found

    def _forward(self, x: Tensor, space: _Workspace, done: Pass) -> list[Tensor]:
        """Return what every layer reads, with the outputs at the end."""
        values = [x]
        for index, layer in enumerate(self.layers):
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
        if self.loss is squared and columns is not None:
            return torch.sub(outputs, columns, out=slot).mul_(2)
        if self.loss is cross_entropy and targets.dim() == 1:
            torch.sub(outputs, outputs.amax(0), out=slot).mul_(1 / math.log(2)).exp2_()
            slot.mul_(slot.sum(0).reciprocal_())
            return slot.scatter_add_(0, targets.unsqueeze(0), slot.new_full((1, 1), -1.0).expand(1, len(targets)))
        with torch.inference_mode(False), torch.enable_grad():
            # A copy, with records as rows: what any loss expects.
            points = outputs.t().clone(memory_format=torch.contiguous_format).requires_grad_()
            losses = self.loss(points, targets)
            (error,) = torch.autograd.grad(losses, points, torch.ones_like(losses))
        return slot.copy_(error.t())

    def _place(self, index: int, layer: Layer) -> None:
        """Give the layer its rows: first the gradient of the weight, then the error, as in the flat vector."""
        outputs, inputs = layer.weight.shape
        if index and layer.weight_part is not None:
            if outputs == 1:
                layer.written = slice(self.rows, self.rows + inputs)
                self.rows += inputs
            else:
                layer.inputs = slice(self.kept_inputs, self.kept_inputs + inputs)
                self.kept_inputs += inputs
        if layer.bias_part is not None or (layer.weight_part is not None and layer.written is None):
            layer.error = slice(self.rows, self.rows + outputs)
            self.rows += outputs


def _steps(module: nn.Module) -> list[nn.Module] | None:
    """Return the layers in the order they are applied, or None where that cannot be seen."""
    if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
        return None
    if type(module) is nn.Linear or activation_rule(module) is not None:
        return [module]
    if type(module) is not nn.Sequential or not len(module):
        return None
    steps: list[nn.Module] = []
    for child in module:
        found = _steps(child)
        if found is None:
            return None
        steps += found
    return steps


def _layers(flat: FlatModule) -> list[Layer]:
    names = {id(module): name for name, module in flat.module.named_modules()}
    layers: list[Layer] = []
    for step in _steps(flat.module) or []:
        if not isinstance(step, nn.Linear):
            layers[-1].activation = activation_rule(step)
            continue
        name = names[id(step)]
        prefix = f"{name}." if name else ""
        layers.append(
            Layer(
                step.weight.detach(),
                None if step.bias is None else step.bias.detach().unsqueeze(1),
                None,
                flat.slices.get(f"{prefix}weight"),
                flat.slices.get(f"{prefix}bias"),
            )
        )
    return layers
