"""A round: what algorithms and routines are given, and the one way in which they may let something out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from .._vectors import Vector
from ..errors import InvalidArgument, LedgerError
from ..privacy.mechanism import BoundedMean, Mechanism, combined
from ..privacy.release import Release
from .population import Population
from .question import Question


class Cohort(Protocol):
    """Who answers: the one seam between an algorithm and the records. Vectors in, bounded means out; no record passes.

    Whether the records are in this process or at several sites is the cohort's business. So is drawing batches: who
    asks never learns which records answered.
    """

    @property
    def population(self) -> Population:
        """The units that are protected, and their public numbers."""
        ...

    def answer(self, question: Question) -> BoundedMean:
        """Return the mean that was asked for, with how far one unit can move it."""
        ...


class Estimate(NamedTuple):
    """A private estimate of the gradient."""

    value: Vector  # double precision
    variance: float  # of the noise in each coordinate, known exactly; 0 without noise


class Noisy(NamedTuple):
    """A released vector."""

    value: Vector  # double precision
    variance: float  # of the noise in each coordinate; of a leaf of a tree: in a node
    release: Release  # its line in the ledger


@dataclass
class Round:
    """Round r: the iterate, what was declared for it, whom to ask, and how much noise to add."""

    number: int  # r, from 1
    total: int  # R
    params: Vector  # x_{r-1}
    cohort: Cohort
    mechanism: Mechanism
    multipliers: Mapping[str, float]  # noise multiplier of each purpose, as calibrated
    questions: tuple[Question, ...]  # what the algorithm has declared
    routine_questions: tuple[Question, ...] = ()  # and its routine
    output_step: int = 0  # the local step whose starting point is wanted, if this round's is
    releases: list[Release] = field(default_factory=list)  # of this round
    visited: Vector | None = None  # the point that was wanted

    @property
    def population(self) -> Population:
        return self.cohort.population

    def ask(
        self, question: Question, params: Vector, previous: Vector | None = None, *, remember: bool = False
    ) -> BoundedMean:
        """Ask a declared question at these iterates.

        Args:
            remember: a difference from ``params`` may be asked for next.
        """
        declared = (*self.questions, *self.routine_questions)
        if question not in declared:
            raise InvalidArgument(
                f"round {self.number} asks for what was not declared: {question}. Declare it in questions(), which "
                f"says for this round: {list(declared)}"
            )
        return self.cohort.answer(question.at(self.number, params, previous, remember=remember))

    def release(self, *means: BoundedMean | tuple[float, BoundedMean]) -> Noisy:
        """Release a mean with noise, or a weighted sum of means of the same units: pairs (weight, mean)."""
        pairs = [mean if isinstance(mean, tuple) else (1.0, mean) for mean in means]
        mean = pairs[0][1] if len(pairs) == 1 and pairs[0][0] == 1 else combined(pairs)
        planned = mean.release
        if any(release.label == planned.label for release in self.releases):
            raise LedgerError(
                f"round {self.number} has released a {planned.purpose} of step {planned.step} already; one was "
                "declared and is paid for. Give each release of a round its own step"
            )
        value, release, variance = self.mechanism.release(mean, self.multipliers[planned.purpose])
        self.releases.append(release)
        return Noisy(_as_vector(value, self.params), variance, release)

    def visit(self, step: int, params: Vector) -> None:
        """Say that a local step starts from these parameters; the output may be drawn from such points."""
        if step == self.output_step:
            self.visited = params


def _as_vector(value: object, like: Vector) -> Vector:
    import torch

    return torch.as_tensor(value).to(like.device)
