"""Whether the arrays of a model fit its schema and each other: what is wrong, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..tables.kinds import Classes
from ..tables.schema import Schema
from .linear import CurvedModel, LinearModel
from .perceptron import ModuleModel, NetworkModel, Perceptron
from .preparation import Preparation
from .statistics import Design, Residuals
from .tree_model import BINS, QUESTIONS, Half, Tree, TreeModel
from .trees import PairScores

LEAST_STEP = 1e-30  # between knots: closer ones have slopes that overflow, for an output between them alone


def shape_faults(model: LinearModel | TreeModel | NetworkModel, schema: Schema) -> list[str]:
    """Return a sentence for each array that has another shape, or numbers of another range, than it must have."""
    if isinstance(model, Perceptron | ModuleModel):
        return [*_of_preparation(model.preparation, schema), *_of_network(model, schema)]
    linear = model.linear if isinstance(model, TreeModel) else model
    design = linear.design
    found = [*_of_preparation(design.preparation, schema), *_of_design(design), *_of_linear(linear, schema)]
    if isinstance(model, TreeModel) and not found:
        found += _of_trees(model, schema)
    return found


def part_faults(part: Any, schema: Schema) -> list[str]:
    """Return the same for a part of a statistic; parts within it are not looked at."""
    if isinstance(part, Preparation):
        return list(_of_preparation(part, schema))
    if isinstance(part, Design):
        return list(_of_design(part))
    if isinstance(part, LinearModel | Residuals):
        return list(_of_linear(part, schema))
    if isinstance(part, TreeModel):
        return list(_of_trees(part, schema))
    if isinstance(part, Tree):
        return list(_of_halves((part.first, part.second), part.values.shape[:1]))
    if isinstance(part, PairScores):
        return list(_of_halves((*part.first, *part.second)))
    return []


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


def _of_design(design: Design) -> Iterator[str]:
    free = _free(design)
    yield from _shape("the centre of the features", design.centre, (free,), scalar=True)
    if design.matrix is not None:
        made = design.matrix.shape[-1] if design.matrix.ndim == 2 else -1
        yield from _shape("the matrix of the features", design.matrix, (free + 1, made))


def _of_linear(model: LinearModel | Residuals, schema: Schema) -> Iterator[str]:
    matrix = model.design.matrix
    made = _free(model.design) + 1 if matrix is None else matrix.shape[-1] if matrix.ndim == 2 else -1
    outputs = (len(schema.target.values),) if isinstance(schema.target, Classes) else ()
    yield from _shape("theta", model.theta, (made, *outputs))
    yield from _shape("the offset", model.offset, outputs, scalar=True)
    if isinstance(model, CurvedModel):
        if outputs or not model.knots.size or not (np.diff(model.knots) >= LEAST_STEP).all():
            yield "the knots of a curve do not increase"
        yield from _shape("the knots of a curve", model.knots, (model.knots.size,))
        yield from _shape("the rises of a curve", model.rises, (model.knots.size,))


def _of_network(model: NetworkModel, schema: Schema) -> Iterator[str]:
    outputs = (len(schema.target.values),) if isinstance(schema.target, Classes) else ()
    yield from _shape("the offset", model.offset, outputs, scalar=not outputs)
    if isinstance(model, ModuleModel):
        return  # the module says what shapes it has
    if not model.weights or len(model.weights) != len(model.biases):
        yield "the layers of the network do not have a weight and a bias each"
        return
    width = model.preparation.width
    for layer, (weight, bias) in enumerate(zip(model.weights, model.biases, strict=True)):
        last = layer == len(model.weights) - 1
        size = (outputs or (1,))[0] if last else weight.shape[0]
        yield from _shape(f"the weight of layer {layer}", weight, (size, width))
        yield from _shape(f"the bias of layer {layer}", bias, (size,))
        width = size


def _free(design: Design) -> int:
    """Return the number of features but the first."""
    projections = design.preparation.projections
    return design.preparation.width + (0 if projections is None else projections.phases.size)


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
    halves = [half for tree in model.trees for half in (tree.first, tree.second)]
    yield from _of_halves(halves)
    for tree in model.trees:
        leaves = 4**tree.first.columns.size
        yield from _shape("the leaves of a tree", tree.values, (leaves, classes) if classes else (leaves,))
    if any((half.columns >= columns).any() for half in halves):
        yield "the columns of a tree are out of range"


def _of_halves(halves: Sequence[Half], leaves: tuple[int, ...] | None = None) -> Iterator[str]:
    """Yield what is wrong with halves that are used together; all ask the same number of questions."""
    questions = halves[0].columns.size if halves else QUESTIONS[0]
    if questions not in QUESTIONS:
        yield f"a half of a tree should ask {QUESTIONS[0]} or {QUESTIONS[1]} questions"
    elif leaves is not None and leaves != (4**questions,):
        yield "the leaves of a tree are not those of its questions"
    for half in halves:
        for name, values in (("columns", half.columns), ("thresholds", half.thresholds)):
            yield from _shape(f"the {name} of a tree", values, (questions,), np.int64)
            if (values < 0).any() or (name == "thresholds" and (values >= BINS).any()):
                yield f"the {name} of a tree are out of range"


def _shape(
    name: str, value: Any, shape: tuple[int, ...], dtype: Any = np.float64, *, scalar: bool = False
) -> Iterator[str]:
    if scalar and isinstance(value, float):
        return
    if not isinstance(value, np.ndarray) or value.shape != shape or value.dtype != dtype:
        yield f"{name} should be {np.dtype(dtype).name} of shape {shape}"
