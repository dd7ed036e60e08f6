"""What the releases of a fit say about its model: noise against estimate, records at the radius, a private score."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from .._numbers import epsilon_text
from ..privacy import Ledger
from .asking import Answer, Ask, Statistic
from .scoring import Score

NOISY = 0.9  # share of noise in a release from which on it is worth a line


@dataclass(frozen=True)
class Stage:
    """The releases for one purpose: root mean squares of the length that was released, and of the noise in it."""

    purpose: str
    releases: int
    released: float
    noise: float
    clipped: float | None = None  # share of the records beyond the radius, where a released histogram shows it

    @property
    def noise_share(self) -> float:
        """The share of noise in what was released, about: of squared lengths, at most 1."""
        return min(1.0, (self.noise / self.released) ** 2) if self.released > 0 else 1.0


@dataclass(frozen=True)
class Health:
    """What is known of a model's worth, from releases alone. ``str()`` says it.

    The score is computed on the records that the model was fitted to, for a share of the same budget. It is optimistic
    by what the model owes to these very records. That is little for a private model: with mu in Gaussian differential
    privacy the expected loss of a record, in units of the largest, is at most 2 Phi(mu / 2) - 1 better than that of a
    new one, for no record moves the model further. That is loose: on 16,000 records of a real table R^2 was .17 to .18
    on those of the fit and .13 to .15 on others. ``diff2.evaluate`` scores on others.
    """

    stages: tuple[Stage, ...]
    score: Score | None = None
    expected: str | None = None  # what public numbers said beforehand
    method: str | None = None  # and which method was taken, and why

    @property
    def worthless(self) -> bool:
        """Whether the score cannot tell the model from a constant; False without a score."""
        return self.score is not None and self.score.worthless

    def __str__(self) -> str:
        lines = ["not scored (score=False)" if self.score is None else str(self.score)]
        for stage in self.stages:
            if stage.noise_share >= NOISY and stage.purpose != "score":
                lines.append(f"{stage.purpose}: noise is {stage.noise_share:.0%} of what was released")
            if stage.clipped is not None:
                lines.append(f"{stage.purpose}: about {stage.clipped:.0%} of the records are at the radius")
        return "\n".join([*lines, *(line for line in (self.expected, self.method) if line is not None)])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Health:
        """Return what :meth:`to_json` describes."""
        score = document["score"]
        return cls(
            tuple(Stage(**stage) for stage in document["stages"]),
            None if score is None else Score(**score),
            document["expected"],
            document.get("method"),
        )


@dataclass
class Watch:
    """Asks in the place of a session, and keeps the lengths of what was released."""

    ask: Ask
    lengths: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    clipped: dict[str, float] = field(default_factory=dict)
    _sizes: tuple[np.ndarray, Answer] | None = None  # the last histogram of lengths

    def __call__(self, statistic: Statistic, mu: float) -> Answer:
        answer = self.ask(statistic, mu)
        released, noise = float(answer.value @ answer.value), answer.noise_std**2 * answer.value.size
        self.lengths.setdefault(statistic.purpose, []).append((released, noise))
        edges, radius = getattr(statistic, "edges", None), getattr(statistic, "radius", None)
        if isinstance(edges, np.ndarray):
            self._sizes = edges, answer
        elif radius is not None and self._sizes is not None:
            self.clipped[statistic.purpose] = _share_above(radius, *self._sizes)
        return answer

    def noise(self, purpose: str) -> float:
        """Return the length of the noise in the last release for a purpose."""
        return math.sqrt(self.lengths[purpose][-1][1])

    def stages(self) -> tuple[Stage, ...]:
        """Return the releases by purpose."""
        found = []
        for purpose, pairs in self.lengths.items():
            released, noise = (math.sqrt(one) for one in np.mean(pairs, axis=0))
            found.append(Stage(purpose, len(pairs), released, noise, self.clipped.get(purpose)))
        return tuple(found)


def _share_above(radius: float, edges: np.ndarray, counts: Answer) -> float:
    """Return the share of a histogram with noise that lies above the radius."""
    mass = np.where(counts.value < 2 * counts.noise_std, 0.0, counts.value)
    above = np.append(edges, math.inf) > radius * (1 + 1e-9)
    return float(mass[above].sum() / mass.sum()) if mass.sum() > 0 else 1.0


def planned(ledger: Ledger) -> tuple[int, float]:
    """Return the most releases that a fit makes, and the sum of squares of their prices: all of its budget."""
    rows = ledger.header["planned"]["exposure"][0]
    return sum(row["releases"] for row in rows), math.fsum(row["releases"] * row["multiplier"] ** -2 for row in rows)


def spending(ledger: Ledger) -> str:
    """Return a table of purposes, each with its releases and its share of the budget, and the guarantee.

    Shares are of the sum of squares of the prices in Gaussian differential privacy, which is what adds up. What was not
    spent counts as spent in the guarantee.
    """
    prices: dict[str, list[float]] = {}
    for release in ledger.releases:
        prices.setdefault(release.purpose, []).append(release.multiplier**-2)
    total = planned(ledger)[1]
    lines = [f"epsilon {epsilon_text(ledger.epsilon())} at delta {ledger.delta:g} was spent on"]
    for purpose, found in prices.items():
        many = f"{len(found)} release{'s' if len(found) > 1 else ''}"
        lines.append(f"  {purpose:<14}{many:>13}{math.fsum(found) / total:>8.1%}")
    left = 1 - math.fsum(price for found in prices.values() for price in found) / total
    if left > 5e-4:
        lines.append(f"  {'unspent':<27}{left:>8.1%}")
    return "\n".join([*lines, str(ledger.guarantee())])
