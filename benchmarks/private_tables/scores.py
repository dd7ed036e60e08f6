"""From stored runs to shares, wins and places."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .contestants import BASELINE, BOOSTING, CONTESTANTS
from .measures import bounded, share

Place = tuple[str, float]  # a table and an epsilon
Seeds = dict[int, float]


@dataclass
class Scores:
    """All measures by (table, contestant, epsilon), each by seed; of a reference, epsilon is None."""

    deviance: dict[tuple[str, str, float | None], Seeds] = field(default_factory=dict)
    errors: dict[tuple[str, str, float | None], Seeds] = field(default_factory=dict)  # rates
    auc: dict[tuple[str, str, float | None], Seeds] = field(default_factory=dict)
    failed: dict[tuple[str, str, float | None], dict[int, str]] = field(default_factory=dict)
    refused: dict[str, dict[str, str]] = field(default_factory=dict)  # contestant, table, reason
    skipped: dict[str, str] = field(default_factory=dict)  # table or contestant, reason
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)  # rows to train on, columns
    most_rows: int = 0  # of a table, to train on and to test with

    @classmethod
    def of(cls, stores: Iterable[Mapping[str, Mapping[str, Any]]]) -> Scores:
        """Gather the runs of stores; a run of a later store takes the place of the same one of an earlier."""
        scores = cls()
        for runs in stores:
            for run in runs.values():
                scores._add(run)
        return scores

    def _add(self, run: Mapping[str, Any]) -> None:
        if "skipped" in run or "absent" in run:
            self.skipped[run.get("table") or run["contestant"]] = run.get("skipped") or run["absent"]
            return
        place, seed = (run["table"], run["contestant"], run["epsilon"]), run["seed"]
        self.sizes[run["table"]] = (run["rows"], run["columns"])
        self.most_rows = max(self.most_rows, int(run.get("most_rows", 0)))
        if "refused" in run:
            self.refused.setdefault(run["contestant"], {})[run["table"]] = run["refused"]
        elif "error" in run:
            self.failed.setdefault(place, {})[seed] = run["error"]
        else:
            self.failed.get(place, {}).pop(seed, None)
            self.deviance.setdefault(place, {})[seed] = run["deviance"]
            if "accuracy" in run:
                self.errors.setdefault(place, {})[seed] = 1 - run["accuracy"]
            if "auc" in run:
                self.auc.setdefault(place, {})[seed] = run["auc"]

    @property
    def tables(self) -> list[str]:
        return list(dict.fromkeys(table for table, _, _ in self.deviance))

    @property
    def epsilons(self) -> list[float]:
        return sorted({epsilon for _, _, epsilon in self.deviance if epsilon is not None})

    @property
    def contestants(self) -> list[str]:
        """Those with runs, in the order of the list of contestants."""
        there = {name for _, name, _ in self.deviance}
        return [name for name in CONTESTANTS if name in there]

    def not_run(self, contestant: str) -> list[str]:
        """Return the tables on which a contestant neither ran nor was refused."""
        there = {table for table, name, _ in [*self.deviance, *self.failed] if name == contestant}
        return [table for table in self.tables if table not in there | self.refused.get(contestant, {}).keys()]

    def share(self, table: str, contestant: str, epsilon: float | None, what: str = "deviance") -> float | None:
        """Return the share of what boosting explains, of means over the seeds that all three have."""
        measures = getattr(self, what)
        epsilon = epsilon if CONTESTANTS[contestant].private else None
        places = [(table, BASELINE, None), (table, contestant, epsilon), (table, BOOSTING, None)]
        by_seed = [measures.get(place, {}) for place in places]
        seeds = sorted(set(by_seed[0]) & set(by_seed[1]) & set(by_seed[2]))
        return share(*([one[seed] for seed in seeds] for one in by_seed)) if seeds else None

    def shares(self, contestant: str, epsilon: float | None, what: str = "deviance") -> dict[str, float]:
        """Return the share on each table that has one."""
        found = {table: self.share(table, contestant, epsilon, what) for table in self.tables}
        return {table: value for table, value in found.items() if value is not None}

    def mean_share(self, contestant: str, epsilon: float | None, what: str = "deviance") -> float | None:
        """Return the mean over the tables; one table counts for -1 at worst and 1.5 at best."""
        values = [bounded(value) for value in self.shares(contestant, epsilon, what).values()]
        return statistics.fmean(values) if values else None

    def first(self) -> dict[str, list[Place]]:
        """Return by private contestant the places where its mean deviance is the lowest of the private ones."""
        found: dict[str, list[Place]] = {}
        for place in self.places():
            means = {name: statistics.fmean(seeds.values()) for name, seeds in self.private(*place).items()}
            found.setdefault(min(means, key=lambda name: means[name]), []).append(place)
        return found

    def places(self) -> list[Place]:
        return [(table, epsilon) for table in self.tables for epsilon in self.epsilons if self.private(table, epsilon)]

    def private(self, table: str, epsilon: float) -> dict[str, Seeds]:
        """Return the deviances of the private contestants at one place."""
        names = (name for name in CONTESTANTS if CONTESTANTS[name].private)
        return {name: self.deviance[table, name, epsilon] for name in names if (table, name, epsilon) in self.deviance}

    def against(self, one: str, other: str | None) -> Record:
        """Return wins, ties and losses of one contestant against another, or against the best of all others."""
        wins, ties, losses = 0, 0, 0
        for table, epsilon in self.places():
            there = self.private(table, epsilon)
            rivals = [other] if other else sorted(
                (name for name in there if name != one), key=lambda name: statistics.fmean(there[name].values())
            )[:1]  # fmt: skip
            if one not in there or not rivals or rivals[0] not in there:
                continue
            mine, theirs = there[one], there[rivals[0]]
            outcome = compared([mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs.keys())])
            wins, ties, losses = wins + (outcome < 0), ties + (outcome == 0), losses + (outcome > 0)
        return Record(wins, ties, losses)

    def below_baseline(self, contestant: str) -> list[Place]:
        """Return the places where a contestant is worse than the mean or prior, by more than a standard error."""
        found = []
        for table, epsilon in self.places():
            mine = self.deviance.get((table, contestant, epsilon), {})
            base = self.deviance.get((table, BASELINE, None), {})
            if compared([mine[seed] - base[seed] for seed in sorted(mine.keys() & base.keys())]) > 0:
                found.append((table, epsilon))
        return found


class Record(NamedTuple):
    """How often one was better, as good, and worse."""

    wins: int
    ties: int
    losses: int

    def __str__(self) -> str:
        return f"{self.wins} / {self.ties} / {self.losses}"


def compared(differences: Sequence[float]) -> int:
    """Return the sign of the mean; 0 within one standard error of it. One seed alone is no tie unless equal.

    >>> compared([-2.0, -1.0]), compared([-1.0, 1.5]), compared([0.5])
    (-1, 0, 1)
    """
    if not differences:
        return 0
    mean = statistics.fmean(differences)
    error = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
    return 0 if abs(mean) <= error else -1 if mean < 0 else 1
