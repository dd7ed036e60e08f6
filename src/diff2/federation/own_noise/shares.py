r"""The noise a site adds itself: its share of a release, on an integer grid.

A release is a weighted sum of the sites' parts, :math:`\sum_p a_p`, and needs noise of deviation
:math:`\tau = z\,(\text{sensitivity} + \text{rounding})` from those who are honest. A site sends

.. math::
    k_p = \mathrm{rint}(a_p / g) + \mathrm{rint}(\xi_p / g), \qquad \xi_p \sim N(0, \tau^2 / h),

whole numbers of grid steps g, a power of two about :math:`2^{-32} \tau` that follows from public numbers; their sum is
exact (``trust.py`` says what h is). Replacing a record changes one site's part, and rounding moves each coordinate of
it by at most half a step: this is in :math:`\tau`, as in ``privacy/mechanism.py``. By itself, :math:`k_p` is a rounded
Gaussian release. The sum of h rounded Gaussians is distributed as one Gaussian of deviation :math:`\tau` plus h - 1
independent uniform numbers of [-g/2, g/2], rounded, but for a probability below :math:`\exp(-s^2)` with
:math:`s = \tau / (g \sqrt h) > 2^{32} / \sqrt h` (the characteristic functions agree up to aliases of that size); and
what is done to a Gaussian release after its noise costs nothing.

The noise is a stream keyed by a secret of the site and the run, labelled by round, purpose and step. So a message that
comes twice gets the same bytes, and the site's ledger keeps it from answering another one under the same label.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ..._types import Vector
from ...cohorts.per_client import ClientSums, bounded
from ...errors import InvalidArgument, LedgerError
from ...gradients import rounding_allowance
from ...planning.plan import Plan, PlannedRelease, plan
from ...privacy import BoundedMean, NoiseSource, combined
from ...privacy.composition import FULL
from ...privacy.mechanism import leaf_steps, noise_scale, tree_levels
from ...privacy.trust import honest_among
from ...questions.population import Batch, Population
from ..agreement import Agreement
from ..faults import Refusal
from ..sealed import keys as sealed
from ..site.ledger import AnswerLine
from ..wire.releases import AskedRelease
from ..wire.requests import Asked

CLOSE = 1e-9  # share by which a multiplier may be below the plan's: two machines may round differently
FAR = 12.0  # deviations; the noise is longer than (sqrt(d) + FAR) of them with a probability below exp(-FAR^2/2)
LARGEST = 2.0**62  # of a sum of whole numbers


def agreed_plan(agreement: Agreement, sizes: Iterable[int]) -> Plan:
    """Return the noise that the agreement means, for sites of these sizes. Every party computes it for itself."""
    settings, privacy = agreement.run, agreement.privacy
    return plan(
        agreement.algorithm,
        privacy.budget,
        tuple(sizes),
        weighting=settings.weighting,
        accounting=privacy.accounting,
        unit=agreement.unit,
        clients_per_round=settings.clients_per_round,
        client_order=settings.client_order,
    )


def check_trust(agreement: Agreement, sites: int) -> None:
    """Refuse what sites that add their own noise cannot do soundly."""
    trust = agreement.trust
    if trust.noise == "server":
        return
    trust.honest_of(sites)
    if not agreement.privacy.budget.private:
        raise InvalidArgument("trust='sites' needs a finite epsilon: without noise there is nothing to share")
    if agreement.run.client_order == "random" and agreement.run.clients_per_round not in (None, sites):
        raise InvalidArgument(
            "client_order='random' counts on nobody knowing who takes part; whoever asks the sites knows, and with "
            "trust='sites' need not be trusted. Use client_order='round_robin'"
        )


class ShareScale(NamedTuple):
    """The noise of a release, and of each share of it. From public numbers alone."""

    std: float  # tau, of the noise of all that are honest; of a tree: of a node
    grid: float
    asked: int  # m
    honest: int  # h

    @property
    def share_std(self) -> float:
        """Of what one site adds."""
        return self.std / math.sqrt(self.honest)


def described(population: Population, asked: AskedRelease, dtype: torch.dtype) -> BoundedMean:
    """Return the mean that is released, without its value: what its sensitivity is."""
    try:
        return combined([(weight, pending(population, part, dtype)) for weight, part in asked.parts])
    except LedgerError as error:
        raise InvalidArgument(str(error)) from None


def pending(population: Population, asked: Asked, dtype: torch.dtype) -> BoundedMean:
    """Return the answer to a question with its sensitivity and no value: reading it is an error."""
    nothing = torch.empty(asked.params.shape, dtype=torch.float64, device="meta")
    return bounded(population, nothing, asked.radius, round=asked.round, batch=asked.batch, dtype=dtype)


def share_scale(population: Population, asked: AskedRelease, dtype: torch.dtype, honest: int) -> ShareScale:
    """Return how much noise a release needs; ``honest`` of all sites are."""
    mean = described(population, asked, dtype)
    if not 0 < mean.sensitivity < math.inf:
        raise InvalidArgument(f"a release of sensitivity {mean.sensitivity} has no noise that would hide a record")
    std, grid = noise_scale(mean, asked.multiplier, tree_levels(asked.leaves) if asked.leaves else 1)
    count = len(asked_sites(population, asked.batch, asked.round))
    return ShareScale(std, grid, count, honest_among(honest, len(population.sizes), count))


def asked_sites(population: Population, batch: Batch, round: int) -> tuple[int, ...]:
    """Return whose shares a release needs."""
    return population.participants(round) if batch.clients is None else batch.clients


def weight_of(population: Population, client: int, batch: Batch, round: int) -> float:
    """Return the factor of a site's sum in the release."""
    clients = asked_sites(population, batch, round)
    if population.unit == "client":
        return 1 / len(clients)
    return population.weights(clients, batch)[clients.index(client)]


