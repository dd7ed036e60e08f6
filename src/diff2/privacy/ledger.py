r"""The ledger: one line for every release, written before the value leaves.

The file is self-contained: a header line with the population, the budget and the algorithm, one line a release, and a
closing line once the run is complete. ``Ledger.read(path).epsilon()`` needs nothing else. Epsilon is always computed
from these lines, never from the plan.

A round that is computed again after a crash describes the same release and, the noise being the same, *is* the same
release: its line is recognised and not written twice. A line that contradicts the file is an error.
"""

from __future__ import annotations

import json
import math
import os
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import LedgerError
from .accounting import epsilon_path, gdp_epsilon
from .composition import FIXED, FULL, POISSON, Spend, gaussian_mu, profiles, total_epsilon
from .guarantee import Guarantee

FORMAT = 2
KNOTS = 8
HEADER_FIELDS = {"adjacency", "unit", "client_sizes", "budget", "algorithm", "seeded"}  # what the guarantee speaks of


class ReleaseEntry(NamedTuple):
    """One release, described so that it can be priced without the data."""

    round: int
    purpose: str  # "gradient", "difference", "local"
    mechanism: str  # "gaussian"; "zero": identically zero, free; "none": no noise, infinite cost
    clip: float
    sensitivity: float  # under the adjacency of the header
    noise_std: float
    multiplier: float  # what is priced: noise_std / (sensitivity + rounding) / sqrt(nodes); inf for "zero"
    dimension: int
    step: int = 0  # tells several releases of one purpose in a round apart; of a tree: which leaf
    sampling: str = FULL  # "fixed": on a batch drawn without replacement; "poisson"
    rate: float = 1.0  # largest probability of a unit to be in the batch
    members: tuple[int, ...] | None = None  # the clients, or parts, whose units are in it; None: all
    nodes: int = 1  # noisy nodes of a tree that hold the value
    shares: int = 1  # parties whose noise together is ``noise_std``: each adds noise_std / sqrt(shares)

    @property
    def stream(self) -> tuple[int, str, int]:
        """What the noise of the release is labelled by: two releases with one label would carry the same noise."""
        return self.round, self.purpose, self.step

    @property
    def spend(self) -> Spend:
        """The release as the accountant sees it."""
        return Spend(self.multiplier, self.sampling, self.rate, self.members)


