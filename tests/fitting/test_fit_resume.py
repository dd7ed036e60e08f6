"""A fit that is killed is resumed by the same call: to the same bytes, and nothing is paid twice."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest

import diff2
from diff2.fitting import regression, saving
from diff2.fitting.directory import RESUME
from diff2.fitting.session import Session
from diff2.fitting.statistics import ClassShares
from diff2.planning.verify import verify
from diff2.privacy import Ledger, NoiseSource
from fitted import few_trees, schema, table

TABLES = {kind: table(120) for kind in ("regression", "classes")}


class Killed(BaseException):
    pass


@pytest.fixture(autouse=True)
def one_key(monkeypatch):
    """The same secret noise for all fits of a test, so that fits can be compared."""
    monkeypatch.setattr(NoiseSource, "from_system", lambda: NoiseSource(b"k" * 32, private=True))


def fit(directory, kind="regression", data=None, **options):
    with few_trees():
        return diff2.fit(data or TABLES[kind], schema(kind), **{"epsilon": 8.0, "directory": directory, **options})


def files(directory):
    """Return what is in a folder, the ledger without the time it was started at."""
    found = {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "ledger.jsonl"}
    ledger = Ledger.read(directory / "ledger.jsonl")
    return found, ledger.releases, ledger.end


def killed_in(monkeypatch, directory, attempts, owner, name, when, after, **options):
    """Call fit until it is not killed; it is, in ``owner.name``, at the first call for which ``when`` holds."""
    original = getattr(owner, name)
    for attempt in range(attempts):

        def dying(*words, attempt=attempt, **more):
            if not when(attempt, words):
                return original(*words, **more)
            if after:
                original(*words, **more)
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, dying)
            with pytest.raises(Killed):
                fit(directory, **options)
        assert (directory / RESUME).exists()
    return fit(directory, **options)


@pytest.mark.parametrize("after", [False, True], ids=["before the line", "after the line"])
@pytest.mark.parametrize("kind", ["regression", "classes"])
def test_a_fit_killed_at_every_release_ends_in_the_same_bytes(tmp_path, monkeypatch, kind, after):
    """Red before there was a way to resume: LedgerError, the ledger exists."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    releases = len(fit(whole, kind).ledger)

    def when(attempt, words):  # the first line that is not there yet, of each attempt
        return words[1]["kind"] == "release" and words[1]["release"] == attempt + 1

    model = killed_in(monkeypatch, parts, releases, Ledger, "_write", when, after, kind=kind)
    assert files(parts) == files(whole)
    assert len(model.ledger) == releases
    assert model.epsilon <= 8
    assert verify(parts / "ledger.jsonl").ledger.complete


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("owner", "name", "attempts"), [(Ledger, "close", 1), (saving, "write_whole", 5)], ids=["closing", "saving"]
)
def test_a_fit_killed_while_it_is_written_ends_in_the_same_bytes(tmp_path, monkeypatch, owner, name, attempts, after):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    fit(whole)
    names = [saving.SCHEMA, saving.PREPARATION, saving.HEALTH, saving.README, saving.ARRAYS]

    def when(attempt, words):
        return owner is Ledger or words[0].name == names[attempt]

    killed_in(monkeypatch, parts, attempts, owner, name, when, after)
    assert files(parts) == files(whole)


def die_at(patch, release):
    """Have every fit die before this release."""
    original = Session.ask

    def dying(session, statistic, mu):
        if session._filter.releases == release:
            raise Killed
        return original(session, statistic, mu)

    patch.setattr(Session, "ask", dying)


def unfinished(monkeypatch, directory, **options):
    """Leave a fit that was killed, and return its ledger's bytes."""
    with monkeypatch.context() as patch:
        die_at(patch, 6)
        with pytest.raises(Killed):
            fit(directory, **options)
    return (directory / "ledger.jsonl").read_bytes()


def changed():
    found = table(120)
    found["regression"] = found["regression"].copy()
    found["regression"][7] += 0.1
    return found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 7.0}, "budget was"),
        ({"delta": 1e-6}, "budget was"),
        ({"score": False}, "score was True and is now False"),
        ({"seed": 3}, "seed was None and is now 3|seeded was False"),
        ({"weighting": "clients"}, "weighting was"),
        ({"kind": "classes"}, "algorithm was"),
        ({"data": changed()}, "other records of the same shape"),
        ({"data": {name: values[::-1] for name, values in table(120).items()}}, "other records"),
        ({"data": table(121)}, "client_sizes was"),
    ],
)
def test_other_arguments_and_records_are_refused_and_nothing_is_lost(tmp_path, monkeypatch, options, message):
    before = unfinished(monkeypatch, tmp_path)
    with pytest.raises(diff2.CheckpointError, match=message):
        fit(tmp_path, **options)
    assert (tmp_path / "ledger.jsonl").read_bytes() == before
    assert fit(tmp_path).ledger.complete


