"""The server's side where sites add their own noise: it asks for shares, adds whole numbers, and adds nothing else.

``NoisyCohort`` answers an algorithm's questions with means that have a sensitivity and no value. Only when a mean is
released, with a noise multiplier, are the sites asked; what comes back is noisy already. ``SharedNoise`` takes the
place of the mechanism: it writes the same ledger lines, whose noise is what the honest sites' shares add up to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from ..._types import Vector
from ...errors import LedgerError
from ...privacy import BoundedMean, Ledger, Mechanism, NoiseSource, Release
from ...privacy.mechanism import tree_levels
from ...questions.population import ALL, Batch, Population
from ..faults import BadAnswer
from ..server.cohort import Exchange, RemoteCohort, answers
from ..wire.messages import Message, digest, write
from ..wire.releases import AskedRelease
from ..wire.requests import ANSWER
from ..wire.transport import Transport
from .shares import ShareScale, asked_sites, longest_share, pending, share_scale

STEPS = "steps"


class NoisyCohort(RemoteCohort):
    """Sites that answer with noise of their own."""

    def __init__(
        self,
        transport: Transport,
        sites: Sequence[str],
        population: Population,
        run: str,
        *,
        honest: int,
        dtype: torch.dtype,
        source: NoiseSource,
        timeout: float,
        watch: Callable[[Exchange], None] = lambda exchange: None,
    ):
        """As :class:`RemoteCohort`; ``honest`` of the sites add their noise as agreed."""
        super().__init__(
            transport, sites, population, run, dtype=dtype, source=source, timeout=timeout, watch=watch
        )  # fmt: skip
        self._honest = honest

    def clipped_difference(
        self, params: Vector, previous: Vector, radius: float, *, round: int, batch: Batch = ALL, **options: Any
    ) -> BoundedMean:
        mean = super().clipped_difference(params, previous, radius, round=round, batch=batch, **options)
        # Of equal iterates: zero, and nobody need be asked. It has no value either, to go with those that have none.
        return mean if mean.sources else replace(mean, value=mean.value.to("meta"))

    def release(self, asked: AskedRelease, scale: ShareScale) -> np.ndarray:
        """Return the sum of the shares of a release, in grid steps."""
        population, round = self._population, asked.round
        population.check(asked.batch)
        clients = asked_sites(population, asked.batch, round)
        payload, sites = write(asked.message()), [self._sites[p] for p in clients]
        began = time.perf_counter()
        messages = answers(self._transport.broadcast(payload, sites, self._timeout), sites, self._timeout)
        request, total = digest(payload), np.zeros(asked.parts[0][1].params.numel(), dtype=np.int64)
        for p, site in zip(clients, sites, strict=True):
            longest = longest_share(population, p, asked, self._dtype, scale)
            total += checked_share(site, messages[site], asked, request, scale, longest)
        received = sum(array.nbytes for message in messages.values() for array in message.arrays.values())
        seconds = time.perf_counter() - began
        self._watch(Exchange(round, tuple(sites), seconds, len(payload) * len(sites), received))
        return total

    def scale(self, asked: AskedRelease) -> ShareScale:
        """Return the noise of a release."""
        return share_scale(self._population, asked, self._dtype, self._honest)

    def _mean(self, asked: Any) -> BoundedMean:
        return replace(pending(self._population, asked, self._dtype), sources=((1.0, asked),))


def checked_share(
    site: str, message: Message, asked: AskedRelease, request: str, scale: ShareScale, longest: float
) -> np.ndarray:
    """Return the share in an answer; refuse what cannot be one."""
    what = f"the {asked.purpose} of round {asked.round}"
    if message.kind != ANSWER or message.fields.get("request") != request:
        raise BadAnswer(f"site {site!r} answered another question than {what}")
    if message.fields.get("grid") != scale.grid or message.fields.get("noise_std") != scale.share_std:
        raise BadAnswer(
            f"site {site!r} answered {what} on the grid {message.fields.get('grid')!r} with noise of deviation "
            f"{message.fields.get('noise_std')!r}, agreed are {scale.grid!r} and {scale.share_std!r}"
        )
    steps = message.arrays.get(STEPS)
    if set(message.arrays) != {STEPS} or steps is None or steps.shape != tuple(asked.parts[0][1].params.shape):
        raise BadAnswer(f"site {site!r} answered {what} with shape {None if steps is None else steps.shape}")
    if steps.dtype != np.int64:
        raise BadAnswer(f"site {site!r} answered {what} with values that are not whole numbers")
    if float(np.linalg.norm(steps.astype(np.float64))) > longest:
        raise BadAnswer(
            f"site {site!r} answered {what} with a vector longer than clipping and noise allow; nothing was released. "
            "Find out what runs at that site"
        )
    return steps


class _Place(NamedTuple):
    round: int
    purpose: str
    step: int
    leaves: int = 0


class SharedNoise(Mechanism):
    """The mechanism where sites add the noise.

    Formal guarantee: as :class:`Mechanism`, against everyone but the server and those sites that are not counted on,
    provided ``honest`` sites add their shares; against the server, with the noise of one share.
    """

    def __init__(self, cohort: NoisyCohort, ledger: Ledger, noise: NoiseSource, *, limit: float):
        super().__init__(ledger, noise, limit=limit)
        self._cohort = cohort

    def gaussian(self, mean: BoundedMean, multiplier: float, *, round: int, purpose: str, step: int = 0) -> Release:
        """Write the ledger line, then ask the sites for their shares and return the sum."""
        return self._released(mean, multiplier, _Place(round, purpose, step))

    def tree(
        self, mean: BoundedMean, multiplier: float, *, round: int, purpose: str, leaf: int, leaves: int
    ) -> Release:
        """Release one leaf of a binary tree; every site has a tree of its own, and nodes add up to nodes."""
        return self._released(mean, multiplier, _Place(round, purpose, leaf, leaves))

    def _released(self, mean: BoundedMean, multiplier: float, place: _Place) -> Release:
        if mean.value.device.type != "meta" or multiplier == 0:
            raise LedgerError("only what the sites answer, with their noise, is released where they add it")
        round, purpose, step, leaves = place
        nodes = tree_levels(leaves) if leaves else 1
        if mean.sensitivity == 0:
            entry, _ = self._entry(mean, multiplier, round, purpose, step, nodes)
            self._placed(entry, place)
            return Release(torch.zeros(mean.value.shape, dtype=torch.float64), entry, 0.0)
        asked = AskedRelease(purpose, step, multiplier, mean.sources, leaves)
        scale = self._cohort.scale(asked)
        entry, grid = self._entry(mean, multiplier, round, purpose, step, nodes, scale.honest)
        self._placed(entry, place)
        total = self._cohort.release(asked, scale)
        # The noise of those who are counted on is in the ledger; here is that of all.
        return Release(torch.from_numpy(total * grid), entry, scale.asked * scale.share_std**2)

    def _placed(self, entry: Any, place: _Place) -> None:
        if place.leaves:
            self._first_round(entry, place.step, place.leaves)
        self._record(entry)
