"""The lines of a ledger: plain JSON, each chained to the one before, and read back with every field checked.

A line ends in ``"chain"``: the SHA-256 of the chain of the line before and of its own text up to there. A line that is
changed, removed, doubled or moved no longer fits, and neither does one that is written with other spaces. Whoever can
write the whole file can recompute the chain: against its author only a signature helps (``signing.py``).
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .._files import AnyPath
from ..errors import LedgerError
from .release import EXPONENTIAL, FIXED, FULL, GAUSSIAN, NONE, POISSON, ZERO, Release

FORMAT = 4
HEADER_FIELDS = frozenset(
    {
        *("adjacency", "unit", "client_sizes", "weighting", "clients_per_round", "client_order", "accounting"),
        *("budget", "algorithm", "opening_share", "trust", "multipliers", "planned"),  # so far from the plan
        *("dimension", "engine", "seeded", "leaks", "columns", "run_file", "signed_by", "library", "version", "time"),
    }
)
END_FIELDS = frozenset(("guarantee", "released_epsilon", "model"))
MARK = ', "chain": "'
FIELDS: dict[str, type] = {
    **dict.fromkeys(("round", "step", "leaves", "dimension", "parties"), int),
    **dict.fromkeys(("purpose", "mechanism", "sampling", "sha256"), str),
    **dict.fromkeys(("sensitivity", "clip", "rate", "multiplier", "noise_std", "rounding"), float),
}
SHA256 = re.compile("[0-9a-f]{64}")
WORDS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


class Parsed(NamedTuple):
    """What is in a file."""

    header: dict[str, Any]
    releases: list[Release]
    end: dict[str, Any]  # the closing line; empty where there is none
    chain: str  # of the last line
    torn: int  # length in bytes of a last line that was cut off
    changed: int | None  # the first line that does not fit its chain
    repeated: int | None  # the first line with the round, purpose and step of an earlier one

    def require_whole(self, path: AnyPath) -> None:
        """Refuse a file whose last line is cut off."""
        if self.torn:
            raise LedgerError(
                f"{path}, line {len(self.releases) + 2}: the last line is truncated. Its value never left the "
                "mechanism; resume the run, or remove that line, and try again"
            )

    def require_unchanged(self, path: AnyPath, look_at: str = "") -> None:
        """Refuse a file with a line that does not fit its chain, or has the noise of an earlier one."""
        if self.changed is not None:
            raise LedgerError(
                f"{path}, line {self.changed}: the line was changed after it was written, or does not follow the one "
                f"before: its chain does not fit.{look_at} Restore the file from a copy"
            )
        if self.repeated is not None:
            raise LedgerError(f"{path}, line {self.repeated}: a second release of a round that is not priced as one")


def parse(path: Path) -> Parsed:
    """Read a file and check each line by itself."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise LedgerError(f"no ledger at {path}; give the directory of a run, or its ledger.jsonl") from None
    *lines, rest = data.split(b"\n")
    if not lines:
        raise LedgerError(f"{path} has no complete header line; it is not a ledger, or its run never started")
    where = f"{path}, line 1"
    header, chain, fits = read_line(where, lines[0], "", "header")
    if header.pop("format", None) != FORMAT:
        raise LedgerError(f"{where}: expected ledger format {FORMAT}; read it with the version that wrote it")
    del header["kind"]
    _require_fields(where, header, HEADER_FIELDS)
    releases: list[Release] = []
    known: dict[tuple[int, str, int], set[str]] = {}  # hashes of released values, by label
    changed, repeated, end = None if fits else 1, None, dict[str, Any]()
    for number, text in enumerate(lines[1:], start=2):
        where = f"{path}, line {number}"
        if end:
            raise LedgerError(f"{where}: nothing may follow the closing line, line {number - 1}")
        fields, chain, fits = read_line(where, text, chain, "release", "end")
        changed = number if changed is None and not fits else changed
        if fields.pop("kind") == "end":
            _require_fields(where, fields, END_FIELDS)
            end = fields
            continue
        release = _numbered(where, fields, len(releases) + 1)
        hashes = known.setdefault(release.label, set())
        if repeated is None and hashes and (release != release.again() or release.sha256 in {"", *hashes}):
            repeated = number
        hashes.add(release.sha256)
        releases.append(release)
    return Parsed(header, releases, end, chain, len(rest), changed, repeated)


def chained(fields: Mapping[str, Any], before: str) -> tuple[str, str]:
    """Return a line, and its chain; ``before`` is the chain of the line before."""
    text = json.dumps(fields, allow_nan=False)[:-1]
    chain = hashlib.sha256((before + text).encode()).hexdigest()
    return f'{text}{MARK}{chain}"}}', chain


