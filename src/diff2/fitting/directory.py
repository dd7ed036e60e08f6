"""The directory of a fit: its ledger and, until it is complete, what it takes to resume it.

``resume.json``, its checkpoint, is removed when all else is in place. A fit that is called again, with the same
arguments on the same records, computes everything again with the same noise: what it released before is the same
release, whose line is there, and nothing is paid twice. Other code is refused at the first release that comes out
differently.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .._files import AnyPath, read_json, to_json, write_whole
from ..errors import CheckpointError
from ..planning.directory import Checkpoint, Resumable
from .saving import refuse_folder

RESUME = "resume.json"


def load(file: Path) -> Checkpoint:
    """Read what :func:`dump` wrote."""
    found = read_json(file) or {}
    if set(found) != {"key", "private", "settings", "records"}:
        raise CheckpointError(f"{file} is not what a fit writes; choose another directory")
    key, records = (bytes.fromhex(found[name]) for name in ("key", "records"))
    return Checkpoint(None, [], found["settings"], key, {}, found["private"], records, None, False)


def dump(file: Path, checkpoint: Checkpoint) -> None:
    """Write what resumes a fit, for its owner alone."""
    kept = {"key": checkpoint.key.hex(), "private": checkpoint.private, "settings": checkpoint.settings}
    write_whole(file, to_json({**kept, "records": checkpoint.records_tag.hex()}).encode(), secret=True)


class FitDirectory(Resumable):
    """Noise and ledger of one fit. Without a path both are in memory only."""

    file, load, dump = RESUME, staticmethod(load), staticmethod(dump)

    def __init__(
        self,
        path: AnyPath | None,
        header: Mapping[str, Any],
        *,
        settings: Mapping[str, Any],
        seed: int | None,
        records: Iterable[np.ndarray | None],
    ):
        """Start a fit, or take up the one that ``path`` holds unfinished; ``records``: all that is asked about."""
        resume, parts = path is not None and is_unfinished(path), list(records)
        if path is not None and not resume:
            refuse_folder(path)
        super().__init__(path, header=header, settings=settings, seed=seed, resume=resume)
        self.ledger = self._open(lambda key: bytes.fromhex(tag(key, parts)))

    def finish(self) -> None:
        """Forget the key: all that was released is in place, and nothing more will be."""
        if self.path is not None:
            (self.path / RESUME).unlink(missing_ok=True)


def is_unfinished(path: AnyPath) -> bool:
    """Return whether a directory holds a fit that can be resumed."""
    return (Path(path) / RESUME).exists()


def tag(key: bytes, records: Iterable[np.ndarray | None]) -> str:
    """Return a hash of all records that says nothing without the key."""
    digest = hmac.new(key, digestmod=hashlib.blake2b)
    for part in records:
        if part is None:
            digest.update(b"none;")
            continue
        digest.update(f"{part.shape} {part.dtype.str};".encode())
        if part.dtype == object:  # labels, each as long as it is
            for text in (str(label).encode("utf-8", "surrogatepass") for label in part.tolist()):
                digest.update(len(text).to_bytes(8, "big") + text)
        else:
            digest.update(np.ascontiguousarray(part).data.cast("B") if part.size else b"")
    return digest.hexdigest()
