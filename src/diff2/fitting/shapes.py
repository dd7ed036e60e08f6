"""Whether the arrays of a model fit its schema and each other: what is wrong, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..tables.kinds import Classes
from ..tables.schema import Schema
from .linear import LinearModel
from .preparation import Preparation
from .trees import BINS, LEAVES, QUESTIONS, Tree, TreeModel


def shape_faults(model: LinearModel | TreeModel, schema: Schema) -> list[str]:
    """Return a sentence for each array that has another shape, or numbers of another range, than it must have."""
    linear = model.linear if isinstance(model, TreeModel) else model
    found = [*_of_preparation(linear.design.preparation, schema), *_of_linear(linear, schema)]
    if isinstance(model, TreeModel) and not found:
        found += _of_trees(model, schema)
    return found


def _of_preparation(preparation: Preparation, schema: Schema) -> Iterator[str]:
    numeric = len(schema.numeric)
    if len(preparation.columns) != numeric or preparation.categories != schema.widths:
        yield "the columns are not those of the schema"
    if not set(preparation.nullable) <= set(range(numeric)):
        yield "a column that may be missing is none of the schema"
    for column in preparation.columns:
        count = column.edges.size
        if count < 2 or column.edges.ndim != 1 or not (np.diff(column.edges) > 0).all():
            yield "the edges of a column do not increase"
        yield from _shape("ranks", column.ranks, (count,))
        yield from _shape("heavy", column.heavy, (count - 1,), np.bool_)
    if preparation.whitening is not None:
        yield from _shape("the mean of the whitening", preparation.whitening.mean, (numeric,))
        yield from _shape("the matrix of the whitening", preparation.whitening.matrix, (numeric, numeric))
    if preparation.projections is not None:
        inputs, scores, phases, level = preparation.projections
        features = phases.size
        yield from _shape("the projections of the inputs", inputs, (preparation.width, features))
        yield from _shape("the projections of the scores", scores, (numeric, features))
        yield from _shape("the phases", phases, (features,))
        yield from _shape("the level of the cosines", level, (features,), scalar=True)


def _of_linear(model: LinearModel, schema: Schema) -> Iterator[str]:
    design, projections = model.design, model.design.preparation.projections
    free = design.preparation.width + (0 if projections is None else projections.phases.size)
    yield from _shape("the centre of the features", design.centre, (free,), scalar=True)
    made = free + 1
    if design.matrix is not None:
        made = design.matrix.shape[-1] if design.matrix.ndim == 2 else -1
        yield from _shape("the matrix of the features", design.matrix, (free + 1, made))
    outputs = (len(schema.target.values),) if isinstance(schema.target, Classes) else ()
    yield from _shape("theta", model.theta, (made, *outputs))
    yield from _shape("the offset", model.offset, outputs, scalar=True)


def _of_trees(model: TreeModel, schema: Schema) -> Iterator[str]:
    numeric, directions = len(schema.numeric), model.binning.oblique.shape[-1]
    yield from _shape("the oblique directions", model.binning.oblique, (numeric, directions))
    if len(model.binning.orders) != len(schema.widths):
        yield "the orders of categories are not those of the schema"
    for order, width in zip(model.binning.orders, schema.widths, strict=False):
        if sorted(order.ravel().tolist()) != list(range(width)):
            yield "the order of the categories of a column lacks one"
    classes = len(schema.target.values) if isinstance(schema.target, Classes) else 0
    columns = numeric + directions + len(schema.widths) + (classes if classes > 2 else 1)
    for tree in model.trees:
        yield from _of_tree(tree, columns, (LEAVES, classes) if classes else (LEAVES,))


def _of_tree(tree: Tree, columns: int, leaves: tuple[int, ...]) -> Iterator[str]:
    yield from _shape("the leaves of a tree", tree.values, leaves)
    for half in (tree.first, tree.second):
        for name, values, end in (("columns", half.columns, columns), ("thresholds", half.thresholds, BINS)):
            yield from _shape(f"the {name} of a tree", values, (QUESTIONS,), np.int64)
            if ((values < 0) | (values >= end)).any():
                yield f"the {name} of a tree are out of range"


def _shape(
    name: str, value: Any, shape: tuple[int, ...], dtype: Any = np.float64, *, scalar: bool = False
) -> Iterator[str]:
    if scalar and isinstance(value, float):
        return
    if not isinstance(value, np.ndarray) or value.shape != shape or value.dtype != dtype:
        yield f"{name} should be {np.dtype(dtype).name} of shape {shape}"
