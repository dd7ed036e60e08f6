"""The store of finished runs: kept once, whole, under two processes and after a crash."""

import errno
import json
import math
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diff2 import Diff2Error, InvalidArgument
from diff2_experiments.store import RunStore

WRITER = """
import sys
from pathlib import Path
from diff2_experiments.store import RunStore
store = RunStore(Path(sys.argv[1]))
for i in range(200):
    store.add({"key": str(i), "writer": sys.argv[2], "values": list(range(300))})
"""


def test_a_run_is_read_as_it_was_returned(tmp_path):
    run = RunStore(tmp_path / "new").add({"key": "a", "loss": [1.0, math.nan], "epsilon": math.inf, "pair": (1, 2)})
    assert run == {"key": "a", "loss": [1.0, None], "epsilon": None, "pair": [1, 2]}
    assert RunStore(tmp_path / "new").runs() == {"a": run}


def test_the_first_run_of_a_key_stays(tmp_path):
    one, other = RunStore(tmp_path), RunStore(tmp_path)
    one.add({"key": "a", "value": 1})
    assert other.add({"key": "a", "value": 2})["value"] == 1
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 1


@settings(max_examples=30, deadline=None)
@given(cut=st.integers(1, 400), more=st.integers(1, 4))
def test_a_line_that_was_cut_off_costs_that_run_only(tmp_path_factory, cut, more):
    directory = tmp_path_factory.mktemp("store")
    store = RunStore(directory)
    for key in "abc":
        store.add({"key": key, "values": list(range(20))})
    path = directory / "runs.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[: max(0, len(content) - cut)])
    whole = sum(line.endswith(b"}\n") for line in path.read_bytes().splitlines(keepends=True))
    again = RunStore(directory)
    for i in range(more):
        again.add({"key": f"new {i}"})
    found = RunStore(directory).runs()
    # A line that lacks nothing but its end counts as well, once the next one has closed it.
    assert whole + more <= len(found) <= whole + more + 1
    assert set(found) >= {f"new {i}" for i in range(more)}


def test_two_processes_fill_one_store(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen([*command, name]) for name in "ab"]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0]
    lines = (tmp_path / "runs.jsonl").read_text().splitlines()
    assert sorted(int(json.loads(line)["key"]) for line in lines) == list(range(200))


def test_a_full_disk_is_said_and_costs_nothing(tmp_path, monkeypatch):
    store = RunStore(tmp_path)
    store.add({"key": "a"})

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Diff2Error, match=r"disk is full; make room, and start .* 1 runs before it are kept"):
        store.add({"key": "b"})
    monkeypatch.undo()
    assert list(RunStore(tmp_path).runs()) == ["a"]
    store.add({"key": "b"})
    assert list(RunStore(tmp_path).runs()) == ["a", "b"]


def test_a_store_is_a_directory(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidArgument, match="is a file; give a directory"):
        RunStore(tmp_path / "file")


def test_lines_that_are_no_runs_are_passed_over(tmp_path):
    (tmp_path / "runs.jsonl").write_text('[1]\n{"no": "key"}\nnonsense\n{"key": 3}\n')
    assert RunStore(tmp_path).runs() == {}
