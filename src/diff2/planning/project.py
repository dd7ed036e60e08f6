"""A project: all runs on the same records, what they cost together, and a limit that is kept before anything is spent.

A folder with ``budget.jsonl`` is a project. Every run in it, at any depth, is taken to be about the same records: a
table that lost a row, or has another column, still holds the people of all others. Tables that share nobody belong in
projects of their own.

``budget.jsonl`` has chained lines (``privacy/lines.py``): the limits, and each run with its whole plan, written before
its ledger is there. So a run counts while it is running, if it fails, and if its ledger is removed. A ledger that is
found counts too, with all its releases; a copy of one does not count twice.

A line also holds a fingerprint of the records. It is keyed with ``budget.key``, which its owner alone can read: without
the key nobody can try whether some records were used.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from .._files import AnyPath, locked, plain, write_whole
from .._numbers import epsilon_text
from ..errors import BudgetExceeded, LedgerError
from ..privacy import Budget, Ledger
from ..privacy.attacks import largest_mu
from ..privacy.composition import profile_of
from ..privacy.lines import chained, parse, read_line
from ..privacy.together import Spent, smallest_unit, together

REGISTER, KEY, LOCK, LEDGER = "budget.jsonl", "budget.key", "budget.lock", "ledger.jsonl"
FORMAT = 1
PATIENCE = 30.0  # seconds to wait for another run that is being registered
FIELDS = ("adjacency", "unit", "client_sizes", "seeded", "planned", "budget", "leaks")


class Counted(NamedTuple):
    """A run of the project."""

    run: str  # its folder, below the project's
    spent: Spent
    state: str
    records: str  # the fingerprint; empty where it is not known
    leaks: tuple[str, ...] = ()


class Standing(NamedTuple):
    """What all runs cost, and what they may."""

    runs: tuple[Counted, ...]
    limits: tuple[Budget, ...]  # the last one holds
    delta: float

    @property
    def epsilon(self) -> float:
        """Of all runs together."""
        return together([run.spent for run in self.runs], self.delta)

    @property
    def limit(self) -> float | None:
        return self.limits[-1].epsilon if self.limits else None

    @property
    def unit(self) -> str:
        """For whom that is."""
        return smallest_unit(run.spent for run in self.runs)

    def notes(self) -> list[str]:
        """Return the caveats of the number."""
        found = []
        known = {run.records for run in self.runs if run.records}
        if len(known) > 1:
            found.append(
                f"{len(known)} different fingerprints of records; all runs count as if they used the same records."
            )
        leaks = sorted({leak for run in self.runs for leak in run.leaks})
        if leaks:
            found.append(f"Not counted, because no epsilon covers it: {'; '.join(leaks)}.")
        profiles = [profile for run in self.runs for profile in run.spent.profiles]
        if largest_mu(profiles) is None and len(self.runs) > 1:
            found.append(
                "Runs on random batches are added up as if their settings had been fixed beforehand; choose them "
                "independently of earlier results."
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        runs = [
            {"run": run.run, "epsilon": run.spent.epsilon(self.delta), "state": run.state, "records": run.records}
            for run in self.runs
        ]
        more = {"unit": self.unit, "limit": self.limit, "notes": self.notes()}
        limits = [{"epsilon": one.epsilon, "delta": one.delta} for one in self.limits]
        found: dict[str, Any] = plain(
            {"epsilon": self.epsilon, "delta": self.delta, **more, "limits": limits, "runs": runs}
        )
        return found


def project_of(directory: AnyPath) -> Path | None:
    """Return the folder of the project that a directory is in, the nearest one."""
    start = Path(directory).resolve()
    return next((folder for folder in (start, *start.parents) if (folder / REGISTER).is_file()), None)


def set_limit(folder: Path, limit: Budget) -> None:
    """Make a folder a project, or give it another limit; earlier ones stay on record."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK, f"the project {folder}", patience=PATIENCE):
        if not (folder / KEY).exists():
            write_whole(folder / KEY, secrets.token_hex(32).encode() + b"\n", secret=True)
        if not (folder / REGISTER).exists():
            _append(folder, {"kind": "header", "format": FORMAT, "library": "diff2"})
        _append(folder, {"kind": "limit", "time": _now(), "epsilon": limit.epsilon, "delta": limit.delta})


def standing(folder: Path, delta: float | None = None) -> Standing:
    """Return what the runs of a project cost; of any other folder, what the ledgers in it do.

    Args:
        delta: by default that of the limit or, where there is none, the smallest of the runs.
    """
    entries, limits = _registered(folder)
    ledgers = list(_ledgers(folder))
    runs: list[Counted] = []
    for place, ledger in ledgers:
        name, tag = place, ""
        match = next((entry for entry in entries if entry["id"] == _id(ledger.header)), None)
        if match is not None:
            entries.remove(match)
            tag = match["records"]
        state = "complete" if ledger.complete else "not complete: its whole plan counts"
        runs.append(Counted(name, _of_ledger(ledger), state, tag, tuple(ledger.header["leaks"])))
    for entry in entries:
        spent = _spent(entry, [profile_of(rows) for rows in entry["planned"]["exposure"]])
        state = "no ledger: its whole plan counts"
        runs.append(Counted(entry["run"], spent, state, entry["records"], tuple(entry["leaks"])))
    deltas = [float(one["budget"]["delta"]) for one in (*(ledger.header for _, ledger in ledgers), *entries)]
    at = delta if delta is not None else limits[-1].delta if limits else min(deltas, default=1e-5)
    return Standing(tuple(sorted(runs, key=lambda run: run.run)), tuple(limits), at)


