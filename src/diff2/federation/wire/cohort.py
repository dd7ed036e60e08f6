"""The cohort whose records are at sites: it sends every question to them and checks every answer.

Under one seed, ``RemoteCohort`` gives the same bytes as ``PerClientCohort``: both combine the sums with the same
function, and a site computes its sum with the same class. If a site does not answer, refuses, or sends a vector longer
than clipping allows, the run stops before anything is released. The mean is never taken over fewer sites than the noise
was calibrated for.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from ..._vectors import Vector
from ...cohorts.bounds import combine, zero_mean
from ...cohorts.draws import asked_clients
from ...gradients import rounding_allowance
from ...privacy import BoundedMean, NoiseSource
from ...questions import Population, Question
from ..faults import BadAnswer, BadMessage, SiteRefused, SitesMissing
from .messages import REFUSAL, Message, digest, read, write
from .request import ANSWER, Request
from .transport import Replies, Transport

TOLERANCE = 1e-9  # of a length, on top of the rounding of sums over records


class Exchange(NamedTuple):
    """Statistics of one question and its answers, for progress reports."""

    round: int
    sites: tuple[str, ...]
    seconds: float
    sent: int  # bytes, to all sites together
    received: int  # bytes of the arrays that all sites together answered with


@dataclass(frozen=True)
class Sites:
    """The sites of a run, in the order of its clients, and how they are asked.

    Args:
        timeout: seconds a site has for an answer.
        watch: called after every exchange.
    """

    transport: Transport
    names: tuple[str, ...]
    timeout: float
    watch: Callable[[Exchange], None]

    def tell(self, kind: str, fields: Mapping[str, Any]) -> Mapping[str, Message]:
        """Return what all sites answer to a message about the run itself."""
        replies = self.transport.broadcast(write(Message(kind, fields)), self.names, self.timeout)
        return read_answers(replies, self.names, self.timeout)

    def ask(self, message: Message, round: int, clients: Sequence[int]) -> dict[int, Message]:
        """Ask these clients, count the exchange, and return the message of each."""
        payload, names, began = write(message), [self.names[p] for p in clients], time.perf_counter()
        found = read_answers(self.transport.broadcast(payload, names, self.timeout), names, self.timeout)
        received = sum(array.nbytes for message in found.values() for array in message.arrays.values())
        self.watch(Exchange(round, tuple(names), time.perf_counter() - began, len(payload) * len(names), received))
        return {p: found[self.names[p]] for p in clients}


@dataclass(frozen=True)
class RemoteCohort:
    """The sites of a run, as one cohort; ``source`` draws the clients of a round, where that is secret."""

    sites: Sites
    run: str  # which they have opened
    population: Population
    source: NoiseSource

    def answer(self, question: Question) -> BoundedMean:
        self.population.check(question.batch)
        if question.radius == 0:  # equal iterates: no site needs to be asked
            return zero_mean(self.population, question)
        clients = asked_clients(self.population, question, self.source)
        messages, request = self._exchange(Request(self.run, ((1.0, question),)), clients)
        sums = {p: self._checked(p, messages[p], question, request) for p in clients}
        return combine(self.population, question, sums)

    def _exchange(self, request: Request, clients: Sequence[int]) -> tuple[dict[int, Message], str]:
        """Ask these clients; return their messages, and the digest by which they refer to the request."""
        message = request.message()
        return self.sites.ask(message, request.question.round, clients), digest(write(message))

    def _checked(self, client: int, message: Message, question: Question, request: str) -> Vector:
        """Return the sum in an answer; refuse an answer that cannot be right."""
        site, population, batch = self.sites.names[client], self.population, question.batch
        what, params, radius = f"the {question.kind} of round {question.round}", question.params, question.radius
        if params is None or not isinstance(radius, float):
            raise ValueError(f"{what} has no iterate or no radius yet")
        expected = None if batch.rate is not None else population.count(client, batch, question.round)
        value = answered(site, message, what, request, "value", np.float64, params.numel())
        if message.fields.get("count") != expected:
            raise BadAnswer(
                f"site {site!r} answered {what} for {message.fields.get('count')!r} records, expected {expected}"
            )
        units = 1 if population.unit == "client" else population.sizes[client] if expected is None else expected
        limit = units * radius * (1 + rounding_allowance(params.dtype) + TOLERANCE)
        require_length(f"site {site!r} answered {what} with a vector", value, limit, "clipping allows")
        return torch.from_numpy(value).to(params.device)


def answered(
    site: str, message: Message, what: object, request: str, name: str, dtype: type[np.generic], dimension: int
) -> np.ndarray:
    """Return the one array of an answer; refuse an answer to another request, or of another shape or type.

    Args:
        what: was asked, for messages.
        request: the digest of the request.
        name: of the array, a vector of this many finite numbers of this type.
    """
    value = message.arrays.get(name)
    if message.kind != ANSWER or message.fields.get("request") != request:
        raise BadAnswer(f"site {site!r} answered another question than {what}")
    if set(message.arrays) != {name} or value is None or value.shape != (dimension,):
        shape = None if value is None else value.shape
        raise BadAnswer(f"site {site!r} answered {what} with shape {shape}, expected {(dimension,)}")
    if value.dtype != dtype or not np.isfinite(value).all():
        kind = "finite doubles" if dtype is np.float64 else "whole numbers"
        raise BadAnswer(f"site {site!r} answered {what} with values that are not {kind}")
    return value


def require_length(what: str, value: np.ndarray, limit: float, reason: str) -> None:
    """Refuse a vector that is longer than clipping, or clipping and noise, can make it."""
    if float(np.linalg.norm(value.astype(np.float64))) > limit:
        raise BadAnswer(f"{what} longer than {reason}; nothing was released. Check the software there")


def read_answers(replies: Replies, sites: Sequence[str], timeout: float) -> Mapping[str, Message]:
    """Return the message of every site; raise if one is missing, refused, or is not a message."""
    missing = [site for site in sites if site not in replies.answers]
    if missing:
        why = "; ".join(f"{site}: {replies.failures.get(site, 'no answer')}" for site in missing)
        raise SitesMissing(
            f"no answer from {', '.join(map(repr, missing))} within {timeout:g} s ({why}). Nothing was released; the "
            "run can be resumed from its checkpoint once all sites are back"
        )
    found = {}
    for site in sites:
        try:
            found[site] = read(replies.answers[site])
        except BadMessage as error:
            raise BadAnswer(f"site {site!r} sent no valid message: {error}. Nothing was released") from None
        if found[site].kind == REFUSAL:
            raise SiteRefused(str(found[site].fields.get("reason"))[:2000])
    return found
