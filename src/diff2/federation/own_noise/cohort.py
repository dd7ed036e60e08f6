"""The server's side where sites add their own noise: it asks, adds whole numbers, and adds nothing else.

``OwnNoiseCohort`` answers an algorithm's questions with means that have a sensitivity and no value. Only when a mean is
released, with a noise multiplier, are the sites asked; what comes back is noisy already. ``SitesMechanism`` takes the
place of the mechanism: it writes the same ledger lines, whose noise is what the honest sites' noise adds up to.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import LedgerError
from ...privacy import BoundedMean, Ledger, Mechanism, NoiseSource, Release, Released
from ...questions import Question
from ..faults import BadAnswer
from ..server.cohort import RemoteCohort
from ..wire.messages import Message
from ..wire.request import ANSWER, Request
from .noise import NoiseScale, longest_answer, pending, scale_of

STEPS = "steps"


class OwnNoiseCohort(RemoteCohort):
    """Sites that answer with noise of their own."""

    def __init__(self, *place: Any, honest: int, **options: Any):
        """As :class:`RemoteCohort`; ``honest`` of the sites add their noise as agreed."""
        super().__init__(*place, **options)
        self._honest = honest

    def answer(self, question: Question) -> BoundedMean:
        if question.radius == 0:
            return super().answer(question)
        return replace(pending(self._population, question), sources=((1.0, question),))

    def request(self, mean: BoundedMean, multiplier: float) -> tuple[Request, NoiseScale]:
        """Return what the sites are asked for a release, and its noise."""
        request = Request(self._run, mean.sources, multiplier)
        return request, scale_of(self._population, request, self._honest)

    def total(self, request: Request, scale: NoiseScale) -> np.ndarray:
        """Return the sum of the sites' noisy answers, in grid steps."""
        self._population.check(request.question.batch)
        messages, digest = self._exchange(request, scale.clients)
        total = np.zeros(scale.mean.release.dimension, dtype=np.int64)
        for p in scale.clients:
            longest = longest_answer(self._population, p, request, scale)
            total += _checked(self._sites[p], messages[p], request, digest, scale, longest)
        return total


class SitesMechanism(Mechanism):
    """The mechanism where sites add the noise.

    Formal guarantee: as :class:`Mechanism`, against everyone but the server and those sites that are not counted on,
    provided ``honest`` sites add their noise; against the server, with the noise of one site.
    """

    def __init__(self, cohort: OwnNoiseCohort, ledger: Ledger, noise: NoiseSource):
        super().__init__(ledger, noise)
        self._cohort = cohort

    def release(self, mean: BoundedMean, multiplier: float) -> Released:
        """Write the ledger line, then ask the sites and return the sum of what they answer."""
        if multiplier == 0 or (mean.value is not None and mean.release.sensitivity > 0):
            raise LedgerError("only what the sites answer, with their noise, is released where they add it")
        return super().release(mean, multiplier)

    def _parties(self, mean: BoundedMean, multiplier: float) -> int:
        return self._cohort.request(mean, multiplier)[1].honest

    def _noised(self, mean: BoundedMean, release: Release, grid: float) -> Released:
        request, scale = self._cohort.request(mean, release.multiplier)
        total = self._cohort.total(request, scale)
        # The noise of those who are counted on is in the ledger; here is that of all.
        return Released(total * grid, release, len(scale.clients) * scale.site_std**2)


def _checked(
    site: str, message: Message, request: Request, digest: str, scale: NoiseScale, longest: float
) -> np.ndarray:
    """Return the whole numbers in an answer; refuse what cannot be one."""
    fields, steps = message.fields, message.arrays.get(STEPS)
    if message.kind != ANSWER or fields.get("request") != digest:
        raise BadAnswer(f"site {site!r} answered another question than {request}")
    if fields.get("grid") != scale.grid or fields.get("noise_std") != scale.site_std:
        raise BadAnswer(
            f"site {site!r} answered {request} on the grid {fields.get('grid')!r} with noise of deviation "
            f"{fields.get('noise_std')!r}, agreed are {scale.grid!r} and {scale.site_std!r}"
        )
    if set(message.arrays) != {STEPS} or steps is None or steps.shape != (scale.mean.release.dimension,):
        raise BadAnswer(f"site {site!r} answered {request} with shape {None if steps is None else steps.shape}")
    if steps.dtype != np.int64:
        raise BadAnswer(f"site {site!r} answered {request} with values that are not whole numbers")
    if float(np.linalg.norm(steps.astype(np.float64))) > longest:
        raise BadAnswer(
            f"site {site!r} answered {request} with a vector longer than clipping and noise allow; nothing was "
            "released. Find out what runs at that site"
        )
    return steps
