r"""The DIFF2 gradient estimator: a private running sum of gradient differences (Algorithm 1).

.. math::
    \tilde v_r &= \text{noisy clipped gradient at } x_{r-1}                                  & (r-1) \bmod T = 0 \\
    \tilde v_r &= \tilde v_{r-1} + \text{noisy clipped difference } x_{r-2} \to x_{r-1}      & \text{otherwise}

The restarts of the paper come every T rounds; with ``early_restarts`` the first cycles are shorter (``restarts.py``).

A difference is clipped to :math:`C_2 \lVert x_{r-1} - x_{r-2} \rVert`, and with ``cap`` to :math:`2 C_1` where that is
smaller (two gradients of norm at most :math:`C_1` differ by no more). The radius depends on released iterates alone,
hence costs no privacy. The noise is added to the increment first and the sum to the previous estimate afterwards: in
floating point the other order would round before the noise is there to hide it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from .._validate import at_least, positive
from .._vectors import State, Vector, zeros
from ..errors import InvalidArgument, NoGainWarning
from ..questions import DIFFERENCE, GRADIENT, LOCAL, Estimate, Population, Question, Round, Smoothness
from ..routines import GradientDescent, Routine
from .base import Algorithm, above_one
from .dpgd import DPGD
from .interval import AUTO, Interval, best_interval
from .restarts import Restarts


@dataclass(frozen=True)
class Diff2(Algorithm):
    """DIFF2 with any routine; with ``GradientDescent`` it is DIFF2-GD, with ``BVRLocalSGD`` DIFF2-BVR-L-SGD.

    Args:
        rounds: R.
        restart_interval: T. A fresh gradient every T rounds; 1 is DP-GD. ``"auto"`` chooses it from public numbers
            when the run is built, with gradient descent as the routine (``interval.py``), and restarts early.
        clip_gradient: C_1, the radius for a record's gradient.
        clip_smoothness: C_2; a record's difference is clipped to C_2 times the distance between the two iterates.
        routine: what to do with the estimate.
        budget_split: u > 1: restarts get the share 1/u of the budget, differences the rest. Where the routine makes
            releases itself it gets a third, and restarts and differences share the rest; or give the paper's pair
            (u_1, u_2) with 1/u_1 + 1/u_2 < 1, which leaves the rest to the routine.
        cap: clip differences to at most 2 C_1. ``False`` is the paper.
        early_restarts: restart in rounds 1, 4, 16, 64, ..., too, for as long as those are closer together than T.
            ``False`` is the paper.
    """

    rounds: int
    restart_interval: int | str
    clip_gradient: float
    clip_smoothness: float
    routine: Routine
    budget_split: float | tuple[float, float] = 1.25
    cap: bool = True
    early_restarts: bool = False
    name: ClassVar[str] = "diff2"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.restart_interval != AUTO:
            at_least("restart_interval", self.restart_interval, 1)
        positive("clip_smoothness", self.clip_smoothness, infinite=True)
        if isinstance(self.budget_split, list):  # as run files write a pair
            object.__setattr__(self, "budget_split", tuple(self.budget_split))
        _check_split(self.budget_split)

    def questions(self, round: int, population: Population) -> Iterable[Question]:
        if self.restarts.at(round):
            yield Question.gradient(self.clip_gradient)
        else:
            cap = 2 * self.clip_gradient if self.cap else math.inf
            yield Question.difference(Smoothness(self.clip_smoothness, cap))

    def shares(self) -> Mapping[str, float]:
        if isinstance(self.budget_split, tuple):
            first, second = (1 / u for u in self.budget_split)
            return {GRADIENT: first, DIFFERENCE: second, LOCAL: 1 - first - second}
        return {GRADIENT: 1 / self.budget_split, DIFFERENCE: 1 - 1 / self.budget_split}

    def check(self, population: Population, private: bool) -> None:
        super().check(population, private)
        if private and self.T > 1 and not self.cap and math.isinf(self.clip_smoothness):
            raise InvalidArgument(
                "expected clip_smoothness to be finite in a private run with cap=False, got clip_smoothness=inf; "
                "without clipping no noise hides a record. Choose a radius"
            )

    def settled(self, sigma: Callable[[Algorithm], float], dimension: int | None) -> Diff2:
        if self.restart_interval != AUTO:
            return self
        if dimension is None:
            raise InvalidArgument("restart_interval='auto' needs dimension=..., the number of parameters of the model")
        found = self.interval(sigma(DPGD(self.rounds, self.clip_gradient, self.routine)), dimension)
        if found.restart_interval == 1:
            warnings.warn(found.reason, NoGainWarning, stacklevel=3)
        T = found.restart_interval
        return replace(self, restart_interval=T, early_restarts=T > 1)

    def interval(self, sigma: float, dimension: int) -> Interval:
        """Return the restart interval for DP-GD's noise of this standard deviation, in units of C1."""
        routine, split = self.routine, self.budget_split
        if not isinstance(routine, GradientDescent) or isinstance(split, tuple) or math.isinf(self.clip_smoothness):
            raise InvalidArgument(
                "restart_interval='auto' knows gradient descent with one budget_split and a finite clip_smoothness, "
                f"got routine={routine!r}, budget_split={split!r}, clip_smoothness={self.clip_smoothness!r}; give a "
                "number"
            )
        step, noise = routine.learning_rate * self.clip_smoothness, dimension * sigma**2
        return best_interval(self.rounds, step, noise, split, routine.schedule)

    def init(self, params: Vector, population: Population) -> State:
        # x_{-1} and v_0 are never used: round 1 is a restart.
        return {"previous_params": params.clone(), "estimate": zeros(params), "variance": 0.0}

    def estimate(self, state: State, round: Round) -> tuple[Estimate, State]:
        question, r = round.questions[0], round.number
        if question.kind == GRADIENT:
            mean = round.ask(question, round.params, remember=r < self.rounds and not self.restarts.at(r + 1))
            base, variance = 0.0, 0.0
        else:
            mean = round.ask(question, round.params, state["previous_params"])
            base, variance = state["estimate"], state["variance"]
        released = round.release(mean)
        estimate = Estimate(base + released.value, variance + released.variance)
        return estimate, {
            "previous_params": round.params,
            "estimate": estimate.value,
            "variance": estimate.variance,
        }

    @property
    def T(self) -> int:
        """The restart interval, where it is a number."""
        if self.restart_interval == AUTO:
            raise InvalidArgument("restart_interval='auto' is chosen by plan(..., dimension=...); give a number here")
        return int(self.restart_interval)

    @property
    def restarts(self) -> Restarts:
        """The rounds that take a fresh gradient, where T is a number."""
        return Restarts(self.T, self.early_restarts)


def _check_split(budget_split: Any) -> None:
    if not isinstance(budget_split, tuple):
        above_one("budget_split", budget_split)
        return
    pair = [u for u in budget_split if isinstance(u, int | float) and not isinstance(u, bool) and u > 1]
    if len(budget_split) != 2 or len(pair) != 2:
        raise InvalidArgument(f"expected budget_split to be a pair (u_1, u_2) above 1, got {budget_split!r}")
    if not sum(1 / u for u in pair) < 1:
        raise InvalidArgument(
            f"expected 1/u_1 + 1/u_2 < 1 in budget_split, so that something is left for local steps, got "
            f"budget_split={budget_split!r}"
        )
