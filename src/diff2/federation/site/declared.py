"""Which questions belong to an agreement: those that its algorithm and routine declare, and no others.

A site asks this before it answers. It needs no list of algorithms: the declaration that priced the run says what may be
asked, in which round, of which records, clipped to which radius.
"""

from __future__ import annotations

from ...algorithms import Algorithm
from ...questions import Population, Question
from ..faults import Refusal

CLOSE = 1e-12  # share by which a radius may exceed the formula: two machines may round differently


def require_declared(algorithm: Algorithm, population: Population, client: int, question: Question) -> None:
    """Refuse a question that the agreed algorithm does not put to this client in this round."""
    round = question.round
    declared = algorithm.declared(round, population) if 1 <= round <= algorithm.rounds else ()
    agreed = [
        one for one in declared if _place(one) == _place(question) and population.takes_part(client, round, one.batch)
    ]
    if not agreed or question.params is None or not isinstance(question.radius, float):
        raise Refusal(
            f"the agreed algorithm does not ask this site for a {question.kind} with purpose {question.purpose!r}, "
            f"step {question.step} and {question.batch} in round {round}"
        )
    largest = agreed[0].radius_at(question.params, question.previous)
    if question.radius > largest * (1 + CLOSE):
        raise Refusal(
            f"the {question.kind} of round {round} asks for the radius {question.radius:g}; the agreed formula allows "
            f"{largest:g}"
        )


def _place(question: Question) -> tuple[object, ...]:
    return question.kind, question.purpose, question.step, question.batch, question.leaves
