"""Checkpoints: what a killed run needs to go on as if nothing had happened.

A checkpoint of an unfinished run holds the key of its noise, so the file is readable by its owner alone, and the key is
wiped when the run is complete. Going on with other settings, or with other records, is refused: the same noise on
another mean would give the difference of the two means away.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..errors import CheckpointError

FORMAT = 2


class Checkpoint(NamedTuple):
    """The state after some round, and what it belongs to."""

    state: dict[str, Any]  # of tensors, numbers and dicts of them
    history: list[dict[str, Any]]
    settings: dict[str, Any]  # whatever must be the same to go on
    key: bytes  # of the noise; empty once the run is complete
    private: bool
    records_tag: bytes  # a keyed hash of the records
    complete: bool


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write the file so that at any moment either the old or the new one is there, whole."""
    temporary = path.with_name(path.name + ".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    fields = {**checkpoint._asdict(), "key": checkpoint.key.hex(), "records_tag": checkpoint.records_tag.hex()}
    with os.fdopen(descriptor, "wb") as file:
        torch.save({"format": FORMAT, **fields}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def load(path: Path) -> Checkpoint:
    """Read a checkpoint; no code in it is executed."""
    try:
        fields = torch.load(path, weights_only=True)
        if fields.pop("format") != FORMAT:
            raise KeyError("format")
        fields.update({name: bytes.fromhex(fields[name]) for name in ("key", "records_tag")})
        return Checkpoint(**fields)
    except FileNotFoundError:
        raise CheckpointError(f"no checkpoint at {path}; start the run without resume") from None
    except Exception as error:
        raise CheckpointError(f"{path} is not a checkpoint of this version of diff2 ({error})") from None


def require_same(path: Path, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Refuse to go on with other settings; name the first that differs."""
    for name in [*mine, *theirs]:
        if mine.get(name) != theirs.get(name):
            raise CheckpointError(
                f"{path} belongs to another run: {name} was {theirs.get(name)!r} and is now {mine.get(name)!r}. "
                "Resume with the original settings, or start a new run in another directory"
            )


def records_tag(key: bytes, clients: Sequence[Iterable[torch.Tensor]]) -> bytes:
    """Return a hash of all records that says nothing without the key."""
    digest = hmac.new(key, digestmod=hashlib.blake2b)
    for client in clients:
        for part in client:
            digest.update(f"{tuple(part.shape)} {part.dtype};".encode())
            digest.update(part.cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.digest()
