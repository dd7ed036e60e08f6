r"""The noise a site adds to its own part of a release, on an integer grid.

A release is a weighted sum of the sites' parts, :math:`\sum_p a_p`, and needs noise of deviation
:math:`\tau = z\,(\text{sensitivity} + \text{rounding})` from the honest sites. A site sends

.. math::
    k_p = \mathrm{rint}(a_p / g) + \xi_p, \qquad P(\xi_p = k) \propto \exp(-k^2 / 2\sigma^2), \quad \sigma = 2^{32},

whole numbers of steps of the grid :math:`g = 2^{-32} \tau / \sqrt h`, computed from public numbers; their sum is exact
(``privacy/trust.py`` defines h). Replacing a record changes one site's part, and rounding moves each of its coordinates
by at most half a step: :math:`\tau` includes this (``privacy/mechanism.py``). By itself, :math:`k_p` is a release with
noise of deviation :math:`\tau / \sqrt h`. A sum of h discrete Gaussians is one of h times the variance, but for a ratio
that :func:`sum_divergence` bounds; what both cost more than continuous noise is priced (``privacy/discrete.py``).

The noise is a stream keyed by a secret of the site and the run, labelled by round, purpose, step and a keyed digest of
the request and of the site's part; that of a node of a tree by a digest of all leaves up to its last, which the site's
ledger holds. So a request that is sent twice gets the same bytes, and another request or part would get other noise;
besides, the ledger prevents a different answer under the same label.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ...cohorts.bounds import bounded, combined_rounding
from ...cohorts.per_client import ClientSums
from ...errors import InvalidArgument, LedgerError
from ...gradients import rounding_allowance
from ...planning import Plan
from ...privacy import BoundedMean, NoiseSource, Release, combined
from ...privacy.discrete_gaussian import discrete_gaussian
from ...privacy.mechanism import leaf_noise, noise_scale, rounding_of, whole_steps
from ...privacy.release import FULL
from ...privacy.trust import honest_among
from ...questions import Population, Question
from ..agreement import AnyAgreement
from ..faults import Refusal
from ..wire.messages import Message
from ..wire.request import ANSWER, Request

TOLERANCE = 1e-9  # fraction by which a multiplier may be below the plan's: two machines may round differently
TAIL = 12.0  # deviations; the noise is longer than sqrt(d) + TAIL of them with a probability below exp(-TAIL^2/2)
MAX_TOTAL = 2.0**62  # of a sum of whole numbers
STEPS = "steps"  # the array of a noisy answer


def check_trust(agreement: AnyAgreement, sites: int) -> None:
    """Refuse agreements that are not sound where sites add their own noise."""
    trust = agreement.trust
    if trust.noise == "server":
        return
    trust.honest_of(sites)
    if not agreement.privacy.budget.private:
        raise InvalidArgument("trust='sites' needs a finite epsilon: without noise there is nothing to add")
    if agreement.run.client_order == "random" and agreement.run.clients_per_round not in (None, sites):
        raise InvalidArgument(
            "client_order='random' assumes that nobody knows who takes part; the server does, and with trust='sites' "
            "it is not trusted. Use client_order='round_robin'"
        )


class NoiseScale(NamedTuple):
    """The noise of a release, and of each site's part of it. Computed from public numbers alone."""

    mean: BoundedMean  # what is released, without its value
    std: float  # tau, of the noise of all honest sites; in a tree: of a node
    grid: float
    clients: tuple[int, ...]  # that are asked
    honest: int  # h

    @property
    def site_std(self) -> float:
        """Deviation of the noise that one site adds."""
        return self.std / math.sqrt(self.honest)


def pending(population: Population, question: Question) -> BoundedMean:
    """Return the answer to a question with its sensitivity; its value is still at the sites."""
    return bounded(population, question, None, combined_rounding(population, question))


