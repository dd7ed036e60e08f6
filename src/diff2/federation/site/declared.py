"""Which questions belong to an agreement: those that its algorithm and routine declare, and no others.

A site checks this before it answers. It needs no list of algorithms: the declaration that priced the run says what may
be asked, in which round, about which records, clipped to which radius.
"""

from dataclasses import replace

from ...algorithms import Algorithm
from ...questions import Population, Question
from ..faults import Refusal

TOLERANCE = 1e-12  # fraction by which a radius may exceed the rule: two machines may round differently


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
