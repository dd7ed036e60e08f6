"""A fully connected network as both of its engines see it: linear layers, and known functions between them.

``columns.py`` runs any such network by matrix products, ``compiled.py`` small ones with one hidden layer by a kernel.
"""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._vectors import Loss, Vector
from ..models.losses import cross_entropy
from .activations import Activation, activation_rule
from .engine import Chunks, Engine, Evaluation, in_order
from .flat import FlatModule
from .records import FeatureCache, Records
from .sums import Total


class Layer(NamedTuple):
    """A linear layer, and where its parameters stand in the flat vector; None where they are frozen or missing."""

    weight: Tensor
    bias: Tensor | None  # as a column
    weight_part: slice | None
    bias_part: slice | None
    activation: Activation | None = None  # after it

    @property
    def width(self) -> int:
        return self.weight.shape[0]


class Network:
    """The layers of a module that is a sequence of linear layers and known functions between them."""

    def __init__(self, flat: FlatModule, loss: Loss):
        self.flat = flat
        self.loss = loss
        self.layers: list[Layer] = []
        names = {id(module): name for name, module in flat.module.named_modules()}
        for step in steps_of(flat.module) or []:
            if not isinstance(step, nn.Linear):
                self.layers[-1] = self.layers[-1]._replace(activation=activation_rule(step))
                continue
            prefix = f"{names[id(step)]}." if names[id(step)] else ""
            weight, bias = (flat.slices.get(f"{prefix}{name}") for name in ("weight", "bias"))
            column = None if step.bias is None else step.bias.detach().unsqueeze(1)
            self.layers.append(Layer(step.weight.detach(), column, weight, bias))

    def seen_as(self, layers: list[Layer]) -> Network:
        """Return the network with other layers in the place of its own: shapes and places for norms and sums."""
        other = copy.copy(self)
        other.layers = layers
        return other

    @staticmethod
    def unsuited(module: nn.Module) -> str | None:
        """Return why the module is no such network, or None."""
        steps = steps_of(module)
        if (
            steps is None
            or not isinstance(steps[0], nn.Linear)
            or not isinstance(steps[-1], nn.Linear)
            or not all(isinstance(one, nn.Linear) or isinstance(other, nn.Linear) for one, other in pairwise(steps))
        ):
            return (
                "the model is not an nn.Sequential of nn.Linear layers with at most one known function (softplus, "
                "ReLU, tanh, sigmoid, SiLU, GELU) between two of them, without hooks"
            )
        parameters = [id(one) for step in steps for one in step.parameters()]
        return "parameters are shared between layers" if len(set(parameters)) < len(parameters) else None


class NetworkEngine(Engine):
    """What both engines of fully connected networks share: prepared chunks in the cache, and exact evaluations."""

    def __init__(self, module: nn.Module, loss: Loss, **options: Any):
        super().__init__(module, loss, **options)
        self._network = Network(self._own, loss)

    def evaluate(
        self, params: Vector, records: Records, *, cache: FeatureCache | None = None, gradient: bool = True
    ) -> Evaluation:
        loss = self._loss
        self._use(None, None)
        cache = None if cache is None or cache.transform is not None else self._usable(cache, records)

        def measure(lane: Engine, chunks: Chunks) -> tuple[Total, dict[int, tuple[Tensor, Tensor]]]:
            total, found = lane._total(math.inf, 0), {}
            lane._own.load(params)
            for index, chunk in chunks:
                outputs = lane._outputs(total, lane._prepare(chunk, index, cache), gradient)  # type: ignore[attr-defined]
                hits = _hits(outputs, chunk.targets) if loss is cross_entropy else outputs.new_empty(0)
                found[index] = loss(outputs.t().contiguous(), chunk.targets), hits
            return total, found

        with torch.inference_mode():
            totals, found = zip(*self._each_lane(records, measure), strict=True)
            for total in totals[1:]:
                totals[0].join(total)
            losses, hits = zip(*in_order(found), strict=True)
            return Evaluation(torch.cat(losses), torch.cat(hits), totals[0].value)

    def _outputs(self, out: Total, prepared: Any, gradient: bool) -> Tensor:
        """Return the outputs, (outputs, records); with ``gradient``, add the sum of the gradients to ``out``."""
        raise NotImplementedError

    def _usable(self, cache: FeatureCache | None, records: Records) -> FeatureCache | None:
        return cache if self._may_keep(records) else None

    def _prepare(self, chunk: Records, index: int, cache: FeatureCache | None) -> Any:
        """Return the chunk in the layout of the engine, with its weights; computed once where it may be kept."""
        known = None if cache is None else cache.statics.get(index)
        if known is None:
            known = self._arranged(chunk)
            if cache is not None:
                cache.statics[index] = known
        return known, chunk

    def _arranged(self, chunk: Records) -> Any:
        """Return what depends on inputs and targets alone."""
        raise NotImplementedError


def steps_of(module: nn.Module) -> list[nn.Module] | None:
    """Return the layers in the order they are applied, or None where that cannot be seen."""
    if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
        return None
    if type(module) is nn.Linear or activation_rule(module) is not None:
        return [module]
    if type(module) is not nn.Sequential or not len(module):
        return None
    steps: list[nn.Module] = []
    for child in module:
        found = steps_of(child)
        if found is None:
            return None
        steps += found
    return steps


def _hits(outputs: Tensor, classes: Tensor) -> Tensor:
    """Return which records have their class first. ``argmax`` takes longer than all the rest of a pass."""
    first = outputs == outputs.amax(0)
    if int(first.sum()) == classes.shape[0]:  # no ties
        return first.gather(0, classes.unsqueeze(0))[0]
    return outputs.argmax(0) == classes