def enter(directory: AnyPath | None, header: Mapping[str, Any], tag: Callable[[bytes], bytes]) -> None:
    """Register a run before it spends anything; refuse one that the limit of its project does not allow.

    Args:
        directory: of the run; in no project, or None: nothing is done.
        header: of its ledger.
        tag: returns a hash of the records that reveals nothing without the key it is given.
    """
    folder = None if directory is None else project_of(directory)
    if folder is None or directory is None:
        return
    fields = plain(header)
    with locked(folder / LOCK, f"the project {folder}", patience=PATIENCE):
        _require_within(folder, fields)
        place = os.path.relpath(Path(directory).resolve(), folder)
        line = {"kind": "run", "time": _now(), "run": place, "id": _id(fields), "records": tag(_key(folder)).hex()}
        _append(folder, {**line, **{name: fields[name] for name in FIELDS}})


def require_within_limit(directory: str | os.PathLike[str] | None, header: Mapping[str, Any]) -> None:
    """Refuse what :func:`enter` would refuse now, and register nothing: for a run that shows nothing before its end."""
    folder = None if directory is None else project_of(directory)
    if folder is not None:
        with locked(folder / LOCK, f"the project {folder}", patience=PATIENCE):
            _require_within(folder, plain(header))


def _require_within(folder: Path, fields: Mapping[str, Any]) -> None:
    now = standing(folder)
    spent = _spent(fields, [profile_of(rows) for rows in fields["planned"]["exposure"]])
    epsilon = together([*(run.spent for run in now.runs), spent], now.delta)
    if now.limit is not None and epsilon > now.limit:
        raise BudgetExceeded(
            f"with this run, the {len(now.runs) + 1} runs of the project {folder} would cost "
            f"epsilon={epsilon_text(epsilon)} at delta={now.delta:g} together, its limit is "
            f"{epsilon_text(now.limit)}; {epsilon_text(now.epsilon)} is spent. Nothing was released. Lower "
            f"epsilon, or decide on another limit: diff2 budget {folder} --epsilon E --delta D"
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _id(header: Mapping[str, Any]) -> str:
    """Return the identifier that a run and its ledger share."""
    return hashlib.sha256(json.dumps(plain(header), sort_keys=True).encode()).hexdigest()


def _key(folder: Path) -> bytes:
    try:
        return bytes.fromhex((folder / KEY).read_text(encoding="ascii"))
    except (OSError, ValueError):
        raise LedgerError(
            f"{folder / KEY} is missing or damaged; restore it from a copy: fingerprints depend on it"
        ) from None


def _lines(folder: Path) -> list[tuple[dict[str, Any], str]]:
    """Return the lines of the register with their chains."""
    path, found, chain = folder / REGISTER, list[tuple[dict[str, Any], str]](), ""
    try:
        *lines, rest = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    for number, text in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        fields, chain, fits = read_line(where, text, chain, *(["header"] if number == 1 else ["limit", "run"]))
        if not fits or (number == 1 and fields.get("format") != FORMAT):
            raise LedgerError(f"{where}: the line was changed, or does not follow the one before; restore a copy")
        found.append((fields, chain))
    if rest:
        raise LedgerError(f"{path}, line {len(lines) + 1}: the line is truncated; remove it: nothing was spent on it")
    return found


def _append(folder: Path, line: Mapping[str, Any]) -> None:
    before = _lines(folder)
    text, _ = chained(plain(line), before[-1][1] if before else "")
    with open(folder / REGISTER, "a", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())


def _registered(folder: Path) -> tuple[list[dict[str, Any]], list[Budget]]:
    lines = [fields for fields, _ in _lines(folder)]
    limits = [Budget(float(one["epsilon"]), one["delta"]) for one in lines if one["kind"] == "limit"]
    return [one for one in lines if one["kind"] == "run"], limits


def _ledgers(folder: Path) -> Iterator[tuple[str, Ledger]]:
    """Yield the ledgers of runs below a folder with their places; of copies of one, that with the most lines."""
    found: dict[tuple[str, str], tuple[str, Ledger]] = {}
    for path in sorted(folder.rglob(LEDGER)):
        if not _of_a_run(path):
            continue
        read = parse(path)  # a line that is cut off released nothing
        read.require_unchanged(path)
        ledger = Ledger.of(read)
        place = os.path.relpath(path.parent, folder)
        # The hash of the first value that was released distinguishes runs with the same header.
        first = ledger.releases[0].sha256 if ledger.releases else ""
        key = _id(ledger.header), first or place
        if key not in found or len(found[key][1]) < len(ledger):
            found[key] = place, ledger
    yield from found.values()


def _of_a_run(path: Path) -> bool:
    """Whether a file is the ledger of a run: that of a site has the same name."""
    with open(path, "rb") as file:
        line = file.readline()
    try:
        fields = json.loads(line)
    except ValueError:
        raise LedgerError(f"{path}, line 1: cannot be read, so what it costs is not known; restore a copy") from None
    return isinstance(fields, dict) and "planned" in fields


def _spent(header: Mapping[str, Any], profiles: Sequence[Any]) -> Spent:
    return Spent(tuple(profiles), header["adjacency"], header["unit"], not header["seeded"])


def _of_ledger(ledger: Ledger) -> Spent:
    return _spent(ledger.header, ledger.profiles())
