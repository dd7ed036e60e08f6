"""The benchmark of private tables: its schemas, its arithmetic, and a run of the references from end to end."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.private_tables import adjacency
from benchmarks.private_tables.__main__ import main
from benchmarks.private_tables.contestants import BASELINE, BOOSTING, CONTESTANTS, FIT, LINEAR
from benchmarks.private_tables.measures import measured, share
from benchmarks.private_tables.problem import Problem, design, largest_norm
from benchmarks.private_tables.scores import Record, Scores
from benchmarks.private_tables.tables import HERE, TABLES, Absent, frame_of

from diff2.privacy.accounting import gdp_mu


def test_every_table_has_a_schema_and_every_schema_a_table():
    assert {path.stem for path in (HERE / "schemas").glob("*.toml")} == set(TABLES)
    assert sum(bool(table.package) for table in TABLES.values()) >= 16


@pytest.mark.parametrize("name", TABLES)
def test_a_schema_is_given_by_a_person_who_says_why(name):
    schema = TABLES[name].schema
    assert not schema.leaks()
    assert not np.isnan(schema.bounds).any()
    text = (HERE / "schemas" / f"{name}.toml").read_text(encoding="utf-8")
    lines = text[text.index("[columns]") :].splitlines()[1:]
    assert len(lines) == len(schema.columns)
    assert all(len(line.rsplit("}  # ", 1)) == 2 for line in lines), "a column without a comment"


def test_a_table_that_is_absent_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv("DIFF2_DATA", str(tmp_path))
    monkeypatch.setattr("benchmarks.private_tables.tables.SHARED", tmp_path / "none")
    monkeypatch.setattr("diff2.data.places.cache_folder", lambda: tmp_path)
    with pytest.raises(Absent, match=r"california_housing\.csv\.gz"):
        frame_of("california")


def test_shares_on_toy_numbers():
    assert share([2.0, 4.0], [1.5, 2.5], [1.0, 1.0]) == pytest.approx(0.5)
    assert share([0.5], [0.75], [0.25]) == pytest.approx(-1.0)
    assert share([1.0], [0.5], [0.985]) is None, "boosting explains less than 2 %"
    assert share([1.0], [0.5], [1.2]) is None, "boosting explains nothing"


def test_deviances_are_those_of_scikit_learn_and_by_hand():
    assert measured("regression", np.array([1.0, 3.0]), np.array([2.0, 3.0])) == {"deviance": 0.5}
    counts = measured("counts", np.array([0.0, 2.0]), np.array([-1.0, 1.0]))["deviance"]
    assert counts == pytest.approx((2 * 0.01 + 2 * (2 * np.log(2) - 1)) / 2)
    found = measured("classes", np.array([0, 1, 1]), np.array([[1.0, 0.0], [1.0, 0.0], [0.2, 0.8]]))
    assert found["deviance"] == pytest.approx(-(np.log(1e-3) + np.log(0.8)) / 3)
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["auc"] == pytest.approx(0.75)
    with pytest.raises(FloatingPointError, match="not finite"):
        measured("regression", np.ones(2), np.array([np.nan, 1.0]))


def test_a_replacement_costs_as_much_as_a_removal_and_an_addition():
    assert gdp_mu(adjacency.gaussian(3.0, 1e-5), 1e-5) == pytest.approx(gdp_mu(3.0, 1e-5) / 2, rel=1e-6)
    assert adjacency.pure(3.0) == 1.5


def runs(**deviances):
    """Return lines of a store: deviances by seed of contestants on one table at epsilon 1."""
    names = {"fit": FIT, "gd": "DP-GD", "base": BASELINE, "best": BOOSTING, "sgd": "Opacus SGD"}
    return {
        f"{short} {seed}": {
            "table": "wage", "contestant": names[short], "seed": seed, "rows": 9, "columns": 2, "deviance": value,
            "epsilon": 1.0 if CONTESTANTS[names[short]].private else None,
        }
        for short, values in deviances.items()
        for seed, value in enumerate(values)
    }  # fmt: skip


def test_wins_ties_and_places_on_toy_runs():
    scores = Scores.of([runs(base=[2, 2, 2], best=[1, 1, 1], fit=[1.2, 1.4, 1.3], gd=[1.5, 1.6, 1.7], sgd=[3, 1, 1.3])])
    assert scores.mean_share(FIT, 1.0) == pytest.approx(0.7)
    assert scores.first() == {FIT: [("wage", 1.0)]}
    assert scores.against(FIT, "DP-GD") == Record(1, 0, 0)
    assert scores.against("DP-GD", FIT) == Record(0, 0, 1)
    assert scores.against(FIT, "Opacus SGD") == Record(0, 1, 0), "within a standard error"
    assert scores.against(FIT, None) == Record(1, 0, 0), "the best of the others is DP-GD"
    assert scores.below_baseline(FIT) == []
    assert Scores.of([runs(base=[1, 1], fit=[3, 3.1])]).below_baseline(FIT) == [("wage", 1.0)]


def test_a_later_store_takes_the_place_of_an_earlier_one():
    scores = Scores.of([runs(base=[2], best=[1], fit=[1.5]), runs(fit=[1.1])])
    assert scores.share("wage", FIT, 1.0) == pytest.approx(0.9)


def test_one_table_cannot_decide_a_mean():
    assert Scores.of([runs(base=[1], best=[0.5], gd=[1e9])]).mean_share("DP-GD", 1.0) == -1


def test_people_are_on_one_side_and_rows_are_within_their_largest_norm():
    frame, schema = frame_of("randhie"), TABLES["randhie"].schema
    problem = Problem.split(frame.head(2000), schema, seed=3)
    assert not set(problem.train["zper"]) & set(problem.test["zper"])
    assert problem.schema.groups is None
    rows = design(problem.test_rows, problem.schema)
    assert np.linalg.norm(rows, axis=1).max() <= largest_norm(schema) + 1e-9
    low, high = problem.target_bounds
    assert problem.unscaled(np.array([-1.0, 0.0, 9.0, np.nan])).tolist() == [
        low,
        (low + high) / 2,
        high,
        (low + high) / 2,
    ]


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="the figure needs matplotlib")
def test_a_run_of_the_baseline_from_end_to_end(tmp_path, capsys):
    """The references of scikit-learn take part where it is installed."""
    there = [name for name in (BASELINE, LINEAR, BOOSTING) if not CONTESTANTS[name].absent()]
    store = ["--store", str(tmp_path / "runs")]
    run = ["run", "--tables", "randhie_visits", "--seeds", "1", "--rows", "1500", "--jobs", "1", *store]
    main([*run, "--contestants", *there])
    main([*run, "--contestants", *there])
    lines = [json.loads(line) for line in (tmp_path / "runs" / "runs.jsonl").read_text().splitlines()]
    assert [line["contestant"] for line in lines] == there, "what is known is not run again"
    assert all(line["deviance"] > 0 and line["seconds"] >= 0 for line in lines)
    main(["report", *store, "--out", str(tmp_path / "benchmark.md")])
    page = (tmp_path / "benchmark.md").read_text(encoding="utf-8")
    assert "| randhie_visits | counts |" in page
    values = (tmp_path / "benchmark.csv").read_text(encoding="utf-8").splitlines()
    assert values[0].startswith("table,contestant,epsilon,seed,deviance")
    assert any(line.startswith(f"randhie_visits,{BASELINE},,0,") for line in values), "per-seed values are kept"
    assert f"| {BASELINE} |" in page
    assert "diamonds, weather" in page, "what was not run is listed"
    assert Path(tmp_path / "images" / "benchmark.png").stat().st_size > 10_000


def test_a_contestant_that_fails_is_stored_with_its_error(tmp_path, monkeypatch):
    from dataclasses import replace

    def broken(problem, epsilon, seed):
        raise ValueError("no signal")

    monkeypatch.setitem(CONTESTANTS, "DP-GD", replace(CONTESTANTS["DP-GD"], predict=broken))
    run = ["run", "--tables", "randhie", "--seeds", "1", "--rows", "500", "--jobs", "1", "--epsilon", "1"]
    run += ["--contestants", "DP-GD", "--store", str(tmp_path)]
    main(run)
    main(run)
    main([*run, "--retry"])
    lines = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert [line["error"] for line in lines] == ["ValueError: no signal"] * 2, "tried again only under --retry"