def test_other_code_is_refused_at_the_first_release_that_differs(tmp_path, monkeypatch):
    before = unfinished(monkeypatch, tmp_path)
    monkeypatch.setitem(regression.SHARES, "whitening", 0.06)
    with pytest.raises(diff2.BudgetExceeded, match="comes out differently now"):
        fit(tmp_path)
    assert (tmp_path / "ledger.jsonl").read_bytes() == before


def test_a_release_for_another_purpose_is_refused(tmp_path, monkeypatch):
    """Red without the check of purposes: a line of the same number was added, beyond the budget."""
    before = unfinished(monkeypatch, tmp_path)
    original = regression.prepared

    def otherwise(ask, mu, *others):
        ask(ClassShares(3, purpose="another"), mu / 10)
        return original(ask, mu, *others)

    monkeypatch.setattr(regression, "prepared", otherwise)
    with pytest.raises(diff2.LedgerError, match=r"was a \w+ and is a another now"):
        fit(tmp_path)
    assert (tmp_path / "ledger.jsonl").read_bytes() == before


def test_the_key_is_its_owners_alone_and_gone_at_the_end(tmp_path, monkeypatch):
    unfinished(monkeypatch, tmp_path)
    resume = tmp_path / RESUME
    assert resume.stat().st_mode & 0o077 == 0
    assert json.loads(resume.read_text())["key"] == (b"k" * 32).hex()
    fit(tmp_path)
    assert not resume.exists()
    assert (b"k" * 32).hex() not in "".join(path.read_bytes().hex() for path in tmp_path.iterdir())
    with pytest.raises(diff2.InvalidArgument, match="never overwritten"):
        fit(tmp_path)


def test_a_ledger_cut_off_within_its_first_line_or_its_last_is_resumed(tmp_path, monkeypatch):
    whole = tmp_path / "whole"
    fit(whole)
    for cut in (40, -10):
        part = tmp_path / f"cut{cut}"
        before = unfinished(monkeypatch, part)
        (part / "ledger.jsonl").write_bytes(before[:cut])
        fit(part)
        assert files(part) == files(whole)


def test_an_evaluation_is_resumed(tmp_path, monkeypatch):
    with few_trees():
        model = diff2.fit(TABLES["classes"], schema("classes"), epsilon=8.0, seed=0)
    evaluate = partial(diff2.evaluate, model, TABLES["classes"], epsilon=2.0)
    for release in range(4):
        with monkeypatch.context() as patch:
            die_at(patch, release)
            with pytest.raises(Killed):
                evaluate(directory=tmp_path / "parts")
    whole, parts = (evaluate(directory=tmp_path / name) for name in ("whole", "parts"))
    assert whole.to_json() == parts.to_json()


def test_a_fit_killed_by_the_operating_system_is_resumed_by_the_same_command(tmp_path):
    rng = np.random.default_rng(0)
    age = rng.uniform(0, 100, 4000)
    lines = [f"{a:.3f},{a / 20 + e:.3f}" for a, e in zip(age, rng.normal(0, 1, 4000), strict=True)]
    (tmp_path / "people.csv").write_text("\n".join(["age,visits", *lines]))
    (tmp_path / "people.schema.toml").write_text(
        '[target]\ncolumn = "visits"\nkind = "regression"\nlow = 0\nhigh = 10\n'
        '[columns]\nage = { kind = "number", low = 0, high = 100 }\n'
    )
    words = ["fit", "people.csv", "--schema", "people.schema.toml", "--epsilon", "2", "--out", "model"]
    ledger = tmp_path / "model" / "ledger.jsonl"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-m", "diff2", *words], cwd=tmp_path, env=environment)
    while not ledger.exists() or ledger.read_bytes().count(b"\n") < 6:
        assert process.poll() is None, "the fit ended too early"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    released = ledger.read_bytes()
    released = released[: released.rindex(b"\n") + 1]
    again = subprocess.run([sys.executable, "-m", "diff2", *words], cwd=tmp_path, env=environment, capture_output=True)
    assert again.returncode == 0, again.stderr
    assert ledger.read_bytes().startswith(released)
    assert diff2.FittedModel.load(tmp_path / "model").epsilon == pytest.approx(2.0)
    assert not (tmp_path / "model" / RESUME).exists()
