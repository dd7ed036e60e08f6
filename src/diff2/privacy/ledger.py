r"""The ledger: one line for every release, written before the value leaves.

The file is self-contained: a header line with the population, the budget and the algorithm, one line a release, and a
closing line once the run is complete. ``Ledger.read(path).epsilon()`` needs nothing else. Epsilon is always computed
from these lines, never from the plan.

A line holds a hash of the released value. A round that is computed again after a crash *is* the same release, the value
and its noise being the same: its line is recognised and not written twice. If it comes out differently, because
records, parameters or code have changed, it is a second release, with noise of its own. It is priced as a release that
everybody is exposed to, beside all others; what the budget does not allow does not leave.
"""

from __future__ import annotations

import json
import math
import os
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._files import plain
from .._numbers import epsilon_text
from ..errors import BudgetExceeded, LedgerError
from .accounting import epsilon_path
from .composition import total_epsilon
from .guarantee import Guarantee
from .release import FIXED, FULL, GAUSSIAN, NONE, POISSON, ZERO, Release

FORMAT = 4
KNOTS = 8
CONVERTERS: dict[str, Any] = {
    **dict.fromkeys(("round", "step", "leaves", "dimension", "parties"), int),
    **dict.fromkeys(("purpose", "mechanism", "sampling", "sha256"), str),
    **dict.fromkeys(("sensitivity", "clip", "rate", "multiplier", "noise_std"), float),
}
HEADER_FIELDS = {"adjacency", "unit", "client_sizes", "budget", "algorithm", "seeded"}  # what the guarantee speaks of


