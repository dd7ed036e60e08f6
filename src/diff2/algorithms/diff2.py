r"""The DIFF2 gradient estimator: a private running sum of gradient differences (Algorithm 1).

.. math::
    \tilde v_r &= \text{noisy clipped gradient at } x_{r-1}                                  & (r-1) \bmod T = 0 \\
    \tilde v_r &= \tilde v_{r-1} + \text{noisy clipped difference } x_{r-2} \to x_{r-1}      & \text{otherwise}

A difference is clipped to :math:`C_2 \lVert x_{r-1} - x_{r-2} \rVert`, and with ``cap`` to :math:`2 C_1` where that is
smaller (two gradients of norm at most :math:`C_1` differ by no more). The radius depends on released iterates alone,
hence costs no privacy. The noise is added to the increment first and the sum to the previous estimate afterwards: in
floating point the other order would round before the noise is there to hide it.

Beyond the paper, at the same privacy:

* ``clipping="telescoped"``: differences of *clipped* gradients. Without the outer clip their sum is exactly the clipped
  mean gradient, so that differences do not drift away from what a restart would say.
* ``noise_schedule="position"``: the j-th difference of a cycle stays in the estimate for the T - j + 1 rounds to come,
  so early ones get less noise than late ones: :math:`\sigma_{2,j}^2 \propto (T-j+1)^{-1/2}`.
* ``budget_split="auto"``: each cycle divides its part of the budget by :math:`w^* = 1/(1 + \rho (L-1)/\sqrt 2)` for a
  cycle of L rounds, with :math:`\rho` the mean radius of the differences of the cycle before, over :math:`C_1`. The
  radii are released, and a filter keeps the sum of :math:`\mu_r^2` within the budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from .._types import Vector
from .._validate import at_least, one_of, positive
from ..errors import InvalidArgument
from ..questions.population import Population
from ..questions.round import DIFFERENCE, GRADIENT, LOCAL, Estimate, Planned, Round
from ..routines import Routine
from .base import Estimator, difference_radius, require_finite

CLIPPINGS = ("separate", "telescoped")
NOISE_SCHEDULES = ("constant", "position")
SAFETY = 1 - 1e-10  # of what is left: sums of spendings are rounded


@dataclass(frozen=True)
class Diff2(Estimator):
    """DIFF2 with any routine; with ``GradientDescent`` it is DIFF2-GD, with ``BVRLocalSGD`` DIFF2-BVR-L-SGD.

    Args:
        rounds: R.
        restart_interval: T. A fresh gradient every T rounds; 1 is DP-GD.
        clip_gradient: C_1, the radius for a record's gradient.
        clip_smoothness: C_2; a record's difference is clipped to C_2 times the distance of the two iterates.
        routine: what to do with the estimate.
        budget_split: u > 1: restarts get the share 1/u of the budget, differences the rest. Where the routine makes
            releases itself it gets a third, and restarts and differences share the rest; or give the paper's pair
            (u_1, u_2) with 1/u_1 + 1/u_2 < 1, which leaves the rest to the routine. ``"auto"``: from the steps.
        cap: clip differences to at most 2 C_1. ``False`` is the paper.
        clipping: ``"separate"`` is the paper; ``"telescoped"`` takes differences of clipped gradients.
        noise_schedule: ``"constant"`` is the paper; ``"position"`` gives early differences of a cycle less noise.
    """

    rounds: int
    restart_interval: int
    clip_gradient: float
    clip_smoothness: float
    routine: Routine
    budget_split: float | tuple[float, float] | str = 1.25
    cap: bool = True
    clipping: str = "separate"
    noise_schedule: str = "constant"
    name: ClassVar[str] = "diff2"

    def __post_init__(self) -> None:
        at_least("rounds", self.rounds, 1)
        at_least("restart_interval", self.restart_interval, 1)
        positive("clip_gradient", self.clip_gradient, infinite=True)
        positive("clip_smoothness", self.clip_smoothness, infinite=True)
        one_of("clipping", self.clipping, CLIPPINGS)
        one_of("noise_schedule", self.noise_schedule, NOISE_SCHEDULES)
        if isinstance(self.budget_split, list):  # as run files write a pair
            object.__setattr__(self, "budget_split", tuple(self.budget_split))
        _check_split(self.budget_split, self.routine)

    @property
    def adaptive(self) -> bool:  # type: ignore[override]
        return self.budget_split == "auto" and self.restart_interval > 1

    def releases(self, round: int, population: Population) -> Iterable[Planned]:
        exposure = population.exposure(round)
        if self._restarts(round):
            yield Planned(GRADIENT, exposure)
        else:
            yield Planned(DIFFERENCE, exposure, factor=self._factor(round))

    def shares(self) -> Mapping[str, float]:
        return split_shares(self.budget_split)

    def check(self, population: Population, private: bool) -> None:
        if self.adaptive and not population.everyone:
            raise InvalidArgument(
                "budget_split='auto' needs all clients in every round; give a number, or leave clients_per_round out"
            )
        if private:
            require_finite("clip_gradient", self.clip_gradient)
            if self.restart_interval > 1 and not self.cap:
                require_finite("clip_smoothness", self.clip_smoothness)

    def init(self, params: Vector, population: Population) -> dict[str, Any]:
        # x_{-1} and v_0 are never used: round 1 is a restart.
        return {
            "previous_params": params.clone(),
            "estimate": torch.zeros_like(params, dtype=torch.float64),
            "variance": 0.0,
            "split": {"spent": 0.0, "gradient": 0.0, "difference": 0.0, "radii": 0.0},
        }

    def estimate(self, state: dict[str, Any], round: Round) -> tuple[Estimate, dict[str, Any]]:
        r, params = round.number, round.params
        split = state["split"]
        if self._restarts(r):
            split = self._next_split(split, round)
            mean = round.cohort.clipped_gradient(
                params, self.clip_gradient, round=r, remember=not self._restarts(r + 1) and r < self.rounds
            )
            base, variance, purpose = 0.0, 0.0, GRADIENT
        else:
            previous = state["previous_params"]
            cap = 2 * self.clip_gradient if self.cap else math.inf
            radius = difference_radius(params, previous, self.clip_smoothness, cap)
            inner = self.clip_gradient if self.clipping == "telescoped" else math.inf
            mean = round.cohort.clipped_difference(params, previous, radius, round=r, inner=inner)
            base, variance, purpose = state["estimate"], state["variance"], DIFFERENCE
            split = {**split, "radii": split["radii"] + radius}
        release = round.release(mean, purpose, multiplier=self._multiplier(purpose, split, round))
        if math.isfinite(release.entry.multiplier) and release.entry.multiplier > 0:
            split = {**split, "spent": split["spent"] + release.entry.multiplier**-2}
        estimate = Estimate(base + release.value, variance + release.variance)
        return estimate, {
            "previous_params": params,
            "estimate": estimate.value,
            "variance": estimate.variance,
            "split": split,
        }

    def _restarts(self, r: int) -> bool:
        return (r - 1) % self.restart_interval == 0

    def _cycle(self, r: int) -> tuple[int, int]:
        """Return the place of a round in its cycle, from 1, and the length of the cycle."""
        start = r - (r - 1) % self.restart_interval
        return r - start + 1, min(self.restart_interval, self.rounds - start + 1)

    def _factor(self, r: int) -> float:
        """Return the noise multiplier of a difference in units of the mean one; sum of 1/factor^2 is their number."""
        if self.noise_schedule == "constant":
            return 1.0
        place, length = self._cycle(r)
        mean = math.fsum(math.sqrt(length - j + 1) for j in range(2, length + 1)) / (length - 1)
        return math.sqrt(mean / math.sqrt(length - place + 1))

    def _multiplier(self, purpose: str, split: Mapping[str, float], round: Round) -> float:
        factor = self._factor(round.number) if purpose == DIFFERENCE else 1.0
        if not self.adaptive or round.multipliers[purpose] == 0:
            return round.multipliers[purpose] * factor
        return split[purpose] * factor

    def _next_split(self, split: dict[str, float], round: Round) -> dict[str, float]:
        """Return the multipliers of the cycle that begins: its part of what is left, divided by w*."""
        if not self.adaptive or round.multipliers[GRADIENT] == 0:
            return split
        _, length = self._cycle(round.number)
        left = round.rounds_left
        budget = (round.allowance * SAFETY - split["spent"]) * length / left
        if length == 1:
            return {**split, "gradient": budget**-0.5, "difference": math.inf, "radii": 0.0}
        if round.number == 1:
            share = 0.5
        else:
            rho = split["radii"] / (self.restart_interval - 1) / self.clip_gradient
            share = min(max(1 / (1 + rho * (length - 1) / math.sqrt(2)), 0.05), 0.95)
        return {
            **split,
            "gradient": (share * budget) ** -0.5,
            "difference": ((1 - share) * budget / (length - 1)) ** -0.5,
            "radii": 0.0,
        }


def split_shares(budget_split: float | tuple[float, float] | str) -> dict[str, float]:
    """Return the shares of gradients and differences; a pair also says what is left for local steps."""
    if isinstance(budget_split, tuple):
        first, second = (1 / u for u in budget_split)
        return {GRADIENT: first, DIFFERENCE: second, LOCAL: 1 - first - second}
    share = 0.5 if isinstance(budget_split, str) else 1 / budget_split
    return {GRADIENT: share, DIFFERENCE: 1 - share}


def _check_split(budget_split: Any, routine: Routine) -> None:
    if budget_split == "auto":
        if routine.local_steps > 1:
            raise InvalidArgument(
                "budget_split='auto' chooses noise on the way, which batches drawn at random do not allow; give a "
                "number with this routine"
            )
        return
    if isinstance(budget_split, tuple):
        if len(budget_split) != 2 or not all(
            isinstance(u, int | float) and not isinstance(u, bool) and u > 1 for u in budget_split
        ):
            raise InvalidArgument(f"expected budget_split to be a pair (u_1, u_2) above 1, got {budget_split!r}")
        if not sum(1 / u for u in budget_split) < 1:
            raise InvalidArgument(
                f"expected 1/u_1 + 1/u_2 < 1 in budget_split, so that something is left for local steps, got "
                f"budget_split={budget_split!r}"
            )
        return
    if isinstance(budget_split, str):
        raise InvalidArgument(f"expected budget_split to be a number above 1, a pair or 'auto', got {budget_split!r}")
    positive("budget_split", budget_split)
    if budget_split <= 1:
        raise InvalidArgument(
            f"expected budget_split > 1 (restarts get the share 1/budget_split), got {budget_split!r}"
        )
