r"""The ledger: one line for every release, written before the value leaves.

The file is self-contained: a header line with the population, the budget, the algorithm and the plan, one line per
release, and a closing line with the guarantee and a hash of the model once the run is complete. Its lines are chained
(``lines.py``). ``Ledger.read(path).epsilon()`` needs nothing else; ``planning/verify.py`` checks that all of it agrees.

**Epsilon is that of the whole plan and of second releases, or of what was released if that is more.** How many releases
a run makes, and which of them are free because two iterates are equal, may depend on released values. A sum over the
releases that happened to be made is then no bound: the plan's is, for it was fixed before.

A line holds a hash of the released value. A round that is computed again after a crash *is* the same release, the value
and its noise being the same: its line is recognised and not written twice. If it comes out differently, because
records, parameters or code have changed, it is a second release, with noise of its own. It is priced as a release that
everybody is exposed to, beside all others; what the budget does not allow does not leave.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._files import AnyPath, plain
from .._numbers import epsilon_text
from ..errors import BudgetExceeded, LedgerError
from .accounting import epsilon_path
from .composition import Exposed, exposure_epsilon, exposure_of, price, profile_of, profiles, total_epsilon
from .guarantee import Guarantee
from .lines import FORMAT, Parsed, chained, parse
from .release import FULL, Release

KNOTS = 8  # rounds at which a path is priced


class Ledger:
    """An append-only list of releases, in memory and, where ``path`` is given, in a file."""

    def __init__(self, header: Mapping[str, Any], path: AnyPath | None = None):
        """Start a ledger; ``header`` describes population, budget and algorithm in plain JSON values."""
        self.header = dict(header)
        self.releases: list[Release] = []
        self.complete = False
        self.model: str | None = None  # SHA-256 of the parameters that the run returned
        self.end: dict[str, Any] = {}  # the closing line, as it was read or written
        self.chain = ""  # of the last line in the file
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
    def read(cls, path: AnyPath) -> Ledger:
        """Read a ledger file; every line is checked."""
        found = parse(Path(path))
        found.require_whole(path)
        found.require_unchanged(path)
        return cls.of(found)

    @classmethod
    def resume(cls, path: AnyPath) -> Ledger:
        """Open a ledger file to continue it; a last line cut off by a crash released nothing, and is dropped."""
        target = Path(path)
        found = parse(target)
        found.require_unchanged(path)
        if found.torn:
            os.truncate(target, target.stat().st_size - found.torn)
        ledger = cls.of(found)
        ledger.path = target
        return ledger

    @classmethod
    def of(cls, found: Parsed) -> Ledger:
        """Return the ledger of a file that was read."""
        ledger = cls(found.header)
        for release in found.releases:
            ledger._append(release)
        ledger.chain = found.chain
        if found.end:
            ledger.complete, ledger.model, ledger.end = True, found.end["model"], found.end
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
            if self.path is not None:
                self._write({"kind": "release", "release": len(self.releases) + 1, **plain(line)})
            self._append(line)
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
        line, budget = release.again(), float(self.header["budget"]["epsilon"])
        planned = exposure_epsilon(self._exposure(line), self.delta)
        epsilon = max(planned, total_epsilon([*self.releases, line], self.delta))
        if epsilon > budget:
            raise BudgetExceeded(
                f"the {release.purpose} of round {release.round} comes out differently now: parameters, records or "
                f"code were changed. With a second release epsilon would be {epsilon_text(epsilon)}, the budget is "
                f"{epsilon_text(budget)}. Nothing was released; start a new run"
            )

    def _exposure(self, *more: Release) -> list[list[dict[str, Any]]]:
        """Return what units are exposed to by the plan, and by second releases."""
        second = exposure_of([*(line for lines in self._known.values() for line in lines[1:]), *more])[0]
        return [[*rows, *second] for rows in self.header["planned"]["exposure"] or [[]]]

    def close(self, model: str | None = None) -> None:
        """Write the closing line: no release will follow.

        Args:
            model: the SHA-256 of the parameters that the run returns.
        """
        if self.complete:
            if model not in (None, self.model):
                raise LedgerError(
                    f"the ledger is closed for a model of SHA-256 {self.model}, and this is another, {model}; restore "
                    "the run's directory from a copy"
                )
            return
        self.complete, self.model = True, model
        self.end = self.closing()
        self._write({"kind": "end", **self.end})
        self.sync()

    def closing(self) -> dict[str, Any]:
        """Return what the closing line says: the guarantee, and the model it is for."""
        guarantee = {name: value for name, value in self.guarantee().to_json().items() if name != "sentence"}
        return plain({"guarantee": guarantee, "released_epsilon": self.released_epsilon(), "model": self.model})

    def sync(self) -> None:
        """Flush the lines to the disk."""
        if self.path is not None:
            with open(self.path, "ab") as file:
                os.fsync(file.fileno())

    @property
    def delta(self) -> float:
        """The delta of the budget."""
        return float(self.header["budget"]["delta"])

    def epsilon(self, delta: float | None = None) -> float:
        """Return what may be stated at ``delta`` (default: the budget's): of the plan, or of the releases if more."""
        at = self.delta if delta is None else delta
        return max((price(profile, at) for profile in self.profiles()), default=0.0)

    def profiles(self) -> list[Exposed]:
        """Return what may be stated of any unit: the releases of the plan and second ones, and those that were made."""
        return [*map(profile_of, self._exposure()), *profiles(self.releases)]

    def released_epsilon(self, delta: float | None = None, *, rounds: int | None = None) -> float:
        """Return what the releases made so far add up to. **Not a guarantee**: see :meth:`epsilon`.

        Args:
            rounds: of the first this many rounds only; None: of all there are.
        """
        at = self.delta if delta is None else delta
        return total_epsilon((r for r in self.releases if rounds is None or r.round <= rounds), at)

    def epsilon_of_one(self, delta: float | None = None) -> float:
        """Return the same for whoever sees the answer of each party by itself, with the noise of that party alone."""
        at, planned = self.delta if delta is None else delta, self._exposure()
        released = exposure_of(self.releases)
        return max(exposure_epsilon(exposure, at, of_one=True) for exposure in (planned, released))

    def epsilon_path(self, rounds: Sequence[int]) -> list[float]:
        """Return :meth:`released_epsilon` after each of these rounds, never less than it is; the last is exact."""
        if all(release.sampling == FULL and release.members is None for release in self.releases):
            path = epsilon_path([release.multiplier for release in self.releases], self.delta)
            last = {release.round: float(epsilon) for release, epsilon in zip(self.releases, path, strict=True)}
            values = [last[r] for r in rounds]
        else:
            # Pricing is slow: a few rounds are priced, and every round before one of them counts as that one.
            knots = sorted({rounds[-1 - len(rounds) * k // KNOTS] for k in range(KNOTS)})
            prices = [self.released_epsilon(rounds=knot) for knot in knots]
            values = [prices[bisect_left(knots, r)] for r in rounds]
        return [*values[:-1], self.released_epsilon()]

    def guarantee(self, delta: float | None = None) -> Guarantee:
        """Return the statement that the plan and these releases justify."""
        return Guarantee(
            epsilon=self.epsilon(delta),
            delta=self.delta if delta is None else delta,
            adjacency=self.header["adjacency"],
            unit=self.header["unit"],
            client_sizes=tuple(self.header["client_sizes"]),
            releases=len(self.releases),
            planned=self.header["planned"]["releases"],
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
            # Opened for each line: what is written is in the file when this returns, and nothing is held open.
            text, chain = chained(line, self.chain)
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(text + "\n")
            self.chain = chain
