"""A linear model and oblivious trees on its residual: what they ask of a record, and what they predict.

A tree asks four or six yes-or-no questions, the same of every record, and adds the value of one of 16 or 64 leaves.
How trees are chosen is in ``trees.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr

from ..tables.rows import Rows
from .linear import LinearModel
from .preparation import Preparation
from .second_moment import length_limited
from .statistics import class_residuals

QUESTIONS = (2, 3)  # of a half: for few records, for many
LEVELS = 511  # whole numbers that a residual as long as the radius is rounded to
BINS = 250
RATE = 0.7


class Half(NamedTuple):
    """Two or three questions: is the bin of this column above this threshold?"""

    columns: np.ndarray
    thresholds: np.ndarray

    def leaves(self, bins: np.ndarray) -> np.ndarray:
        """Return which of its leaves each record is in."""
        found = np.zeros(len(bins), dtype=np.uint8)
        for column, threshold in zip(self.columns, self.thresholds, strict=True):
            found += found
            found += bins[:, column] > threshold
        return found.astype(np.int64)


class Tree(NamedTuple):
    """A pair of halves, and what its leaves add."""

    first: Half
    second: Half
    values: np.ndarray  # (leaves,) or (leaves, classes)

    def leaves(self, bins: np.ndarray) -> np.ndarray:
        """Return the leaf of each record."""
        return (self.first.leaves(bins) << len(self.second.columns)) + self.second.leaves(bins)


class Binning(NamedTuple):
    """The columns that trees ask about: ranks, public oblique directions of scores, orders of categories, the model."""

    oblique: np.ndarray  # (numeric columns, directions)
    orders: tuple[np.ndarray, ...]  # for each, the place of every category in a public random order
    spread: float  # about the deviation of the model's outputs

    def of(self, model: LinearModel, rows: Rows, cache: dict[Any, Any]) -> np.ndarray:
        """Return the bin of each record in each column."""
        preparation: Preparation = model.design.preparation
        parts = [column.rank(rows.numeric[:, j])[:, None] for j, column in enumerate(preparation.columns)]
        parts.append(ndtr(preparation.scores(rows) @ self.oblique))
        parts += [(order[rows.codes[:, j], None] + 0.5) / len(order) for j, order in enumerate(self.orders)]
        parts.append(ndtr(_moved(model, rows, cache) / self.spread))
        ranks = np.nan_to_num(np.concatenate(parts, axis=1), nan=0.5)
        return np.minimum(ranks * BINS, BINS - 1).astype(np.uint8, order="F")  # read column by column


def _moved(model: LinearModel, rows: Rows, cache: dict[Any, Any]) -> np.ndarray:
    """Return how far outputs are from the constant: (rows, 1), of more than two classes (rows, classes)."""
    moved = LinearModel.outputs(model, rows, cache) - model.offset  # a curve keeps the order
    if moved.ndim == 1:
        return moved[:, None]
    return moved if moved.shape[1] > 2 else moved[:, :1]


@dataclass(frozen=True, eq=False)
class TreeModel:
    """A linear model and trees on its residual."""

    linear: LinearModel
    binning: Binning
    trees: tuple[Tree, ...] = ()

    @property
    def offset(self) -> np.ndarray | float:
        """The constant that the linear model starts from."""
        return self.linear.offset

    def bins(self, rows: Rows, cache: dict[Any, Any]) -> np.ndarray:
        """Return the bins, kept for the next statistic."""
        if cache.get("binning") is not self.binning:
            cache["bins"], cache["binning"] = self.binning.of(self.linear, rows, cache), self.binning
            cache["outputs"] = (0, self.linear.outputs(rows, cache))
        return cache["bins"]

    def outputs(self, rows: Rows, cache: dict[Any, Any]) -> np.ndarray:
        """Return the predictions; those of the first trees are kept."""
        bins = self.bins(rows, cache)
        done, outputs = cache["outputs"]
        for tree in self.trees[done:]:
            outputs = outputs + RATE * tree.values[tree.leaves(bins)]
        cache["outputs"] = (len(self.trees), outputs)
        return outputs

    def residual(self, rows: Rows, bounds: tuple[float, float], cache: dict[Any, Any]) -> np.ndarray:
        """Return what the target is above the prediction: (rows,) or, for classes, (rows, classes)."""
        outputs = self.outputs(rows, cache)
        return (
            np.clip(rows.target, *bounds) - outputs
            if outputs.ndim == 1
            else class_residuals(outputs.copy(), rows.target)
        )

    def clipped(
        self,
        rows: Rows,
        radius: float,
        bounds: tuple[float, float],
        cache: dict[Any, Any],
        contrast: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the residuals, or their products with a contrast, in units of radius / 511, as whole numbers."""
        residual = self.residual(rows, bounds, cache)
        if contrast is not None:
            residual = length_limited(residual, radius) @ contrast
        return np.rint(np.clip(residual / radius, -1.0, 1.0) * LEVELS)
