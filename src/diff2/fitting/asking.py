"""What a recipe may see of the records: releases, each at its price."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from ..tables.rows import Rows


class Statistic(Protocol):
    """A bounded vector for each record, of which the weighted sum is released."""

    @property
    def purpose(self) -> str: ...

    @property
    def longest(self) -> float:
        """The largest length of a record's vector."""
        ...

    @property
    def diameter(self) -> float:
        """The largest distance of two records' vectors: replacing one of weight w moves the sum by w times this."""
        ...

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        """Return the weighted sum over records; ``cache`` keeps what the next statistic of these rows may need."""
        ...


class Answer(NamedTuple):
    """A released sum."""

    value: np.ndarray
    noise_std: float


class Ask(Protocol):
    """Releases a statistic with noise, at the price ``mu`` in Gaussian differential privacy."""

    def __call__(self, statistic: Statistic, mu: float) -> Answer: ...


class Scores(Protocol):
    """Whole-number scores of public candidates, of which one is chosen."""

    @property
    def purpose(self) -> str: ...

    @property
    def sensitivity(self) -> int:
        """How far replacing a record of the largest weight moves a score."""
        ...

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        """Return sums over records, from which :meth:`scores` follow; weights in units of the largest."""
        ...

    def scores(self, total: np.ndarray) -> np.ndarray:
        """Return one whole number per candidate."""
        ...


class Choose(Protocol):
    """Chooses a candidate by the exponential mechanism, at the price ``mu``; returns its place."""

    def __call__(self, scores: Scores, mu: float) -> int: ...