def scale_of(population: Population, request: Request, honest: int) -> NoiseScale:
    """Return how much noise a release needs, if at least ``honest`` of all sites are honest."""
    try:
        mean = combined([(weight, pending(population, question)) for weight, question in request.parts])
    except LedgerError as error:
        raise InvalidArgument(str(error)) from None
    if not 0 < mean.release.sensitivity < math.inf:
        raise InvalidArgument(f"no noise can hide a record in a release of sensitivity {mean.release.sensitivity}")
    batch, round = request.question.batch, request.question.round
    clients = population.participants(round) if batch.clients is None else batch.clients
    parties = honest_among(honest, len(population.sizes), len(clients))
    std, grid = noise_scale(mean, request.multiplier, parties)
    return NoiseScale(mean, std, grid, clients, parties)


def max_answer_norm(
    population: Population, client: int, request: Request, scale: NoiseScale, max_total: float = MAX_TOTAL
) -> float:
    """Return the largest norm of an honest answer, in grid steps; exceeded with a probability below 2^-100."""
    question = request.question
    units = 1 if population.unit == "client" else population.sizes[client]
    if question.batch.rate is None and population.unit != "client":
        units = population.count(client, question.batch, question.round)
    rounding = 0.0 if question.params is None else rounding_allowance(question.params.dtype)
    value = (
        _weight(population, client, question, scale) * units * scale.mean.release.clip * (1 + 2 * rounding + TOLERANCE)
    )
    nodes = 2 * scale.mean.release.nodes if question.leaves else 1
    return norm_limit(value, scale, f"round {question.round}", nodes, max_total)


def norm_limit(value: float, scale: NoiseScale, what: str, nodes: int = 1, max_total: float = MAX_TOTAL) -> float:
    """Return the largest norm, in grid steps, of a value of this length with the noise of this many nodes."""
    dimension = scale.mean.release.dimension
    noise = scale.site_std * math.sqrt(nodes) * (math.sqrt(dimension) + TAIL)
    limit = (value + noise) / scale.grid + math.sqrt(dimension)
    if limit * len(scale.clients) >= max_total:
        bits = math.log2(limit * len(scale.clients))
        raise InvalidArgument(
            f"the sum of the answers of {what} may need {bits:.0f} bits, more than is available: the noise is too "
            "small relative to the values. Lower epsilon"
        )
    return limit


def _weight(population: Population, client: int, question: Question, scale: NoiseScale) -> float:
    """Return the factor of a site's sum in the release."""
    if population.unit == "client":
        return 1 / len(scale.clients)
    return population.weights(scale.clients, question.batch)[scale.clients.index(client)]


class NoisyAnswer(NamedTuple):
    """A site's answer, and its price."""

    steps: np.ndarray  # whole numbers
    scale: NoiseScale
    release: Release  # what the answer by itself costs a unit of this site
    leaf: str = ""  # of a leaf of a tree: a keyed digest of the values up to it

    def message(self, sent: str, sites: Sequence[str]) -> Message:
        """Return the answer to the request of this digest, of a run of these sites."""
        scale = self.scale
        fields = {"request": sent, "grid": scale.grid, "noise_std": scale.site_std}
        return Message(ANSWER, {**fields, "together": [sites[p] for p in scale.clients]}, {STEPS: self.steps})


def own_release(scale: NoiseScale, moved: float, **units: Any) -> Release:
    """Return an answer as a release by itself: a unit of the site moves it by ``moved``, under the site's own noise."""
    release, std = scale.mean.release, scale.site_std
    padded = moved + rounding_of(scale.mean) + scale.grid * math.sqrt(release.dimension)
    multiplier = std / math.sqrt(release.nodes) / padded
    return release._replace(sensitivity=moved, multiplier=multiplier, noise_std=std, **units)