class Ledger:
    """An append-only list of releases, in memory and, where ``path`` is given, in a file."""

    def __init__(self, header: Mapping[str, Any], path: str | os.PathLike[str] | None = None):
        """Start a ledger; ``header`` describes population, budget and algorithm in plain JSON values."""
        self.header = dict(header)
        self.releases: list[Release] = []
        self.complete = False
        self.path = None if path is None else Path(path)
        self.last: Release | None = None  # the release before the one that is about to be recorded
        self._known: dict[tuple[int, str, int], list[Release]] = {}  # by label
        if self.path is not None:
            try:
                self.path.touch(exist_ok=False)
            except FileExistsError:
                raise LedgerError(
                    f"{self.path} exists: a ledger is never overwritten; resume that run, or choose another path"
                ) from None
            self._write({"kind": "header", "format": FORMAT, **self.header})

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Ledger:
        """Read a ledger file; every line is checked."""
        ledger, torn = _parse(Path(path))
        ledger.path = None  # not to be written to
        if torn:
            raise LedgerError(
                f"{path}, line {len(ledger.releases) + 2}: the last line is cut off. Its value never left the "
                "mechanism; resume the run, or remove that line, and try again"
            )
        return ledger

    @classmethod
    def resume(cls, path: str | os.PathLike[str]) -> Ledger:
        """Open a ledger file to go on writing; a last line cut off by a crash released nothing, and is dropped."""
        target = Path(path)
        ledger, torn = _parse(target)
        if torn:
            os.truncate(target, target.stat().st_size - torn)
        ledger.path = target
        return ledger

    def rewind(self, round: int) -> None:
        """Say that rounds after ``round`` will be computed again."""
        self.last = next((release for release in reversed(self.releases) if release.round <= round), None)

    def record(self, release: Release) -> Release:
        """Add a release, or recognise it; return its line, which is in the file before this returns."""
        known = self._known.get(release.label, [])
        line = next((line for line in known if line in (release, release.again())), None)
        if line is None:
            if self.complete:
                raise LedgerError("the ledger is closed: the run it describes is complete; start a new run")
            line = release.again() if known else release
            if known:
                self._require_repeatable(release, known[0])
            self._require_budget(line)
            self._append(line)
            if self.path is not None:
                self._write({"kind": "release", "release": len(self.releases), **plain(line)})
        self.last = line
        return line

    def _require_repeatable(self, release: Release, known: Release) -> None:
        """Refuse a second release that has no noise of its own, or no price."""
        if not release.sha256:
            raise LedgerError(
                f"the ledger holds {known}, and now there is {release}: the run was changed. Nothing was released; "
                "start a new run. The old one's releases stay spent"
            )
        if known.sampling != FULL:
            raise LedgerError(
                f"the {release.purpose} of round {release.round}, step {release.step}, was released already, and comes "
                "out differently now: parameters, records or code were changed. Both are about one random draw, whose "
                "secrecy can be counted on once. Nothing was released; start a new run"
            )

    def _require_budget(self, line: Release) -> None:
        """Refuse what costs more than the budget, where there are second releases; the others were planned."""
        if line.label not in self._known and len(self._known) == len(self.releases):
            return
        epsilon, budget = total_epsilon([*self.releases, line], self.delta), float(self.header["budget"]["epsilon"])
        if epsilon > budget:
            raise BudgetExceeded(
                f"with a second release of a round, epsilon would be {epsilon_text(epsilon)} after the {line.purpose} "
                f"of round {line.round}, the budget is {epsilon_text(budget)}; nothing was released. Parameters, "
                "records or code were changed within the run: start a new run"
            )

    def close(self) -> None:
        """Write the closing line: no release will follow."""
        if not self.complete:
            self.complete = True
            self._write({"kind": "end", "releases": len(self.releases), "epsilon": plain(self.epsilon())})
            self.sync()

    def sync(self) -> None:
        """Make the lines outlive a power failure."""
        if self.path is not None:
            with open(self.path, "ab") as file:
                os.fsync(file.fileno())

    @property
    def delta(self) -> float:
        """The delta of the budget."""
        return float(self.header["budget"]["delta"])

    def epsilon(self, delta: float | None = None, *, rounds: int | None = None) -> float:
        """Return what the releases cost together, at ``delta`` (default: the budget's).

        Args:
            rounds: of the first this many rounds only; None: of all there are.
        """
        at = self.delta if delta is None else delta
        return total_epsilon((r for r in self.releases if rounds is None or r.round <= rounds), at)

    def epsilon_of_one(self, delta: float | None = None) -> float:
        """Return the same for whoever sees the answer of each party by itself, with the noise of that party alone."""
        at = self.delta if delta is None else delta
        return total_epsilon((r._replace(multiplier=r.multiplier / math.sqrt(r.parties)) for r in self.releases), at)

    def epsilon_path(self, rounds: Sequence[int]) -> list[float]:
        """Return the epsilon spent after each of these rounds, never less than it is; the last is exact."""
        if all(release.sampling == FULL and release.members is None for release in self.releases):
            path = epsilon_path([release.multiplier for release in self.releases], self.delta)
            last = {release.round: float(epsilon) for release, epsilon in zip(self.releases, path, strict=True)}
            values = [last[r] for r in rounds]
        else:
            # Pricing takes a while: at a few rounds only, and up to such a round what it costs by then.
            knots = sorted({rounds[-1 - len(rounds) * k // KNOTS] for k in range(KNOTS)})
            prices = [self.epsilon(rounds=knot) for knot in knots]
            values = [prices[bisect_left(knots, r)] for r in rounds]
        return [*values[:-1], self.epsilon()]

    def guarantee(self, delta: float | None = None) -> Guarantee:
        """Return the statement that these releases justify."""
        return Guarantee(
            epsilon=self.epsilon(delta),
            delta=self.delta if delta is None else delta,
            adjacency=self.header["adjacency"],
            unit=self.header["unit"],
            client_sizes=tuple(self.header["client_sizes"]),
            releases=len(self.releases),
            algorithm=self.header["algorithm"]["name"],
            seeded=bool(self.header["seeded"]),
            leaks=tuple(self.header.get("leaks", ())),
            complete=self.complete,
            **self._trust(delta),
        )

    def _trust(self, delta: float | None) -> dict[str, Any]:
        """Say who adds the noise, where that is not the server."""
        found = self.header.get("trust")
        return {} if found is None else {**found, "epsilon_of_one": self.epsilon_of_one(delta)}

    def _append(self, release: Release) -> None:
        self.releases.append(release)
        self._known.setdefault(release.label, []).append(release)
        self.last = release

    def __len__(self) -> int:
        return len(self.releases)

    def __bool__(self) -> bool:
        return True  # an empty ledger is a ledger

    def __repr__(self) -> str:
        state = "complete" if self.complete else "open"
        return (
            f"<Ledger: {len(self)} releases, {state}, epsilon={epsilon_text(self.epsilon())} at delta={self.delta:g}>"
        )

    def _write(self, line: Mapping[str, Any]) -> None:
        if self.path is not None:
            # Opened anew for each line: what is written is in the file when this returns, and nothing is held open.
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line, allow_nan=False) + "\n")


def _parse(path: Path) -> tuple[Ledger, int]:
    """Return the ledger in a file, and the length in bytes of a last line that was cut off."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise LedgerError(f"no ledger at {path}; give the path of a ledger.jsonl file") from None
    *lines, rest = data.split(b"\n")
    if not lines:
        raise LedgerError(f"{path} has no complete header line; it is not a ledger, or its run never started")
    header = _line(path, 1, lines[0], "header")
    if header.pop("format", None) != FORMAT:
        raise LedgerError(f"{path}, line 1: expected ledger format {FORMAT}; read it with the version that wrote it")
    missing = sorted(HEADER_FIELDS - set(header))
    if missing or "delta" not in header["budget"]:
        raise LedgerError(
            f"{path}, line 1: the header does not say {missing or ['delta']}; restore the file from a copy"
        )
    ledger = Ledger(header)
    for number, text in enumerate(lines[1:], start=2):
        if ledger.complete:
            raise LedgerError(f"{path}, line {number}: nothing may follow the closing line")
        fields = _line(path, number, text, "release", "end")
        if fields.pop("kind") == "end":
            if fields.get("releases") != len(ledger.releases):
                raise LedgerError(
                    f"{path}, line {number}: the run made {fields.get('releases')} releases, the file holds "
                    f"{len(ledger.releases)}; lines are missing"
                )
            ledger.complete = True
            continue
        if fields.pop("release", None) != len(ledger.releases) + 1:
            raise LedgerError(f"{path}, line {number}: expected release {len(ledger.releases) + 1}; a line is missing")
        release = _from_json(path, number, fields)
        known = ledger._known.get(release.label, [])
        hashes = {"", *(line.sha256 for line in known)}
        if known and (release != release.again() or release.sha256 in hashes):
            raise LedgerError(
                f"{path}, line {number}: a second {release.purpose} of round {release.round} that is not priced as one"
            )
        ledger._append(release)
    return ledger, len(rest)


def _line(path: Path, number: int, text: bytes, *kinds: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise LedgerError(
            f"{path}, line {number}: not a line of JSON ({error}); restore the file from a copy"
        ) from None
    if not isinstance(fields, dict) or fields.get("kind") not in kinds:
        raise LedgerError(f"{path}, line {number}: expected a line of kind {' or '.join(kinds)}; is this a ledger?")
    if kinds == ("header",):
        fields.pop("kind")
    return fields


def read_release(fields: Mapping[str, Any]) -> Release:
    """Return the release that plain values describe; ValueError where they describe none."""
    wrong = sorted(set(fields) ^ set(Release._fields))
    if wrong:
        raise ValueError(f"unknown or missing fields {wrong}")
    members = fields["members"]
    try:
        return Release(
            **{name: convert(fields[name]) for name, convert in CONVERTERS.items()},
            members=None if members is None else tuple(int(member) for member in members),
        )
    except TypeError as error:
        raise ValueError(f"a field is not a number ({error})") from None


def _from_json(path: Path, number: int, fields: dict[str, Any]) -> Release:
    try:
        release = read_release(fields)
    except ValueError as error:
        raise LedgerError(f"{path}, line {number}: {error}; restore the file from a copy") from None
    _check_priced_as_noised(path, number, release)
    return release


def _check_priced_as_noised(path: Path, number: int, release: Release) -> None:
    """A line must not claim a better price than its own noise and sensitivity justify."""
    needed = release.multiplier * release.sensitivity * math.sqrt(release.nodes)
    justified = {
        GAUSSIAN: release.sensitivity > 0 and 0 < needed <= release.noise_std * (1 + 1e-12),
        ZERO: release.sensitivity == 0 and release.multiplier == math.inf,
        NONE: release.multiplier == 0,
    }
    drawn = {FULL: release.rate == 1, FIXED: 0 < release.rate < 1, POISSON: 0 < release.rate <= 1}
    if not drawn.get(release.sampling, False) or release.members == () or release.leaves < 0 or release.parties < 1:
        raise LedgerError(
            f"{path}, line {number}: sampling={release.sampling!r}, rate={release.rate}, members={release.members}, "
            f"leaves={release.leaves} and parties={release.parties} describe no release; restore the file from a copy"
        )
    if not justified.get(release.mechanism, False):
        raise LedgerError(
            f"{path}, line {number}: mechanism {release.mechanism!r} with noise_std={release.noise_std} and "
            f"sensitivity={release.sensitivity} does not justify multiplier={release.multiplier}"
        )
