"""A rehearsal says what a fit does, without data and without PyTorch."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import diff2
from commands import diff2_here
from diff2.fitting.expectation import expectation, warning_of
from diff2.fitting.rehearsal import MADE_UP, StandIns, made_up, rehearse
from diff2.tables.kinds import Classes, Counts, Number, Regression
from diff2.tables.schema import Schema
from fitted import few_trees, schema

COLUMNS = {"age": Number(0, 100), "income": Number(0, 1e5)}
TARGETS = {
    "regression": Regression(0, 10),
    "unbounded": Regression(),
    "classes": Classes(("a", "b", "c")),
    "counts": Counts(50),
}


def spent(ledger):
    """Return the number of releases and the share of the budget by purpose."""
    from diff2.fitting.health import planned

    total, found = planned(ledger)[1], {}
    for release in ledger.releases:
        count, share = found.get(release.purpose, (0, 0.0))
        found[release.purpose] = count + 1, share + release.multiplier**-2 / total
    return found


@pytest.mark.parametrize("kind", TARGETS)
def test_a_rehearsal_spends_what_a_fit_on_such_records_spends(kind):
    """On the very records that are made up, with the same seed, both are the same."""
    known = Schema(COLUMNS, "y", TARGETS[kind])
    rows = made_up(known, 2000).rows
    target = rows.target if kind != "classes" else np.array(["a", "b", "c"])[rows.target.astype(int)]
    with few_trees():
        model = diff2.fit(
            {"age": rows.numeric[:, 0], "income": rows.numeric[:, 1], "y": target}, known, epsilon=2.0, seed=0
        )
        found = rehearse(known, 2000, epsilon=2.0)
    assert {one.purpose: (one.releases, pytest.approx(one.share)) for one in found.purposes} == spent(model.ledger)
    assert found.delta == model.ledger.delta


def test_few_records_stand_for_many():
    """Their sums are means, their sensitivities those of all, and scores add up to the number of all."""
    known = Schema(COLUMNS, "y", TARGETS["regression"])
    from diff2.fitting.statistics import TargetMean

    few, many = (StandIns(made_up(known, 100), units).answer(TargetMean(0, 10), 1, 1.0) for units in (100, 10_000))
    np.testing.assert_allclose(few.value, many.value)
    assert few.release.sensitivity == pytest.approx(100 * many.release.sensitivity)
    assert many.release.sensitivity == pytest.approx(10 / 10_000)


def test_more_records_mean_less_noise():
    with few_trees():
        noise = [
            {one.purpose: one.noise for one in rehearse(schema("classes"), n, epsilon=1.0).purposes}
            for n in (500, MADE_UP)
        ]
    assert noise[1]["whitening"] < noise[0]["whitening"] / 4  # at about the same mu
    assert set(noise[0]) ^ set(noise[1]) == {"features", "gram"}  # few records do not show a matrix


def test_what_is_expected_is_said_and_warned_of_where_it_is_little():
    assert str(expectation(0.5, 1e-4, 1 / 200, 8)) == warning_of(0.5, 1e-4, 1 / 200, 8)
    assert "expect little more than a constant" in warning_of(0.5, 1e-4, 1 / 200, 8)
    assert warning_of(1.0, 1e-6, 1 / 16_512, 8) is None
    assert str(expectation(1.0, 1e-6, 1 / 16_512, 8)).endswith(
        "expect about 90% of what can be explained: where half could be explained, an R^2 of about 0.45"
    )


SCHEMA = """
[target]
column = "visits"
kind = "regression"
low = 0
high = 10

[columns]
age = { kind = "number", low = 0, high = 100 }
"""


def test_the_command_needs_no_data_and_no_torch(tmp_path):
    (tmp_path / "people.schema.toml").write_text(SCHEMA)
    words = ["plan", "--schema", str(tmp_path / "people.schema.toml"), "--records", "80", "--epsilon", "0.2"]
    result = diff2_here(*words)
    assert result.exit_code == 0, result.stderr
    for text in ("descent", "share of the budget", "expect little more than a constant", "No data was touched"):
        assert text in " ".join(result.stdout.split())
    code = f"import sys; sys.modules['torch'] = None; from diff2.cli.main import app; app({[*words, '--json']})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    document = json.loads(found.stdout)
    assert sum(one["share"] for one in document["purposes"]) == pytest.approx(1, abs=1e-3)
    assert document["expected"]["sentence"].startswith("with 80 records and epsilon 0.2 expect")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--schema", "s.toml", "--epsilon", "1"], 2, "give --records and --epsilon"),
        (["--epsilon", "1"], 2, "or, for a fit, --schema"),
        (["--schema", "s.toml", "--records", "49", "--epsilon", "1"], 1, "records"),
        (["--schema", "s.toml", "--records", "100", "--epsilon", "0"], 1, "epsilon"),
        (["--schema", "nothing.toml", "--records", "100", "--epsilon", "1"], 1, "no schema"),
    ],
)
def test_what_a_plan_of_a_fit_needs(tmp_path, monkeypatch, words, code, text):
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(SCHEMA)
    result = diff2_here("plan", *words)
    assert result.exit_code == code
    assert text in " ".join(result.stderr.replace("│", " ").split())