class SiteNoise:
    """A site's own noise in one run, and the releases it has agreed to."""

    def __init__(
        self, plan: Plan, honest: int, client: int, sums: ClientSums, source: NoiseSource, max_total: float = MAX_TOTAL
    ):
        """Take part as ``client``; ``max_total`` limits the sum of all sites' answers."""
        self._population = plan.population
        self._honest = honest
        self._client = client
        self._sums = sums
        self._source = source
        self._max_total = max_total
        self._planned = {release.label: release for release in plan.releases}

    def answer(self, request: Request, sent: str, answered: Sequence[tuple[Release, str]]) -> NoisyAnswer:
        """Return this site's part of a release with its noise; refuse one that was not planned.

        Args:
            sent: hash of the request, part of what tells its noise.
            answered: what this site has released in this run so far, with the digests of leaves.
        """
        try:
            scale = scale_of(self._population, request, self._honest)
            max_answer_norm(self._population, self._client, request, scale, self._max_total)
        except InvalidArgument as error:
            raise Refusal(str(error)) from None
        self._check_planned(request, scale)
        leaves = self._leaves_before(request.question, scale, answered) if request.question.leaves else []
        weight = _weight(self._population, self._client, request.question, scale)
        parts = [factor * (weight * self._sums.answer(question)) for factor, question in request.parts]
        value = torch.stack(parts).sum(0).cpu().numpy()
        steps = whole_steps(value, scale.grid)
        digest = self._source.digest(steps.data, sent.encode(), *(leaf.encode() for leaf in leaves[-1:]))
        noise = self._noise(request.question, len(steps), [*leaves, digest])
        leaf = digest if request.question.leaves else ""
        return NoisyAnswer(steps + noise, scale, self._own_price(request.question, scale), leaf)

    def _noise(self, question: Question, dimension: int, digests: Sequence[str]) -> np.ndarray:
        place, leaf = (question.purpose, self._client), question.step
        if question.leaves:
            label = ("share of a tree", question.round - leaf, *place)
            return leaf_noise(self._source, dimension, leaf, *label, digests=digests)
        return discrete_gaussian(self._source, dimension, "share", question.round, leaf, *place, digests[-1])

    def _check_planned(self, request: Request, scale: NoiseScale) -> None:
        """Refuse a release that is not in the agreed plan, or has less noise than planned."""
        planned, shown = self._planned.get(scale.mean.release.label), scale.mean.release
        units = ("sampling", "rate", "members", "leaves")
        if planned is None or any(getattr(planned, name) != getattr(shown, name) for name in units):
            raise Refusal(f"{request} on these records is not in the agreed plan")
        if request.multiplier < planned.multiplier * (1 - TOLERANCE):
            raise Refusal(
                f"{request} asks for the noise multiplier {request.multiplier:.9g}, the agreed plan has "
                f"{planned.multiplier:.9g}"
            )

    def _leaves_before(
        self, question: Question, scale: NoiseScale, answered: Sequence[tuple[Release, str]]
    ) -> list[str]:
        """Return the digests of the leaves before this one; refuse it if it does not follow them."""
        if question.batch.part != (question.step, question.leaves):
            raise Refusal(f"leaf {question.step} of {question.leaves} is not about {question.batch}")
        first, tree = question.round - question.step, {}
        for earlier, digest in answered:
            if earlier.purpose == question.purpose and first <= earlier.round < question.round:
                if earlier.noise_std != scale.site_std:
                    raise Refusal("the leaves of a tree must have the same noise; ask with one radius and multiplier")
                tree[earlier.round - first] = digest
        if len(tree) < question.step:
            raise Refusal(
                f"this site's ledger lacks leaves before leaf {question.step}, which takes their noise off; restore it "
                "from a copy, or start a new run"
            )
        return [tree[leaf] for leaf in range(question.step)]

    def _own_price(self, question: Question, scale: NoiseScale) -> Release:
        """Return the answer as a release by itself, for a record of this site."""
        population, batch, release = self._population, question.batch, scale.mean.release
        moved, rate = release.sensitivity, release.rate
        if population.unit != "client":
            units = 1 if batch.rate is not None else 2
            whole = population.release(question, question.round).sensitivity
            moved *= min(1.0, units * _weight(population, self._client, question, scale) / whole)
        if batch.size is not None:
            rate = population.count(self._client, batch, question.round) / population.sizes[self._client]
        sampling, members = release.sampling if rate < 1 else FULL, release.members if batch.part else None
        return own_release(scale, moved, sampling=sampling, rate=rate, members=members)
