"""A full disk at the server stops the run and says so: in outcome.json if there is room, on standard error always."""

import errno
import os
from pathlib import Path

import pytest

from diff2._files import read_json
from diff2.federation.faults import CannotWrite
from diff2.federation.flare.follow import error_of
from diff2.federation.server import OUTCOME
from diff2.federation.server.job import JobSpec, run_job
from federated import agreement_of, approving, in_process, make_sites

AGREEMENT = agreement_of("diff2")
pytestmark = [
    pytest.mark.filterwarnings("ignore::diff2.WeakDeltaWarning"),
    pytest.mark.filterwarnings("ignore::diff2.PrivacyLeakWarning"),
]


class Disk:
    """Lets files below a folder be written until they are ``room`` bytes together, as far as ``_files`` writes them."""

    def __init__(self, folder, room, monkeypatch):
        self.folder, self.room, self.replace = folder, room, os.replace
        monkeypatch.setattr(os, "replace", self.move)

    def move(self, source, target):
        used = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file() and path != Path(target))
        if self.folder in Path(target).parents and used > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.replace(source, target)


def run(tmp_path):
    run_job(JobSpec(AGREEMENT, tmp_path / "run"), in_process(approving(make_sites(tmp_path / "sites"), AGREEMENT)))


def test_the_outcome_is_written_to_the_space_that_was_reserved(tmp_path, monkeypatch, capsys):
    Disk(tmp_path / "run", 4000, monkeypatch)
    with pytest.raises(CannotWrite, match="No space left on device"):
        run(tmp_path)
    outcome = read_json(tmp_path / "run" / OUTCOME)
    assert (outcome["state"], outcome["error"]) == ("stopped", "CannotWrite")
    assert "No space left on device" in outcome["message"]
    assert isinstance(error_of(outcome), CannotWrite)  # a new job would fail likewise: it is not tried
    assert not list((tmp_path / "run").glob("*.reserve"))
    assert not list((tmp_path / "run").glob("*.tmp"))
    assert "No space left on device" in capsys.readouterr().err


def test_where_not_even_that_is_possible_standard_error_says_it(tmp_path, monkeypatch, capsys):
    Disk(tmp_path / "run", -1, monkeypatch)
    with pytest.raises(CannotWrite, match="No space left on device"):
        run(tmp_path)
    assert "No space left on device" in capsys.readouterr().err


def test_any_other_error_leaves_an_outcome_too(tmp_path, monkeypatch):
    monkeypatch.setattr("diff2.federation.server.job.prepare_at_sites", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(tmp_path)
    assert read_json(tmp_path / "run" / OUTCOME)["error"] == "ZeroDivisionError"


def test_nothing_is_left_of_the_reserve_after_a_complete_run(tmp_path):
    run(tmp_path)
    assert read_json(tmp_path / "run" / OUTCOME)["state"] == "done"
    assert not list((tmp_path / "run").glob("*.reserve"))
