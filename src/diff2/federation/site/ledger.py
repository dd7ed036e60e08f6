"""A site's own ledger: every run it agreed to, every request it answered, every one it refused. Append-only.

It outlives restarts: a request that was answered gets the same bytes again, and no others. A line is in the file before
the answer leaves.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ..._files import locked, plain
from ...errors import LedgerError
from ...privacy.composition import total_epsilon
from ...privacy.ledger import read_release
from ...privacy.release import Release
from ..wire.request import Label

FORMAT = 2
PATIENCE = 30.0  # seconds to wait for another process of the site
KINDS = ("site", "run", "answer", "refusal", "end")


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


class Answer(NamedTuple):
    """A request that was answered."""

    run: str
    release: Release  # the answer by itself, for a record of this site; multiplier 0: the site added no noise
    question: str  # the kind of question, where the server adds the noise; else ""
    multiplier: float  # noise deviation / sensitivity of the whole release, with the noise of all honest sites
    request: str  # SHA-256 of the whole request
    answer: str = ""  # SHA-256 of the answer

    @property
    def label(self) -> Label:
        return self.release.round, self.release.purpose, self.question, self.release.step


class SiteLedger:
    """The lines of one site, in memory and in ``path``."""

    def __init__(self, path: Path, site: str):
        """Open the ledger, or start it. A last line that a crash cut off was never answered, and is dropped."""
        self.path = path
        self.site = site
        self._forget()
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._locked():
            self._read()
            if not self._size:
                self._write({"kind": "site", "format": FORMAT, "site": site})

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Lock the ledger, and read what other processes, say of an earlier job, have written since."""
        with self._locked():
            if self.path.stat().st_size != self._size:
                self._forget()
                self._read()
            yield

    def _locked(self) -> AbstractContextManager[None]:
        return locked(self.path.with_name("lock"), f"the ledger {self.path}", patience=PATIENCE)

    def _forget(self) -> None:
        self.refusals: list[str] = []  # reasons, in order
        self.runs: dict[str, RunLine] = {}
        self.ended: set[str] = set()
        self._answers: dict[str, dict[Label, Answer]] = {}
        self._size = 0  # bytes of the file that were read

    @property
    def epsilon(self) -> float:
        """The sum of the epsilons of all runs the site has agreed to, complete or not."""
        return math.fsum(run.epsilon for run in self.runs.values())

    @property
    def delta(self) -> float:
        return math.fsum(run.delta for run in self.runs.values())

    def epsilon_against_server(self, run: str) -> float:
        """Return what the answers of a run cost against someone who sees each; infinite where the server adds noise."""
        return total_epsilon((answer.release for answer in self.answers(run)), self.runs[run].delta)

    def answers(self, run: str) -> list[Answer]:
        """Return the answers given in a run."""
        return list(self._answers.get(run, {}).values())

    def answered(self, run: str, label: Label) -> Answer | None:
        """Return the answer given to the request with this label, if any."""
        return self._answers.get(run, {}).get(label)

    def agree(self, line: RunLine) -> None:
        """Record a run."""
        self._write({"kind": "run", **plain(line)})
        self.runs[line.run] = line

    def record(self, line: Answer) -> None:
        """Record an answer, before it leaves."""
        self._write({"kind": "answer", **plain(line)})
        self._answers.setdefault(line.run, {})[line.label] = line

    def refuse(self, run: str, reason: str, agreement: dict[str, Any] | None = None) -> None:
        """Record a refusal, with the whole agreement where nobody at the site approved it."""
        self._write(
            {"kind": "refusal", "run": run, "reason": reason, **({"agreement": agreement} if agreement else {})}
        )
        self.refusals.append(reason)

    def end(self, run: str) -> None:
        """Record that a run is complete: no further request of it is answered."""
        if run not in self.ended:
            self._write({"kind": "end", "run": run, "answers": len(self.answers(run))})
            self.ended.add(run)

    def _read(self) -> None:
        data = self.path.read_bytes() if self.path.exists() else b""
        *lines, rest = data.split(b"\n")
        self._size = len(data) - len(rest)
        if rest:
            os.truncate(self.path, self._size)
        for number, text in enumerate(lines, start=1):
            try:
                fields = json.loads(text)
                kind = fields.pop("kind")
                if kind not in KINDS or (kind == "site") != (number == 1):
                    raise ValueError(kind)
                self._take(kind, fields)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise LedgerError(
                    f"{self.path}, line {number}: not a line of this site's ledger ({error!r}); restore it from a copy"
                ) from None

    def _take(self, kind: str, fields: dict[str, Any]) -> None:
        if kind == "site" and (fields["format"], fields["site"]) != (FORMAT, self.site):
            raise ValueError(f"it belongs to site {fields['site']!r}")
        if kind == "run":
            numbers = {name: float(fields[name]) for name in ("epsilon", "delta")}
            line = RunLine(**{**fields, **numbers, "sites": tuple(fields["sites"]), "sizes": tuple(fields["sizes"])})
            self.runs[line.run] = line
        if kind == "answer":
            release = read_release(fields.pop("release"))
            answer = Answer(release=release, **{**fields, "multiplier": float(fields["multiplier"])})
            self._answers.setdefault(answer.run, {})[answer.label] = answer
        if kind == "refusal":
            self.refusals.append(str(fields["reason"]))
        if kind == "end":
            self.ended.add(fields["run"])

    def _write(self, line: dict[str, Any]) -> None:
        text = (json.dumps(line, allow_nan=False) + "\n").encode()
        with open(self.path, "ab") as file:
            file.write(text)
        self._size += len(text)


def read_site_ledger(path: Path) -> SiteLedger:
    """Return the ledger in a file, of any site, for reading."""
    try:
        with open(path, "rb") as file:
            site = json.loads(file.readline())["site"]
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"{path}, line 1: this is not a site's ledger ({error!r})") from None
    return SiteLedger(path, site)
