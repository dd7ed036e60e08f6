"""An ONNX file predicts what the model predicts, from raw rows."""

import sys
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest

import diff2
from diff2 import Diff2Error, InvalidArgument
from diff2.tables.kinds import Category, Classes, Number, Regression
from diff2.tables.schema import Schema
from fitted import COLUMNS, few_trees, fitted, table

DAY = np.datetime64("1970-01-01")


def run(model, path, feeds):
    model.to_onnx(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = session.run(None, {name: values[:, None] for name, values in feeds.items()})
    return dict(zip((one.name for one in session.get_outputs()), found, strict=True))


def fed(columns):
    """Return the columns of the table as the graph takes them."""
    yes = {"yes": 1.0, "no": 0.0, "": np.nan}
    days = [np.nan if text == "unknown" else (np.datetime64(text) - DAY).astype(float) for text in columns["born"]]
    return {
        "age": columns["age"],
        "income": columns["income"],
        "sex": columns["sex"],
        "born": np.array(days),
        "smoker": np.array([yes[text] for text in columns["smoker"]]),
        "region": columns["region"].astype(str).astype(object),
    }


def test_counts(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, 1000)
    known = Schema.from_arguments(["x"], bounds=[(0, 1)], max_count=40, target="y")
    model = diff2.fit({"x": x, "y": rng.poisson(np.exp(2 * x))}, known, epsilon=3.0, seed=0)
    found = run(model, tmp_path / "model.onnx", {"x": x})
    np.testing.assert_allclose(found["prediction"], model.predict({"x": x}), atol=1e-6, rtol=0)


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 20.0])  # columns of which nothing, little and much is known
def test_mixed_columns(epsilon, tmp_path):
    rows = table(1000, seed=9)  # with missing values, unknown categories and numbers out of bounds
    model = fitted("regression", epsilon=epsilon)
    found = run(model, tmp_path / "model.onnx", fed(rows))
    np.testing.assert_allclose(found["prediction"], model.predict(rows), atol=1e-6, rtol=0)
    model = fitted("classes", epsilon=epsilon)
    found = run(model, tmp_path / "classes.onnx", fed(rows))
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(rows), atol=1e-6, rtol=0)
    assert found["prediction"].tolist() == model.predict(rows).tolist()


@pytest.mark.parametrize("epsilon", [0.05, 8.0])
def test_whole_numbers_on_the_edges_of_bins(epsilon, tmp_path):
    """Ranks and thresholds coincide: the last bit of a rank decides."""
    rng = np.random.default_rng(1)
    rows = {"x": rng.integers(0, 251, 4000), "c": np.full(4000, 5), "y": rng.random(4000)}
    rows["y"] += rows["x"] / 250
    with few_trees():
        schema = Schema({"x": Number(0, 250), "c": Number(0, 10)}, "y", Regression(0, 2))
        model = diff2.fit(rows, schema, epsilon=epsilon, seed=0)
    feeds = {name: rows[name].astype(float) for name in ("x", "c")}
    found = run(model, tmp_path / "model.onnx", feeds)
    np.testing.assert_allclose(found["prediction"], model.predict(rows), atol=1e-6, rtol=0)


@pytest.mark.parametrize("classes", [(0, 1), ("a", "b"), (0.5, 1.5), (False, True)])
def test_categories_alone_and_classes_of_any_type(classes, tmp_path):
    rng = np.random.default_rng(2)
    places = rng.integers(0, 2, 500)
    rows = {"c": places + 1, "d": rng.choice(["x", "y"], 500), "y": np.array(classes)[places]}
    schema = Schema({"c": Category((1, 2)), "d": Category(("x", "y"))}, "y", Classes(classes))
    model = diff2.fit(rows, schema, epsilon=8.0, seed=0)
    texts = ["1", "2", "1.0", "", "NA", "nan", "7", "no"]
    new = {"c": np.array(texts, dtype=object), "d": np.array(["x"] * 8, dtype=object)}
    found = run(model, tmp_path / "model.onnx", new)
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(new), atol=1e-6, rtol=0)
    assert found["prediction"].tolist() == model.predict(new).tolist()


def test_infinite_numbers_are_missing(tmp_path):
    model, rows = fitted("classes"), table(50)
    rows["age"] = np.array([np.inf, -np.inf, np.nan, 1e300, -1e300] * 10)
    found = run(model, tmp_path / "model.onnx", fed(rows))
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(rows), atol=1e-6, rtol=0)


def test_the_guarantee_travels_with_the_file(tmp_path):
    model = fitted("classes")
    model.to_onnx(tmp_path / "model.onnx")
    found = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(found)
    assert {one.key: one.value for one in found.metadata_props} == {"guarantee": str(model.guarantee)}
    assert [one.name for one in found.graph.input] == list(COLUMNS)


def test_a_graph_that_predicts_something_else_is_not_written(tmp_path):
    """A kind of model that the export does not know."""

    class Twice(type(fitted("regression").model.linear)):
        def outputs(self, rows, cache):
            return 2 * super().outputs(rows, cache)

    model = fitted("regression")
    linear = model.model.linear
    model = replace(model, model=Twice(linear.design, linear.theta, linear.offset))
    with pytest.raises(Diff2Error, match="gives other predictions"):
        model.to_onnx(tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_without_onnx_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InvalidArgument, match=r"pip install 'diff2\[onnx\]'"):
        fitted("classes").to_onnx(tmp_path / "model.onnx")
