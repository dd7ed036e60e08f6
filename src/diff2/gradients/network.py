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
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._types import Loss
from ..losses import cross_entropy, squared
from .activations import Activation, activation_rule
from .flat import FlatModule


class Pass(NamedTuple):
    """What one pass over a chunk leaves."""

    rows: Tensor  # (rows of the plan, records)
    inputs: Tensor  # (inputs of the layers with pairs, records)
    squared_norm: Tensor | None = None  # of every record's gradient, where it was needed

    def scaled(self, factors: Tensor) -> Pass:
        """Return the pass of gradients times a factor a record."""
        return Pass(self.rows * factors, self.inputs)


@dataclass
class Layer:
    """A linear layer, where its parameters stand in the flat vector, and where its rows stand in a pass."""

    weight: Tensor
    bias: Tensor | None  # as a column
    activation: Activation | None  # after it
    weight_part: slice | None
    bias_part: slice | None
    error: slice | None = None  # rows of g
    written: slice | None = None  # rows of the gradient of the weight
    inputs: slice | None = None  # rows of a in ``Pass.inputs``

    @property
    def trainable(self) -> bool:
        return self.weight_part is not None or self.bias_part is not None


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
        self._memory: dict[tuple[Any, ...], Tensor] = {}
        self._spare: list[Pass] = []

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

    def run(self, x: Tensor, targets: Tensor, known_targets: Tensor | None) -> Pass:
        """Do one forward and one backward pass over (inputs, records)."""
        rows, inputs = self._fresh(x)
        values, slopes = self._forward(x, inputs)
        error = self._error(values.pop(), targets, known_targets, self._slot(rows, len(self.layers) - 1, x))
        for index in reversed(range(self._first, len(self.layers))):
            layer = self.layers[index]
            if layer.written is not None:
                torch.mul(values[index], error, out=rows[layer.written])
            if index > self._first:
                slot = self._slot(rows, index - 1, x)
                multiply = torch.mul if len(layer.weight) == 1 else torch.mm
                error = multiply(layer.weight.t(), error, out=slot)
                slope = slopes[index - 1]
                if slope is not None:
                    error.mul_(slope)
        return Pass(rows, inputs)

    def take_back(self, done: Pass | None) -> None:
        """Take the memory of a pass that nobody will read again."""
        if done is not None and len(self._spare) < 2:
            self._spare.append(done)

    def _fresh(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return memory for a pass, that of one which is over where there is one of this size."""
        for place, old in enumerate(self._spare):
            if old.rows.shape[1] == x.shape[1]:
                del self._spare[place]
                return old.rows, old.inputs
        self._spare.clear()
        return x.new_empty(self.rows, x.shape[1]), x.new_empty(self.kept_inputs, x.shape[1])

    def memory(self, name: str, rows: int, like: Tensor) -> Tensor:
        """Return (rows, records) that are used again and again: fresh pages cost more than the sums."""
        key = (name, rows, like.shape[1])
        found = self._memory.get(key)
        if found is None:
            if len(self._memory) > 64:  # chunks of ever other sizes: do not keep them all
                self._memory.clear()
            found = self._memory[key] = like.new_empty(rows, like.shape[1])
        return found

    def _forward(self, x: Tensor, inputs: Tensor) -> tuple[list[Tensor], list[Tensor | None]]:
        """Return what every layer reads, with the outputs at the end, and the slopes of the functions between them."""
        values, slopes = [x], []
        for index, layer in enumerate(self.layers):
            width = len(layer.weight)
            kept = self.layers[index + 1].inputs if index + 1 < len(self.layers) else None
            value = self.memory(f"value {index}", width, x) if kept is None else inputs[kept]
            z = value if layer.activation is None else self.memory("z", width, x)
            if layer.bias is None:
                torch.mm(layer.weight, values[-1], out=z)
            else:
                torch.addmm(layer.bias, layer.weight, values[-1], out=z)
            slope = None
            if layer.activation is not None:
                slope = self.memory(f"slope {index}", width, x)
                layer.activation(z, value, slope)
            values.append(value)
            slopes.append(slope)
        return values, slopes

    def _slot(self, rows: Tensor, index: int, like: Tensor) -> Tensor:
        layer = self.layers[index]
        if layer.error is None:
            return self.memory(f"error {index}", len(layer.weight), like)
        return rows[layer.error]

    def _error(self, outputs: Tensor, targets: Tensor, known: Tensor | None, slot: Tensor) -> Tensor:
        """Write the derivative of the losses with respect to the outputs."""
        if self.loss is squared and known is not None:
            return torch.sub(outputs, known, out=slot).mul_(2)
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
