r"""Recursive momentum: no restarts, one release per round that mixes a gradient and a difference.

.. math::
    \tilde v_r = (1 - a) \tilde v_{r-1} + \frac1N \sum_i \left[ a\, \mathrm{clip}_{C_1}(g_i) +
    (1 - a)\, \mathrm{clip}_{c_r}(g_i - g_i') \right] + \text{noise}, \qquad c_r = C_2 \lVert x_{r-1} - x_{r-2} \rVert

A record moves the bracket by at most :math:`2 (a C_1 + (1 - a) c_r) / N`, so every round costs what a round of DP-GD
costs, and the noise is small where the step was small. The gain a follows from the exactly known variance p of the
estimate, in units of DP-GD's: with :math:`\rho = c_r / C_1`,

.. math::
    a = \frac{p - \rho (1 - \rho)}{p + (1 - \rho)^2} \text{ cut to } [0, 1], \qquad
    p \leftarrow (1 - a)^2 p + (\rho + a (1 - \rho))^2,

the a that makes the next p smallest. For constant rho it settles at a = rho and :math:`p = \rho (2 - \rho)`. Only
released iterates enter.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from .._validate import positive
from .._vectors import State, Vector, zeros
from ..errors import InvalidArgument
from ..questions import GRADIENT, Estimate, Population, Question, Round, Smoothness
from ..routines import Routine
from .base import Algorithm


@dataclass(frozen=True)
class RecursiveDiff2(Algorithm):
    """DIFF2 by recursive momentum (DIFF2-RM): nothing to split and no interval to choose.

    Args:
        clip_gradient, clip_smoothness: C_1 and C_2, as in ``Diff2``.
        least_gain: the gain is at least this. Clipped differences drift; a floor bounds how long that is remembered.
    """

    rounds: int
    clip_gradient: float
    clip_smoothness: float
    routine: Routine
    least_gain: float = 0.0
    name: ClassVar[str] = "recursive_diff2"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("clip_smoothness", self.clip_smoothness, infinite=True)
        if not 0 <= self.least_gain <= 1:
            raise InvalidArgument(f"expected least_gain between 0 and 1, got {self.least_gain!r}")

    def questions(self, round: int, population: Population) -> Iterable[Question]:
        if round > 1:
            yield Question.difference(Smoothness(self.clip_smoothness, 2 * self.clip_gradient), GRADIENT)
        yield Question.gradient(self.clip_gradient)

    def init(self, params: Vector, population: Population) -> State:
        return {
            "previous_params": params.clone(),
            "estimate": zeros(params),
            "variance": math.inf,  # in units of a gradient's in the last round
            "sensitivity": 0.0,  # of a gradient in that round: others may take part in the next
        }

    def estimate(self, state: State, round: Round) -> tuple[Estimate, State]:
        *questions, gradient_question = round.questions
        params, previous = round.params, state["previous_params"]
        sensitivity = round.population.release(gradient_question, round.number).sensitivity
        if round.number == 1:
            gain, relative = 1.0, 1.0
            released = round.release(round.ask(gradient_question, params, remember=True))
        else:
            difference = round.ask(questions[0], params, previous)
            radius = difference.release.clip
            rho = 0.0 if math.isinf(self.clip_gradient) else radius / self.clip_gradient
            variance = state["variance"] * (state["sensitivity"] / sensitivity) ** 2
            gain = max(best_gain(variance, rho), self.least_gain)
            relative = (1 - gain) ** 2 * variance + (rho + gain * (1 - rho)) ** 2
            gradient = round.ask(gradient_question, params, remember=True)
            released = round.release((gain, gradient), (1 - gain, difference))
        value = (1 - gain) * state["estimate"] + released.value
        std = math.sqrt(released.variance)
        # ``relative`` is in units of a gradient's noise, which follows from this release, whose radius is known.
        unit = std / released.release.clip * self.clip_gradient if std > 0 else 0.0
        return Estimate(value, relative * unit**2), {
            "previous_params": params,
            "estimate": value,
            "variance": relative,
            "sensitivity": sensitivity,
        }


def best_gain(variance: float, rho: float) -> float:
    """Return the gain that leaves the least noise, for an estimate of this variance and differences of radius rho.

    >>> best_gain(1.0, 1.0), round(best_gain(0.19, 0.1), 6)
    (1.0, 0.1)
    """
    if rho >= 1:
        return 1.0
    return min(max((variance - rho * (1 - rho)) / (variance + (1 - rho) ** 2), 0.0), 1.0)
