"""An open run at a site: which requests belong to it, and how they are answered.

Those belong that the agreed algorithm and its routine declare, and no others. That needs no list of algorithms: the
declaration that priced the run says what may be asked, in which round, about which records, clipped to which radius.
"""

from collections.abc import Sequence
from dataclasses import replace

from ...algorithms import Algorithm
from ...cohorts.bounds import bounded
from ...cohorts.per_client import ClientSums
from ...planning import Plan
from ...privacy import NoiseSource, Release
from ...privacy.release import NONE
from ...questions import Population, Question
from ..agreement import Agreement
from ..faults import Refusal
from ..own_noise.noise import MAX_TOTAL, SiteNoise
from ..sealed.keys import MAX_TOTAL as MAX_SEALED_TOTAL
from ..wire.messages import Message, digest
from ..wire.request import ANSWER, Request, as_array, read_request
from .ledger import Answer
from .records import SiteRecords

TOLERANCE = 1e-12  # fraction by which a radius may exceed the rule: two machines may round differently


class OpenRun:
    """What a site has prepared for one run."""

    def __init__(self, agreement: Agreement, plan: Plan, client: int, records: SiteRecords, source: NoiseSource):
        """Take part as ``client``; ``source`` draws batches, masks and noise."""
        engine, stochastic = agreement.build_engine()
        self.engine, self.threads = engine.name, engine.threads
        self.agreement = agreement
        self._population = plan.population
        self._client = client
        self._dimension = len(engine.flat)
        self._sums = ClientSums(
            engine, records.client, client, plan.population, source=source, stochastic=stochastic, groups=records.groups
        )
        self._noise: SiteNoise | None = None  # where the sites add it
        if agreement.trust.noise == "sites":
            limit = MAX_SEALED_TOTAL if agreement.trust.sealed else MAX_TOTAL
            honest = agreement.trust.honest_of(len(plan.client_sizes))
            self._noise = SiteNoise(plan, honest, client, self._sums, source, limit)

    def read(self, message: Message, *, sealed: bool) -> Request:
        """Return the request in a message; refuse one that does not belong to the agreement."""
        if self.agreement.trust.sealed != sealed:
            raise Refusal("in this run requests must " + ("not be sealed" if sealed else "be sealed"))
        request = read_request(message, self._dimension, self.agreement.dtype)
        if bool(request.multiplier) != (self._noise is not None):
            who = "the server adds" if request.multiplier else "the sites add"
            raise Refusal(f"{request} is not answered: in this run {who} the noise")
        for _, question in request.parts:
            require_declared(self.agreement.algorithm, self._population, self._client, question)
        return request

    def identity(self, message: Message, payload: bytes) -> str:
        """Return the digest by which a request is known."""
        return digest(payload)

    def answer(
        self, request: Request, sent: str, sites: Sequence[str], answers: Sequence[Answer]
    ) -> tuple[Message, Release, str]:
        """Return the answer, what it is by itself as a release, and of a leaf of a tree the digest.

        Args:
            sent: digest of the request, by which the answer refers to it.
            sites: of the run, in order.
            answers: what this site has answered in this run so far.
        """
        if self._noise is None:
            return self._clipped_sum(request, sent)
        found = self._noise.answer(request, sent, [(answer.release, answer.leaf) for answer in answers])
        return found.message(sent, sites), found.release, found.leaf

    def _clipped_sum(self, request: Request, sent: str) -> tuple[Message, Release, str]:
        """Answer with the clipped sum; the server adds the noise."""
        question, population = request.question, self._population
        drawn = question.batch.rate is not None
        count = None if drawn else population.count(self._client, question.batch, question.round)
        value = as_array(self._sums.answer(question))
        release = bounded(population, question, None, 0.0).release._replace(mechanism=NONE)
        return Message(ANSWER, {"request": sent, "count": count}, {"value": value}), release, ""


def require_declared(algorithm: Algorithm, population: Population, client: int, question: Question) -> None:
    """Refuse a question that the agreed algorithm does not ask this client in this round."""
    round = question.round
    declared = algorithm.declared(round, population) if 1 <= round <= algorithm.rounds else ()
    agreed = [
        one
        for one in declared
        if _as_declared(one) == _as_declared(question) and population.takes_part(client, round, one.batch)
    ]
    if not agreed or question.params is None or not isinstance(question.radius, float):
        raise Refusal(
            f"the agreed algorithm does not ask this site for a {question.kind} with purpose {question.purpose!r}, "
            f"step {question.step} and {question.batch} in round {round}"
        )
    limit = max(one.radius_at(question.params, question.previous) for one in agreed)
    if question.radius > limit * (1 + TOLERANCE):
        raise Refusal(
            f"the {question.kind} of round {round} asks for the radius {question.radius:g}; the agreed rule allows "
            f"{limit:g}"
        )


def _as_declared(question: Question) -> Question:
    """Return the question without what is known only once it is asked."""
    return replace(question, radius=0.0, round=0)
