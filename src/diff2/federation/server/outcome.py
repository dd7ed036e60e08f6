"""The outcome of a job, written however the job ends. Space for it is reserved: a full disk is an outcome too."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..._files import write_json
from ..faults import CannotWrite
from . import OUTCOME

RESERVED = 4096  # bytes
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@contextmanager
def outcome_of(directory: Path) -> Iterator[dict[str, Any]]:
    """Write to ``directory`` what the block fills in, or the error that ends it.

    A disk without space becomes ``CannotWrite``, and is also said on standard error.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / OUTCOME).unlink(missing_ok=True)
    reserve, outcome = directory / "outcome.reserve", dict[str, Any]()
    try:
        reserve.write_bytes(os.urandom(RESERVED))  # a file of zeros may take no space
        yield outcome
    except Exception as error:
        if not (isinstance(error, OSError) and error.errno in NO_SPACE):
            _write(reserve, stopped_outcome(error))
            raise
        full = CannotWrite.of("the files of the run", error)
        print(f"diff2: the job stops: {full}", file=sys.stderr, flush=True)
        _write(reserve, stopped_outcome(full))
        raise full from None
    _write(reserve, outcome)


def stopped_outcome(error: Exception) -> dict[str, str]:
    """Return the outcome of a job that an error has stopped."""
    return {"state": "stopped", "error": type(error).__name__, "message": str(error)}


def _write(reserve: Path, outcome: dict[str, Any]) -> None:
    """Write the outcome in the place of the reserve."""
    path = reserve.with_name(OUTCOME)
    reserve.unlink(missing_ok=True)
    try:
        write_json(path, outcome)
    except OSError as error:
        print(f"diff2: {path} cannot be written ({error}): {outcome}", file=sys.stderr, flush=True)
