"""Which questions belong to an agreement: in which round, on which records, clipped to which radius.

A site asks this before it answers. A question that the algorithm never puts, or puts elsewhere, is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._types import Vector
from ...algorithms import (
    DPGD,
    DPSGD,
    DPSRM,
    GD,
    SRNSGD,
    Algorithm,
    Diff2,
    DPFedAvg,
    DriftDiff2,
    FusedDiff2,
    RecursiveDiff2,
)
from ...algorithms.base import difference_radius, distance
from ...questions.population import ALL, Batch, Population
from ...questions.round import Round
from ...routines import Averaging, BVRLocalSGD
from ..faults import Refusal

if TYPE_CHECKING:
    from ..wire.requests import Asked

GRADIENT, DIFFERENCE = "gradient", "difference"
Radius = Callable[[Vector, Vector], float]  # of the two iterates; a gradient's depends on neither
CLOSE = 1e-12  # share by which a radius may exceed the formula: two machines may round differently


class Question(NamedTuple):
    """A question that may be put in a round."""

    kind: str
    step: int
    batch: Batch
    radius: Radius  # the largest
    inner: float = math.inf  # to which gradients are clipped before their difference is taken


def agreed_questions(algorithm: Algorithm, population: Population, round: int, client: int) -> list[Question]:
    """Return what a client may be asked in a round."""
    if not 1 <= round <= algorithm.rounds:
        return []
    found = [*_of_estimator(algorithm, population, round, client), *_of_routine(algorithm, population, round)]
    return [question for question in found if _is_asked(question.batch, population, round, client)]


def check_agreed(algorithm: Algorithm, population: Population, client: int, asked: Asked) -> None:
    """Refuse a question that does not belong to the agreement."""
    place = (asked.kind, asked.step, asked.batch)
    found = agreed_questions(algorithm, population, asked.round, client)
    agreed = [question for question in found if (question.kind, question.step, question.batch) == place]
    if not agreed:
        raise Refusal(
            f"the agreed algorithm does not ask this site for a {asked.kind} of step {asked.step} with "
            f"{asked.batch} in round {asked.round}"
        )
    previous = asked.params if asked.previous is None else asked.previous
    largest = agreed[0].radius(asked.params, previous)
    if asked.radius > largest * (1 + CLOSE) or asked.inner != agreed[0].inner:
        raise Refusal(
            f"the {asked.kind} of round {asked.round} asks for the radius {asked.radius:g} (inner "
            f"{asked.inner:g}); the agreed formula allows {largest:g} (inner {agreed[0].inner:g})"
        )


def _is_asked(batch: Batch, population: Population, round: int, client: int) -> bool:
    if batch.clients is not None:
        return client in batch.clients
    drawn = population.client_order == "random" and not population.everyone  # in secret: it may be anyone's turn
    return drawn or client in population.participants(round)


def _of_estimator(algorithm: Any, population: Population, r: int, client: int) -> list[Question]:
    radius = getattr(algorithm, "clip_gradient", math.inf)
    inner = radius if getattr(algorithm, "clipping", "separate") == "telescoped" else math.inf

    def gradient(batch: Batch = ALL, step: int = 0) -> Question:
        return Question(GRADIENT, step, batch, lambda params, previous: radius)

    def smooth(cap: float) -> Question:
        def largest(params: Vector, previous: Vector) -> float:
            return difference_radius(params, previous, algorithm.clip_smoothness, cap)

        return Question(DIFFERENCE, 0, ALL, largest, inner)

    match algorithm:
        case DPGD() | GD():
            return [gradient()]
        case Diff2():
            restarts = (r - 1) % algorithm.restart_interval == 0
            return [gradient() if restarts else smooth(2 * radius if algorithm.cap else math.inf)]
        case DriftDiff2():  # restarts when that pays
            return [gradient(), smooth(2 * radius)]
        case FusedDiff2():
            fresh = [gradient(step=1)] if (r - 1) % algorithm.restart_interval == 0 else []
            return fresh + ([smooth(2 * radius)] if r > 1 else [])
        case RecursiveDiff2():
            return [gradient()] + ([smooth(2 * radius)] if r > 1 else [])
        case DPSGD(sampling="fixed"):
            return [gradient(Batch(size=algorithm.batch_size))]
        case DPSGD():
            return [gradient(Batch(rate=algorithm.batch_size / sum(population.sizes)))]
        case DPSRM():
            batch, longest = Batch(size=algorithm.batch_size), algorithm.clip_difference
            change = Question(DIFFERENCE, 0, batch, lambda params, previous: longest)
            return [gradient(batch), *([change] if r > 1 else [])]
        case SRNSGD():
            epoch, j = divmod(r - 1, algorithm.batches)
            part = Batch(part=(j, algorithm.batches))
            if epoch % algorithm.restart_epochs == 0:
                return [gradient(part)]
            path = algorithm.clip_smoothness * algorithm.longest_path(epoch, _bare_round(r, algorithm.rounds))
            return [Question(DIFFERENCE, 0, part, lambda params, previous: path)]
        case DPFedAvg():
            batch, steps = Batch(clients=(client,), size=algorithm.batch_size), algorithm.local_steps
            mine = [gradient(batch, client * steps + k) for k in range(steps)]
            return mine if client in population.participants(r) else []
    return []


def _of_routine(algorithm: Any, population: Population, r: int) -> list[Question]:
    routine = algorithm.routine
    while isinstance(routine, Averaging):
        routine = routine.routine
    if not isinstance(routine, BVRLocalSGD):
        return []
    smoothness = routine.local_clip_smoothness
    batch = Batch(clients=(r % len(population.sizes),), size=routine.batch_size)

    def largest(params: Vector, previous: Vector) -> float:
        apart = distance(params, previous)
        return smoothness * apart if apart > 0 else 0.0

    return [Question(DIFFERENCE, k, batch, largest) for k in range(2, routine.local_steps + 1)]


def _bare_round(number: int, total: int) -> Round:
    """Return a round for what depends on its number alone."""
    nothing: Any = None
    return Round(number, total, nothing, nothing, nothing, {}, math.inf)
