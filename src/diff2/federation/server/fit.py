"""The server's side of a fit: it agrees with the sites, asks them for statistics, and follows the recipe.

Under one seed the model has the same bytes as :func:`diff2.fit` on the records of all sites, one after the other: sites
compute their sums with the same class, and both add them up by one function, in the order of the sites.

A fit that was killed starts again with the key of its noise: the same questions get the same answers, at the sites and
in the ledger, so nothing is released twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ...fitting.asking import Scores, Statistic
from ...fitting.cohort import Census, added
from ...fitting.fit import AUTO, algorithm_of, fitted, method_of
from ...fitting.model import FittedModel
from ...fitting.opening import Opened, header_of, public_draws
from ...fitting.saving import ARRAYS, HEALTH, PREPARATION, SCHEMA
from ...fitting.session import Progress, Session
from ...fitting.travelling import dimension_of
from ...planning.filter import Filter
from ...privacy import BoundedMean, Mechanism
from ...privacy.leaks import code_of, leak
from ...tables.schema import Schema
from ...training.directory import RunDirectory
from ..fit_agreement import FitAgreement
from ..own_noise.cohort import SitesMechanism, checked_steps
from ..own_noise.noise import NoiseScale
from ..own_noise.statistic import longest_part, max_part_norm, statistic_scale
from ..wire.cohort import Exchange, Sites, answered, require_length
from ..wire.messages import Message
from ..wire.request import StatisticRequest, request_digest
from ..wire.transport import Transport
from .run import describe, opened_by, run_id, size_of, trust_of

ENGINE = "table"


def fit_at_sites(
    agreement: FitAgreement,
    transport: Transport,
    sites: Sequence[str],
    *,
    timeout: float = 60.0,
    directory: Path,
    watch: Callable[[Exchange], None] = lambda exchange: None,
    progress: Progress | None = None,
) -> tuple[FittedModel, Census]:
    """Agree with all sites and fit; leave the model, its ledger and what resumes the fit in the directory.

    Returns the model, and how many units and records the sites have.

    Args:
        sites: the clients, in this order. All must be connected all the time.
        timeout: seconds a site has for an answer.
        directory: a fit that was killed in it is resumed.
        watch: called after every exchange with the sites.
        progress: called at each release with the share of the budget that is spent, and the purpose.
    """
    for sentence in agreement.leaks:
        leak(code_of(sentence), f"{sentence}.", strict=agreement.settings.strict, stacklevel=3)
    asked = Sites(transport, tuple(sites), timeout, watch)
    described = describe(asked, agreement)
    census = Census(
        tuple(size_of(site, described[site]) for site in sites),
        tuple(size_of(site, described[site], "records") for site in sites),
        agreement.settings.weighting,
    )
    trust, name, budget = trust_of(agreement, len(sites)), run_id(directory, sites, True), agreement.privacy.budget
    schema, terms = agreement.schema, agreement.settings.terms
    run = RunDirectory(
        directory,
        header=header_of(schema, budget, terms, census.sizes, algorithm_of(schema), agreement.leaks, trust),
        settings={
            "sites": list(sites),
            "run": name,
            "records": list(census.records),
            "score": agreement.settings.score,
        },
        seed=agreement.settings.seed,
        resume=True,
    )
    if run.complete:
        return FittedModel.load(directory), census
    sizes, records = list(census.sizes), list(census.records)
    ledger = run.open_ledger(opened_by(asked, agreement, run=name, sizes=sizes, records=records, engine=ENGINE))
    if trust is None:
        cohort, mechanism = SiteTables(asked, name, census, schema), Mechanism(ledger, run.noise)
    else:
        noisy = NoisyTables(asked, name, census, schema, honest=trust["min_honest_sites"])
        cohort, mechanism = noisy, SitesMechanism(noisy, ledger, run.noise)
    session = Session(cohort, mechanism, Filter(budget), progress)
    opening = Opened(census, session, ledger, public_draws(run.noise))
    method, why = method_of(AUTO, None)
    model = fitted(
        schema, opening, budget.epsilon, score=agreement.settings.score, trees=trust is None, method=method, why=why
    )
    if not (directory / ARRAYS).exists():  # it is written last
        for file in (SCHEMA, PREPARATION, HEALTH):
            (directory / file).unlink(missing_ok=True)
        model.save(directory)
    run.save(None, [], complete=True)
    return model, census


@dataclass
class SiteTables:
    """The sites of a fit, as one cohort; the server adds the noise."""

    sites: Sites
    run: str  # which they have opened
    census: Census
    schema: Schema
    known: set[str] = field(default_factory=set)  # arrays that all sites have from the request before

    def answer(self, statistic: Statistic, number: int, multiplier: float) -> BoundedMean:
        """Return the sum over all sites with its sensitivity."""
        totals = self._totals(statistic, number, multiplier)
        for p, total in enumerate(totals):
            what = f"site {self.sites.names[p]!r} answered release {number} with a vector"
            require_length(what, total, longest_part(self.census, p, statistic), "its bound allows")
        value = added(totals)
        return self.census.bounded(statistic, number, value, len(value))

    def scores(self, scores: Scores, number: int, multiplier: float) -> np.ndarray:
        """Return whole-number scores, with weights in units of the heaviest."""
        return scores.scores(added(self._totals(scores, number, multiplier)))

    def _totals(self, statistic: Statistic | Scores, number: int, multiplier: float) -> list[np.ndarray]:
        request = self._request(statistic, number, multiplier)
        messages, sent = self._exchange(request)
        return [
            answered(site, messages[p], request, sent, "value", np.float64, request.dimension)
            for p, site in enumerate(self.sites.names)
        ]

    def _request(self, statistic: Statistic | Scores, number: int, multiplier: float) -> StatisticRequest:
        return StatisticRequest(self.run, number, multiplier, statistic, dimension_of(statistic, self.schema))

    def _exchange(self, request: StatisticRequest) -> tuple[dict[int, Message], str]:
        """Ask all sites; return their messages, and the digest by which they refer to the request."""
        content = request.packed()
        message = request.message(content, self.known)
        found = self.sites.ask(message, request.number, range(len(self.sites.names)))
        self.known = set(content.arrays)
        return found, request_digest(message)


@dataclass(kw_only=True)
class NoisyTables(SiteTables):
    """Sites that answer with noise of their own. Nobody sees exact scores, so no candidate can be chosen."""

    honest: int  # at least this many sites add their noise as agreed

    def answer(self, statistic: Statistic, number: int, multiplier: float) -> BoundedMean:
        """Return a mean whose value is still at the sites."""
        dimension = dimension_of(statistic, self.schema)
        return replace(self.census.bounded(statistic, number, None, dimension), sources=((1.0, statistic),))

    def request(self, mean: BoundedMean, multiplier: float) -> tuple[StatisticRequest, NoiseScale]:
        """Return the request for a release, and the scale of its noise."""
        release, statistic = mean.release, mean.sources[0][1]
        request = StatisticRequest(self.run, release.round, multiplier, statistic, release.dimension)
        return request, statistic_scale(self.census, request, self.honest)

    def total(self, request: StatisticRequest, scale: NoiseScale) -> np.ndarray:
        """Return the sum of the sites' noisy answers, in grid steps."""
        messages, sent = self._exchange(request)
        total = np.zeros(request.dimension, dtype=np.int64)
        for p, site in enumerate(self.sites.names):
            limit = max_part_norm(self.census, p, request, scale)
            total += checked_steps(site, messages[p], request, sent, scale, limit)
        return total
