"""The directory of a run: where its noise, its ledger and its checkpoint come from, for a new run or a resumed one.

A checkpoint of an unfinished run holds the key of its noise, so the file is readable by its owner alone, and the key is
wiped when the run is complete. Resuming with other settings, or with other records, is refused: a value that differs
would be released, and paid for, a second time, and one that does not would reveal that it is the same.

The order on disk: the checkpoint with the key comes first, then the ledger, then ledger lines, then values. A run that
is killed anywhere in between can be resumed, and releases nothing twice.
"""

import hashlib
import hmac
import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .._files import AnyPath, plain, write_whole
from .._version import __version__
from ..errors import CheckpointError, InvalidArgument, LedgerError
from ..gradients import Engine
from ..planning import Plan
from ..planning.header import described
from ..planning.project import enter
from ..privacy import Ledger, NoiseSource
from ..privacy.resuming import lasting, require_same_settings
from ..privacy.signing import Signer, sign_ledger
from .model_file import model_digest

FORMAT = 4
CHECKPOINT, LEDGER = "checkpoint.pt", "ledger.jsonl"


class Checkpoint(NamedTuple):
    """The state after some round, and what it belongs to."""

    state: dict[str, Any] | None  # of tensors, numbers and dicts of them; None before the first round
    history: list[dict[str, Any]]
    settings: dict[str, Any]  # whatever must be the same to resume
    key: bytes  # of the noise; empty once the run is complete
    trees: dict[str, list[str]]  # of the noise, likewise
    private: bool
    records_tag: bytes  # a keyed hash of the records
    opening: list[float] | None  # what was released before the first round
    complete: bool


class RunDirectory:
    """Noise, ledger and checkpoint of one run. Without a path, all of it is in memory only."""

    def __init__(
        self,
        path: AnyPath | None,
        *,
        header: Mapping[str, Any],
        settings: Mapping[str, Any],
        seed: int | None,
        resume: bool = False,
        signer: Signer | None = None,
    ):
        """Open the run, or resume it; spend nothing.

        Args:
            header: describes the run for the ledger.
            settings: whatever else must be the same for a run to be resumed.
            seed: None takes the noise from the operating system.
            resume: resume the run in ``path``, or start it if there is none.
            signer: signs the ledger when the run is complete.
        """
        if signer is not None and path is None:
            raise InvalidArgument("sign_with signs the ledger in a directory; give directory=...")
        self._signer = signer
        self.path = None if path is None else Path(path)
        self._header = plain(header)
        self.settings = {**lasting(self._header), **plain(settings), "seed": seed}
        self.resumed = self._find(resume)
        self._tag, self.opening = b"", None if self.resumed is None else self.resumed.opening
        if self.resumed is not None and not self.resumed.complete:
            self.noise = NoiseSource(self.resumed.key, private=self.resumed.private, trees=self.resumed.trees)
        else:
            self.noise = NoiseSource.from_system() if seed is None else NoiseSource.from_seed(seed)

    @property
    def complete(self) -> bool:
        """Whether there is nothing left to do."""
        return self.resumed is not None and self.resumed.complete

    def open_ledger(self, records: Sequence[Iterable[torch.Tensor]] | bytes) -> Ledger:
        """Make sure that the records are those of the run, keep its key, and return its ledger.

        Args:
            records: tensors of all clients; or, where these are elsewhere, a hash of them, keyed with secrets of their
                own.
        """
        if self.path is None:
            return Ledger(self._header)
        if self.complete and self.resumed is not None:
            self._tag = self.resumed.records_tag  # the key is gone, and nothing more will be released
            return self._same_run(Ledger.read(self.path / LEDGER))
        self._tag = records if isinstance(records, bytes) else records_tag(self.noise.key, records)
        if self.resumed is None:
            enter(self.path, self._header, lambda key: _keyed(key, records))
            self.save(None, [])
            return Ledger(self._header, self.path / LEDGER)
        if self._tag != self.resumed.records_tag:
            raise CheckpointError(
                f"{self.path / CHECKPOINT} belongs to a run on other records of the same shape; its rounds would be "
                "released a second time. Restore the records, or start a new run in another directory"
            )
        if not (self.path / LEDGER).exists() and self.resumed.state is None:  # killed before there was a ledger
            return Ledger(self._header, self.path / LEDGER)
        return self._same_run(Ledger.resume(self.path / LEDGER))

    def _same_run(self, ledger: Ledger) -> Ledger:
        """Refuse a ledger that is not of this run, or ends before its checkpoint."""
        path, state = Path(self.path or "") / LEDGER, None if self.resumed is None else self.resumed.state
        require_same_settings(path, lasting(self._header), lasting(ledger.header))
        last = max((release.round for release in ledger.releases), default=0)
        if state is not None and last < state["round"]:
            raise LedgerError(
                f"{path} ends in round {last}, its checkpoint is after round {state['round']}: lines are missing. "
                "Restore the file from a copy"
            )
        return ledger

    def sign(self, ledger: Ledger) -> None:
        """Put the signature of a complete ledger beside it, where the run is to be signed."""
        if self._signer is not None and self.path is not None:
            sign_ledger(ledger, self.path / LEDGER, self._signer)

    def save(self, state: Mapping[str, Any] | None, history: list[dict[str, Any]], *, complete: bool = False) -> None:
        """Write the checkpoint; the key of the noise is wiped from a complete one."""
        if self.path is None:
            return
        checkpoint = Checkpoint(
            None if state is None else dict(state), history, self.settings, b"" if complete else self.noise.key,
            {} if complete else self.noise.trees, self.noise.private, self._tag, self.opening, complete,
        )  # fmt: skip
        fields = {**checkpoint._asdict(), "key": checkpoint.key.hex(), "records_tag": checkpoint.records_tag.hex()}
        file = io.BytesIO()
        torch.save({"format": FORMAT, **fields}, file)
        write_whole(self.path / CHECKPOINT, file.getvalue(), secret=True)

    def _find(self, resume: bool) -> Checkpoint | None:
        if self.path is None:
            if resume:
                raise InvalidArgument("resume=True needs the directory of the run to resume; give directory=...")
            return None
        self.path.mkdir(parents=True, exist_ok=True)
        checkpoint, ledger = self.path / CHECKPOINT, self.path / LEDGER
        if not resume:
            for existing in (checkpoint, ledger):
                if existing.exists():
                    raise CheckpointError(
                        f"{existing} exists: resume that run (resume=True), or choose another directory"
                    )
            return None
        if not checkpoint.exists():
            if ledger.exists():
                raise CheckpointError(
                    f"{ledger} has no checkpoint beside it, so the run cannot be resumed; its releases stay spent. "
                    "Start a new run in another directory"
                )
            return None
        found = load(checkpoint)
        require_same_settings(checkpoint, self.settings, found.settings)
        return found


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


def records_tag(key: bytes, clients: Sequence[Iterable[torch.Tensor]]) -> bytes:
    """Return a hash of all records that reveals nothing without the key."""
    digest = hmac.new(key, digestmod=hashlib.blake2b)
    for client in clients:
        for part in client:
            digest.update(f"{tuple(part.shape)} {part.dtype};".encode())
            digest.update(part.cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.digest()


def _keyed(key: bytes, records: Sequence[Iterable[torch.Tensor]] | bytes) -> bytes:
    return hmac.digest(key, records, "blake2b") if isinstance(records, bytes) else records_tag(key, records)


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
