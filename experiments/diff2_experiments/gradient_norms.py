"""Squared gradient norms along a run, exact: the quantity that the paper's theorems bound. They leak.

The theorems speak of the mean over x_0, ..., x_{R-1}. In a long run some of these are measured, so that the mean stays
unbiased.
"""

from __future__ import annotations

import math

import numpy as np

from diff2._vectors import Vector
from diff2.cohorts.pooled import LocalCohort
from diff2.errors import InvalidArgument
from diff2.questions import Question
from diff2.training.loop import RoundInfo, Training, TrainState

HEAD, TAIL = 500, 1500  # rounds that are measured: all of the first, and so many of the others
CLIPPING_ROUNDS = 20


class GradientNorms:
    """Squared gradient norms at x_0, ..., x_{R-1}, or at some of them; and what clipping does to the gradient."""

    def __init__(self, training: Training, radius: float, seed: int):
        if not isinstance(training.cohort, LocalCohort):
            raise InvalidArgument("exact gradients need all clients in this process")
        self._cohort = training.cohort
        self._radius = radius
        self._weights = measured_rounds(training.plan.algorithm.rounds, seed)
        self._probes = set(list(self._weights)[:: max(1, len(self._weights) // CLIPPING_ROUNDS)])
        self._clipped: list[float] = []
        self.norms: dict[int, float] = {}
        self._measure(0, training.start)

    def after(self, state: TrainState, info: RoundInfo) -> None:
        """Called after each round."""
        self._measure(state.round, state.params)

    @property
    def mean(self) -> float:
        """The mean over all rounds: what the theorem bounds."""
        return math.fsum(weight * self.norms[r] for r, weight in self._weights.items())

    @property
    def clipping(self) -> float:
        """How much of the gradient's length clipping takes or adds, root mean square over some rounds."""
        return math.sqrt(sum(self._clipped) / len(self._clipped))

    def _measure(self, r: int, params: Vector) -> None:
        if r not in self._weights:
            return
        exact = self._cohort.exact_gradient(params)
        self.norms[r] = float(exact.square().sum())
        if r in self._probes:
            clipped = self._cohort.answer(Question.gradient(self._radius).at(1, params)).value
            self._clipped.append(float(np.square(clipped - exact.numpy()).sum()) / max(self.norms[r], 1e-300))


def measured_rounds(rounds: int, seed: int, *, head: int = HEAD, tail: int = TAIL) -> dict[int, float]:
    """Return which of x_0, ..., x_{R-1} to measure and their weights in the mean, which add up to 1.

    All of the first, where the norm falls fast; of the others one drawn from each of equal parts, so that the mean is
    unbiased, whatever their place in a cycle.

    >>> few, many = measured_rounds(300, seed=0), measured_rounds(40_000, seed=0)
    >>> len(few), len(many), round(sum(many.values()), 9)
    (300, 2000, 1.0)
    """
    head = min(rounds, head)
    weights = dict.fromkeys(range(head), 1 / rounds)
    parts = np.array_split(np.arange(head, rounds), min(tail, max(rounds - head, 1)))
    generator = np.random.default_rng([seed, rounds])
    return weights | {int(generator.choice(part)): len(part) / rounds for part in parts if len(part)}
