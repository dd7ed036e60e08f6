"""``diff2 fit`` and ``diff2 predict``: files in, a folder and predictions out, and all that can be wrong said first."""

import csv
import json
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pandas
import pytest

import diff2
from commands import RUN, diff2_here, single_line, unframed, write_folder
from diff2 import FittedModel, InvalidArgument, Ledger
from diff2.tables.files import stream_table
from diff2.tables.kinds import Number, Regression
from fitted import few_trees, schema, table


@pytest.fixture(autouse=True)
def _short():
    with few_trees():
        yield


@pytest.fixture(params=["classes", "regression"])
def folder(request, tmp_path):
    return written(tmp_path, request.param)


def written(path, kind, **roles):
    """Write a table in two files, its schema and new rows."""
    frame = pandas.DataFrame(table(300, seed=3))
    frame[:200].to_csv(path / "one.csv", index=False)
    frame[200:].to_csv(path / "two.csv", index=False)
    (path / "schema.toml").write_text(schema(kind, **roles).to_toml(), encoding="utf-8")
    new = pandas.DataFrame(table(50, seed=4)).drop(columns=["classes", "regression", "hospital"])
    new.assign(person=[f"p{i}" for i in range(50)]).to_csv(path / "new.csv", index=False)
    return path


def fitted_here(folder, *words, out="model"):
    return diff2_here(
        *("fit", folder / "one.csv", folder / "two.csv", "--schema", folder / "schema.toml", "--epsilon", 2),
        *("--out", folder / out, *words),
    )


def test_from_files_to_predictions(folder):
    result = fitted_here(folder)
    assert result.exit_code == 0, result.stderr
    model = FittedModel.load(folder / "model")
    assert model.guarantee.private
    shown = unframed(result.stdout)
    assert str(model.guarantee) in shown
    assert "was spent on" in shown
    assert "diff2 predict" in shown
    result = diff2_here(
        "predict", folder / "model", folder / "new.csv", "--out", folder / "found.csv", "--id", "person"
    )
    assert result.exit_code == 0, result.stderr
    assert "50 predictions are in" in result.stdout
    with open(folder / "found.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["person"] for row in rows] == [f"p{i}" for i in range(50)]
    expected = model.predict(pandas.read_csv(folder / "new.csv", dtype=str))
    assert [row["prediction"] for row in rows] == [str(one) for one in expected.tolist()]
    assert diff2_here("account", folder / "model").exit_code == 0
    assert diff2_here("verify", folder / "model").exit_code == 0
    (folder / "none.csv").write_text((folder / "new.csv").read_text(encoding="utf-8").splitlines()[0], encoding="utf-8")
    result = diff2_here("predict", folder / "model", folder / "none.csv", "--out", folder / "none.found.csv")
    assert (result.exit_code, (folder / "none.found.csv").read_text(encoding="utf-8")) == (0, "prediction\n")


def test_probabilities_are_written_for_classes(tmp_path):
    fitted_here(written(tmp_path, "classes"))
    words = ("predict", tmp_path / "model", tmp_path / "new.csv", "--out", tmp_path / "found.csv", "--probabilities")
    assert diff2_here(*words).exit_code == 0
    found = pandas.read_csv(tmp_path / "found.csv")
    assert list(found) == ["prediction", "probability of low", "probability of middle", "probability of high"]
    assert np.allclose(found.iloc[:, 1:].sum(axis=1), 1)


def test_a_file_is_fitted_as_the_table_in_memory(tmp_path):
    written(tmp_path, "classes")
    assert fitted_here(tmp_path, "--seed", 3).exit_code == 0
    text = pandas.concat([pandas.read_csv(tmp_path / name, dtype=str) for name in ("one.csv", "two.csv")])
    model = diff2.fit(text, schema("classes"), epsilon=2.0, seed=3)
    new = pandas.read_csv(tmp_path / "new.csv", dtype=str)
    np.testing.assert_array_equal(FittedModel.load(tmp_path / "model").predict_proba(new), model.predict_proba(new))


def test_clients_and_groups(tmp_path):
    written(tmp_path, "classes")
    result = fitted_here(tmp_path, "--clients", "hospital", "--groups", "person", "--json")
    found = json.loads(result.stdout)
    assert (found["unit"], found["private"]) == ("group", True)
    assert len(Ledger.read(tmp_path / "model" / "ledger.jsonl").header["client_sizes"]) == 2
    assert fitted_here(tmp_path, "--unit", "client", out="other").exit_code == 1
    result = fitted_here(tmp_path, "--unit", "client", "--clients", "hospital", "--json", out="third")
    assert json.loads(result.stdout)["unit"] == "client"


def test_a_schema_with_groups_protects_them(tmp_path):
    written(tmp_path, "classes", groups="person")
    assert json.loads(fitted_here(tmp_path, "--json").stdout)["unit"] == "group"
    words = ["evaluate", tmp_path / "model", tmp_path / "one.csv", "--epsilon", "0.5", "--json"]
    found = [json.loads(diff2_here(*words, *more).stdout)["guarantee"]["unit"] for more in ([], ["--unit", "record"])]
    assert found == ["group", "record"]


def test_a_seed_is_not_private(tmp_path):
    written(tmp_path, "classes")
    assert "NOT PRIVATE" in unframed(fitted_here(tmp_path, "--seed", 1).stdout)
    assert fitted_here(tmp_path, "--quiet", out="other").stdout == ""


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--epsilon", 0], "epsilon"),
        (["--delta", 1], "delta"),
        (["--unit", "person"], "unit='person'"),
        (["--unit", "group"], "needs the column"),
        (["--clients", "clinic"], "column 'clinic' is missing"),
        (["--weighting", "none"], "weighting"),
        (["--schema", "nowhere.toml"], "no schema at nowhere.toml"),
    ],
)
def test_wrong_options_fail_before_anything_is_written(tmp_path, words, text):
    written(tmp_path, "classes")
    result = fitted_here(tmp_path, *words)
    assert result.exit_code == 1
    assert text in result.stderr
    assert not (tmp_path / "model").exists()


