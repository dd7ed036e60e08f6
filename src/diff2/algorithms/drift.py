r"""Drift-triggered restarts: a fresh gradient when the differences since the last one have added as much noise.

The noise of the differences accumulates with the length of the path: its variance since the restart is
:math:`\sigma_2^2 \sum C_{2,r}^2`, exactly known. A restart pays when that reaches ``threshold`` times the variance of a
fresh gradient. Where the path is long there are many restarts, where the iterates hardly move there are few: one every
2T rounds is kept in reserve, for the noise of differences feeds on itself if it is never taken out.

How many there will be depends on released iterates, so noise cannot be divided in advance. A GDP filter makes the
choice legal: the sum of :math:`\mu_r^2` is kept within the budget, whatever happens (Smith & Thakurta 2022). The dearer
of gradient and difference is released only if afterwards all remaining rounds can still be paid, with the reserve.
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
from ..questions.round import DIFFERENCE, GRADIENT, Estimate, Planned, Round
from ..routines import Routine
from .base import Estimator, difference_radius, require_finite
from .diff2 import CLIPPINGS, SAFETY, split_shares


@dataclass(frozen=True)
class DriftDiff2(Estimator):
    """DIFF2 that restarts when the accumulated path makes it pay.

    Args:
        restart_interval: T of the plan: noise is such that ceil(R/T) restarts can be paid.
        threshold: restart when differences have added so many times the noise of a fresh gradient.
        budget_split: u: planned restarts get the share 1/u.
        Others: as in :class:`Diff2`.
    """

    rounds: int
    restart_interval: int
    clip_gradient: float
    clip_smoothness: float
    routine: Routine
    threshold: float = 1.0
    budget_split: float = 2.0
    clipping: str = "separate"
    name: ClassVar[str] = "drift_diff2"
    adaptive: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least("rounds", self.rounds, 1)
        at_least("restart_interval", self.restart_interval, 1)
        positive("clip_gradient", self.clip_gradient, infinite=True)
        positive("clip_smoothness", self.clip_smoothness, infinite=True)
        positive("threshold", self.threshold)
        positive("budget_split", self.budget_split)
        one_of("clipping", self.clipping, CLIPPINGS)
        if self.budget_split <= 1:
            raise InvalidArgument(f"expected budget_split > 1 (restarts get 1/budget_split), got {self.budget_split!r}")
        if self.routine.local_steps > 1:
            raise InvalidArgument(
                "DriftDiff2 chooses its releases on the way, which batches drawn at random do not allow; use Diff2 "
                "with this routine"
            )

    def releases(self, round: int, population: Population) -> Iterable[Planned]:
        # As if restarts came at regular times; the filter holds the run to the same total.
        restarts = (round - 1) % self.restart_interval == 0
        yield Planned(GRADIENT if restarts else DIFFERENCE, population.exposure(round))

    def shares(self) -> Mapping[str, float]:
        return split_shares(self.budget_split)

    def check(self, population: Population, private: bool) -> None:
        if private:
            require_finite("clip_gradient", self.clip_gradient)
        if not population.everyone:
            raise InvalidArgument("DriftDiff2 needs all clients in every round; leave clients_per_round out")

    def init(self, params: Vector, population: Population) -> dict[str, Any]:
        return {
            "previous_params": params.clone(),
            "estimate": torch.zeros_like(params, dtype=torch.float64),
            "fresh": 0.0,  # variance of the last gradient
            "drift": 0.0,  # variance added by differences since
            "age": 0,  # rounds since
            "spent": 0.0,  # sum of 1/z^2
        }

    def estimate(self, state: dict[str, Any], round: Round) -> tuple[Estimate, dict[str, Any]]:
        r, params = round.number, round.params
        previous = state["previous_params"]
        radius = difference_radius(params, previous, self.clip_smoothness, 2 * self.clip_gradient)
        if r == 1 or self._restarts(state, round, radius):
            mean = round.cohort.clipped_gradient(params, self.clip_gradient, round=r, remember=True)
            release = round.release(mean, GRADIENT, multiplier=_multiplier(GRADIENT, round))
            value, fresh, drift, age = release.value, release.variance, 0.0, 0
        else:
            inner = self.clip_gradient if self.clipping == "telescoped" else math.inf
            mean = round.cohort.clipped_difference(params, previous, radius, round=r, inner=inner)
            release = round.release(mean, DIFFERENCE, multiplier=_multiplier(DIFFERENCE, round))
            value = state["estimate"] + release.value
            fresh, drift = state["fresh"], state["drift"] + release.variance
            age = state["age"] + 1
        z = release.entry.multiplier
        spent = state["spent"] + (z**-2 if z > 0 else 0.0)
        return Estimate(value, fresh + drift), {
            "previous_params": params,
            "estimate": value,
            "fresh": fresh,
            "drift": drift,
            "age": age,
            "spent": spent,
        }

    def _restarts(self, state: Mapping[str, float], round: Round, radius: float) -> bool:
        """Whether a gradient is released: where a difference cannot be paid, or where a gradient can be, and pays."""
        if DIFFERENCE not in round.multipliers:  # the plan holds gradients only
            return True
        gradient, difference = _multiplier(GRADIENT, round), _multiplier(DIFFERENCE, round)
        if gradient == 0:  # without noise: as planned
            return (round.number - 1) % self.restart_interval == 0
        left, later = round.allowance - state["spent"], round.rounds_left - 1
        # Gradients that are cheaper than differences can always be paid: R of them cost no more than the plan.
        if gradient > difference and left - difference**-2 < later * gradient**-2:
            return True
        # Dearer ones in reserve: one each 2T rounds, which are at most half of those in the plan.
        longest = 2 * self.restart_interval
        if state["age"] + 1 >= longest:
            return True
        reserve = later // longest
        if gradient < difference and left - gradient**-2 < reserve * gradient**-2 + (later - reserve) * difference**-2:
            return False
        if left >= (later + 1) * max(gradient**-2, difference**-2):  # there is enough for gradients to the end
            return True
        # Both in units of the squared sensitivity of a radius one.
        fresh = (gradient * self.clip_gradient) ** 2
        added = state["drift"] / state["fresh"] * fresh
        return bool(added + (difference * radius) ** 2 > self.threshold * fresh)


def _multiplier(purpose: str, round: Round) -> float:
    """Return the planned multiplier, raised so that rounding of the sum cannot exceed what the plan allows."""
    return round.multipliers[purpose] / SAFETY
