"""The demo: what the loader lets through, and what a run leaves behind."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import shlex

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import diff2
from diff2.cli.main import app
from diff2.data import randhie
from diff2.tables.frames import as_frame
from diff2_experiments import demo, figures

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


def test_six_sites_and_every_record_once(data):
    sizes = [len(inputs) for inputs, _ in data.clients]
    assert sizes == [3543, 3243, 1930, 2443, 2090, 2856]
    assert sum(sizes) + len(data.test[0]) == randhie.RECORDS == 20_190
    assert len(data.test[0]) / randhie.RECORDS == pytest.approx(0.2, abs=0.01)
    for inputs, targets in [*data.clients, data.test]:
        assert inputs.shape == (len(targets), len(data.features))
        assert targets.shape == (len(inputs), 1)
        assert inputs.dtype == targets.dtype == torch.float32


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


def test_every_column_has_a_place_in_the_docstring():
    words = set(randhie.__doc__.replace(",", " ").replace("(", " ").replace(")", " ").replace(".", " ").split())
    words |= set(randhie.__doc__.replace(":", " ").replace(".", " ").split())
    assert set(randhie.read_table().names) <= words


def test_inputs_stay_in_public_bounds_whatever_the_record(data):
    first = randhie.read_table()["xage"].numbers()[0]
    scaled = randhie.scale(as_frame({name: [1e9, -1e9, math.nan, first] for name in randhie.RANGES}))
    assert torch.isfinite(scaled).all()
    assert scaled.abs().max() <= 1
    assert (scaled[2, : len(randhie.RANGES)] == 0).all()  # missing: the middle of the range
    for inputs, _ in data.clients:
        assert inputs.abs().max() <= 1


def test_scaling_one_record_needs_no_other(data):
    table = randhie.read_table()
    assert torch.equal(randhie.scale(table)[7], randhie.scale(table.take(np.array([7])))[0])


def test_missing_figures_name_the_remedy(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(diff2.Diff2Error, match=r"pip install 'diff2\[plots\]'"):
        figures.require_matplotlib()


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A demo whose networks are trained for three rounds; a warning of a leak would be an error."""
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        return demo.run_demo(tmp_path_factory.mktemp("demo"), epsilons=(), progress=False)


def shorten(patch):
    for name in ("PLAIN", "TUNED"):
        found = {label: dataclasses.replace(one, rounds=3) for label, one in getattr(demo, name).items()}
        patch.setattr(demo, name, found)
    patch.setattr(demo, "REFERENCE", dataclasses.replace(demo.REFERENCE, rounds=3))


@needs_figures
def test_the_demo_compares_fit_with_networks_and_with_no_privacy(short):
    found = {(row["method"], row["epsilon"]): row["r2"] for row in short.rows}
    assert 0 < found[demo.FIT, 1.0] < found[demo.BOOSTING, None] == pytest.approx(0.19, abs=0.02)
    assert all(row["share"] == row["r2"] / found[demo.BOOSTING, None] for row in short.rows)
    assert json.loads((short.figure.parent / "demo.json").read_text()) == short.to_json()
    assert short.figure.read_bytes().startswith(b"\x89PNG")


@needs_figures
def test_the_model_of_the_demo_is_private_and_its_commands_work(short, capsys):
    model = diff2.FittedModel.load(short.model)
    assert model.epsilon == pytest.approx(1.0)
    assert model.guarantee.private
    assert model.guarantee.client_sizes == (3543, 3243, 1930, 2443, 2090, 2856)
    assert str(model.guarantee) == short.guarantee
    for line in short.commands:
        assert CliRunner().invoke(app, shlex.split(line)[1:]).exit_code == 0, line
    assert len((short.model.parent / "predictions.csv").read_text().splitlines()) == 1 + 4085
    assert diff2.FittedModel.load(short.model.parent / "mine").epsilon == pytest.approx(1.0)
    demo.show(short)
    printed = capsys.readouterr().out
    for text in ("boosting", "person-year", "public", *short.commands):
        assert text in printed


@needs_figures
def test_a_seed_makes_it_repeatable_and_not_private(tmp_path, monkeypatch):
    whole = demo.Data.load()
    train = {name: column[::16] for name, column in whole.train.items()}
    monkeypatch.setattr(demo.Data, "load", lambda: dataclasses.replace(whole, train=train))
    monkeypatch.setattr(demo, "draw", lambda rows, path, subtitle: path)
    shorten(monkeypatch)
    first, second = (demo.run_demo(tmp_path, seed=3, epsilons=(8.0,), progress=False) for _ in range(2))
    private = {(name, at) for name in (demo.FIT, *demo.PLAIN, *demo.TUNED) for at in (1.0, 8.0)}
    found = {(row["method"], row["epsilon"]) for row in first.rows}
    assert found == private | {(demo.NETWORK, None), (demo.BOOSTING, None)}
    assert "NOT PRIVATE" in first.guarantee
    assert "NOT PRIVATE" in first.notes[0]
    assert first.rows == second.rows


@needs_figures
def test_the_demo_leaves_the_files_of_others_alone(short, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(diff2.InvalidArgument, match="not the demo's; choose"):
        demo.run_demo(tmp_path, progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
