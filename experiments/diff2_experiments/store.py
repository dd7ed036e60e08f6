"""A store of finished runs: a file of JSON lines to which lines are only added.

A run is kept once, under its key, a hash of everything its outcome depends on. Lines are added under a lock, whole and
synced, so several processes may fill one store, and a process that is killed loses nothing
but the run it was in.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock

from diff2.errors import Diff2Error, InvalidArgument

Run = dict[str, Any]  # a line of the store; numbers that are not finite are None

NAME = "runs.jsonl"


class RunStore:
    """The runs of one directory. It is created with the first run."""

    def __init__(self, directory: Path):
        if directory.exists() and not directory.is_dir():
            raise InvalidArgument(f"{directory} is a file; give a directory for the runs")
        self.path = directory / NAME
        self._runs: dict[str, Run] = {}
        self._read = 0  # bytes of the file that are in _runs

    def runs(self) -> dict[str, Run]:
        """Return every finished run by its key; a line that was cut off by a crash does not count."""
        if self.path.exists():
            with self.path.open("rb") as file:
                self._catch_up(file)
        return dict(self._runs)

    def add(self, run: Mapping[str, Any]) -> Run:
        """Keep a run, and return it as it will be read; where its key is known already, return what is there."""
        line = plain(run)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.path}.lock"), self.path.open("ab+") as file:
            self._catch_up(file)
            if line["key"] not in self._runs:
                self._append(file, json.dumps(line, allow_nan=False).encode() + b"\n")
                self._catch_up(file)
        return self._runs[line["key"]]

    def _append(self, file: BinaryIO, line: bytes) -> None:
        end = file.seek(0, os.SEEK_END)
        try:
            # What a crash has cut off is closed, so that it spoils no other line.
            file.write((b"" if end == self._read else b"\n") + line)
            file.flush()
            os.fsync(file.fileno())
        except OSError as error:
            file.truncate(end)
            reason = "the disk is full; make room" if error.errno == errno.ENOSPC else f"{error.strerror}; mend that"
            raise Diff2Error(
                f"a run could not be written to {self.path}: {reason}, and start the same command again. "
                f"The {len(self._runs)} runs before it are kept"
            ) from None

    def _catch_up(self, file: BinaryIO) -> None:
        """Read the whole lines that were added since the last time."""
        file.seek(self._read)
        content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        for line in whole.splitlines():
            run = _parsed(line)
            if run is not None:
                self._runs.setdefault(run["key"], run)
        self._read += len(whole)


def plain(value: Any) -> Any:
    """Return JSON values; a number that is not finite becomes None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _parsed(line: bytes) -> Run | None:
    try:
        run = json.loads(line)
    except ValueError:
        return None
    return run if isinstance(run, dict) and isinstance(run.get("key"), str) else None
