"""The directory of a fit: its ledger and, until it is complete, what it takes to resume it.

``resume.json`` is written before the ledger and removed when all else is in place. It holds the key of the noise, so it
is its owner's alone. A fit that is called again, with the same arguments on the same records, computes everything again
with the same noise: what it released before is the same release, whose line is there, and nothing is paid twice.

Other arguments and other records are refused: what they release would be something else, and is not in the budget. So
is other code, at the first release that comes out differently.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .._files import plain, read_json, to_json, write_whole
from ..errors import CheckpointError
from ..planning.project import enter
from ..privacy import Ledger, NoiseSource
from ..privacy.resuming import lasting, require_same_settings
from .saving import LEDGER, refuse_folder

RESUME = "resume.json"


class FitDirectory:
    """Noise and ledger of one fit. Without a path both are in memory only."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        header: Mapping[str, Any],
        *,
        settings: Mapping[str, Any],
        seed: int | None,
        records: Iterable[np.ndarray | None],
    ):
        """Start a fit, or take up the one that ``path`` holds unfinished; release nothing.

        Args:
            header: describes the fit for the ledger.
            settings: whatever else must be the same for a fit to be resumed.
            seed: None takes the noise from the operating system.
            records: all that is asked about, encoded.
        """
        self.noise = NoiseSource.from_system() if seed is None else NoiseSource.from_seed(seed)
        self._resume = None if path is None else Path(path) / RESUME
        self.resumed = self._resume is not None and self._resume.exists()
        if path is None or self._resume is None:
            self.ledger = Ledger(header)
            return
        self._resume.parent.mkdir(parents=True, exist_ok=True)
        mine = {**lasting(plain(header)), **plain(settings), "seed": seed}
        if self.resumed:
            found = read_json(self._resume) or {}
            if set(found) != {"key", "private", "settings", "records"}:
                raise CheckpointError(f"{self._resume} is not what a fit writes; choose another directory")
            self.noise = NoiseSource(bytes.fromhex(found["key"]), private=found["private"])
            require_same_settings(self._resume, mine, found["settings"])
            if found["records"] != tag(self.noise.key, records):
                raise CheckpointError(
                    f"{self._resume} belongs to a fit on other records of the same numbers: what was released would be "
                    "released a second time. Restore the records, or choose another directory"
                )
        else:
            refuse_folder(path)
            parts = list(records)
            enter(Path(path), header, lambda key: bytes.fromhex(tag(key, parts)))
            document = {"key": self.noise.key.hex(), "private": self.noise.private, "settings": mine}
            document["records"] = tag(self.noise.key, parts)
            write_whole(self._resume, to_json(document).encode(), secret=True)
        ledger = Path(path) / LEDGER
        if ledger.exists() and b"\n" not in ledger.read_bytes():
            ledger.unlink()  # killed within the first line: nothing was released
        self.ledger = Ledger.resume(ledger) if ledger.exists() else Ledger(header, ledger)
        require_same_settings(ledger, lasting(plain(header)), lasting(plain(self.ledger.header)))

    def complete(self) -> None:
        """Forget the key: all that was released is in place, and nothing more will be."""
        if self._resume is not None:
            self._resume.unlink(missing_ok=True)


def is_unfinished(path: str | os.PathLike[str]) -> bool:
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
