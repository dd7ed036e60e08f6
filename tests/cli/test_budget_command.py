"""A project: runs on the same records, composed, and a limit that is kept before anything is spent."""

import json
import os
import shutil
import stat

import pytest
from test_verify_command import RUN

import diff2
from commands import change, diff2_here, single_line, write_folder
from diff2.planning.project import enter, project_of, standing
from diff2.privacy.accounting import gdp_epsilon, gdp_mu
from fitted import few_trees, schema, table

DELTA = 1e-5


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path, RUN.replace("delta = 1e-3", "delta = 1e-5"), north=60, south=45)


def limit(folder, epsilon, delta=DELTA):
    result = diff2_here("budget", folder / "runs", "--epsilon", epsilon, "--delta", delta, "--json")
    assert result.exit_code in (0, 3), result.stderr
    return json.loads(result.stdout)


def train(folder, name, *words):
    return diff2_here("train", folder / "run.toml", "--out", folder / "runs" / name, "--quiet", *words)


def fit(folder, name, epsilon=1.0, **options):
    with few_trees():
        return diff2.fit(
            table(), schema("regression"), epsilon=epsilon, delta=DELTA, directory=folder / "runs" / name, **options
        )


def test_eight_models_on_one_table_are_together_what_they_are(tmp_path):
    for i in range(8):
        fit(tmp_path, f"model-{i}")
    result = diff2_here("budget", tmp_path / "runs")
    total = gdp_epsilon(gdp_mu(1.0, DELTA) * 8**0.5, DELTA)
    said = " ".join(result.stdout.split())
    assert f"8 runs, each at most epsilon 1: together epsilon {total:.3f}"[:-1] in said
    assert standing(tmp_path / "runs").epsilon == pytest.approx(total, rel=1e-6)


def test_a_run_beyond_the_limit_is_refused_before_anything_is_spent(folder):
    limit(folder, 1.3)
    assert train(folder, "first").exit_code == 0
    result = train(folder, "second")
    assert result.exit_code == 3
    text = single_line(result.stderr.splitlines()[-1] + "\n")
    assert "the 2 runs of the project" in text
    assert "Nothing was released" in text
    assert not (folder / "runs" / "second").exists()
    with pytest.raises(diff2.BudgetExceeded, match="the 2 runs of"):
        fit(folder, "third")
    assert not (folder / "runs" / "third" / "ledger.jsonl").exists()
    assert len(standing(folder / "runs").runs) == 1
    limit(folder, 3.0)
    assert train(folder, "second").exit_code == 0
    fit(folder, "third")
    found = standing(folder / "runs")
    assert found.epsilon == pytest.approx(gdp_epsilon(gdp_mu(1.0, DELTA) * 3**0.5, DELTA), rel=1e-4)
    assert [one.epsilon for one in found.limits] == [1.3, 3.0]


def test_a_run_counts_while_it_goes_on_and_when_its_ledger_is_gone(folder):
    limit(folder, 1.3)
    train(folder, "first")
    ledger = folder / "runs" / "first" / "ledger.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(lines[:3]))  # two of six releases
    assert standing(folder / "runs").epsilon == pytest.approx(1.0, rel=1e-6)
    shutil.rmtree(folder / "runs" / "first")
    found = standing(folder / "runs")
    assert found.epsilon == pytest.approx(1.0, rel=1e-6)
    assert found.runs[0].state.startswith("no ledger")
    assert train(folder, "first").exit_code == 3


def test_a_resumed_run_and_a_copy_of_a_run_are_counted_once(folder):
    limit(folder, 1.3)
    train(folder, "first")
    assert train(folder, "first", "--resume").exit_code == 0
    shutil.copytree(folder / "runs" / "first", folder / "runs" / "copy")
    assert len(standing(folder / "runs").runs) == 1


def test_ledgers_that_nobody_registered_count_too(folder):
    train(folder, "first")
    fit(folder, "second")
    assert limit(folder, 1.2)["epsilon"] > 1.2
    assert diff2_here("budget", folder / "runs").exit_code == 3
    assert train(folder, "third").exit_code == 3


def test_a_seed_or_no_noise_has_no_place_under_a_limit(folder):
    limit(folder, 100.0)
    assert train(folder, "seeded", "--seed", 3).exit_code == 3
    change(folder, ("epsilon = 1.0", 'epsilon = "inf"'))
    assert train(folder, "bare").exit_code == 3


def test_the_fingerprint_is_keyed_and_the_key_is_the_owners(folder):
    limit(folder, 3.0)
    train(folder, "first")
    train(folder, "second")
    runs = standing(folder / "runs").runs
    assert runs[0].records == runs[1].records != ""
    assert stat.S_IMODE(os.stat(folder / "runs" / "budget.key").st_mode) == 0o600
    (folder / "north.csv").write_text((folder / "north.csv").read_text().replace("\n", "\n1,1,1\n", 1))
    assert train(folder, "third").exit_code == 0
    found = standing(folder / "runs")
    assert len({run.records for run in found.runs}) == 2
    assert "different fingerprints" in found.notes()[0]
    key = (folder / "runs" / "budget.key").read_text().strip()
    assert key not in (folder / "runs" / "budget.jsonl").read_text()
    assert (
        "records"
        not in json.loads(diff2_here("report", folder / "runs" / "first", "--json").stdout)["project"]["runs"][0]
    )


def test_a_report_says_what_all_runs_cost(folder):
    limit(folder, 3.0)
    train(folder, "first")
    fit(folder, "second").save(folder / "runs" / "second")
    found = json.loads(diff2_here("report", folder / "runs" / "second", "--json").stdout)["project"]
    assert found["epsilon"] == standing(folder / "runs").epsilon
    assert [run["run"] for run in found["runs"]] == ["first", "second"]
    page = folder / "page.html"
    assert diff2_here("report", folder / "runs" / "second", "--out", page).exit_code == 0
    assert "2 runs together: epsilon" in page.read_text()


def test_a_changed_register_is_refused(folder):
    limit(folder, 1.3)
    train(folder, "first")
    register = folder / "runs" / "budget.jsonl"
    text = register.read_text()
    register.write_text("".join(text.splitlines(keepends=True)[:-1]) + text.splitlines()[-1].replace("first", "fir"))
    assert train(folder, "second").exit_code == 1
    register.write_text(text.replace('"epsilon": 1.3', '"epsilon": 9.5'))
    assert "was changed" in train(folder, "second").stderr
    register.write_text(text)
    (folder / "runs" / "budget.key").unlink()
    limit_before = register.read_text()
    assert train(folder, "third").exit_code in (1, 3)
    assert register.read_text() == limit_before


def test_outside_of_a_project_nothing_is_written(tmp_path):
    assert project_of(tmp_path) is None
    enter(tmp_path, {}, lambda key: b"")
    enter(None, {}, lambda key: b"")
    assert list(tmp_path.iterdir()) == []
    assert diff2_here("budget", tmp_path / "none").exit_code == 1
    assert diff2_here("budget", tmp_path, "--epsilon", 1).exit_code == 2


def test_a_folder_without_runs_says_so(tmp_path):
    assert diff2_here("budget", tmp_path).stdout == "no runs yet.\n"
    assert "no runs yet; the limit is 3." in diff2_here("budget", tmp_path, "--epsilon", 3, "--delta", DELTA).stdout
