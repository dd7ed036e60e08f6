"""The demo: what the loader lets through, and what a run leaves behind."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import diff2
from diff2.data import randhie
from diff2.tables.frames import as_frame
from diff2_experiments import demo, figures

needs_table = pytest.mark.skipif(
    importlib.util.find_spec("statsmodels") is None, reason="the table is part of statsmodels, which is not installed"
)
needs_figures = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)  # fmt: skip
OUTCOMES = {
    "outpdol", "drugdol", "suppdol", "mentdol", "inpdol", "meddol", "lnmeddol", "binexp", "inpmis",
    "totadm", "mentvis", "mdvis", "notmdvis", "time",
}  # fmt: skip


@pytest.fixture(scope="module")
def data():
    return randhie.load()


@needs_table
def test_six_sites_and_every_record_once(data):
    sizes = [len(inputs) for inputs, _ in data.clients]
    assert sizes == [3543, 3243, 1930, 2443, 2090, 2856]
    assert sum(sizes) + len(data.test[0]) == randhie.RECORDS == 20_190
    assert len(data.test[0]) / randhie.RECORDS == pytest.approx(0.2, abs=0.01)
    for inputs, targets in [*data.clients, data.test]:
        assert inputs.shape == (len(targets), len(data.features))
        assert targets.shape == (len(inputs), 1)
        assert inputs.dtype == targets.dtype == torch.float32


@needs_table
def test_no_person_is_on_both_sides(data):
    training = set(np.concatenate(data.people).tolist())
    held_out = set(data.test_people.tolist())
    assert not training & held_out
    assert len(training) + len(held_out) == 5912
    # A site is the leading digit of the identifier.
    assert [{person // 100_000 for person in people.tolist()} for people in data.people] == [{s} for s in range(1, 7)]


def test_the_side_of_a_person_depends_on_the_identifier_alone():
    alone = [int(randhie.fifth_of(np.array([person]))[0]) for person in (125024, 632167, 431166)]
    together = randhie.fifth_of(np.array([431166, 125024, 632167, 125024]))
    assert together.tolist() == [alone[2], alone[0], alone[1], alone[0]]


def test_no_outcome_and_no_identifier_is_an_input():
    assert not OUTCOMES & set(randhie.RANGES)
    assert not {"zper", "site", "plan"} & set(randhie.RANGES)


@needs_table
def test_every_column_has_a_place_in_the_docstring():
    words = set(randhie.__doc__.replace(",", " ").replace("(", " ").replace(")", " ").replace(".", " ").split())
    words |= set(randhie.__doc__.replace(":", " ").replace(".", " ").split())
    assert set(randhie.read_table().names) <= words


@needs_table
def test_inputs_stay_in_public_bounds_whatever_the_record(data):
    first = randhie.read_table()["xage"].numbers()[0]
    scaled = randhie.scale(as_frame({name: [1e9, -1e9, math.nan, first] for name in randhie.RANGES}))
    assert torch.isfinite(scaled).all()
    assert scaled.abs().max() <= 1
    assert (scaled[2, : len(randhie.RANGES)] == 0).all()  # missing: the middle of the range
    for inputs, _ in data.clients:
        assert inputs.abs().max() <= 1


@needs_table
def test_scaling_one_record_needs_no_other(data):
    table = randhie.read_table()
    assert torch.equal(randhie.scale(table)[7], randhie.scale(table.take(np.array([7])))[0])


def test_a_missing_table_names_the_remedy(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(diff2.Diff2Error, match=r"pip install 'diff2\[demo\]'"):
        randhie.load()
    with pytest.raises(diff2.Diff2Error, match=r"pip install 'diff2\[plots\]'"):
        figures.require_matplotlib()


@needs_table
@needs_figures
def test_a_short_demo_leaves_table_figure_models_and_ledgers(tmp_path: Path):
    report = demo.run_demo(tmp_path / "out", rounds=12, progress=False)  # a leak warning would be an error here
    assert [row["method"] for row in report.rows] == ["GD", "DP-GD", "DIFF2-GD"]
    assert [row["epsilon"] for row in report.rows] == [math.inf, pytest.approx(1.0), pytest.approx(1.0)]
    for row in report.rows:
        assert set(row) == {"method", "test_loss", "r2", "squared_gradient_norm", "epsilon", "seconds"}
        assert all(math.isfinite(row[name]) for name in ("test_loss", "r2", "squared_gradient_norm", "seconds"))
    assert report.figure.read_bytes().startswith(b"\x89PNG")
    assert diff2.Ledger.read(report.ledger).epsilon() == pytest.approx(1.0)
    for name in ("gd", "dpgd", "diff2"):
        assert {path.name for path in (tmp_path / "out" / name).iterdir()} == set(demo.RUN_FILES)
    for name in ("dpgd", "diff2"):
        header = diff2.Ledger.read(tmp_path / "out" / name / "ledger.jsonl").header
        assert header["leaks"] == []
        assert header["seeded"] is False
    assert json.loads((tmp_path / "out" / "demo.json").read_text()) == report.to_json()
    assert "NOT PRIVATE" not in report.guarantee
    notes = " ".join(report.notes)
    assert "person-year" in notes
    assert "public" in notes
    assert "GD is the reference: no clipping, no noise, not private" in notes


@needs_table
@needs_figures
def test_a_seed_makes_it_repeatable_and_not_private(tmp_path: Path):
    first, second = (demo.run_demo(tmp_path, rounds=3, seed=3, progress=False) for _ in range(2))
    assert "NOT PRIVATE" in first.guarantee
    assert "NOT PRIVATE" in first.notes[0]
    assert [row["test_loss"] for row in first.rows] == [row["test_loss"] for row in second.rows]


@needs_table
@needs_figures
def test_the_demo_replaces_its_own_files_and_nothing_else(tmp_path: Path):
    (tmp_path / "diff2").mkdir()
    for path in (tmp_path / demo.MARKER, tmp_path / "diff2" / "ledger.jsonl", tmp_path / "diff2" / "mine.txt"):
        path.write_text("from before")
    demo.run_demo(tmp_path, rounds=4, progress=False)
    assert (tmp_path / "diff2" / "mine.txt").read_text() == "from before"
    assert len(diff2.Ledger.read(tmp_path / "diff2" / "ledger.jsonl")) == 4
    stranger = tmp_path / "diff2"
    with pytest.raises(diff2.InvalidArgument, match="not the demo's; choose"):
        demo.run_demo(stranger, rounds=3, progress=False)
    assert (stranger / "ledger.jsonl").exists()