class Ledger:
    """An append-only list of releases, in memory and, where ``path`` is given, in a file."""

    def __init__(self, header: Mapping[str, Any], path: str | os.PathLike[str] | None = None):
        """Start a ledger; ``header`` describes population, budget and algorithm in plain JSON values."""
        self.header = dict(header)
        self.entries: list[ReleaseEntry] = []
        self.complete = False
        self.path = None if path is None else Path(path)
        self._replayed = 0  # lines of the file that this process has seen again
        self._streams: set[tuple[int, str, int]] = set()  # labels of noise that was used
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
                f"{path}, line {len(ledger.entries) + 2}: the last line is cut off. Its value never left the "
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
        """Say that rounds after ``round`` will be computed again: their lines must come back unchanged."""
        self._replayed = sum(entry.round <= round for entry in self.entries)

    def record(self, entry: ReleaseEntry) -> None:
        """Add a release; the line is in the file before this returns."""
        if self._replayed < len(self.entries):
            known = self.entries[self._replayed]
            if known != entry:
                raise LedgerError(
                    f"release {self._replayed + 1} is already in the ledger as {known}, and is now {entry}: the run "
                    "was changed. Start a new run; the old one's releases stay spent"
                )
            self._replayed += 1
            return
        if self.complete:
            raise LedgerError("the ledger is closed: the run it describes is complete; start a new run")
        if entry.stream in self._streams:
            raise LedgerError(
                f"the {entry.purpose} of round {entry.round}, step {entry.step}, was released already; a second one "
                "would carry the same noise, and their difference none. Nothing was released"
            )
        self._append(entry)
        self._replayed += 1
        if self.path is not None:
            self._write({"kind": "release", "release": len(self.entries), **_to_json(entry, "trust" in self.header)})

    def close(self) -> None:
        """Write the closing line: no release will follow."""
        if not self.complete:
            self.complete = True
            self._write({"kind": "end", "releases": len(self.entries), "epsilon": _number(self.epsilon())})
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

        Where noise was chosen on the way, from released values, the price is that of the filter which bounds it, for a
        sum that depends on the values proves nothing.

        Args:
            rounds: of the first so many rounds only; None: of all there are.
        """
        at = self.delta if delta is None else delta
        entries = self.entries if rounds is None else [entry for entry in self.entries if entry.round <= rounds]
        spends = [entry.spend for entry in entries]
        limit = self.header.get("filter_mu")
        if limit is None or not entries or rounds is not None:
            return total_epsilon(spends, at)
        mu = max(gaussian_mu(profile) for profile in profiles(spends))
        return gdp_epsilon(max(mu, float(limit)), at)

    def epsilon_of_one(self, delta: float | None = None) -> float:
        """Return the same for whoever sees the answer of each party by itself, with the noise of that party alone."""
        at = self.delta if delta is None else delta
        limit = self.header.get("filter_mu")
        spends = [entry.spend._replace(multiplier=entry.multiplier / math.sqrt(entry.shares)) for entry in self.entries]
        if limit is None or not spends:
            return total_epsilon(spends, at)
        # Each release costs at most as many times 1/z^2 as there are shares; so does what the filter bounds.
        mu = max(gaussian_mu(profile) for profile in profiles(spends))
        return gdp_epsilon(max(mu, float(limit) * math.sqrt(max(entry.shares for entry in self.entries))), at)

    def epsilon_path(self, rounds: Sequence[int]) -> list[float]:
        """Return the epsilon spent after each of these rounds, never less than it is; the last is exact."""
        if all(entry.sampling == FULL and entry.members is None for entry in self.entries):
            path = epsilon_path([entry.multiplier for entry in self.entries], self.delta)
            last = {entry.round: float(epsilon) for entry, epsilon in zip(self.entries, path, strict=True)}
            values = [last[r] for r in rounds]
        else:
            # Pricing takes a while: at a few rounds only, and up to such a round what it costs by then.
            knots = sorted({rounds[-1 - len(rounds) * k // KNOTS] for k in range(KNOTS)})
            prices = [self.epsilon(rounds=knot) for knot in knots]
            values = [prices[bisect_left(knots, r)] for r in rounds]
        return [*values[:-1], self.epsilon()]

    def before_next(self, count: int) -> ReleaseEntry | None:
        """Return the release ``count`` lines before the one that is about to be recorded."""
        return self.entries[self._replayed - count] if self._replayed >= count else None

    def spent_with(self, entry: ReleaseEntry) -> float:
        """Return the sum of 1/z^2 over the release that is about to be recorded and all before it."""
        multipliers = [entry.multiplier, *(one.multiplier for one in self.entries[: self._replayed])]
        return math.inf if 0 in multipliers else math.fsum(1 / z**2 for z in multipliers)

    def guarantee(self, delta: float | None = None) -> Guarantee:
        """Return the statement that these releases justify."""
        return Guarantee(
            epsilon=self.epsilon(delta),
            delta=self.delta if delta is None else delta,
            adjacency=self.header["adjacency"],
            unit=self.header["unit"],
            client_sizes=tuple(self.header["client_sizes"]),
            releases=len(self.entries),
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

    def _append(self, entry: ReleaseEntry) -> None:
        self.entries.append(entry)
        self._streams.add(entry.stream)

    def __len__(self) -> int:
        return len(self.entries)

    def __bool__(self) -> bool:
        return True  # an empty ledger is a ledger

    def __repr__(self) -> str:
        state = "complete" if self.complete else "open"
        return f"<Ledger: {len(self)} releases, {state}, epsilon={self.epsilon():.6g} at delta={self.delta:g}>"

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
            if fields.get("releases") != len(ledger.entries):
                raise LedgerError(
                    f"{path}, line {number}: the run made {fields.get('releases')} releases, the file holds "
                    f"{len(ledger.entries)}; lines are missing"
                )
            ledger.complete = True
            continue
        if fields.pop("release", None) != len(ledger.entries) + 1:
            raise LedgerError(f"{path}, line {number}: expected release {len(ledger.entries) + 1}; a line is missing")
        # Shares are said only where several parties add the noise.
        entry = _from_json(path, number, fields if "trust" in header else {**fields, "shares": 1})
        if entry.stream in ledger._streams:
            raise LedgerError(f"{path}, line {number}: a second release with the noise of an earlier one")
        ledger._append(entry)
    ledger._replayed = len(ledger.entries)
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


def _to_json(entry: ReleaseEntry, shared: bool) -> dict[str, Any]:
    fields = {name: _number(value) if isinstance(value, float) else value for name, value in entry._asdict().items()}
    return fields if shared else {name: value for name, value in fields.items() if name != "shares"}


def _number(value: float) -> float | str:
    """JSON has no infinity: write it as a word."""
    return value if math.isfinite(value) else repr(value)


def _from_json(path: Path, number: int, fields: dict[str, Any]) -> ReleaseEntry:
    try:
        entry = ReleaseEntry(
            round=int(fields["round"]),
            purpose=str(fields["purpose"]),
            mechanism=str(fields["mechanism"]),
            dimension=int(fields["dimension"]),
            step=int(fields["step"]),
            sampling=str(fields["sampling"]),
            members=None if fields["members"] is None else tuple(int(member) for member in fields["members"]),
            nodes=int(fields["nodes"]),
            shares=int(fields["shares"]),
            **{name: float(fields[name]) for name in ("clip", "sensitivity", "noise_std", "multiplier", "rate")},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(f"{path}, line {number}: field missing or not a number ({error})") from None
    if set(fields) != set(ReleaseEntry._fields) or entry.shares < 1:
        raise LedgerError(f"{path}, line {number}: unknown field {sorted(set(fields) - set(ReleaseEntry._fields))}")
    _check_priced_as_noised(path, number, entry)
    return entry


def _check_priced_as_noised(path: Path, number: int, entry: ReleaseEntry) -> None:
    """A line must not claim a better price than its own noise and sensitivity justify."""
    needed = entry.multiplier * entry.sensitivity * math.sqrt(max(entry.nodes, 0))
    honest = {
        "gaussian": entry.sensitivity > 0 and entry.nodes > 0 and 0 < needed <= entry.noise_std * (1 + 1e-12),
        "zero": entry.sensitivity == 0 and entry.multiplier == math.inf,
        "none": entry.multiplier == 0,
    }
    drawn = {FULL: entry.rate == 1, FIXED: 0 < entry.rate < 1, POISSON: 0 < entry.rate <= 1}
    if not drawn.get(entry.sampling, False) or entry.members == ():
        raise LedgerError(
            f"{path}, line {number}: sampling={entry.sampling!r} with rate={entry.rate} and members={entry.members} "
            "is not a way to draw records; restore the file from a copy"
        )
    if not honest.get(entry.mechanism, False):
        raise LedgerError(
            f"{path}, line {number}: mechanism {entry.mechanism!r} with noise_std={entry.noise_std} and "
            f"sensitivity={entry.sensitivity} does not justify multiplier={entry.multiplier}"
        )
