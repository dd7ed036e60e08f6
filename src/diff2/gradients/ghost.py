"""The engine for any model whose layers have rules: clipped sums of per-record gradients without writing them out.

One forward and one backward pass give, for every layer, its input ``a`` and the error ``g`` at its output; the rules
turn them into squared norms and weighted sums (``rules.py``). A difference needs the pass at the previous iterate,
which is kept from the round before: it costs what a plain gradient costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._vectors import Loss
from .attention import unsuited as attention_unsuited
from .bare import LARGEST
from .engine import Engine
from .flat import FlatModule
from .layers import Linear
from .recorder import Recorder
from .records import FeatureCache, Records, clip_factors, zeroed
from .rules import RULES, Feature, Rule, Term
from .stochastic import Masks, seeded
from .sums import Total, chunk_size

CHUNK_NUMBERS = 1 << 22  # numbers in all features of a chunk: 16 MB in single precision
FEW, MORE = 16, 4  # up to FEW records may take MORE times as much: a pass over very few of them is mostly overhead


class _Chunk(NamedTuple):
    records: Records
    statics: dict[int, Tensor]  # by layer


class GhostEngine(Engine):
    """Clipped sums for modules whose parameters all belong to layers with a rule, each layer called once.

    The example shows how large the features are; its values do not matter.
    """

    name = "ghost"

    def __init__(self, module: nn.Module, loss: Loss, example: Records, **options: Any):
        super().__init__(module, loss, **options)
        rows = Records.of(*(part.flatten(0, 1) for part in example[:2])) if self._grouped else example
        with seeded(Masks(b"example"), 0):
            self._recorder = Recorder(self._own, loss, example=rows, grouped=self._grouped)
        self._rules: list[Rule] = self._recorder.rules  # of what is summed
        if self._grouped:
            rows = Records.of(*(part.unsqueeze(1) for part in rows[:2]))
        with seeded(Masks(b"example"), 0):
            self._row = [_first(feature) for feature in self._recorder.features(rows, {})]
        self._bytes_per_row = sum(map(_own_size, self._row)) * self.flat.vector.element_size()
        self._chunk_sizes: dict[int, int] = {}  # by the number of rows of a record
        self._same_rows = self.chunk_rows or None  # for records of any number of rows
        self.chunk_rows = self._rows_per_chunk(example)
        self._recorder.try_batch(min(self.chunk_rows * self._rows(example), LARGEST))

    @staticmethod
    def unsuited(flat: FlatModule, loss: Loss) -> str | None:
        module = flat.module
        used: dict[int, list[nn.Module]] = {}
        for layer in module.modules():
            for parameter in (one for one in layer.parameters(recurse=False) if flat.part_of(one) is not None):
                used.setdefault(id(parameter), []).append(layer)
        for layers in used.values():
            kinds = {type(layer): RULES.get(type(layer), Rule) for layer in layers}
            if len(layers) > 1 and any(rule.written is Rule.written for rule in kinds.values()):
                names = ", ".join(sorted(kind.__name__ for kind in kinds))
                return f"parameters are shared between layers of which one cannot write out its gradients ({names})"
        joins = [layer.out_proj for layer in module.modules() if type(layer) is nn.MultiheadAttention]
        for name, layer in module.named_modules():
            if layer in joins or all(flat.part_of(one) is None for one in layer.parameters(recurse=False)):
                continue
            where = f"{name or 'the model itself'!r} ({type(layer).__name__})"
            reason = None
            if type(layer) in RULES or type(layer) is nn.MultiheadAttention:
                reason = RULES[type(layer)].unsuited(layer) if type(layer) in RULES else attention_unsuited(layer)
            elif type(layer).__module__.startswith("torch."):
                return f"there is no rule for layer {where}; diff2.gradients.register_rule adds one"
            if reason is not None:
                return f"layer {where} {reason}"
        return None

    def _rows_per_chunk(self, records: Records) -> int:
        """Return how many records make a chunk: the more rows each of them has, the fewer."""
        rows = self._rows(records)
        if self._same_rows is None and rows not in self._chunk_sizes:
            features = [_widened(*pair, rows) for pair in zip(self._recorder.rules, self._row, strict=True)]
            numbers = [feature.a.numel() + feature.g.numel() for feature in features]
            spaces = [rule.workspace(feature) for rule, feature in zip(self._recorder.rules, features, strict=True)]
            shared = [2 * (one.part.stop - one.part.start) for one in self._recorder.shared]
            each = max(1, sum(numbers) + sum(spaces) + sum(shared))
            self._chunk_sizes[rows] = chunk_size(max(CHUNK_NUMBERS // each, min(FEW, MORE * CHUNK_NUMBERS // each)))
        return self._same_rows or self._chunk_sizes[rows]

    def _rows(self, records: Records) -> int:
        return records.inputs.shape[1] if self._grouped else 1

    def _may_keep(self, records: Records) -> bool:
        return self._bytes_per_row * self._rows(records) * records.size <= self._cache_bytes

    def _prepare(self, chunk: Records, index: int, cache: FeatureCache | None) -> _Chunk:
        return _Chunk(chunk, {} if cache is None else cache.statics.setdefault(index, {}))

    def _take_up(self) -> None:
        self._rules = [
            Linear(rule.module, {"weight": self._places[start].part}, self._own.dtype)
            if start in self._places
            else rule
            for rule, start in ((rule, _start(rule)) for rule in self._recorder.rules)
        ]

    def _run(self, prepared: _Chunk) -> list[Feature]:
        if not self._places:
            return self._recorder.features(*prepared)
        plain = self._recorder.features(prepared.records, {})
        return [self._transformed(layer, feature, prepared.statics) for layer, feature in enumerate(plain)]

    @torch.inference_mode()
    def _transformed(self, layer: int, feature: Feature, statics: dict[int, Tensor]) -> Feature:
        """Return the feature in the coordinates of the transform; what follows from the records alone is kept."""
        place = self._places.get(_start(self._recorder.rules[layer]))
        if place is None:
            return feature
        g = place.factors.of_errors(feature.g)
        if feature.static is None:
            return Feature(place.factors.of_inputs(feature.a), g)
        if layer not in statics:
            statics[~layer] = place.factors.of_inputs(feature.a)
            statics[layer] = self._rules[layer].static(statics[~layer])
        return Feature(statics[~layer], g, statics[layer])

    @torch.inference_mode()  # a seventh less overhead in each of many small operations
    def _add(
        self, out: Total, prepared: _Chunk, radius: float, now: Sequence[Feature], before: Sequence[Feature] | None
    ) -> None:
        terms, squared_norm = self._terms(now, before)
        if not torch.isfinite(squared_norm.sum()):
            # A record without a finite gradient counts as zero; 0 * inf would not.
            usable = torch.isfinite(squared_norm)
            before = before and [_without(feature, usable) for feature in before]
            terms, squared_norm = self._terms([_without(feature, usable) for feature in now], before)
            squared_norm = zeroed(squared_norm, usable)
        weights = prepared.records.weights * clip_factors(squared_norm, radius)
        for term in terms:
            term.add_sum(weights, out)

    @torch.inference_mode()
    def _squared_norms(self, prepared: _Chunk, now: Sequence[Feature]) -> Tensor:
        return self._terms(now, None)[1]

    def _terms(self, now: Sequence[Feature], before: Sequence[Feature] | None) -> tuple[list[Term], Tensor]:
        rules, shared = self._rules, self._recorder.shared
        if before is None:
            terms = [rule.gradient(feature) for rule, feature in zip(rules, now, strict=True) if rule.parts]
            terms += [one.gradient(now) for one in shared]
        else:
            terms = [rule.difference(*pair) for rule, *pair in zip(rules, now, before, strict=True) if rule.parts]
            terms += [one.difference(now, before) for one in shared]
        squared_norm = terms[0].squared_norm
        for term in terms[1:]:
            squared_norm = squared_norm + term.squared_norm
        return terms, squared_norm


def _start(rule: Rule) -> int:
    """Return where the weight of a layer stands in the flat vector; -1: nowhere."""
    weight = rule.parts.get("weight")
    return -1 if weight is None else weight.start


def _first(feature: Feature) -> Feature:
    return feature._replace(a=feature.a[:1].clone(), g=feature.g[:1].clone())


def _widened(rule: Rule, row: Feature, rows: int) -> Feature:
    """Return the feature of a record that has this many rows, all like the one given."""
    if rows == 1:
        return row
    a, g = (rule.by_group(part.expand(rows, *part.shape[1:]), (1, rows)) for part in (row.a, row.g))
    return row._replace(a=a, g=g)


def _own_size(feature: Feature) -> int:
    """Return how many numbers a record keeps in the cache; the records themselves are in memory anyway."""
    return feature.g[0].numel() + (0 if feature.static is not None else feature.a[0].numel())


def _without(feature: Feature, usable: Tensor) -> Feature:
    """Return the feature with the rows that are not usable set to zero."""

    a, g = (zeroed(part, usable.view(-1, *[1] * (part.dim() - 1))) for part in (feature.a, feature.g))
    return Feature(a, g, feature.static)
