"""One table, split by one seed: what a contestant is given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from diff2.tables.encode import encode
from diff2.tables.kinds import Classes, Counts, Regression
from diff2.tables.rows import Rows
from diff2.tables.schema import Schema

if TYPE_CHECKING:
    import pandas

HELD_OUT = 5  # one part in so many


def held_out(rows: int, seed: int, groups: np.ndarray | None = None) -> np.ndarray:
    """Return a mask of the test rows: a fifth of the rows, or all rows of a fifth of the groups.

    >>> held_out(10, seed=0).sum()
    np.int64(2)
    >>> groups = np.repeat(np.arange(5), 3)
    >>> len(set(groups[held_out(15, seed=0, groups=groups)])), held_out(15, seed=0, groups=groups).sum()
    (1, np.int64(3))
    """
    units, place = (np.arange(rows), np.arange(rows)) if groups is None else np.unique(groups, return_inverse=True)
    out = np.random.default_rng(seed).permutation(len(units))[: len(units) // HELD_OUT]
    return np.isin(place, out)


@dataclass(frozen=True, eq=False)
class Problem:
    """Training and test rows of one table, raw and encoded.

    All contestants protect a row: the schema that they get names no groups.
    """

    schema: Schema
    train: pandas.DataFrame
    test: pandas.DataFrame

    @classmethod
    def split(cls, frame: pandas.DataFrame, schema: Schema, seed: int) -> Problem:
        groups = None if schema.groups is None else frame[schema.groups].to_numpy()
        out = held_out(len(frame), seed, groups)
        return cls(replace(schema, groups=None), frame[~out], frame[out])

    @property
    def task(self) -> str:
        """``"regression"``, ``"counts"`` or ``"classes"``."""
        return self.schema.target.kind

    @property
    def classes(self) -> int:
        target = self.schema.target
        return len(target.values) if isinstance(target, Classes) else 0

    @property
    def target_bounds(self) -> tuple[float, float]:
        target = self.schema.target
        assert isinstance(target, Regression | Counts)
        return (0.0, target.high) if isinstance(target, Counts) else (target.low or 0.0, target.high or 0.0)

    @cached_property
    def train_rows(self) -> Rows:
        return _usable(self.train, self.schema)

    @cached_property
    def test_rows(self) -> Rows:
        return _usable(self.test, self.schema)

    @cached_property
    def inputs(self) -> tuple[np.ndarray, np.ndarray]:
        """Min-max scaled and one-hot inputs of training and test rows."""
        return design(self.train_rows, self.schema), design(self.test_rows, self.schema)

    @property
    def target(self) -> np.ndarray:
        """The training target: class numbers, counts, or numbers of [-1, 1]."""
        target = self.train_rows.target
        if self.task != "regression":
            return target
        low, high = self.target_bounds
        return 2 * (target - low) / (high - low) - 1

    def unscaled(self, values: np.ndarray) -> np.ndarray:
        """Return predictions of ``target`` in the target's own units, within its bounds."""
        low, high = self.target_bounds
        return np.clip(low + (np.nan_to_num(values) + 1) / 2 * (high - low), low, high)


def design(rows: Rows, schema: Schema) -> np.ndarray:
    """Return numbers in [-1, 1] by their public bounds, a 0/1 column for missing ones, and categories one-hot.

    >>> from diff2.tables.kinds import Category, Number
    >>> schema = Schema({"age": Number(0, 100), "sex": Category(("f", "m"))}, "ill", Classes((0, 1)))
    >>> design(Rows(np.array([[25.0], [np.nan]]), np.array([[1], [0]]), np.zeros(2)), schema)
    array([[-0.5,  0. ,  0. ,  1. ,  0. ,  0. ],
           [ 0. ,  1. ,  1. ,  0. ,  0. ,  0. ]])
    """
    low, high = schema.bounds.T
    scaled = 2 * (rows.numeric - low) / (high - low) - 1
    missing = np.isnan(scaled[:, schema.nullable])
    onehot = [np.eye(width)[rows.codes[:, j]] for j, width in enumerate(schema.widths)]
    return np.concatenate([np.nan_to_num(scaled), missing, *onehot], axis=1)


def largest_norm(schema: Schema) -> float:
    """Return the largest norm that a row of ``design`` can have: each number and each category adds at most 1."""
    return float(np.sqrt(len(schema.numeric) + len(schema.widths)))


def _usable(frame: pandas.DataFrame, schema: Schema) -> Rows:
    found = encode(frame, schema, least=0)
    return Rows(*(part[found.usable] for part in found.rows))
