"""The server's side where sites add their own noise: it adds up whole numbers, and draws no noise.

``OwnNoiseCohort`` answers an algorithm's questions with means that have a sensitivity and no value yet. The sites are
asked only when a mean is released, with its noise multiplier; their answers carry noise already. ``SitesMechanism``
replaces the mechanism: it writes the same ledger lines, with the noise that the honest sites add together.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from ...errors import LedgerError
from ...privacy import BoundedMean, Ledger, Mechanism, NoiseSource, Release, Released
from ...questions import Question
from ..faults import BadAnswer
from ..wire.cohort import RemoteCohort
from ..wire.messages import Message
from ..wire.request import ANSWER, Request
from .noise import NoiseScale, max_answer_norm, pending, scale_of

STEPS = "steps"


class OwnNoiseCohort(RemoteCohort):
    """Sites that answer with noise of their own."""

    def __init__(self, *place: Any, honest: int, **options: Any):
        """As :class:`RemoteCohort`; at least ``honest`` of the sites add their noise as agreed."""
        super().__init__(*place, **options)
        self._honest = honest

    def answer(self, question: Question) -> BoundedMean:
        if question.radius == 0:
            return super().answer(question)
        return replace(pending(self._population, question), sources=((1.0, question),))

    def request(self, mean: BoundedMean, multiplier: float) -> tuple[Request, NoiseScale]:
        """Return the request for a release, and the scale of its noise."""
        request = Request(self._run, mean.sources, multiplier)
        return request, scale_of(self._population, request, self._honest)

    def total(self, request: Request, scale: NoiseScale) -> np.ndarray:
        """Return the sum of the sites' noisy answers, in grid steps."""
        self._population.check(request.question.batch)
        messages, digest = self._exchange(request, scale.clients)
        total = np.zeros(scale.mean.release.dimension, dtype=np.int64)
        for p in scale.clients:
            limit = max_answer_norm(self._population, p, request, scale)
            total += checked_steps(self._sites[p], messages[p], request, digest, scale, limit)
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
    fields, steps = message.fields, message.arrays.get(STEPS)
    if message.kind != ANSWER or fields.get("request") != digest:
        raise BadAnswer(f"site {site!r} answered another question than {request}")
    if fields.get("grid") != scale.grid or fields.get("noise_std") != scale.site_std:
        raise BadAnswer(
            f"site {site!r} answered {request} on the grid {fields.get('grid')!r} with noise of standard deviation "
            f"{fields.get('noise_std')!r}, agreed are {scale.grid!r} and {scale.site_std!r}"
        )
    if set(message.arrays) != {STEPS} or steps is None or steps.shape != (scale.mean.release.dimension,):
        raise BadAnswer(f"site {site!r} answered {request} with shape {None if steps is None else steps.shape}")
    if steps.dtype != np.int64:
        raise BadAnswer(f"site {site!r} answered {request} with values that are not whole numbers")
    if float(np.linalg.norm(steps.astype(np.float64))) > limit:
        raise BadAnswer(
            f"site {site!r} answered {request} with a vector longer than clipping and noise allow; nothing was "
            "released. Check the software at that site"
        )
    return steps