def read_line(where: str, line: bytes, before: str, *kinds: str) -> tuple[dict[str, Any], str, bool]:
    """Return the fields of a line without its chain, its chain, and whether that fits its text.

    Args:
        where: the file and the line, for messages.
        kinds: of line, of which it must be one.
    """
    try:
        text = line.decode()
        fields = json.loads(text)
    except ValueError as error:
        raise LedgerError(f"{where}: not a line of JSON ({error}); restore the file from a copy") from None
    if not isinstance(fields, dict) or fields.get("kind") not in kinds:
        raise LedgerError(f"{where}: expected kind to be {' or '.join(kinds)}; is this a ledger?")
    found = str(fields.pop("chain", ""))
    body, _, rest = text.rpartition(MARK)
    return fields, found, rest == hashlib.sha256((before + body).encode()).hexdigest() + '"}' == found + '"}'


def _require_fields(where: str, fields: Mapping[str, Any], expected: frozenset[str]) -> None:
    """Refuse a line that lacks a field, or has one more."""
    for what, names in (("lacks", expected - set(fields)), ("has the unknown", set(fields) - expected)):
        if names:
            raise LedgerError(f"{where}: the line {what} field {sorted(names)[0]!r}; restore the file from a copy")


def _numbered(where: str, fields: dict[str, Any], expected: int) -> Release:
    number = fields.pop("release", None)
    if number != expected:
        raise LedgerError(f"{where}: expected release {expected}, got {number!r}; a line is missing")
    try:
        release = read_release(fields)
    except ValueError as error:
        raise LedgerError(f"{where}: {error}; restore the file from a copy") from None
    _check_release(where, release)
    return release


def read_release(fields: Mapping[str, Any]) -> Release:
    """Return the release that plain values describe; ValueError where they describe none."""
    wrong = sorted(set(fields) ^ set(Release._fields))
    if wrong:
        raise ValueError(f"unknown or missing fields {wrong}")
    values = {
        name: fields[name] if type(fields[name]) is kind else _value(name, fields[name], kind)
        for name, kind in FIELDS.items()
    }
    members = fields["members"]
    if members is not None:
        if not isinstance(members, list | tuple):
            raise ValueError(f"expected members to be a list or null, got {members!r}")
        members = tuple(_value("members", member, int) for member in members)
    return Release(**values, members=members)


def _check_release(where: str, release: Release) -> None:
    """Refuse a line that describes no release, or claims a better price than its own noise and sensitivity justify."""
    needed = release.multiplier * release.sensitivity * math.sqrt(release.nodes)
    justified = {
        GAUSSIAN: release.sensitivity > 0 and 0 < needed <= release.noise_std * (1 + 1e-12),
        EXPONENTIAL: release.mechanism == EXPONENTIAL and _paid(release),
        ZERO: release.sensitivity == 0 and release.multiplier == math.inf,
        NONE: release.multiplier == 0,
    }
    if release.sha256 and not SHA256.fullmatch(release.sha256):
        raise LedgerError(f"{where}: sha256={release.sha256!r} is not a SHA-256; restore the file from a copy")
    drawn = {FULL: release.rate == 1, FIXED: 0 < release.rate < 1, POISSON: 0 < release.rate <= 1}
    if not drawn.get(release.sampling, False) or release.members == () or release.leaves < 0 or release.parties < 1:
        raise LedgerError(
            f"{where}: sampling={release.sampling!r}, rate={release.rate}, members={release.members}, "
            f"leaves={release.leaves} and parties={release.parties} describe no release; restore the file from a copy"
        )
    if not justified.get(release.mechanism, False):
        raise LedgerError(
            f"{where}: mechanism {release.mechanism!r} with noise_std={release.noise_std}, "
            f"sensitivity={release.sensitivity} and leaves={release.leaves} does not justify "
            f"multiplier={release.multiplier}"
        )


def _value(name: str, value: Any, kind: type) -> Any:
    if kind is float and isinstance(value, str):
        value = WORDS.get(value, value)
    elif kind is float and type(value) is int:
        value = float(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        words = {int: "a whole number", float: "a number", str: "a text"}
        raise ValueError(f"expected {name} to be {words[kind]}, got {value!r}")
    return value


def _paid(release: Release) -> bool:
    from .exponential import paid  # which needs the mechanism, which needs the ledger

    return release.sensitivity > 0 and paid(release)
