"""The plain estimators: a fresh gradient every round, with noise (DP-GD) or without (GD)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from .._vectors import State
from ..errors import BudgetExceeded
from ..questions import Estimate, Population, Question, Round
from ..routines import Routine
from .base import Algorithm


@dataclass(frozen=True)
class DPGD(Algorithm):
    """DP-GD: the clipped mean gradient with noise, every round. ``Diff2`` with ``restart_interval=1``, bit for bit.

    Args:
        rounds: R.
        clip_gradient: C_1, the radius for a record's gradient.
        routine: what to do with the estimate.
    """

    rounds: int
    clip_gradient: float
    routine: Routine
    name: ClassVar[str] = "dpgd"

    def questions(self, round: int, population: Population) -> Iterable[Question]:
        yield Question.gradient(self.clip_gradient)

    def estimate(self, state: State, round: Round) -> tuple[Estimate, State]:
        released = round.release(round.ask(round.questions[0], round.params))
        return Estimate(released.value, released.variance), state


@dataclass(frozen=True)
class GD(Algorithm):
    """Gradient descent without clipping and without noise: a reference, never private."""

    rounds: int
    routine: Routine
    name: ClassVar[str] = "gd"
    radii: ClassVar[tuple[str, ...]] = ()

    def questions(self, round: int, population: Population) -> Iterable[Question]:
        yield Question.gradient(math.inf)

    def check(self, population: Population, private: bool) -> None:
        if private:
            raise BudgetExceeded(
                "GD adds no noise, so it exceeds every finite epsilon; use DPGD or Diff2, or Budget(epsilon=math.inf)"
            )

    def estimate(self, state: State, round: Round) -> tuple[Estimate, State]:
        return Estimate(round.release(round.ask(round.questions[0], round.params)).value, 0.0), state
