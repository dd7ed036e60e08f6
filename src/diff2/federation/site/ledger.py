"""A site's own ledger: every run it agreed to, every request it answered, every one it refused. Append-only.

A line says when, and who asked in which job. It outlives restarts: a request that was answered gets the same bytes
again, and no others. A line is on the disk before the answer leaves. Anybody who may read the file can do so, without a
lock.

A run costs nothing until its first answer, and its whole plan from then on: stopping early saves nothing, because when
to stop may depend on what was seen.
"""

import errno
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from ..._files import locked, plain
from ...errors import LedgerError
from ...privacy.composition import total_epsilon
from ...privacy.lines import read_release
from ...privacy.release import Release
from ..faults import CannotWrite
from ..wire.request import Label
from ..wire.transport import NOBODY, Caller

FORMAT = 4
PATIENCE = 30.0  # seconds to wait for another process of the site
KINDS = ("site", "run", "answer", "refusal", "end")


class Stamp(NamedTuple):
    """When a line was written, and who had asked."""

    time: str  # UTC, ISO 8601
    caller: str
    job: str
    submitter: str


class RunLine(NamedTuple):
    """A run this site agreed to."""

    run: str
    agreement: str  # SHA-256
    algorithm: str
    epsilon: float
    delta: float
    sites: tuple[str, ...]
    sizes: tuple[int, ...]
    records: str  # a keyed hash of the records, which reveals nothing without the key
    threads: int | None  # that the site computes with, where bits depend on it
    terms: Mapping[str, Any]  # the whole agreement


class Answer(NamedTuple):
    """A request that was answered."""

    run: str
    release: Release  # the answer by itself, for a record of this site; multiplier 0: the site added no noise
    question: str  # the kind of question, where the server adds the noise; else ""
    multiplier: float  # noise deviation / sensitivity of the whole release, with the noise of all honest sites
    request: str  # SHA-256 of the whole request
    answer: str = ""  # SHA-256 of the answer
    leaf: str = ""  # of a leaf of a tree: a keyed digest of the values up to it, by which its noise is known

    @property
    def label(self) -> Label:
        return self.release.round, self.release.purpose, self.question, self.release.step


class RefusalLine(NamedTuple):
    """A request that was refused."""

    stamp: Stamp
    run: str
    reason: str
    agreement: Mapping[str, Any] | None = None  # the whole of it, where it is what was refused


class SiteBooks:
    """The lines of one site, in memory."""

    def __init__(self, path: Path, site: str | None = None):
        """``path`` is for messages; ``site`` is whose ledger it must be, None: anybody's."""
        self.path = path
        self.site = site or ""
        self._forget()

    def _forget(self) -> None:
        self.refusals: list[RefusalLine] = []
        self.runs: dict[str, RunLine] = {}
        self.opened: dict[str, Stamp] = {}
        self.ended: set[str] = set()
        self._answers: dict[str, dict[Label, Answer]] = {}
        self._lines = 0
        self._size = 0  # bytes of the file that were read

    @property
    def epsilon(self) -> float:
        """The sum of the epsilons of all runs in which the site has answered, complete or not."""
        return math.fsum(run.epsilon for run in self._charged())

    @property
    def delta(self) -> float:
        return math.fsum(run.delta for run in self._charged())

    def charged(self, run: str) -> bool:
        """Whether the site has answered in this run, which then costs its whole plan."""
        return run in self._answers

    def _charged(self) -> Iterator[RunLine]:
        return (run for name, run in self.runs.items() if self.charged(name))

    def epsilon_against_server(self, run: str) -> float:
        """Return what the answers of a run cost against someone who sees each; infinite where the server adds noise."""
        return total_epsilon((answer.release for answer in self.answers(run)), self.runs[run].delta)

    def answers(self, run: str) -> list[Answer]:
        """Return the answers given in a run."""
        return list(self._answers.get(run, {}).values())

    def answered(self, run: str, label: Label) -> Answer | None:
        """Return the answer given to the request with this label, if any."""
        return self._answers.get(run, {}).get(label)

    def take(self, data: bytes) -> None:
        """Take the lines of the file that follow those taken before; a last one that is cut off is not there yet."""
        for text in data.split(b"\n")[:-1]:
            try:
                fields = json.loads(text)
                kind, stamp = fields.pop("kind"), Stamp(*(str(fields.pop(name)) for name in Stamp._fields))
                if kind not in KINDS or (kind == "site") != (self._lines == 0):
                    raise ValueError(kind)
                self._take(kind, stamp, fields)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise LedgerError(
                    f"{self.path}, line {self._lines + 1}: not a line of this site's ledger ({error!r}); restore it "
                    "from a copy"
                ) from None
            self._lines += 1
            self._size += len(text) + 1

    def _take(self, kind: str, stamp: Stamp, fields: dict[str, Any]) -> None:
        if kind == "site":
            self.site = self.site or str(fields["site"])
            if (fields["format"], fields["site"]) != (FORMAT, self.site):
                raise ValueError(f"it belongs to site {fields['site']!r}, in format {fields['format']!r}")
        if kind == "run":
            numbers = {name: float(fields[name]) for name in ("epsilon", "delta")}
            line = RunLine(**{**fields, **numbers, "sites": tuple(fields["sites"]), "sizes": tuple(fields["sizes"])})
            self.runs[line.run], self.opened[line.run] = line, stamp
        if kind == "answer":
            release = read_release(fields.pop("release"))
            answer = Answer(release=release, **{**fields, "multiplier": float(fields["multiplier"])})
            self._answers.setdefault(answer.run, {})[answer.label] = answer
        if kind == "refusal":
            self.refusals.append(RefusalLine(stamp, **fields))
        if kind == "end":
            self.ended.add(fields["run"])


