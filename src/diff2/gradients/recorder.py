"""One pass over a chunk of records: what every layer saw, and what came back to it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .._types import Loss
from .flat import FlatModule
from .groups import Grouped, grouped_loss
from .layers import RULES
from .records import FeatureCache, Records
from .rules import Feature, Rule


class Recorder:
    """A module with hooks on every layer that has a rule: one call gives the features of a chunk.

    With ``grouped``, a record is an owner with several rows: the layers see rows, the rules see owners.
    """

    def __init__(self, flat: FlatModule, loss: Loss, *, grouped: bool = False):
        self.flat = flat
        self.rules: list[Rule] = []
        self._model = Grouped(flat.module) if grouped else flat.module
        self._loss = grouped_loss(loss) if grouped else loss
        self._grouped = grouped
        self._inputs: list[Tensor] = []
        self._outputs: list[Tensor] = []
        self._versions: list[int] = []
        for name, module in flat.module.named_modules():
            if getattr(module, "inplace", False):
                module.inplace = False  # it would overwrite the outputs that are recorded
            prefix = f"{name}." if name else ""
            weight, bias = flat.slices.get(f"{prefix}weight"), flat.slices.get(f"{prefix}bias")
            if type(module) in RULES and (weight is not None or bias is not None):
                self.rules.append(RULES[type(module)](module, weight, bias, flat.dtype))
        # Calls are recorded in the order of the rules, whatever the order of the layers in the forward pass.
        for index, rule in enumerate(self.rules):
            rule.module.register_forward_hook(self._hook(index, rule))

    def features(self, chunk: Records, index: int, cache: FeatureCache | None) -> list[Feature]:
        """Run one forward and one backward pass; return (a, g) of each layer, in the order of the rules."""
        self._inputs = [chunk.inputs] * len(self.rules)
        self._outputs = [chunk.inputs] * len(self.rules)
        self._versions = [chunk.inputs._version] * len(self.rules)
        with torch.enable_grad():
            losses = self._loss(self._model(chunk.inputs), chunk.targets)
            if self._versions != [output._version for output in self._outputs]:
                raise RuntimeError("the output of a layer is changed in place")
            errors = torch.autograd.grad(losses, self._outputs, torch.ones_like(losses), allow_unused=True)
        owners = chunk.inputs.shape[:2] if self._grouped else None
        features = []
        for layer, (a, output, error) in enumerate(zip(self._inputs, self._outputs, errors, strict=True)):
            g = torch.zeros_like(output) if error is None else error
            if owners is not None and owners[1] > 1:  # an owner with one row is a record like any other
                a, g = (self.rules[layer].by_owner(values, owners) for values in (a, g))
            features.append(Feature(a, g, self._static(layer, a, chunk, index, cache)))
        self._inputs, self._outputs = [], []
        return features

    def _hook(self, index: int, rule: Rule) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if not output.requires_grad:  # the first layer: nothing before it asks for a gradient
                output.requires_grad_()
            self._inputs[index] = rule.capture(inputs[0].detach())
            self._outputs[index] = output
            self._versions[index] = output._version

        return hook

    @torch.inference_mode()
    def _static(self, layer: int, a: Tensor, chunk: Records, index: int, cache: FeatureCache | None) -> Tensor | None:
        """Return what the rule keeps where ``a`` is the records themselves, which do not change between iterates."""
        if not a.dtype.is_floating_point or not _same_memory(a, chunk.inputs):
            return None
        known = None if cache is None else cache.statics.get((index, layer))
        if known is None:
            known = self.rules[layer].static(a)
            if cache is not None:
                cache.statics[index, layer] = known
        return known


def _same_memory(a: Tensor, b: Tensor) -> bool:
    """Whether ``a`` shows the numbers of ``b``: the same storage from the same place on, and as many."""
    return a.data_ptr() == b.data_ptr() and a.numel() == b.numel()
