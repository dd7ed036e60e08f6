"""The directory of a run or a fit: where its noise, its ledger and its checkpoint come from, new or resumed.

A checkpoint of an unfinished run holds the key of its noise, so the file is readable by its owner alone, and the key is
wiped when the run is complete. Resuming with other settings, or with other records, is refused: a value that differs
would be released, and paid for, a second time, and one that does not would reveal that it is the same.

The order on disk: the checkpoint with the key comes first, then the ledger, then ledger lines, then values. A run that
is killed anywhere in between can be resumed, and releases nothing twice.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from .._files import AnyPath, plain
from ..errors import BudgetExceeded, CheckpointError, InvalidArgument, LedgerError
from ..privacy import Ledger, NoiseSource
from .project import LEDGER, enter

LONGEST = 200  # characters of a setting in a message


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


class Resumable:
    """Noise, ledger and checkpoint of one run. Without a path, all of it is in memory only."""

    file: ClassVar[str]  # the name of the checkpoint
    load: Callable[[Path], Checkpoint]  # reads it
    dump: Callable[[Path, Checkpoint], None]  # writes it, for its owner alone

    def __init__(
        self,
        path: AnyPath | None,
        *,
        header: Mapping[str, Any],
        settings: Mapping[str, Any],
        seed: int | None,
        resume: bool,
    ):
        """Open the run, or resume it; spend nothing.

        Args:
            header: describes the run for the ledger.
            settings: whatever else must be the same for a run to be resumed.
            seed: None takes the noise from the operating system.
            resume: resume the run in ``path``, or start it if there is none.
        """
        self.path = None if path is None else Path(path)
        self._header = plain(header)
        self.settings = {**_lasting(self._header), **plain(settings), "seed": seed}
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

    def save(self, state: Mapping[str, Any] | None, history: list[dict[str, Any]], *, complete: bool = False) -> None:
        """Write the checkpoint; the key of the noise is wiped from a complete one."""
        if self.path is None:
            return
        checkpoint = Checkpoint(
            None if state is None else dict(state), history, self.settings, b"" if complete else self.noise.key,
            {} if complete else self.noise.trees, self.noise.private, self._tag, self.opening, complete,
        )  # fmt: skip
        self.dump(self.path / self.file, checkpoint)

    def _open(self, tag: Callable[[bytes], bytes]) -> Ledger:
        """Make sure that the records are those of the run, keep its key, and return its ledger.

        Args:
            tag: returns a hash of all records that reveals nothing without the key it is given.
        """
        if self.path is None:
            return Ledger(self._header)
        if self.complete and self.resumed is not None:
            self._tag = self.resumed.records_tag  # the key is gone, and nothing more will be released
            return self._same_run(Ledger.read(self.path / LEDGER))
        self._tag, file = tag(self.noise.key), self.path / LEDGER
        if self.resumed is None:
            try:
                enter(self.path, self._header, tag)
            except BudgetExceeded:
                if self._made:
                    with suppress(OSError):  # somebody else has put something there
                        self.path.rmdir()
                raise
            self.save(None, [])
            return Ledger(self._header, file)
        if self._tag != self.resumed.records_tag:
            raise CheckpointError(
                f"{self.path / self.file} belongs to a run on other records of the same shape: what was released would "
                "be released a second time. Restore the records, or start a new run in another directory"
            )
        if self.resumed.state is None and not (file.exists() and b"\n" in file.read_bytes()):
            file.unlink(missing_ok=True)  # killed before its first line was whole: nothing was released
            return Ledger(self._header, file)
        return self._same_run(Ledger.resume(file))

    def _same_run(self, ledger: Ledger) -> Ledger:
        """Refuse a ledger that is not of this run, or ends before its checkpoint."""
        path, state = Path(self.path or "") / LEDGER, None if self.resumed is None else self.resumed.state
        _require_same(path, _lasting(self._header), _lasting(ledger.header))
        last = max((release.round for release in ledger.releases), default=0)
        if state is not None and last < state["round"]:
            raise LedgerError(
                f"{path} ends in round {last}, its checkpoint is after round {state['round']}: lines are missing. "
                "Restore the file from a copy"
            )
        return ledger

    def _find(self, resume: bool) -> Checkpoint | None:
        if self.path is None:
            if resume:
                raise InvalidArgument("resume=True needs the directory of the run to resume; give directory=...")
            return None
        self._made = not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        checkpoint, ledger = self.path / self.file, self.path / LEDGER
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
        found = self.load(checkpoint)
        _require_same(checkpoint, self.settings, found.settings)
        return found


def _lasting(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a header must be the same when a run is resumed: not when, by what and from which text."""
    return {name: value for name, value in header.items() if name not in ("time", "version", "run_file")}


def _require_same(path: Path, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Refuse to resume with other settings; name the first that differs."""
    for name in [*mine, *theirs]:
        if mine.get(name) != theirs.get(name):
            was, now = (repr(found.get(name))[:LONGEST] for found in (theirs, mine))
            raise CheckpointError(
                f"{path} belongs to another run: {name} was {was} and is now {now}. Resume with the original settings, "
                "or start a new run in another directory"
            )
