r"""A privacy filter: releases that are chosen adaptively, within a budget that is fixed beforehand.

Prices are in Gaussian differential privacy. Which releases are made, and how many, may depend on earlier ones, as long
as the squares of their prices never add up to more than the budget's :math:`\mu^2`. Then the whole is
:math:`\mu`-GDP (Smith and Thakurta 2022, Theorem 3.1): as if all of it had been spent, which is what is stated.

*Whether such a ledger fits together.* What was asked follows from earlier releases, so no plan can be recomputed. But
a unit's vector is at most ``clip`` long, so two are between one and two of that apart, times the largest weight, which
follows from the sizes; and what the releases cost together is within the budget. Purposes, the task and the columns are
protected by the chain.
"""

import math
from collections.abc import Mapping
from typing import Any

from .._validate import one_of
from ..errors import BudgetExceeded, Diff2Error, InvalidArgument, LedgerError
from ..privacy import Budget, Ledger, Release
from ..privacy.accounting import gdp_mu
from ..privacy.composition import exposure_of
from ..privacy.discrete import continuous_budget
from ..privacy.guarantee import SELECTION
from ..privacy.release import EXPONENTIAL, FULL, GAUSSIAN, REPLACE_ONE
from ..privacy.repeated import REPEATED, repeated_mu
from .header import trust_in

FILTER, EVALUATION = "fit", "evaluate"
FILTERED = (FILTER, EVALUATION, SELECTION)  # algorithms whose releases are chosen adaptively
MOST_RELEASES = 512  # for what noise on whole numbers costs
CLOSE = 1e-9
HEADER: dict[str, Any] = {
    "adjacency": REPLACE_ONE,
    "clients_per_round": None,
    "client_order": "round_robin",
    "accounting": "exact",
    "opening_share": None,
    "multipliers": {},
}
RELEASE: dict[str, Any] = {"step": 0, "sampling": FULL, "rate": 1.0, "members": None, "leaves": 0}


class Filter:
    """What is left of a budget; with ``repetitions``, of one of that many on average; the best is published."""

    def __init__(self, budget: Budget, repetitions: int | None = None):
        # A little less, so that all of it together, rounded up, is within the budget.
        if repetitions is None:
            self.mu = gdp_mu(*continuous_budget(budget.epsilon, budget.delta, MOST_RELEASES)) * (1 - 1e-12)
        else:
            self.mu = repeated_mu(budget.epsilon, budget.delta, repetitions) * (1 - 1e-12)
        self._repetitions = repetitions
        self._spent = 0.0  # the sum of the squared prices
        self.releases = 0

    @property
    def left(self) -> float:
        """The share of the budget that is not spent."""
        return 1 - self._spent / self.mu**2

    def spend(self, mu: float, purpose: str) -> None:
        """Take a price off what is left; refuse one that is more."""
        spent = self._spent + mu**2
        if not spent <= self.mu**2 or self.releases >= MOST_RELEASES:
            raise BudgetExceeded(f"the {purpose} would cost more than is left of the budget; nothing was released")
        self._spent = spent
        self.releases += 1

    def most(self, parties: int = 1) -> list[Release]:
        """Return releases that cost what all of the budget costs, as many as there may be.

        Args:
            parties: whose noise together is that of a release.
        """
        return [Release(1, FILTER, multiplier=math.sqrt(MOST_RELEASES) / self.mu, parties=parties)] * MOST_RELEASES

    def planned(self, parties: int = 1) -> dict[str, Any]:
        """Return what the header of a ledger states: no number of releases, and what units are exposed to at most."""
        if self._repetitions is not None:
            whole = Release(1, SELECTION, sampling=REPEATED, rate=float(self._repetitions), multiplier=1 / self.mu)
            return {"releases": None, "exposure": exposure_of([whole])}
        return {"releases": None, "exposure": exposure_of(self.most(parties))}