class SiteLedger(SiteBooks):
    """The same, with the file that they are in. Lines are written within :meth:`exclusive`."""

    def __init__(self, path: Path, site: str):
        """Open the ledger, or start it. A last line that a crash cut off was never answered, and is dropped."""
        super().__init__(path, site)
        self._caller, self._file = NOBODY, 0
        with self.exclusive():
            if not self._size:
                self._write("site", {"format": FORMAT, "site": site})

    @contextmanager
    def exclusive(self, caller: Caller = NOBODY) -> Iterator[None]:
        """Lock the ledger, and read what other processes, say of an earlier job, have written since."""
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.path.with_name("lock"), f"the ledger {self.path}", patience=PATIENCE))
            except OSError as error:
                raise CannotWrite.of("its ledger", error) from None
            self._caller = caller
            self._catch_up()
            yield

    def agree(self, line: RunLine) -> None:
        """Record a run."""
        self._write("run", plain(line))

    def record(self, line: Answer) -> None:
        """Record an answer, before it leaves."""
        self._write("answer", plain(line))

    def refuse(self, run: str, reason: str, agreement: Mapping[str, Any] | None = None) -> None:
        """Record a refusal, with the whole agreement where that is what is refused."""
        self._write("refusal", {"run": run, "reason": reason, **({"agreement": agreement} if agreement else {})})

    def end(self, run: str) -> None:
        """Record that a run is complete: no further request of it is answered."""
        if run not in self.ended:
            self._write("end", {"run": run, "answers": len(self.answers(run))})

    def _catch_up(self) -> None:
        """Read what is new in the file; all of it, where it is another file or has become shorter."""
        with suppress(FileNotFoundError), open(self.path, "rb") as file:
            found = os.fstat(file.fileno())
            if found.st_ino != self._file or found.st_size < self._size:
                self._forget()
                self._file = found.st_ino
            if found.st_size > self._size:
                file.seek(self._size)
                self.take(file.read())

    def _write(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Write a line to the disk, whole or not at all, and take it."""
        stamp = Stamp(datetime.now(UTC).isoformat(timespec="milliseconds"), *self._caller)
        text = (json.dumps({"kind": kind, **stamp._asdict(), **fields}, allow_nan=False) + "\n").encode()
        try:
            with open(self.path, "ab", buffering=0) as file:
                os.ftruncate(file.fileno(), self._size)  # drops a line that a crash, or a full disk, cut off
                try:
                    if os.write(file.fileno(), text) < len(text):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(file.fileno())
                except OSError:
                    os.ftruncate(file.fileno(), self._size)
                    raise
                self._file = os.fstat(file.fileno()).st_ino
        except OSError as error:
            raise CannotWrite.of("its ledger", error) from None
        self.take(text)


def read_site_ledger(path: Path) -> SiteBooks:
    """Return the ledger in a file, of any site, for reading; nothing is written, not even a lock."""
    books = SiteBooks(path)
    books.take(path.read_bytes())
    return books
