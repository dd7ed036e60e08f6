"""The processes of a federation on this machine: start them, watch them, and end all of them.

FLARE starts a process of its own for each job, in its own session; so descendants are remembered while they can be
seen, and ended by their ids.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

GRACE = 5.0  # seconds between SIGTERM and SIGKILL


class Processes:
    """A group of processes with names. Use it in a ``with`` statement: whatever happens, none is left behind."""

    def __init__(self) -> None:
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._seen: dict[int, float] = {}  # ids of descendants, with the time they started

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(
        self, name: str, command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None
    ) -> int:
        """Start a process whose output goes to ``log``; return its id."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=log.parent,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
                preexec_fn=END_WITH_PARENT,
            )
        self._started[name] = process
        return process.pid

    def pid(self, name: str) -> int:
        """Return the id of a process."""
        return self._started[name].pid

    def ended(self) -> dict[str, int]:
        """Return the exit status of the processes that have ended; remember all descendants of the others."""
        self._look()
        return {name: status for name, process in self._started.items() if (status := process.poll()) is not None}

    def stop(self) -> None:
        """End all processes and all their descendants."""
        import psutil

        self._look()
        alive = [process for process in self._started.values() if process.poll() is None]
        for process in alive:
            process.terminate()
        deadline = time.monotonic() + GRACE
        for process in alive:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for number, began in self._seen.items():
            with contextlib.suppress(psutil.Error):
                found = psutil.Process(number)
                if found.create_time() == began:  # ids are reused
                    found.kill()
        for process in self._started.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        self._started.clear()

    def _look(self) -> None:
        import psutil

        for process in self._started.values():
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(process.pid).children(recursive=True):
                    self._seen[child.pid] = child.create_time()


def run_in_foreground(command: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> int:
    """Run a process until it ends or this one is stopped, which also stops the other; return its exit status."""
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, **environment}, preexec_fn=END_WITH_PARENT)
    try:
        return process.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(2 * GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _end_with_parent() -> None:
    """Have the kernel end this process when its parent is gone, even by kill -9."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


END_WITH_PARENT = _end_with_parent if sys.platform == "linux" else None  # Windows refuses any preexec_fn
