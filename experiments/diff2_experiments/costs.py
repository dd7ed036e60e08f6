"""What a run costs: questions, bytes and gradient evaluations, counted from the questions that its algorithm declares.

Every question is an exchange of the federation: the iterates of the question go down to each site that is asked, in the
precision of the run, and one vector of doubles comes up from each. Headers, a few hundred bytes a message, are not
counted. The server also asks for every local step, so a round of an algorithm with local steps is several exchanges.

A gradient evaluation is one record at one iterate. A difference needs two, unless the pass over the same records at the
previous iterate was kept: engines keep passes over all records, from one round to the next, but none over a batch
(unless all records are too many for the memory of the cache, which is not counted here).
Questions of one step are about the same records and share the pass at the iterate they have in common.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from diff2.algorithms import Algorithm
from diff2.questions import DIFFERENCE, Batch, Population, Question

DOUBLE = 8  # bytes of a number in an answer


class Cost(NamedTuple):
    """Of a round, or of all rounds up to one."""

    rounds: int
    questions: int  # each is one exchange with the sites that are asked
    answers: int  # of all sites together
    bytes: int  # of vectors, down and up, of all sites together
    gradients: int  # records times iterates


def round_cost(algorithm: Algorithm, population: Population, round: int, dimension: int, itemsize: int) -> Cost:
    """Return what one round costs; of Poisson batches, what it costs on average.

    Args:
        dimension: the number of parameters.
        itemsize: bytes of a parameter as it is sent.
    """
    declared = algorithm.declared(round, population)
    asked = [_clients(question, population, round) for question in declared]
    down = sum(len(clients) * _iterates(question) for question, clients in zip(declared, asked, strict=True))
    answers = sum(map(len, asked))
    passes: dict[tuple[Batch, int], int] = {}  # over the records of a draw
    for question, clients in zip(declared, asked, strict=True):
        records = sum(population.count(p, question.batch, round) for p in clients)
        kept = question.batch.is_whole and population.everyone
        iterates = 1 if kept else _iterates(question)
        draw = (question.batch, question.step)
        passes[draw] = max(passes.get(draw, 0), records * iterates)
    return Cost(1, len(declared), answers, dimension * (itemsize * down + DOUBLE * answers), sum(passes.values()))


def total_costs(algorithm: Algorithm, population: Population, dimension: int, itemsize: int) -> list[Cost]:
    """Return what a run has cost after each of its rounds."""
    rounds = (
        round_cost(algorithm, population, number, dimension, itemsize) for number in range(1, algorithm.rounds + 1)
    )
    return list(itertools.accumulate(rounds, lambda before, now: Cost(*map(sum, zip(before, now, strict=True)))))


def _clients(question: Question, population: Population, round: int) -> tuple[int, ...]:
    return population.participants(round) if question.batch.clients is None else question.batch.clients


def _iterates(question: Question) -> int:
    return 2 if question.kind == DIFFERENCE else 1
