"""Sealed runs: a coordinator site trains; the server relays messages and adds ciphertexts.

The coordinator runs the same loop, ledger and checkpoint as a server would. Its questions go to all sites, itself
included, through the server and encrypted; each site checks them as it would check a server's, adds its noise, and
encrypts its answer. The server adds the answers and sends only the sum to the coordinator. Every site has the secret to
decrypt it; no site receives the answer of another. One site runs the loop rather than all of them, because the last
bits of a norm differ between processors, and models that must agree bit for bit would diverge.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..._vectors import Vector
from ...training.loop import Training
from ..faults import BadAnswer
from ..own_noise.cohort import OwnNoiseCohort
from ..own_noise.noise import NoiseScale, max_answer_norm
from ..wire.cohort import Exchange, read_answers, require_length
from ..wire.messages import Message, digest, read, write
from ..wire.request import Request, as_array, whole_number
from ..wire.transport import Replies, Transport
from .keys import CIPHERTEXTS, MAX_TOTAL, MODEL, STORED, TOTAL, SiteKeys, added


class Adder(Transport, Protocol):
    """What the coordinator needs from the server: a transport that can also add."""

    def total(self, payload: bytes, sites: Sequence[str], timeout: float) -> bytes:
        """Send sealed bytes to these sites, add the ciphertexts they answer, and return the sum as a message."""
        ...


class AddingServer:
    """The server of a sealed run. It has no key and computes nothing but sums of ciphertexts.

    It is trusted with one thing: to hand out only the sums that the sites have answered for. (The coordinator could
    decrypt the answer of a single site, if it were given it.)
    """

    def __init__(self, transport: Transport):
        self._transport = transport

    def members(self) -> list[str]:
        return self._transport.members()

    def broadcast(self, payload: bytes, sites: Iterable[str], timeout: float) -> Replies:
        return self._transport.broadcast(payload, sites, timeout)

    def total(self, payload: bytes, sites: Sequence[str], timeout: float) -> bytes:
        messages = read_answers(self._transport.broadcast(payload, sites, timeout), sites, timeout)
        request = digest(payload)
        for site in sites:
            fields = messages[site].fields
            if messages[site].kind != CIPHERTEXTS or fields.get("request") != request:
                raise BadAnswer(f"site {site!r} answered another question than the sealed one it was sent")
            if fields.get("together") != list(sites):
                raise BadAnswer(
                    f"site {site!r} answered for a sum over {fields.get('together')}, but the request is for "
                    f"{list(sites)}; a sum over fewer sites would have less noise, and is not computed"
                )
        arrays = added([messages[site].arrays for site in sites])
        received = sum(array.nbytes for message in messages.values() for array in message.arrays.values())
        return write(Message(TOTAL, {"request": request, "sites": list(sites), "received": received}, arrays))


@dataclass(frozen=True)
class SealedCohort(OwnNoiseCohort):
    """Sites whose answers are encrypted, asked by one of them; ``keys`` are those that all sites share."""

    adder: Adder  # the transport of the sites
    keys: SiteKeys

    def total(self, request: Request, scale: NoiseScale) -> np.ndarray:
        population, question = self.population, request.question
        population.check(question.batch)
        sites = [self.sites.names[p] for p in scale.clients]
        limit = sum(max_answer_norm(population, p, request, scale, MAX_TOTAL) for p in scale.clients)
        inner, began = write(request.message()), time.perf_counter()
        payload = self.keys.seal(inner)
        message = read(self.adder.total(payload, sites, self.sites.timeout))
        if message.kind != TOTAL or message.fields.get("request") != digest(payload):
            raise BadAnswer("the server sent the sum of another question")
        steps = self.keys.decrypt(message.arrays, scale.mean.release.dimension, digest(inner), sites)
        require_length(f"the sum of the sites' answers to {request} is", steps, limit, "clipping and noise allow")
        seconds, received = time.perf_counter() - began, whole_number(message.fields, "received")
        self.sites.watch(Exchange(question.round, tuple(sites), seconds, len(payload) * len(sites), received))
        return steps


def distribute_model(
    training: Training, params: Vector, transport: Transport, keys: SiteKeys, timeout: float
) -> list[str]:
    """Send the trained model, sealed, to all sites; return the sites that did not confirm it."""
    sites, run = (training.directory.settings[name] for name in ("sites", "run"))
    payload = keys.seal(write(Message(MODEL, {"run": run}, {"params": as_array(params)})))
    replies = transport.broadcast(payload, sites, timeout)
    return [site for site in sites if site not in replies.answers or read(replies.answers[site]).kind != STORED]
