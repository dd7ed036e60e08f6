"""One process at a time: a lock that the operating system gives up when its holder is gone, however it went."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .federation.faults import FederationError

POLL = 0.2


@contextmanager
def only_one(path: Path, what: str, *, patience: float) -> Iterator[None]:
    """Hold the lock ``path``; wait for whoever holds it for at most ``patience`` seconds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + patience
    with open(path, "a", encoding="utf-8") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise FederationError(f"another process works on {what}; wait until it has ended") from None
                time.sleep(POLL)
        yield  # closing the file gives the lock up
