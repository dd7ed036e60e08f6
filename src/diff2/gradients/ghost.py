r"""The fast engine: clipped sums of per-record gradients without per-record gradients.

One forward and one backward pass give, for every layer, its input ``a`` and the error ``g`` at its output; the
rules of ``layers.py`` turn them into squared norms and weighted sums. The pass at the previous iterate is not repeated:
its features are kept from the round before. A difference round thus costs what a plain gradient costs.

Formal guarantee: a record alone contributes a vector of norm at most ``radius`` to the sum, and replacing one moves the
sum by at most ``2 radius (1 + sums.rounding_allowance)``, times its weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .._types import Loss, Vector
from .flat import FlatModule
from .layers import RULES
from .records import FeatureCache, Records, clip_factors
from .rules import Feature, Rule, Term
from .stochastic import Masks, seeded
from .sums import chunk_size

CHUNK_NUMBERS = 1 << 22  # numbers a chunk holds in all its features: 16 MB in single precision
CACHE_BYTES = 4 << 30  # features of the previous iterate that may be kept


class GhostEngine:
    """Clipped sums for modules whose parameters all belong to layers with a rule, each used once."""

    name = "ghost"

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        example: Records,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        chunk_rows: int | None = None,
        cache_bytes: int = CACHE_BYTES,
    ):
        self.flat = FlatModule(module, dtype=dtype, device=device)  # without hooks, for everyone else
        self._now = _Recorder(FlatModule(module, dtype=dtype, device=device), loss)
        self._before = _Recorder(FlatModule(module, dtype=dtype, device=device), loss)
        with seeded(Masks(b"example"), 0):
            features = self._now.features(example, 0, None)
        rules = self._now.rules
        work = sum(rule.workspace(f) + f.a[0].numel() + f.g[0].numel() for rule, f in zip(rules, features, strict=True))
        self.chunk_rows = chunk_rows or chunk_size(CHUNK_NUMBERS // max(1, work))
        self._bytes_per_record = sum(map(_own_size, features)) * self.flat.vector.element_size()
        self._cache_bytes = cache_bytes

    def clipped_gradient_sum(
        self,
        params: Vector,
        records: Records,
        radius: float,
        *,
        cache: FeatureCache | None = None,
        masks: Masks | None = None,
        remember: bool = True,
    ) -> Vector:
        """Return the weighted sum of the per-record gradients at ``params``, each clipped to ``radius``."""
        self._now.flat.load(params)
        keep = remember and self._may_keep(cache, records, masks)
        if cache is not None:
            cache.forget()
        out = self._zero_sum()
        for index, chunk in enumerate(records.chunks(self.chunk_rows)):
            with seeded(masks, index):
                features = self._now.features(chunk, index, cache)
            self._add(out, chunk.weights, radius, features)
            if keep and cache is not None:
                cache.chunks[index] = features
        if keep and cache is not None:
            cache.params = params.clone()
        return out.clone()

    def clipped_difference_sum(
        self,
        params: Vector,
        previous: Vector,
        records: Records,
        radius: float,
        *,
        cache: FeatureCache | None = None,
        masks: Masks | None = None,
    ) -> Vector:
        """Return the weighted sum of gradient(params) - gradient(previous), each record's difference clipped."""
        self._now.flat.load(params)
        keep = self._may_keep(cache, records, masks)
        known: dict[int, list[Feature]] = {}
        if cache is not None and cache.holds(previous):
            known = cache.chunks
        else:
            self._before.flat.load(previous)
        if cache is not None:
            cache.params = None  # until the pass is complete, the chunks belong to two iterates
        out = self._zero_sum()
        for index, chunk in enumerate(records.chunks(self.chunk_rows)):
            before = known.get(index)
            if before is None:
                with seeded(masks, index):
                    before = self._before.features(chunk, index, cache)
            with seeded(masks, index):
                features = self._now.features(chunk, index, cache)
            self._add(out, chunk.weights, radius, features, before)
            if keep and cache is not None:
                cache.chunks[index] = features
        if keep and cache is not None:
            cache.params = params.clone()
        return out.clone()

    @torch.inference_mode()
    def _zero_sum(self) -> Vector:
        return torch.zeros(len(self.flat), dtype=torch.float64, device=self.flat.device)

    def _may_keep(self, cache: FeatureCache | None, records: Records, masks: Masks | None) -> bool:
        # With random masks, features of one round do not serve the next, which has other masks.
        return cache is not None and masks is None and self._bytes_per_record * records.size <= self._cache_bytes

    @torch.inference_mode()  # a seventh less overhead in each of many small operations
    def _add(
        self,
        out: Vector,
        weights: Tensor,
        radius: float,
        features: Sequence[Feature],
        before: Sequence[Feature] | None = None,
    ) -> None:
        terms, squared_norm = self._terms(features, before)
        if not torch.isfinite(squared_norm.sum()):
            # A record with a non-finite gradient counts as zero; 0 * inf would not.
            usable = torch.isfinite(squared_norm)
            before = before and [_without(feature, usable) for feature in before]
            terms, squared_norm = self._terms([_without(feature, usable) for feature in features], before)
            squared_norm = torch.where(usable, squared_norm, torch.zeros_like(squared_norm))
        weights = weights * clip_factors(squared_norm, radius)
        for term in terms:
            term.add_sum(weights, out)

    def _terms(self, features: Sequence[Feature], before: Sequence[Feature] | None) -> tuple[list[Term], Tensor]:
        rules = self._now.rules
        if before is None:
            terms = [rule.gradient(feature) for rule, feature in zip(rules, features, strict=True)]
        else:
            terms = [rule.difference(*pair) for rule, *pair in zip(rules, features, before, strict=True)]
        squared_norm = terms[0].squared_norm
        for term in terms[1:]:
            squared_norm = squared_norm + term.squared_norm
        return terms, squared_norm


class _Recorder:
    """A module with hooks on every layer that has a rule: one call gives the features of a chunk."""

    def __init__(self, flat: FlatModule, loss: Loss):
        self.flat = flat
        self.rules: list[Rule] = []
        self._loss = loss
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
            losses = self._loss(self.flat.module(chunk.inputs), chunk.targets)
            if self._versions != [output._version for output in self._outputs]:
                raise RuntimeError("the output of a layer is changed in place")
            errors = torch.autograd.grad(losses, self._outputs, torch.ones_like(losses), allow_unused=True)
        features = []
        for layer, (a, output, error) in enumerate(zip(self._inputs, self._outputs, errors, strict=True)):
            g = torch.zeros_like(output) if error is None else error
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


def _own_size(feature: Feature) -> int:
    """Numbers a record keeps in the cache; the records themselves are there anyway."""
    return feature.g[0].numel() + (0 if feature.static is not None else feature.a[0].numel())


def _without(feature: Feature, usable: Tensor) -> Feature:
    """Return the feature with the rows that are not usable set to zero."""

    def zero(values: Tensor) -> Tensor:
        return torch.where(usable.view(-1, *[1] * (values.dim() - 1)), values, torch.zeros_like(values))

    return Feature(zero(feature.a), zero(feature.g), feature.static)
