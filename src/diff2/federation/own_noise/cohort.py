"""The server's side where sites add their own noise: it adds up whole numbers, and draws no noise.

``OwnNoiseCohort`` answers an algorithm's questions with means that have a sensitivity and no value yet. The sites are
asked only when a mean is released, with its noise multiplier; their answers carry noise already. ``SitesMechanism``
replaces the mechanism: it writes the same ledger lines, with the noise that the honest sites add together.
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ...errors import LedgerError
from ...privacy import BoundedMean, Ledger, Mechanism, NoiseSource, Release, Released
from ...questions import Question
from ..faults import BadAnswer
from ..wire.cohort import RemoteCohort, answered, require_length
from ..wire.messages import Message
from ..wire.request import Request
from .noise import STEPS, NoiseScale, max_answer_norm, pending, scale_of


@dataclass(frozen=True)
class OwnNoiseCohort(RemoteCohort):
    """Sites that answer with noise of their own; at least ``honest`` of them add it as agreed."""

    honest: int

    def answer(self, question: Question) -> BoundedMean:
        if question.radius == 0:
            return super().answer(question)
        return replace(pending(self.population, question), sources=((1.0, question),))

    def request(self, mean: BoundedMean, multiplier: float) -> tuple[Request, NoiseScale]:
        """Return the request for a release, and the scale of its noise."""
        request = Request(self.run, mean.sources, multiplier)
        return request, scale_of(self.population, request, self.honest)

    def total(self, request: Request, scale: NoiseScale) -> np.ndarray:
        """Return the sum of the sites' noisy answers, in grid steps."""
        self.population.check(request.question.batch)
        messages, digest = self._exchange(request, scale.clients)
        total = np.zeros(scale.mean.release.dimension, dtype=np.int64)
        for p in scale.clients:
            limit = max_answer_norm(self.population, p, request, scale)
            total += checked_steps(self.sites.names[p], messages[p], request, digest, scale, limit)
        return total


class NoisySites(Protocol):
    """Sites that are asked once it is known with which noise."""

    def request(self, mean: BoundedMean, multiplier: float) -> tuple[Any, NoiseScale]:
        """Return the request for a release, and the scale of its noise."""
        ...

    def total(self, request: Any, scale: NoiseScale) -> np.ndarray:
        """Return the sum of the sites' noisy answers, in grid steps."""
        ...


class SitesMechanism(Mechanism):
    """The mechanism where sites add the noise.

    Formal guarantee: as :class:`Mechanism`, against everyone but the server and the dishonest sites, provided that
    ``honest`` sites add their noise; against the server, with the noise of one site.
    """

    def __init__(self, cohort: NoisySites, ledger: Ledger, noise: NoiseSource):
        super().__init__(ledger, noise)
        self._cohort = cohort

    def release(self, mean: BoundedMean, multiplier: float) -> Released:
        """Write the ledger line, then ask the sites and return the sum of their answers."""
        if multiplier == 0 or (mean.value is not None and mean.release.sensitivity > 0):
            raise LedgerError("where sites add the noise, nothing is released but the sum of their noisy answers")
        return super().release(mean, multiplier)

    def _parties(self, mean: BoundedMean, multiplier: float) -> int:
        return self._cohort.request(mean, multiplier)[1].honest

    def _noised(self, mean: BoundedMean, release: Release, grid: float) -> Released:
        self.ledger.record(release)
        request, scale = self._cohort.request(mean, release.multiplier)
        total = self._cohort.total(request, scale)
        # The ledger counts the noise of the honest sites; the variance is that of all sites.
        return Released(total * grid, release, len(scale.clients) * scale.site_std**2)


def checked_steps(
    site: str, message: Message, request: object, digest: str, scale: NoiseScale, limit: float
) -> np.ndarray:
    """Return the whole numbers in an answer; refuse an answer that cannot be right."""
    steps = answered(site, message, request, digest, STEPS, np.int64, scale.mean.release.dimension)
    grid, std = message.fields.get("grid"), message.fields.get("noise_std")
    if grid != scale.grid or std != scale.site_std:
        raise BadAnswer(
            f"site {site!r} answered {request} on the grid {grid!r} with noise of standard deviation {std!r}, agreed "
            f"are {scale.grid!r} and {scale.site_std!r}"
        )
    require_length(f"site {site!r} answered {request} with a vector", steps, limit, "clipping and noise allow")
    return steps
