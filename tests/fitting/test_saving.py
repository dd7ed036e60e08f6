"""A model is saved as data, comes back bit for bit, and a folder that was tampered with is refused."""

import hashlib
import json
import pickle

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import diff2
from diff2 import FittedModel, InvalidArgument, Ledger
from diff2.fitting.saving import ARRAYS, HEALTH, LEDGER, PREPARATION, README, SCHEMA
from diff2.privacy.epsilon_text import epsilon_text
from fitted import TARGETS, few_trees, fitted, schema, table

KINDS = sorted(TARGETS)


@pytest.fixture(scope="module", params=KINDS)
def model(request):
    return fitted(request.param)


def rewritten(folder, change):
    """Change the arrays, the tree of parts and the metadata of a saved model; no hash tells of it."""
    arrays, tree = load_file(folder / ARRAYS), json.loads((folder / PREPARATION).read_text(encoding="utf-8"))
    with safe_open(folder / ARRAYS, framework="np") as file:
        metadata = file.metadata()
    change(arrays, tree, metadata)
    (folder / PREPARATION).write_text(json.dumps(tree), encoding="utf-8")
    metadata[f"sha256 of {PREPARATION}"] = hashlib.sha256((folder / PREPARATION).read_bytes()).hexdigest()
    save_file(arrays, folder / ARRAYS, metadata)
    ledger = Ledger.read(folder / LEDGER)
    (folder / LEDGER).unlink()
    other = Ledger(ledger.header, folder / LEDGER)
    for release in ledger.releases:
        other.record(release)
    other.close()  # says nothing of a model


def test_predictions_come_back_bit_for_bit(model, tmp_path):
    again = FittedModel.load(model.save(tmp_path / "model"))
    rows = table(1000, seed=1)
    np.testing.assert_array_equal(again._outputs(rows), model._outputs(rows))
    np.testing.assert_array_equal(again.predict(rows), model.predict(rows))
    assert again.schema == model.schema
    assert str(again.guarantee) == str(model.guarantee)
    assert again.ledger.releases == model.ledger.releases
    assert again.report() == model.report()
    assert again.health == model.health
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(rows), model.predict(rows))


def test_the_folder_holds_data_alone_and_the_guarantee(model, tmp_path):
    model.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {ARRAYS, SCHEMA, PREPARATION, LEDGER, HEALTH, README}
    with safe_open(tmp_path / ARRAYS, framework="np") as file:
        metadata = file.metadata()
    assert metadata["guarantee"] == str(model.guarantee)
    assert metadata[f"sha256 of {SCHEMA}"] == hashlib.sha256((tmp_path / SCHEMA).read_bytes()).hexdigest()
    assert "Share none of these files" in (tmp_path / README).read_text(encoding="utf-8")  # it has a seed


def test_the_folder_of_a_private_model_says_what_may_be_shared(tmp_path):
    fitted("classes", seed=None).save(tmp_path)
    assert "may be shared" in (tmp_path / README).read_text(encoding="utf-8")


def test_the_ledger_of_the_fit_stays_where_it_is(tmp_path):
    model = fitted("classes", directory=tmp_path / "model")
    before = (tmp_path / "model" / LEDGER).read_bytes()
    model.save(tmp_path / "model")
    assert (tmp_path / "model" / LEDGER).read_bytes() == before
    assert Ledger.read(tmp_path / "model" / LEDGER).complete


def test_a_model_is_never_overwritten(model, tmp_path):
    model.save(tmp_path)
    with pytest.raises(InvalidArgument, match="never overwritten; choose another folder"):
        model.save(tmp_path)
    fitted("classes").save(tmp_path / "other")
    (tmp_path / "other" / ARRAYS).unlink()
    with pytest.raises(InvalidArgument, match="never overwritten"):
        model.save(tmp_path / "other")


def _shorter(name):
    def change(arrays, tree, metadata):
        key = next(key for key in arrays if key.endswith(name))
        arrays[key] = np.ascontiguousarray(arrays[key][:-1])

    return change


def _set(*path_and_value):
    *path, last, value = path_and_value

    def change(arrays, tree, metadata):
        for key in path:
            tree = tree[key]
        tree[last] = value

    return change


def _nan(arrays, tree, metadata):
    next(value for key, value in arrays.items() if key.endswith("theta")).reshape(-1)[:1] = np.nan


def _single(arrays, tree, metadata):
    key = next(key for key in arrays if key.endswith("theta"))
    arrays[key] = arrays[key].astype(np.float32)


@pytest.mark.parametrize(
    "change",
    [
        _shorter("theta"),
        _shorter("edges"),
        _shorter("whitening.mean"),
        _shorter("phases"),
        _shorter("design.matrix"),
        _single,
        _nan,
        _set("model", "part", "Path"),
        _set("model", {"part": "LinearModel"}),
        _set("model", 7),
        _set("bounds", [0, 1, 2]),
        _set("bounds", ["nan", 1]),
        _set("bounds", [float("nan"), 1]),
        lambda arrays, tree, metadata: metadata.update(format="0"),
    ],
)
def test_a_damaged_model_is_refused(change, model, tmp_path):
    model.save(tmp_path)
    rewritten(tmp_path, change)
    with pytest.raises(InvalidArgument):
        FittedModel.load(tmp_path)


def test_the_ledger_is_that_of_the_model(model, tmp_path):
    other = fitted("classes", seed=1)
    other.save(tmp_path / "other")
    model.save(tmp_path / "model")
    (tmp_path / "other" / LEDGER).replace(tmp_path / "model" / LEDGER)
    with pytest.raises(InvalidArgument, match="ledger of another model"):
        FittedModel.load(tmp_path / "model")


@pytest.mark.parametrize(("part", "value"), [("columns", 99), ("columns", -1), ("thresholds", 250)])
def test_a_tree_that_asks_about_no_column_is_refused(part, value, tmp_path):
    fitted("regression").save(tmp_path)

    def change(arrays, tree, metadata):
        arrays[f"model.trees.0.first.{part}"][0] = value

    rewritten(tmp_path, change)
    with pytest.raises(InvalidArgument, match=f"the {part} of a tree are out of range"):
        FittedModel.load(tmp_path)


@pytest.mark.parametrize("name", [ARRAYS, SCHEMA, PREPARATION, LEDGER])
def test_a_folder_that_lacks_a_file_or_has_another_one_is_refused(name, model, tmp_path):
    model.save(tmp_path)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(diff2.Diff2Error):
        FittedModel.load(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(diff2.Diff2Error):
        FittedModel.load(tmp_path)


def test_no_rows_have_no_predictions(model):
    rows = {name: values[:0] for name, values in table(50).items()}
    assert model.predict(rows).shape == (0,)


def test_the_report_says_what_the_budget_was_spent_on(model):
    lines = model.report().splitlines()
    assert lines[0] == f"epsilon {epsilon_text(model.epsilon)} at delta 0.0001 was spent on"
    assert sum(float(line.split()[-1].rstrip("%")) for line in lines[1:-1]) == pytest.approx(100, abs=0.5)
    assert lines[-1] == str(model.guarantee)


def test_protecting_groups_needs_groups():
    """The guarantee would speak of groups while each record was protected by itself."""
    with few_trees(), pytest.raises(InvalidArgument, match="unit='group' needs the column"):
        diff2.fit(table(), schema("classes"), epsilon=1.0, unit="group")