def test_missing_bounds_are_found_privately_and_evaluation_says_how_good_it_is(tmp_path):
    written(tmp_path, "regression")
    known = schema("regression")
    known = replace(known, columns={**known.columns, "income": Number()}, target=Regression())
    (tmp_path / "schema.toml").write_text(known.to_toml(), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert fitted_here(tmp_path).exit_code == 0
        purposes = {release.purpose for release in Ledger.read(tmp_path / "model" / "ledger.jsonl").releases}
        words = ["evaluate", tmp_path / "model", tmp_path / "one.csv", "--epsilon", "0.5", "--out", tmp_path / "found"]
        result = diff2_here(*words)
    assert purposes >= {"bounds", "score"}
    assert result.exit_code == 0, result.stderr
    assert "releases made by evaluate" in unframed(result.stdout)
    assert 0 < Ledger.read(tmp_path / "found" / "ledger.jsonl").epsilon() <= 0.5


def test_a_failure_after_the_first_release_leaves_a_ledger_and_the_same_command_resumes(tmp_path, monkeypatch):
    written(tmp_path, "regression")

    def fail(self, *_):
        raise InvalidArgument("something broke")

    monkeypatch.setattr("diff2.fitting.session.Session.choose", fail)
    result = fitted_here(tmp_path)
    assert (result.exit_code, single_line(result.stderr)) == (1, "error: something broke\n")
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"ledger.jsonl", "resume.json"}
    left = Ledger.read(tmp_path / "model" / "ledger.jsonl")
    assert 0 < left.released_epsilon() < 2
    monkeypatch.undo()
    assert fitted_here(tmp_path).exit_code == 0
    assert Ledger.read(tmp_path / "model" / "ledger.jsonl").releases[: len(left)] == left.releases
    result = fitted_here(tmp_path)
    assert result.exit_code == 1
    assert "never overwritten; choose another folder" in single_line(result.stderr)