def longest_share(
    population: Population,
    client: int,
    asked: AskedRelease,
    dtype: torch.dtype,
    scale: ShareScale,
    largest: float = LARGEST,
) -> float:
    """Return how long an honest share is at most, in grid steps; beyond it with a probability below 2^-100."""
    weight, dimension = weight_of(population, client, asked.batch, asked.round), asked.parts[0][1].params.numel()
    units = 1 if population.unit == "client" else population.sizes[client]
    if asked.batch.rate is None and population.unit != "client":
        units = population.count(client, asked.batch, asked.round)
    radius = math.fsum(abs(factor) * part.radius for factor, part in asked.parts)
    value = weight * units * radius * (1 + 2 * rounding_allowance(dtype) + CLOSE)
    nodes = 2 * tree_levels(asked.leaves) if asked.leaves else 1
    noise = scale.share_std * math.sqrt(nodes) * (math.sqrt(dimension) + FAR)
    longest = (value + noise) / scale.grid + 2 * nodes * math.sqrt(dimension)
    if longest * scale.asked >= largest:
        raise InvalidArgument(
            f"the sum of the shares of round {asked.round} may need {math.log2(longest * scale.asked):.0f} bits, more "
            "than whole numbers have here: the noise is very small beside the values. Lower epsilon"
        )
    return longest


class Share(NamedTuple):
    """What a site answers, and how it is priced."""

    steps: np.ndarray  # whole numbers
    scale: ShareScale
    clients: tuple[int, ...]  # whose shares make up the release
    line: AnswerLine


def site_shares(
    agreement: Agreement,
    population: Population,
    client: int,
    sums: ClientSums,
    source: NoiseSource,
    answered: Callable[[], Sequence[AnswerLine]],
) -> SiteShares | None:
    """Return a site's own noise in a run, where the sites add it; ``answered``: its answers so far."""
    try:
        check_trust(agreement, len(population.sizes))
    except InvalidArgument as error:
        raise Refusal(str(error)) from None
    if agreement.trust.noise == "server":
        return None
    honest = agreement.trust.honest_of(len(population.sizes))
    noise_plan = agreed_plan(agreement, population.sizes)
    largest = sealed.LARGEST if agreement.trust.sealed else LARGEST
    return SiteShares(noise_plan, honest, client, sums, source, agreement.dtype, answered, largest)


