r"""How far a gradient estimate is from the gradient, along a run, and why: noise, or clipping. All of it leaks.

In every round the estimate is computed twice from the same clipped means: with their noise, which is the run, and
without. The second, :math:`b_r`, sees the noise scales of the ledger, so that restarts and weights are the same. Then

.. math::
    \tilde v_r - \nabla f(x_{r-1}) = (\tilde v_r - b_r) + (b_r - \nabla f(x_{r-1}))

is the sum of what the noise adds, which a plan can predict, and of what clipping takes away, which it cannot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from diff2._vectors import Vector
from diff2.cohorts.pooled import LocalCohort
from diff2.errors import InvalidArgument
from diff2.privacy import BoundedMean, Release, Released
from diff2.questions import Population, Question, Round
from diff2.routines import GradientDescent
from diff2.training.loop import Training

from .gradient_norms import measured_rounds


class Errors(NamedTuple):
    """Mean squared lengths over rounds of a run."""

    total: float  # of the estimate minus the gradient
    noise: float
    clipping: float
    known: float  # of the noise, as the run knows it from its noise scales
    gradient: float  # of the gradient itself
    step_length: float  # root mean square of the distance of two iterates


@dataclass
class _Watched:
    """A cohort whose answers are written down."""

    cohort: LocalCohort
    answers: list[BoundedMean] = field(default_factory=list)

    @property
    def population(self) -> Population:
        return self.cohort.population

    def answer(self, question: Question) -> BoundedMean:
        self.answers.append(self.cohort.answer(question))
        return self.answers[-1]


@dataclass
class _Replayed:
    """A cohort and a mechanism in one: the answers of a round once more, and releases without their noise."""

    population: Population
    answers: list[BoundedMean]
    releases: list[Release]

    def answer(self, question: Question) -> BoundedMean:
        return self.answers.pop(0)

    def release(self, mean: BoundedMean, multiplier: float) -> Released:
        if mean.value is None:
            raise ValueError("the value is not here")
        release = self.releases.pop(0)
        return Released(mean.value, release, release.noise_std**2)


class Found(NamedTuple):
    """Errors of all rounds; and of those after the first tenth, which leaves out the long steps of the start."""

    whole: Errors
    later: Errors


def estimate_errors(training: Training, *, measured: int = 500, seed: int = 0) -> Found:
    """Run the training from its start and return the errors of its estimates.

    Args:
        training: with gradient descent at a constant rate, whose steps tell the estimate.
        measured: in how many rounds the gradient is computed; drawn by ``seed``, spread over the run.
    """
    algorithm, cohort = training.plan.algorithm, training.cohort
    routine = algorithm.routine
    if not isinstance(routine, GradientDescent) or routine.schedule != "constant":
        raise InvalidArgument(f"errors are measured for gradient descent at a constant rate, got {routine}")
    if not isinstance(cohort, LocalCohort):
        raise InvalidArgument("exact gradients need all clients in this process")
    watched = _Watched(cohort)
    training = replace(training, cohort=watched)
    weights = measured_rounds(algorithm.rounds, seed, head=0, tail=measured)
    state, steps, squares = training.init(), list[float](), dict[int, Sequence[float]]()
    silent = algorithm.init(training.start, cohort.population)
    for r in range(1, algorithm.rounds + 1):
        before, ledger = state.params, training.mechanism.ledger
        released = len(ledger)
        watched.answers.clear()
        state, info = training.step(state)
        replayed: Any = _Replayed(cohort.population, list(watched.answers), ledger.releases[released:])
        questions = tuple(algorithm.questions(r, cohort.population))
        round = Round(r, algorithm.rounds, before, replayed, replayed, training.plan.multipliers, questions)
        quiet, silent = algorithm.estimate(silent, round)
        steps.append(info.step_norm**2)
        if r - 1 in weights:
            estimate = (before.double() - state.params.double()) / routine.learning_rate
            known = estimate.numel() * info.estimate_std**2
            squares[r - 1] = (*_squares(estimate, quiet.value, cohort.exact_gradient(before)), known)
    return Found(*(_means(weights, squares, steps, first) for first in (0, algorithm.rounds // 10)))


def _means(
    weights: Mapping[int, float], squares: Mapping[int, Sequence[float]], steps: Sequence[float], first: int
) -> Errors:
    """Return the errors of the rounds from ``first``, counted from 0."""
    share = math.fsum(weight for r, weight in weights.items() if r >= first)
    total, noise, clipping, gradient, known = (
        math.fsum(weight * squares[r][i] for r, weight in weights.items() if r >= first) / share for i in range(5)
    )
    return Errors(total, noise, clipping, known, gradient, math.sqrt(math.fsum(steps[first:]) / len(steps[first:])))


def _squares(estimate: Vector, quiet: Vector, gradient: Vector) -> Sequence[float]:
    """Return the squared lengths of the error, of its two parts, and of the gradient."""
    parts = (estimate - gradient, estimate - quiet, quiet - gradient, gradient)
    return [float(torch.linalg.vector_norm(part) ** 2) for part in parts]
