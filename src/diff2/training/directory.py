"""The directory of a run, whose checkpoint holds tensors; and what the header of its ledger says."""

import hashlib
import hmac
import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from .._files import AnyPath, plain, write_whole
from .._version import __version__
from ..errors import CheckpointError, InvalidArgument
from ..gradients import Engine
from ..planning import Plan
from ..planning.directory import LEDGER, Checkpoint, Resumable
from ..planning.header import described
from ..privacy import Ledger
from ..privacy.signing import Signer, sign_ledger
from .model_file import model_digest

FORMAT = 4
CHECKPOINT = "checkpoint.pt"


def load(path: Path) -> Checkpoint:
    """Read a checkpoint; no code in it is executed."""
    try:
        fields = torch.load(path, weights_only=True)
        if fields.pop("format") != FORMAT:
            raise KeyError("format")
        fields.update({name: bytes.fromhex(fields[name]) for name in ("key", "records_tag")})
        return Checkpoint(**fields)
    except Exception as error:
        raise CheckpointError(f"{path} is not a checkpoint of this version of diff2 ({error})") from None


def dump(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, for its owner alone."""
    fields = {**checkpoint._asdict(), "key": checkpoint.key.hex(), "records_tag": checkpoint.records_tag.hex()}
    content = io.BytesIO()
    torch.save({"format": FORMAT, **fields}, content)
    write_whole(path, content.getvalue(), secret=True)


class RunDirectory(Resumable):
    """Noise, ledger and checkpoint of one run; ``signer`` signs the ledger when the run is complete."""

    file, load, dump = CHECKPOINT, staticmethod(load), staticmethod(dump)

    def __init__(self, path: AnyPath | None, *, resume: bool = False, signer: Signer | None = None, **described: Any):
        if signer is not None and path is None:
            raise InvalidArgument("sign_with signs the ledger in a directory; give directory=...")
        self._signer = signer
        super().__init__(path, resume=resume, **described)

    def open_ledger(self, records: Sequence[Iterable[torch.Tensor]] | bytes) -> Ledger:
        """Make sure that the records are those of the run, keep its key, and return its ledger.

        Args:
            records: tensors of all clients; or, where these are elsewhere, a hash of them, keyed with secrets of their
                own.
        """
        if isinstance(records, bytes):
            return self._open(lambda key: hmac.digest(key, records, "blake2b"))
        return self._open(lambda key: records_tag(key, records))

    def sign(self, ledger: Ledger) -> None:
        """Put the signature of a complete ledger beside it, where the run is to be signed."""
        if self._signer is not None and self.path is not None:
            sign_ledger(ledger, self.path / LEDGER, self._signer)


def records_tag(key: bytes, clients: Sequence[Iterable[torch.Tensor]]) -> bytes:
    """Return a hash of all records that reveals nothing without the key."""
    digest = hmac.new(key, digestmod=hashlib.blake2b)
    for client in clients:
        for part in client:
            digest.update(f"{tuple(part.shape)} {part.dtype};".encode())
            digest.update(part.cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.digest()


def header(
    noise_plan: Plan,
    engine: Engine,
    seed: int | None,
    leaks: Sequence[str],
    trust: Mapping[str, Any] | None = None,
    *,
    columns: Mapping[str, Any] | None = None,
    run_file: str | None = None,
    signed_by: str | None = None,
) -> dict[str, Any]:
    """Describe the run for the ledger.

    Args:
        trust: who adds the noise, where that is not whoever runs this.
        columns: what each column means, and where its bounds come from.
        run_file: the text of the run file.
        signed_by: the public key of whoever will sign the ledger.
    """
    file = None if run_file is None else {"text": run_file, "sha256": hashlib.sha256(run_file.encode()).hexdigest()}
    return {
        "library": "diff2",
        "version": __version__,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        **described(noise_plan, trust),
        "dimension": len(engine.flat),
        "engine": engine.name,
        "seeded": seed is not None,
        "leaks": list(leaks),
        "columns": plain(columns),
        "run_file": file,
        "signed_by": signed_by,
    }


def same_bytes(engine: Engine, output: str) -> dict[str, Any]:
    """Return what must be the same for a resumed run to give the bytes of one that was never interrupted."""
    return {
        "output": output,
        "start": model_digest(engine.flat.module),
        "dtype": str(engine.flat.dtype),
        "chunk_rows": engine.chunk_rows,
    }
