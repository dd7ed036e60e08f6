"""The cohort whose records are elsewhere: every question goes to sites, and nothing passes on that cannot be an answer.

Under one seed, ``RemoteCohort`` gives the same bytes as ``ClientwiseCohort``: both put the same sums together with the
same function, and a site computes its sum with the same class. A site that does not answer, refuses, or answers what
clipping could not have given stops the run before anything is released. The mean is never taken over fewer sites than
the noise was calibrated for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ..._types import Vector
from ...cohorts.per_client import asked_clients, bounded, combine
from ...gradients import rounding_allowance
from ...privacy import BoundedMean, NoiseSource
from ...questions.population import ALL, Batch, Population
from ..faults import BadAnswer, BadMessage, SiteRefused, SitesMissing
from ..site.questions import DIFFERENCE, GRADIENT
from ..wire.messages import REFUSAL, Message, digest, read, write
from ..wire.requests import ANSWER, Asked
from ..wire.transport import Replies, Transport

SLACK = 1e-9  # of a length, beyond what sums over records may be off by


class Exchange(NamedTuple):
    """One question and its answers, for whoever watches."""

    round: int
    sites: tuple[str, ...]
    seconds: float
    sent: int  # bytes, all sites together
    received: int


class RemoteCohort:
    """The sites of a run, as one cohort."""

    def __init__(
        self,
        transport: Transport,
        sites: Sequence[str],
        population: Population,
        run: str,
        *,
        dtype: torch.dtype,
        source: NoiseSource,
        timeout: float,
        watch: Callable[[Exchange], None] = lambda exchange: None,
    ):
        """Ask ``sites``, in the order of the population's clients, about ``run``, which they have opened.

        Args:
            dtype: of the parameters.
            source: draws clients, where they are drawn in secret.
            timeout: seconds a site has for an answer.
            watch: called after every exchange.
        """
        self._transport = transport
        self._sites = tuple(sites)
        self._population = population
        self._run = run
        self._dtype = dtype
        self._source = source
        self._timeout = timeout
        self._watch = watch

    @property
    def population(self) -> Population:
        return self._population

    def clipped_gradient(
        self, params: Vector, radius: float, *, round: int, batch: Batch = ALL, step: int = 0, remember: bool = False
    ) -> BoundedMean:
        return self._mean(
            Asked(GRADIENT, self._run, round, params, radius, batch=batch, step=step, remember=remember)
        )  # fmt: skip

    def clipped_difference(
        self,
        params: Vector,
        previous: Vector,
        radius: float,
        *,
        round: int,
        batch: Batch = ALL,
        step: int = 0,
        inner: float = math.inf,
    ) -> BoundedMean:
        if radius == 0:  # equal iterates: the difference is zero for every data set, and nobody need be asked
            zero = torch.zeros_like(params, dtype=torch.float64)
            return bounded(self._population, zero, 0.0, round=round, batch=batch, dtype=self._dtype)
        return self._mean(Asked(DIFFERENCE, self._run, round, params, radius, previous, batch, step, inner))

    def _mean(self, asked: Asked) -> BoundedMean:
        batch, round = asked.batch, asked.round
        self._population.check(batch)
        clients = asked_clients(self._population, batch, round, asked.step, self._source)
        payload = write(asked.message())
        sites = [self._sites[p] for p in clients]
        began = time.perf_counter()
        messages = answers(self._transport.broadcast(payload, sites, self._timeout), sites, self._timeout)
        request = digest(payload)
        sums = {
            p: self._checked(self._sites[p], p, messages[self._sites[p]], asked, request) for p in clients
        }  # fmt: skip
        received = sum(array.nbytes for message in messages.values() for array in message.arrays.values())
        seconds = time.perf_counter() - began
        self._watch(Exchange(round, tuple(sites), seconds, len(payload) * len(sites), received))
        return combine(self._population, sums, asked.radius, round=round, batch=batch, dtype=self._dtype)

    def _checked(self, site: str, client: int, message: Message, asked: Asked, request: str) -> Vector:
        """Return the sum in an answer; refuse what cannot be one."""
        batch, poisson = asked.batch, asked.batch.rate is not None
        size = self._population.sizes[client]
        expected = None if poisson else self._population.count(client, batch, asked.round)
        if message.kind != ANSWER or message.fields.get("request") != request:
            raise BadAnswer(f"site {site!r} answered another question than the {asked.kind} of round {asked.round}")
        if message.fields.get("count") != expected:
            raise BadAnswer(
                f"site {site!r} answered the {asked.kind} of round {asked.round} for {message.fields.get('count')!r} "
                f"records, expected {expected}"
            )
        value = message.arrays.get("value")
        if set(message.arrays) != {"value"} or value is None or value.shape != tuple(asked.params.shape):
            shape = None if value is None else value.shape
            raise BadAnswer(f"site {site!r} answered with shape {shape}, expected {tuple(asked.params.shape)}")
        if value.dtype != np.float64 or not np.isfinite(value).all():
            raise BadAnswer(f"site {site!r} answered round {asked.round} with values that are not finite doubles")
        units = 1 if self._population.unit == "client" else size if expected is None else expected
        longest = units * asked.radius * (1 + rounding_allowance(self._dtype) + SLACK)
        if float(np.linalg.norm(value)) > longest:
            raise BadAnswer(
                f"site {site!r} answered the {asked.kind} of round {asked.round} with a vector longer than clipping "
                "allows; nothing was released. Find out what runs at that site"
            )
        return torch.from_numpy(value).to(asked.params.device)


def answers(replies: Replies, sites: Sequence[str], timeout: float) -> Mapping[str, Message]:
    """Return the message of every site; raise where one is missing, refused, or sent something else."""
    missing = [site for site in sites if site not in replies.answers]
    if missing:
        why = "; ".join(f"{site}: {replies.failures.get(site, 'no answer')}" for site in missing)
        raise SitesMissing(
            f"no answer from {', '.join(map(repr, missing))} within {timeout:g} s ({why}). Nothing was released; the "
            "run is in its checkpoint and goes on with all sites when it is resumed"
        )
    found = {}
    for site in sites:
        try:
            found[site] = read(replies.answers[site])
        except BadMessage as error:
            raise BadAnswer(f"site {site!r} answered what is not a message: {error}. Nothing was released") from None
        if found[site].kind == REFUSAL:
            raise SiteRefused(str(found[site].fields.get("reason"))[:2000])
    return found
