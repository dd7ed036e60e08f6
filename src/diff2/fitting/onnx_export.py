"""A fitted model with its preparation as an ONNX graph, which takes raw rows (extra ``onnx``).

Each column of the schema is an input of shape (rows, 1): a category as text, empty where it is missing; all others as
numbers in double precision, NaN where they are missing; a flag as 1 or 0, a date as days since 1970. The graph is run
on made-up rows once, beside the model, and written if both agree.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from ..errors import Diff2Error, InvalidArgument
from ..tables.cells import MISSING, Cells, category_key, text_of
from ..tables.encode import encode_numeric
from ..tables.kinds import LARGEST, Category, Classes, Counts, Date, Flag
from ..tables.schema import Schema
from .columns import MAX_SCORE, MAX_STANDARD, Column
from .counts import REACH
from .linear import CurvedModel, LinearModel
from .onnx_graph import IR_VERSION, LOWEST, ML_OPSET, OPSET, Graph
from .perceptron import ModuleModel, Perceptron
from .preparation import MAX_WHITENED, Preparation
from .statistics import CONSTANT, FREE
from .tree_model import BINS, RATE, TreeModel

TOLERANCE = 1e-6


class Prepared(NamedTuple):
    """Tensors that are asked about more than once."""

    ranks: list[str]  # (rows, 1) each; one half where the value is missing
    scores: list[str]
    codes: list[str]


def to_onnx(path: str | os.PathLike[str], fitted: Any) -> None:
    """Write a :class:`~diff2.FittedModel` as an ONNX file."""
    if isinstance(fitted.model, ModuleModel):
        raise InvalidArgument("your own module has no ONNX graph here; export fitted.model.module with torch.onnx")
    try:
        import onnx
        import onnxruntime
    except ImportError:
        raise InvalidArgument("to_onnx needs onnx and onnxruntime; install them: pip install 'diff2[onnx]'") from None
    schema: Schema = fitted.schema
    graph, inputs = Graph(), _inputs(schema)
    numbers, codes = _columns(graph, schema)
    linear: LinearModel | Perceptron = fitted.model.linear if isinstance(fitted.model, TreeModel) else fitted.model
    if isinstance(linear, Perceptron):
        inputs_of, prepared = _prepared(graph, linear.preparation, numbers, codes)
        outputs = _network(graph, linear, inputs_of)
    else:
        outputs, prepared = _linear(graph, linear, numbers, codes)
    straight = outputs
    if isinstance(linear, CurvedModel):
        outputs = graph("Add", straight, _curve(graph, linear, straight))
    if isinstance(fitted.model, TreeModel) and fitted.model.trees:
        outputs = graph("Add", outputs, _trees(graph, fitted.model, prepared, straight))
    helper, target = onnx.helper, schema.target
    double = onnx.TensorProto.DOUBLE
    if isinstance(target, Classes):
        graph("Softmax", outputs, axis=1, name="probabilities")
        values = _labels(target)
        chosen = graph("ArgMax", outputs, axis=1, keepdims=0)
        graph("Gather", graph.constant(values), chosen, name="prediction")
        kind = helper.np_dtype_to_tensor_dtype(values.dtype)
        made = [
            helper.make_tensor_value_info("prediction", kind, [None]),
            helper.make_tensor_value_info("probabilities", double, [None, len(values)]),
        ]
    else:
        if isinstance(target, Counts):
            offset = float(linear.offset)
            outputs = graph("Exp", graph("Add", graph.clip(graph("Sub", outputs, offset), -REACH, REACH), offset))
        clipped = graph.clip(outputs, *fitted.bounds)
        graph("Reshape", clipped, np.array([-1]), name="prediction")
        made = [helper.make_tensor_value_info("prediction", double, [None])]
    declared = [helper.make_tensor_value_info(name, kind, [None, 1]) for name, kind in inputs.items()]
    found = helper.make_model(
        helper.make_graph(graph.nodes, "diff2", declared, made, graph.constants),
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)],
        ir_version=IR_VERSION,
        producer_name="diff2",
    )
    helper.set_model_props(found, {"guarantee": str(fitted.guarantee)})
    session = onnxruntime.InferenceSession(found.SerializeToString(), providers=["CPUExecutionProvider"])
    _refuse_difference(session, fitted)
    onnx.save(found, os.fspath(path))


def _inputs(schema: Schema) -> dict[str, int]:
    from onnx import TensorProto

    kinds = {True: TensorProto.STRING, False: TensorProto.DOUBLE}
    return {name: kinds[isinstance(column, Category)] for name, column in schema.columns.items()}


def _columns(graph: Graph, schema: Schema) -> tuple[list[tuple[str, str]], list[str]]:
    """Return (values within their bounds, whether they are missing) of the numeric columns, and codes of categories."""
    numbers, codes = [], []
    for name, column in schema.columns.items():
        if isinstance(column, Category):
            spelled = _spellings(column)
            codes.append(
                graph("LabelEncoder", name, domain="ai.onnx.ml", keys_strings=list(spelled),
                      values_int64s=list(spelled.values()), default_int64=len(column.values))
            )  # fmt: skip
            continue
        missing = graph("IsNaN", graph("Sub", name, name))  # of an infinite number, too
        if isinstance(column, Flag):
            known = graph("Or", graph("Equal", name, 0.0), graph("Equal", name, 1.0))
            missing, low, high = graph("Not", known), 0.0, 1.0
        elif isinstance(column, Date):
            low, high = column.days
        else:
            low, high = (-LARGEST, LARGEST) if column.low is None or column.high is None else (column.low, column.high)
        value = graph.clip(graph("Where", missing, float(low), name), low, high)
        if not isinstance(column, Date):
            numbers.append((value, missing))
            continue
        since = graph("Sub", value, float(low))
        numbers.append((since, missing))
        if column.seasonal:
            dates = np.arange(low, high + 1).astype(np.int64).astype("datetime64[D]")
            of_year = encode_numeric(Cells(dates), column)[1]
            place = graph.cast(graph("Floor", since), "INT64")
            numbers.append((graph("Gather", of_year, place), missing))
    return numbers, codes


def _spellings(column: Category) -> dict[str, int]:
    """Return the code of each usual spelling: the value, the same number or truth value, words for missing ones."""
    missing = len(column.values) + 1
    found = {spelled: missing for word in MISSING for spelled in (word, word.upper(), word.title())}
    found["NaN"] = missing
    for code, value in enumerate(column.values):
        text = text_of(value) or ""
        for spelled in (category_key(text), f"{text}.0" if text.lstrip("-").isdecimal() else text, text.title()):
            if spelled == text or spelled not in found:
                found.setdefault(spelled, code)
    return found | {text_of(value) or "": code for code, value in enumerate(column.values)}


def _prepared(
    graph: Graph, preparation: Preparation, numbers: list[tuple[str, str]], codes: list[str]
) -> tuple[str, Prepared]:
    """Return the whitened and encoded inputs, (rows, inputs)."""
    found = [_column(graph, column, *pair) for column, pair in zip(preparation.columns, numbers, strict=True)]
    prepared = Prepared([one[1] for one in found], [one[2] for one in found], codes)
    parts = []
    if found:
        standard = graph.beside(prepared.scores if preparation.whiten_scores else [one[0] for one in found])
        if preparation.whitening is not None:
            mean, matrix = preparation.whitening
            standard = graph("MatMul", graph("Sub", standard, mean), matrix)
            standard = graph.clip(standard, -MAX_WHITENED, MAX_WHITENED)
        parts.append(standard)
    parts += _encoded(graph, preparation, numbers, codes)
    return graph.beside(parts), prepared


def _network(graph: Graph, model: Perceptron, inputs: str) -> str:
    """Return the outputs of a perceptron, (rows, outputs)."""
    values = inputs
    for layer, (weight, bias) in enumerate(zip(model.weights, model.biases, strict=True)):
        values = graph("Add", graph("MatMul", graph("Tanh", values) if layer else values, weight.T), bias)
    offset = np.asarray(model.offset, np.float64).reshape(1, -1)
    return graph("Add", graph("Mul", values, float(model.scale)), offset)


def _linear(graph: Graph, model: LinearModel, numbers: list[tuple[str, str]], codes: list[str]) -> tuple[str, Prepared]:
    """Return the outputs of the linear part, (rows, outputs)."""
    design, preparation = model.design, model.design.preparation
    inputs, prepared = _prepared(graph, preparation, numbers, codes)
    free = graph("Mul", inputs, float(design.linear))
    if preparation.projections is not None:
        omega, of_scores, phases, level = preparation.projections
        angles = graph("Add", graph("MatMul", inputs, omega), phases)
        if of_scores.any():
            angles = graph("Add", angles, graph("MatMul", graph.beside(prepared.scores), of_scores))
        cosines = graph("Sub", graph("Cos", angles), level)
        free = graph.beside([free, graph("Mul", cosines, float(design.cosine))])
    lengths = graph("ReduceL2", free, axes=[1], keepdims=1)
    free = graph("Mul", free, graph("Min", 1.0, graph("Div", FREE, graph("Max", lengths, 1e-300))))
    theta = model.theta.reshape(len(model.theta), -1)
    effect = theta if design.matrix is None else design.matrix @ theta
    level = CONSTANT * effect[0] + np.asarray(model.offset, np.float64).reshape(1, -1)
    return graph("Add", graph("MatMul", graph("Sub", free, design.centre), effect[1:]), level), prepared


def _curve(graph: Graph, model: CurvedModel, outputs: str) -> str:
    """Return what a curve adds, (rows, 1): its first rise, and a slope times how far an output is between two knots."""
    lengths = np.diff(model.knots)
    between = graph("Min", graph("Max", graph("Sub", outputs, model.knots[None, :-1]), 0.0), lengths[None, :])
    slopes = np.diff(model.rises) / lengths
    return graph("Add", graph("MatMul", between, slopes[:, None]), float(model.rises[0]))


def _column(graph: Graph, column: Column, value: str, missing: str) -> tuple[str, str, str]:
    """Return a numeric column standardised, its rank and its normal score."""
    edges, ranks = column.edges, column.ranks
    below = graph.cast(graph("GreaterOrEqual", value, edges[None, :]), "INT64")
    count = graph("ReduceSum", below, np.array([1]), keepdims=1)
    place = graph("Clip", graph("Sub", count, np.array(1)), np.array(0), np.array(len(edges) - 2))
    start, slope = graph("Gather", edges[:-1], place), graph("Gather", np.diff(ranks) / np.diff(edges), place)
    rank = graph("Add", graph("Mul", slope, graph("Sub", value, start)), graph("Gather", ranks[:-1], place))
    rank = graph("Where", graph("GreaterOrEqual", value, float(edges[-1])), float(ranks[-1]), rank)
    rank = graph("Where", graph("Less", value, float(edges[0])), float(ranks[0]), rank)
    if column.heavy.any():
        middle = graph("Gather", (ranks[:-1] + ranks[1:]) / 2, place)
        rank = graph("Where", graph("Gather", column.heavy, place), middle, rank)
    rank = graph("Where", missing, 0.5, rank)
    if column.constant:
        zero = graph("Mul", rank, 0.0)
        return zero, rank, zero
    t = graph("Div", graph("Sub", value, column.centre), column.deviation)
    size = graph("Abs", t)
    tail = graph("Add", graph("Log", graph("Div", graph("Max", size, 2.0), 2.0)), 1.0)
    tail = graph("Mul", graph("Mul", graph("Sign", t), 2.0), tail)
    standard = graph.clip(graph("Where", graph("LessOrEqual", size, 2.0), t, tail), -MAX_STANDARD, MAX_STANDARD)
    raw = graph.normal_quantile(graph.clip(rank, LOWEST, 1 - LOWEST))
    score = graph("Div", graph("Sub", raw, column.score_mean), column.score_deviation)
    score = graph.clip(score, -MAX_SCORE, MAX_SCORE)
    return graph("Where", missing, 0.0, standard), rank, graph("Where", missing, 0.0, score)


def _encoded(graph: Graph, preparation: Preparation, numbers: list[tuple[str, str]], codes: list[str]) -> list[str]:
    """Return the indicators of categories and of missing values."""
    parts = []
    for count, code in zip(preparation.categories, codes, strict=True):
        rows = graph("Gather", np.eye(count) - 1.0 / count, code)
        parts.append(graph("Reshape", rows, np.array([-1, count])))
    return parts + [graph.cast(numbers[j][1], "DOUBLE") for j in preparation.nullable]


def _trees(graph: Graph, model: TreeModel, prepared: Prepared, outputs: str) -> str:
    """Return what all trees add, (rows, 1) or (rows, classes).

    A question is whether min(250 r, 249) is above a whole threshold. Where r is a normal share of z, that is whether z
    is at least a quantile.
    """
    binning = model.binning
    parts = [graph("Mul", rank, float(BINS)) for rank in prepared.ranks]
    if prepared.scores:
        parts.append(graph("MatMul", graph.beside(prepared.scores), binning.oblique))
    for order, code in zip(binning.orders, prepared.codes, strict=True):
        parts.append(graph("Gather", (order + 0.5) / len(order) * BINS, code))
    offset = np.asarray(model.linear.offset, np.float64).reshape(1, -1)
    moved = graph("Div", graph("Sub", outputs, offset), float(binning.spread))
    parts.append(graph("Gather", moved, np.array([0]), axis=1) if offset.size == 2 else moved)
    numeric, directions = binning.oblique.shape
    halves = [half for tree in model.trees for half in (tree.first, tree.second)]
    columns = np.concatenate([half.columns for half in halves])
    limits = np.concatenate([half.thresholds for half in halves]) + 1.0
    last = numeric + directions + len(binning.orders)
    by_quantile = ((columns >= numeric) & (columns < numeric + directions)) | (columns >= last)
    limits[by_quantile] = ndtri(limits[by_quantile] / BINS)
    asked = graph("Gather", graph.beside(parts), columns, axis=1)
    answers = graph.cast(graph("GreaterOrEqual", asked, limits), "DOUBLE")
    questions, count = 2 * len(halves[0].columns), len(model.trees)
    places = np.kron(np.eye(count), 2.0 ** np.arange(questions)[::-1, None])
    leaves = graph("Add", graph("MatMul", answers, places), 2.0**questions * np.arange(count))
    values = np.concatenate([tree.values.reshape(len(tree.values), -1) for tree in model.trees])
    added = graph("Gather", values, graph.cast(leaves, "INT64"))  # (rows, trees, 1 or classes)
    return graph("Mul", graph("ReduceSum", added, np.array([1]), keepdims=0), RATE)


def _labels(target: Classes) -> np.ndarray:
    values = np.array(target.values)
    return values.astype(object) if values.dtype.kind == "U" else values


def _refuse_difference(session: Any, fitted: Any) -> None:
    """Compare the graph with the model on made-up rows: any values, missing ones, unknown categories."""
    rng, rows = np.random.default_rng(0), 256
    table: dict[str, np.ndarray] = {}
    for name, column in fitted.schema.columns.items():
        if isinstance(column, Category):
            texts = [text_of(value) or "" for value in column.values]
            table[name] = rng.choice(np.array([*texts, "", "never heard of"], dtype=object), rows)
            continue
        if isinstance(column, Flag):
            table[name] = rng.integers(0, 2, rows).astype(np.float64)
        else:
            low, high = column.days if isinstance(column, Date) else (column.low, column.high)
            low, high = (-1e3, 1e3) if low is None or high is None else (low, high)
            table[name] = rng.uniform(low - 0.1 * (high - low), high + 0.1 * (high - low), rows)
        table[name][rng.random(rows) < 0.1] = np.nan
    found = session.run(None, {name: values[:, None] for name, values in table.items()})
    for name, column in fitted.schema.columns.items():
        if isinstance(column, Date):  # the model takes dates as such
            seconds = np.floor(np.nan_to_num(table[name]) * 86_400).astype("datetime64[s]")
            table[name] = np.where(np.isnan(table[name]), np.datetime64("NaT"), seconds)
    if isinstance(fitted.schema.target, Classes):
        near = np.abs(found[1] - fitted.predict_proba(table)) <= TOLERANCE
    else:
        low, high = fitted.bounds
        near = np.abs(found[0] - fitted.predict(table)) <= TOLERANCE * max(1.0, high - low)
    # A value within rounding of a threshold may fall on its other side.
    if near.mean() < 0.99:
        raise Diff2Error("this model cannot be exported: the graph gives other predictions than the model")
