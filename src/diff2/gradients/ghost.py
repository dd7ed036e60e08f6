r"""The fast engine: clipped sums of per-record gradients without per-record gradients.

One forward and one backward pass give, for every layer, its input ``a`` and the error ``g`` at its output; the
rules of ``layers.py`` turn them into squared norms and weighted sums. The pass at the previous iterate is not repeated:
its features are kept from the round before. A difference round thus costs what a plain gradient costs.

Formal guarantee: a record alone contributes a vector of norm at most ``radius`` to the sum, and replacing one moves the
sum by at most ``2 radius (1 + sums.rounding_allowance)``, times its weight. With ``inner``, a difference is that of two
clipped gradients. A gradient is linear in ``g``, so clipping one is scaling its ``g`` in every layer; norm and sum of
the difference are then taken from the scaled features, by the same rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .._types import Loss, Vector
from .flat import FlatModule
from .recorder import Recorder
from .records import FeatureCache, Records, clip_factors, inner_factors
from .rules import Feature, Rule, Term
from .stochastic import Masks, seeded
from .sums import chunk_size

CHUNK_NUMBERS = 1 << 22  # numbers a chunk holds in all its features: 16 MB in single precision
CACHE_BYTES = 4 << 30  # features of the previous iterate that may be kept


class Pass(NamedTuple):
    """What one pass over a chunk gave, and what is kept of it for the next round."""

    features: list[Feature]  # of every layer
    squared_norm: Tensor | None = None  # of every record's gradient, where it was needed


class GhostEngine:
    """Clipped sums for modules whose parameters all belong to layers with a rule, each used once.

    With ``grouped``, a record is an owner with several rows (``groups.py``), as many as the inputs of a call have.
    """

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
        grouped: bool = False,
    ):
        self.flat = FlatModule(module, dtype=dtype, device=device)  # without hooks, for everyone else
        self._now = Recorder(FlatModule(module, dtype=dtype, device=device), loss, grouped=grouped)
        self._before = Recorder(FlatModule(module, dtype=dtype, device=device), loss, grouped=grouped)
        self._grouped = grouped
        rows = Records.of(*(part.flatten(0, 1).unsqueeze(1) for part in example[:2])) if grouped else example
        with seeded(Masks(b"example"), 0):
            self._row = [_first(feature) for feature in self._now.features(rows, 0, None)]
        self._bytes_per_row = sum(map(_own_size, self._row)) * self.flat.vector.element_size()
        self._cache_bytes = cache_bytes
        self._chunk_sizes: dict[int, int] = {}  # by the number of rows of a record
        self._chunk_rows = chunk_rows
        self.chunk_rows = chunk_rows or self._chunk_size(example)

    def clipped_sum(self, question, records, *, cache=None, masks=None):  # type: ignore[no-untyped-def]
        if question.kind == "gradient":
            return self.clipped_gradient_sum(
                question.params, records, question.radius, cache=cache, masks=masks, remember=question.remember
            )
        return self.clipped_difference_sum(
            question.params, question.previous, records, question.radius, cache=cache, masks=masks
        )

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
        """Return the weighted sum of the per-record gradients at ``params``, each clipped to ``radius``.

        Where the cache holds the features of this iterate, the model is not run again.
        """
        self._now.flat.load(params)
        keep = remember and self._may_keep(cache, records, masks)
        known = _known(cache, params, masks)
        if cache is not None and not known:
            cache.forget()
        out = self._zero_sum()
        for index, chunk in enumerate(records.chunks(self._chunk_rows or self._chunk_size(records))):
            if index in known:
                features = known[index].features
            else:
                with seeded(masks, index):
                    features = self._now.features(chunk, index, cache)
            squared_norm = self._add(out, chunk.weights, radius, features)
            if keep and cache is not None:
                cache.chunks[index] = Pass(features, squared_norm)
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
        inner: float = math.inf,
    ) -> Vector:
        """Return the weighted sum of gradient(params) - gradient(previous), each record's difference clipped.

        With a finite ``inner``, both gradients of a record are clipped to it before their difference is taken.
        """
        self._now.flat.load(params)
        keep = self._may_keep(cache, records, masks)
        known = _known(cache, previous, masks)
        if not known:
            self._before.flat.load(previous)
        if cache is not None:
            cache.params = None  # until the pass is complete, the chunks belong to two iterates
        out = self._zero_sum()
        for index, chunk in enumerate(records.chunks(self._chunk_rows or self._chunk_size(records))):
            before = known.get(index)
            if before is None:
                with seeded(masks, index):
                    before = Pass(self._before.features(chunk, index, cache))
            with seeded(masks, index):
                now = Pass(self._now.features(chunk, index, cache))
            if inner < math.inf:
                now = now._replace(squared_norm=self._norm(now))
                shortened = (
                    self._shortened("now", now.features, self._norm(now), inner),
                    self._shortened("before", before.features, self._norm(before), inner),
                )
                self._add(out, chunk.weights, radius, *shortened)
            else:
                self._add(out, chunk.weights, radius, now.features, before.features)
            if keep and cache is not None:
                cache.chunks[index] = now
        if keep and cache is not None:
            cache.params = params.clone()
        return out.clone()

    @torch.inference_mode()
    def _zero_sum(self) -> Vector:
        return torch.zeros(len(self.flat), dtype=torch.float64, device=self.flat.device)

    def _chunk_size(self, records: Records) -> int:
        """Return how many records make a chunk: the more rows each of them has, the fewer."""
        rows = self._rows(records)
        if rows not in self._chunk_sizes:
            features = [_widened(*pair, rows) for pair in zip(self._now.rules, self._row, strict=True)]
            numbers = [feature.a.numel() + feature.g.numel() for feature in features]
            spaces = [rule.workspace(feature) for rule, feature in zip(self._now.rules, features, strict=True)]
            self._chunk_sizes[rows] = chunk_size(CHUNK_NUMBERS // max(1, sum(numbers) + sum(spaces)))
        return self._chunk_sizes[rows]

    def _rows(self, records: Records) -> int:
        return records.inputs.shape[1] if self._grouped else 1

    def _may_keep(self, cache: FeatureCache | None, records: Records, masks: Masks | None) -> bool:
        # With random masks, features of one round do not serve the next, which has other masks.
        size = self._bytes_per_row * self._rows(records) * records.size
        return cache is not None and masks is None and size <= self._cache_bytes

    @torch.inference_mode()
    def _norm(self, done: Pass) -> Tensor:
        return self._terms(done.features, None)[1] if done.squared_norm is None else done.squared_norm

    @torch.inference_mode()
    def _shortened(self, name: str, features: list[Feature], squared_norm: Tensor, inner: float) -> list[Feature]:
        """Return the features of the gradients clipped to ``inner``."""
        factors = inner_factors(squared_norm, inner)
        if bool((factors == 1).all()):
            return features
        return [rule.scaled(name, feature, factors) for rule, feature in zip(self._now.rules, features, strict=True)]

    @torch.inference_mode()  # a seventh less overhead in each of many small operations
    def _add(
        self,
        out: Vector,
        weights: Tensor,
        radius: float,
        features: Sequence[Feature],
        before: Sequence[Feature] | None = None,
    ) -> Tensor:
        """Add the clipped sum of the records to ``out``; return their squared norms, not finite where they are not."""
        terms, squared_norm = self._terms(features, before)
        found = squared_norm
        if not torch.isfinite(squared_norm.sum()):
            # A record with a non-finite gradient counts as zero; 0 * inf would not.
            usable = torch.isfinite(squared_norm)
            before = before and [_without(feature, usable) for feature in before]
            terms, squared_norm = self._terms([_without(feature, usable) for feature in features], before)
            squared_norm = torch.where(usable, squared_norm, torch.zeros_like(squared_norm))
        weights = weights * clip_factors(squared_norm, radius)
        for term in terms:
            term.add_sum(weights, out)
        return found

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


def _known(cache: FeatureCache | None, params: Vector, masks: Masks | None) -> dict[int, Pass]:
    """Return what the cache holds of the passes at this iterate. Other masks would have given other features."""
    return cache.chunks if cache is not None and masks is None and cache.holds(params) else {}


def _first(feature: Feature) -> Feature:
    return feature._replace(a=feature.a[:1].clone(), g=feature.g[:1].clone())


def _widened(rule: Rule, row: Feature, rows: int) -> Feature:
    """Return the feature of a record that has so many rows like this one."""
    if rows == 1:
        return row
    a, g = (rule.by_owner(part.expand(rows, *part.shape[1:]), (1, rows)) for part in (row.a, row.g))
    return row._replace(a=a, g=g)


def _own_size(feature: Feature) -> int:
    """Numbers a record keeps in the cache; the records themselves are there anyway."""
    return feature.g[0].numel() + (0 if feature.static is not None else feature.a[0].numel())


def _without(feature: Feature, usable: Tensor) -> Feature:
    """Return the feature with the rows that are not usable set to zero."""

    def zero(values: Tensor) -> Tensor:
        return torch.where(usable.view(-1, *[1] * (values.dim() - 1)), values, torch.zeros_like(values))

    return Feature(zero(feature.a), zero(feature.g), feature.static)