def test_what_can_be_wrong_with_a_prediction(tmp_path):
    fitted_here(written(tmp_path, "regression"))
    new, out = tmp_path / "new.csv", tmp_path / "found.csv"
    pandas.read_csv(new).drop(columns=["age", "sex"]).to_csv(tmp_path / "less.csv", index=False)
    (tmp_path / "latin.csv").write_bytes(new.read_bytes() + b"\xe9")
    for words, text in [
        ((tmp_path / "nothing", new, "--out", out), "no model in"),
        ((tmp_path / "model", tmp_path / "nothing.csv", "--out", out), "does not exist"),
        ((tmp_path / "model", tmp_path / "less.csv", "--out", out), "column 'sex' is missing"),
        ((tmp_path / "model", tmp_path / "latin.csv", "--out", out), "is not text in the encoding"),
        ((tmp_path / "model", new, "--out", out, "--id", "name"), "has no column 'name' for --id"),
        ((tmp_path / "model", new, "--out", out, "--probabilities"), "is for classes"),
        ((tmp_path / "model", new, "--out", new), "is the table itself"),
    ]:
        result = diff2_here("predict", *words)
        assert result.exit_code == 1
        assert text in result.stderr
    assert not [path.name for path in tmp_path.iterdir() if "found" in path.name or path.suffix == ".tmp"]


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
@pytest.mark.parametrize("rows", [7, 50, 1000])
def test_a_stream_holds_what_the_file_holds(tmp_path, suffix, rows):
    cells = {name: [str(cell).replace("nan", "") for cell in values] for name, values in table(50).items()}
    frame, path = pandas.DataFrame(cells), tmp_path / f"new{suffix}"
    if suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    found = list(stream_table(path, rows=rows))
    assert [one.size for one in found] == [min(rows, 50 - start) for start in range(0, 50, rows)]
    for name in frame:
        texts = [texts[place] for texts, places in (one[name].texts() for one in found) for place in places]
        assert texts == [text or None for text in frame[name].tolist()]
    frame[:0].to_parquet(path) if suffix == ".parquet" else frame[:0].to_csv(path, index=False)
    assert [(one.size, one.names) for one in stream_table(path, rows=rows)] == [(0, tuple(frame))]


def test_lines_with_too_few_or_too_many_cells(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1\n2,3,4\n\n5,6\n", encoding="utf-8")
    (frame,) = stream_table(tmp_path / "a.csv")
    assert frame["a"].numbers().tolist() == [1, 2, 5]
    np.testing.assert_array_equal(frame["b"].numbers(), [np.nan, 3, 6])


def test_the_commands_load_nothing_heavy_before_they_are_called():
    code = (
        "import sys, diff2.cli.main; assert not {'torch', 'numpy', 'scipy', 'sklearn'} & set(sys.modules); "
        "import diff2.reporting.facts; assert not {'torch', 'scipy'} & set(sys.modules)"  # as `account` does
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_verify_compares_the_model_with_the_closing_line_and_says_how_releases_were_planned(tmp_path):
    folder = written(tmp_path, "regression")
    for out in ("model", "other"):
        assert fitted_here(folder, out=out).exit_code == 0
    shown = diff2_here("verify", folder / "model").stdout
    assert "not checked  the model" not in shown
    assert "512" not in shown
    assert "The run ended before" not in str(FittedModel.load(folder / "model").guarantee)
    (folder / "model" / "ledger.jsonl").write_bytes((folder / "other" / "ledger.jsonl").read_bytes())
    result = diff2_here("verify", folder / "model")
    assert result.exit_code == 1
    assert "another model" in result.stderr


def test_a_run_of_train_is_named_as_one(tmp_path):
    folder = write_folder(tmp_path, RUN, north=60, south=45)
    assert diff2_here("train", folder / "run.toml", "--out", folder / "run", "--quiet").exit_code == 0
    result = diff2_here("predict", folder / "run", folder / "north.csv", "--out", folder / "found.csv")
    assert (result.exit_code, "is a run of diff2 train" in result.stderr) == (1, True)
