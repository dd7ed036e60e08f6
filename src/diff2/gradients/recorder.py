"""One pass over a chunk of records: the input of every layer, and the error at its output."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .._vectors import Loss
from .attention import take_apart
from .bare import BareParameters
from .flat import FlatModule
from .records import Records
from .rules import RULES, Feature, Rule, Shared


class Recorder:
    """A module with hooks on every layer that has a rule: one call gives the features of a chunk.

    With ``grouped``, a record is a group of several rows: the layers see rows, the rules see groups. With ``example``,
    a few rows, attention layers are taken apart (``attention.py``), parameters that modules use directly have rules,
    too (``bare.py``), and the records need not be the first dimension of what a layer sees.
    """

    def __init__(self, flat: FlatModule, loss: Loss, *, example: Records | None = None, grouped: bool = False):
        self.flat = flat
        self._loss = loss
        self._grouped = grouped
        self._hooked = 0
        if example is not None:
            take_apart(flat, lambda: self._shapes(example.inputs))
        found = _trained_layers(flat)
        shared = _shared(found)
        self.rules: list[Rule] = []
        for module, parts in found:
            alone = {own: part for own, part in parts.items() if (part.start, part.stop) not in shared}
            self.rules.append(RULES[type(module)](module, alone, flat.dtype))
        self.shared = [Shared(slice(*place), uses, self.rules) for place, uses in shared.items()]
        covered = [part for _, parts in found for part in parts.values()]
        self._bare = None if example is None else BareParameters(flat, loss, example[:2], covered)
        self._hooked = len(self.rules)
        self._see(self.flat.vector)
        # Calls are recorded in the order of the rules, whatever the order of the layers in the forward pass.
        for index, rule in enumerate(self.rules):
            rule.module.register_forward_hook(self._hook(index, rule))
        self._dimensions = [0] * self._hooked  # that count the records
        if example is not None:
            few, more = (self._shapes(example.inputs[[*range(len(example.inputs)), *also]]) for also in ((), (0,)))
            self._dimensions = [_grown(*pair) for pair in zip(few, more, strict=True)]
        self.rules += [] if self._bare is None else self._bare.rules

    def try_batch(self, count: int) -> None:
        """Refuse a model that uses bare parameters otherwise for this many rows than for a few."""
        if self._bare is not None:
            self._bare.copies(count)

    def features(self, chunk: Records, statics: dict[int, Tensor]) -> list[Feature]:
        """Run one forward and one backward pass; return (a, g) of each layer, in the order of the rules.

        ``statics`` holds what the rules computed from these records before, by layer, and is filled here.
        """
        inputs, targets = (part.flatten(0, 1) if self._grouped else part for part in chunk[:2])
        copies = {} if self._bare is None else self._bare.copies(len(inputs))
        self._see(chunk.inputs)
        with torch.enable_grad():
            outputs = functional_call(self.flat.module, copies, (inputs,)) if copies else self.flat.module(inputs)
            losses = self._loss(outputs, targets)
            if self._versions != [output._version for output in self._outputs]:
                raise RuntimeError("the output of a layer is changed in place")
            self._inputs += [copy.new_zeros(len(inputs), 1) for copy in copies.values()]
            self._outputs += copies.values()
            errors = torch.autograd.grad(losses.sum(), self._outputs, allow_unused=True)
        groups = chunk.inputs.shape[:2] if self._grouped else None
        features = []
        for layer, (a, output, error) in enumerate(zip(self._inputs, self._outputs, errors, strict=True)):
            g = torch.zeros_like(output) if error is None else error
            if layer >= self._hooked:
                g = g.reshape(len(inputs), -1)
            elif self._dimensions[layer]:
                a, g = (values.movedim(self._dimensions[layer], 0).contiguous() for values in (a, g))
            if groups is not None and groups[1] > 1:  # a group with one row is a record like any other
                a, g = (self.rules[layer].by_group(values, groups) for values in (a, g))
            a, g = (values.contiguous() if 0 in values.stride() else values for values in (a, g))
            features.append(Feature(a, g, self._static(layer, a, chunk, statics)))
        self._see(self.flat.vector)
        return features

    def _shapes(self, inputs: Tensor) -> list[torch.Size]:
        """Return the shapes of what the layers give for these rows."""
        self._see(inputs)
        with torch.no_grad():
            self.flat.module(inputs)
        return [output.shape for output in self._outputs]

    def _see(self, values: Tensor) -> None:
        """Let every layer that is not called have seen and given these values."""
        self._inputs, self._outputs = [values] * self._hooked, [values] * self._hooked
        self._versions = [values._version] * self._hooked

    def _hook(self, index: int, rule: Rule) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if not output.requires_grad:  # the first layer: nothing before it asks for a gradient
                output.requires_grad_()
            self._inputs[index] = rule.capture(inputs[0].detach())
            self._outputs[index] = output
            self._versions[index] = output._version

        return hook

    @torch.inference_mode()
    def _static(self, layer: int, a: Tensor, chunk: Records, statics: dict[int, Tensor]) -> Tensor | None:
        """Return what the rule keeps where ``a`` is the records themselves, which do not change between iterates."""
        if not a.dtype.is_floating_point or not _same_memory(a, chunk.inputs):
            return None
        if layer not in statics:
            statics[layer] = self.rules[layer].static(a)
        return statics[layer]


def _trained_layers(flat: FlatModule) -> list[tuple[nn.Module, dict[str, slice]]]:
    """Return the layers that have a rule and are trained, with the places of their parameters."""
    found = []
    for module in flat.module.modules():
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]  # it would overwrite the outputs that are recorded
        places = {own: flat.part_of(parameter) for own, parameter in module.named_parameters(recurse=False)}
        parts = {own: part for own, part in places.items() if part is not None}
        if type(module) in RULES and parts:
            found.append((module, parts))
    return found


def _shared(found: list[tuple[nn.Module, dict[str, slice]]]) -> dict[tuple[int, int], list[tuple[int, str]]]:
    """Return which layers use a parameter, and as what, where they are several; by the place of the parameter."""
    uses: dict[tuple[int, int], list[tuple[int, str]]] = {}
    for layer, (_, parts) in enumerate(found):
        for own, part in parts.items():
            uses.setdefault((part.start, part.stop), []).append((layer, own))
    return {place: who for place, who in uses.items() if len(who) > 1}


def _grown(few: torch.Size, more: torch.Size) -> int:
    """Return the one dimension that has one more row, or the first."""
    grown = [dim for dim, pair in enumerate(zip(few, more, strict=False)) if pair[0] != pair[1]]
    return grown[0] if len(grown) == 1 and more[grown[0]] == few[grown[0]] + 1 else 0


def _same_memory(a: Tensor, b: Tensor) -> bool:
    """Whether ``a`` shows the numbers of ``b``: the same storage from the same place on, and as many."""
    return a.data_ptr() == b.data_ptr() and a.numel() == b.numel()