class SiteShares:
    """A site's own noise in one run, and what it has agreed to release with it."""

    def __init__(
        self,
        noise_plan: Plan,
        honest: int,
        client: int,
        sums: ClientSums,
        source: NoiseSource,
        dtype: torch.dtype,
        answered: Callable[[], Sequence[AnswerLine]],
        largest: float = LARGEST,
    ):
        """Take part as ``client``; ``answered``: what this site has answered in this run so far."""
        self._largest = largest  # of a sum of whole numbers
        self._plan = noise_plan
        self._population = noise_plan.population
        self._honest = honest
        self._client = client
        self._sums = sums
        self._source = source
        self._dtype = dtype
        self._planned: dict[tuple[int, str], list[PlannedRelease]] = {}
        for release in noise_plan.releases:
            self._planned.setdefault((release.round, release.purpose), []).append(release)
        self._answered = answered

    @property
    def limit(self) -> float:
        """The GDP parameter, against the server, that noise chosen on the way is held to; 0: it is fixed before."""
        return self._plan.mu * math.sqrt(self._honest) if self._plan.algorithm.adaptive else 0.0

    def share(self, asked: AskedRelease, request: str) -> Share:
        """Return this site's part of a release with its noise; refuse one that was not planned."""
        try:
            scale = share_scale(self._population, asked, self._dtype, self._honest)
            longest_share(self._population, self._client, asked, self._dtype, scale, self._largest)
        except InvalidArgument as error:
            raise Refusal(str(error)) from None
        self._check_price(asked)
        self._check_tree(asked, scale)
        weight = weight_of(self._population, self._client, asked.batch, asked.round)
        value = torch.stack([factor * (weight * computed(self._sums, part)) for factor, part in asked.parts]).sum(0)
        steps = np.rint(value.cpu().numpy() / scale.grid) + self._noise(asked, scale, value.numel())
        line = AnswerLine(
            asked.run, asked.round, asked.purpose, asked.step, asked.parts[0][1].radius, request, "",
            scale.share_std, asked.multiplier, *self._own_price(asked, scale),
        )  # fmt: skip
        clients = asked_sites(self._population, asked.batch, asked.round)
        return Share(steps.astype(np.int64), scale, clients, line)

    def _noise(self, asked: AskedRelease, scale: ShareScale, dimension: int) -> np.ndarray:
        place = (asked.purpose, self._client)
        if asked.leaves:
            first = asked.round - asked.step
            return leaf_steps(
                self._source, scale.share_std, scale.grid, dimension, asked.step, "share of a tree", first, *place
            )
        noise = self._source.gaussian(dimension, "share", asked.round, asked.step, *place)
        return np.rint(scale.share_std * noise / scale.grid)

    def _check_price(self, asked: AskedRelease) -> None:
        """Refuse a release with less noise than was agreed, or one more than was agreed."""
        exposure = self._population.exposure(asked.round, asked.batch)
        if exposure.sampling != FULL and asked.step != asked.parts[0][1].step:
            # Else two releases could be about one draw, and are priced as about two.
            raise Refusal(f"the release of step {asked.step} is about the batch of step {asked.parts[0][1].step}")
        if self._plan.algorithm.adaptive:
            if exposure.sampling != FULL:
                raise Refusal("noise that is chosen on the way is not priced for batches drawn at random")
            label = (asked.round, asked.purpose, asked.step)
            others = [line.multiplier for line in self._answered() if line.label != label]
            spent = math.fsum(z**-2 for z in [*others, asked.multiplier])
            if spent > self._plan.mu**2 * (1 + CLOSE):
                raise Refusal(
                    f"with the {asked.purpose} of round {asked.round} the run would cost mu^2={spent:.6g}, agreed were "
                    f"{self._plan.mu**2:.6g}"
                )
            return
        place = (asked.round, asked.purpose)
        planned = [release for release in self._planned.get(place, []) if release.exposure == exposure]
        steps = {line.step for line in self._answered() if (line.round, line.question) == place}
        if len(steps | {asked.step}) > len(planned):
            raise Refusal(
                f"the agreed plan has {len(planned)} releases of kind {asked.purpose!r} on these records in round "
                f"{asked.round}, and no more are answered"
            )
        if asked.multiplier < planned[0].multiplier * (1 - CLOSE):
            raise Refusal(
                f"the {asked.purpose} of round {asked.round} asks for the noise multiplier {asked.multiplier:.9g}, the "
                f"agreed plan has {planned[0].multiplier:.9g}"
            )

    def _check_tree(self, asked: AskedRelease, scale: ShareScale) -> None:
        """Refuse a leaf that does not belong to a tree whose nodes have one scale."""
        if not asked.leaves:
            return
        if asked.batch.part != (asked.step, asked.leaves):
            raise Refusal(f"leaf {asked.step} of {asked.leaves} is not about {asked.batch}")
        first = asked.round - asked.step
        for line in self._answered():
            same = line.question == asked.purpose and first <= line.round < asked.round
            if same and line.noise_std != scale.share_std:
                raise Refusal("the leaves of a tree must have the same noise; ask with one radius and multiplier")

    def _own_price(self, asked: AskedRelease, scale: ShareScale) -> tuple[float, str, float, tuple[int, ...] | None]:
        """Return multiplier, sampling, rate and members of the answer by itself, for a record of this site."""
        population, batch = self._population, asked.batch
        mean, exposure = described(population, asked, self._dtype), population.exposure(asked.round, batch)
        moved = mean.sensitivity
        if population.unit != "client":
            units = 1 if batch.rate is not None else 2
            moved *= min(1.0, units * weight_of(population, self._client, batch, asked.round) / exposure.sensitivity)
        nodes = tree_levels(asked.leaves) if asked.leaves else 1
        moved += mean.rounding * mean.sensitivity + scale.grid * math.sqrt(mean.value.numel())
        rate = exposure.rate
        if batch.size is not None:
            rate = population.count(self._client, batch, asked.round) / population.sizes[self._client]
        sampling = exposure.sampling if rate < 1 else FULL
        return scale.share_std / math.sqrt(nodes) / moved, sampling, rate, exposure.members if batch.part else None


def computed(sums: ClientSums, asked: Asked) -> Vector:
    """Return the clipped sum that a question asks for."""
    place: Mapping[str, object] = {"round": asked.round, "batch": asked.batch, "step": asked.step}
    if asked.previous is None:
        return sums.gradient(asked.params, asked.radius, remember=asked.remember, **place)  # type: ignore[arg-type]
    return sums.difference(asked.params, asked.previous, asked.radius, inner=asked.inner, **place)  # type: ignore[arg-type]
