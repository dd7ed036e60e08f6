r"""A privacy filter: releases that are chosen adaptively, within a budget that is fixed beforehand.

Prices are in Gaussian differential privacy. Which releases are made, and how many, may depend on earlier ones, as long
as the squares of their prices never add up to more than the budget's :math:`\mu^2`. Then the whole is
:math:`\mu`-GDP (Smith and Thakurta 2022, Theorem 3.1): as if all of it had been spent, which is what is stated.
"""

import math
from typing import Any

from ..errors import BudgetExceeded, InvalidArgument, LedgerError
from ..privacy import Budget, Ledger, Release
from ..privacy.accounting import gdp_mu
from ..privacy.composition import exposure_of
from ..privacy.discrete import continuous_budget
from ..privacy.guarantee import SELECTION
from ..privacy.repeated import REPEATED, repeated_mu
from .header import trust_in

FILTER, EVALUATION = "fit", "evaluate"
FILTERED = (FILTER, EVALUATION, SELECTION)  # algorithms whose releases are chosen adaptively
MOST_RELEASES = 512  # for what noise on whole numbers costs


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


def check_filter(path: str, ledger: Ledger) -> None:
    """Refuse a ledger of such releases whose header does not follow from its budget, or that spent more."""
    budget = Budget(ledger.header["budget"]["epsilon"], ledger.header["budget"]["delta"])
    repeated = ledger.header["algorithm"]["name"] == SELECTION
    try:
        found = Filter(budget, ledger.header["algorithm"].get("repetitions") if repeated else None)
    except (InvalidArgument, TypeError) as error:
        raise LedgerError(f"{path}, line 1: algorithm is none that was run ({error}); restore a copy") from None
    try:
        trust = trust_in(ledger.header, len(ledger.header["client_sizes"]))
    except (InvalidArgument, KeyError, TypeError) as error:
        raise LedgerError(f"{path}, line 1: trust is not that of its sites ({error})") from None
    parties = 1 if trust is None else trust["min_honest_sites"]
    if ledger.header["planned"] != found.planned(parties):
        raise LedgerError(
            f"{path}, line 1: planned is not what follows from budget, algorithm and trust; restore a copy"
        )
    for number, release in enumerate(ledger.releases, start=2):
        if release.round != number - 1:
            raise LedgerError(f"{path}, line {number}: round={release.round}, and should be {number - 1}")
        if release.parties != parties:
            raise LedgerError(f"{path}, line {number}: parties={release.parties}; by trust of line 1 it is {parties}")
        try:
            found.spend(1 / release.multiplier, release.purpose)
        except (BudgetExceeded, ArithmeticError):
            raise LedgerError(
                f"{path}, line {number}: with multiplier={release.multiplier} the releases cost more than budget in "
                "line 1; restore the file from a copy"
            ) from None