def check_fit(path: str, ledger: Ledger) -> None:
    """Refuse a ledger whose header or releases no fit writes, or that spent more than its budget; name the field."""
    header, first = ledger.header, f"{path}, line 1"
    for name, expected in HEADER.items():
        _require(first, name, header[name], expected)
    weight, (left, parties) = _heaviest(first, header), _planned(first, header)
    for number, release in enumerate(ledger.releases, start=2):
        where = f"{path}, line {number}"
        for name, expected in {**RELEASE, "round": number - 1, "parties": parties}.items():
            _require(where, name, getattr(release, name), expected)
        if release.mechanism == EXPONENTIAL:
            _require(where, "clip", release.clip, 1.0)  # a choice has none
            _require(where, "parties", release.parties, 1)
        elif release.mechanism == GAUSSIAN:
            _check_sensitivity(where, release, weight)
        else:
            raise LedgerError(f"{where}: mechanism={release.mechanism!r} is not one of a fit")
        try:
            left.spend(1 / release.multiplier, release.purpose)
        except (BudgetExceeded, ArithmeticError):
            raise LedgerError(
                f"{where}: with multiplier={release.multiplier} the releases cost more than budget in line 1; restore "
                "the file from a copy"
            ) from None


def _planned(where: str, header: Mapping[str, Any]) -> tuple[Filter, int]:
    """Return the filter of a budget that nothing is spent of, and the parties to a release; refuse another plan."""
    algorithm, budget = header["algorithm"], Budget(header["budget"]["epsilon"], header["budget"]["delta"])
    try:
        found = Filter(budget, algorithm.get("repetitions") if algorithm["name"] == SELECTION else None)
    except (InvalidArgument, TypeError) as error:
        raise LedgerError(f"{where}: algorithm is none that was run ({error}); restore a copy") from None
    try:
        trust = trust_in(header, len(header["client_sizes"]))
    except (InvalidArgument, KeyError, TypeError) as error:
        raise LedgerError(f"{where}: trust is not that of its sites ({error})") from None
    parties = 1 if trust is None else trust["min_honest_sites"]
    if header["planned"] != found.planned(parties):
        raise LedgerError(f"{where}: planned is not what follows from budget, algorithm and trust; restore a copy")
    return found, parties


def _heaviest(where: str, header: Mapping[str, Any]) -> float:
    """Return the largest weight of a unit, after checking what it follows from."""
    try:
        Budget(header["budget"]["epsilon"], header["budget"]["delta"])
        one_of("weighting", header["weighting"], ("records", "clients"))
        sizes, trust = header["client_sizes"], header["trust"]
        if not isinstance(trust, dict | None):
            raise ValueError(f"trust={trust!r}")
        if not sizes or any(type(size) is not int or size < 1 for size in sizes):
            raise ValueError(f"client_sizes={sizes!r}")
        columns = header["columns"]
        names = len(columns["columns"]) + sum(columns.get(role) is not None for role in ("target", "clients", "groups"))
    except (Diff2Error, KeyError, TypeError, ValueError, AttributeError) as error:
        raise LedgerError(
            f"{where}: budget, weighting, client_sizes, trust or columns is not what a fit writes ({error!r}); restore "
            "the file from a copy"
        ) from None
    if header["dimension"] != names:
        raise LedgerError(f"{where}: dimension={header['dimension']!r}; the columns and the target are {names}")
    return 1 / sum(sizes) if header["weighting"] == "records" else 1 / (len(sizes) * min(sizes))


def _check_sensitivity(where: str, release: Release, weight: float) -> None:
    least, most = (factor * release.clip * weight for factor in (1 - CLOSE, 2 + CLOSE))
    if not least <= release.sensitivity <= most:
        raise LedgerError(
            f"{where}: sensitivity={release.sensitivity!r}; with clip={release.clip!r} it is from {least!r} to "
            f"{most!r}, which follows from client_sizes and weighting in line 1"
        )


def _require(where: str, name: str, value: Any, expected: Any) -> None:
    if value != expected or type(value) is not type(expected):
        raise LedgerError(f"{where}: {name}={value!r}, and should be {expected!r}; restore the file from a copy")
