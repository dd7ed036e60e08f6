r"""What to expect of a plan, before any data is touched: the noise in the gradient estimate, and how to lower it.

With radius :math:`c = C_2 \lVert x_{r-1} - x_{r-2} \rVert` of a difference, taken as constant, the estimate of DIFF2
carries one gradient's noise and that of the differences since the last restart. Its mean squared length over a cycle is

.. math::
    d \left( C_1^2 \sigma_1^2 + c^2 \sigma_2^2 \tfrac{T-1}{2} \right),

against :math:`d\, C_1^2 \sigma^2` for DP-GD. With :math:`\rho = c / C_1`, the share :math:`w = 1/u` of the budget for
the :math:`n_1` restarts and the rest for the :math:`n_2` differences, the ratio of the two is

.. math::
    \frac{1}{R} \left( \frac{n_1}{w} + \frac{n_2 \rho^2}{1-w} \frac{T-1}{2} \right), \qquad
    w^* = \frac{\sqrt{n_1}}{\sqrt{n_1} + \rho \sqrt{n_2 (T-1)/2}},

the same under both accountings. This is noise only: what clipping takes away from the gradient is not in it. Where T
does not divide R, the mean number of differences is taken over the rounds there are, instead of :math:`(T-1)/2`. Where
steps become longer or shorter within a cycle the formula is off, for early differences stay in the estimate longer.
docs/planner-check.md compares it with runs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from .._validate import at_least, positive
from ..algorithms import DPGD, Diff2
from ..algorithms.restarts import Restarts
from ..privacy import Budget
from ..questions import DIFFERENCE, GRADIENT, Protection
from ..routines import GradientDescent
from .plan import plan

TYPICAL_RHO = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)


class Choice(NamedTuple):
    """A choice of T and u, and the noise it leads to."""

    restart_interval: int
    budget_split: float | None  # u; None where T = 1 and there is nothing to split
    relative_error: float  # in units of DP-GD's
    error: float  # mean squared length of the noise in the estimate


class _Cycle(NamedTuple):
    """How rounds divide: restarts and differences as shares of all, and the mean number of differences in a sum."""

    restarts: float
    differences: float
    summed: float


@dataclass(frozen=True)
class NoisePrediction:
    """Predicted noise of the settings as given, and of better ones."""

    rho: float
    dpgd: Choice
    given: Choice
    best_interval: Choice  # the best T with the given budget split
    best: Choice  # the best T and budget split

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        rows = {name: getattr(self, name)._asdict() for name in ("dpgd", "given", "best_interval", "best")}
        return {"rho": self.rho, **rows}


def relative_error(
    restart_interval: int, share: float, rho: float, rounds: int | None = None, *, early: bool = False
) -> float:
    """Return the squared noise of DIFF2 in units of DP-GD's; ``rounds=None`` is the limit of a long run.

    Args:
        restart_interval: T.
        share: w = 1/u of the budget, for restarts.
        rho: radius of a difference / radius of a gradient.
        early: with early restarts; they need ``rounds``.

    >>> round(relative_error(20, 0.8, rho=0.1), 3)
    0.514
    """
    cycle = _cycle(restart_interval, rounds, early)
    if cycle.differences == 0:
        return 1.0
    return cycle.restarts / share + cycle.differences * rho**2 / (1 - share) * cycle.summed


def best_share(restart_interval: int, rho: float, rounds: int | None = None, *, early: bool = False) -> float:
    """Return w*, the share of the budget for restarts that gives the least noise.

    >>> round(best_share(13, rho=0.1), 2)
    0.54
    """
    cycle = _cycle(restart_interval, rounds, early)
    restarts = math.sqrt(cycle.restarts)
    return restarts / (restarts + rho * math.sqrt(cycle.differences * cycle.summed))


def best_interval(
    rho: float, *, share: float | None = None, rounds: int | None = None, early: bool = False
) -> tuple[int, float, float]:
    """Return the T of least noise with its share and relative error; ``share=None`` takes the best one for each T.

    >>> T, share, error = best_interval(0.1)
    >>> T, round(share, 2), round(error, 3)
    (13, 0.54, 0.263)
    """
    positive("rho", rho)
    last = rounds if rounds is not None else math.ceil(4 / rho) + 2

    def score(T: int) -> tuple[float, float]:
        w = best_share(T, rho, rounds, early=early) if share is None else share
        return relative_error(T, w, rho, rounds, early=early), w

    T = min(range(1, last + 1), key=lambda T: score(T)[0])
    error, w = score(T)
    return T, w, error


def predict_noise(
    algorithm: Diff2,
    budget: Budget,
    client_sizes: Sequence[int],
    protection: Protection | None = None,
    *,
    step_length: float,
    dimension: int = 1,
) -> NoisePrediction:
    """Predict the noise in the estimate of a run, and suggest T and the budget split.

    Args:
        step_length: the typical distance of two iterates: the root mean square of ``step_norm`` in the history of an
            earlier run, best without its start, where steps are long.
        dimension: d, the number of parameters; 1 gives the error per parameter.
    """
    positive("step_length", step_length)
    at_least("dimension", dimension, 1)
    rounds, clip = algorithm.rounds, algorithm.clip_gradient
    radius = algorithm.clip_smoothness * step_length
    rho = (min(radius, 2 * clip) if algorithm.cap else radius) / clip
    single = DPGD(rounds, clip, algorithm.routine)
    unit = dimension * (clip * _sigma(single, budget, tuple(client_sizes), protection)) ** 2

    def prediction(T: int, share: float, relative: float) -> Choice:
        return Choice(T, None if T == 1 else 1 / share, relative, relative * unit)

    shares, T, early = algorithm.shares(), min(algorithm.T, rounds), algorithm.early_restarts
    share = shares[GRADIENT] / (shares[GRADIENT] + shares[DIFFERENCE])
    return NoisePrediction(
        rho=rho,
        dpgd=prediction(1, 1.0, 1.0),
        given=prediction(T, share, relative_error(T, share, rho, rounds, early=early)),
        best_interval=prediction(*best_interval(rho, share=share, rounds=rounds, early=early)),
        best=prediction(*best_interval(rho, rounds=rounds, early=early)),
    )


def cycle_growth(algorithm: Diff2, sigma_2: float, dimension: int) -> float | None:
    r"""Return how much the noise of the differences alone lengthens the estimate from one restart to the next.

    The noise of a difference is proportional to the last step, and the next step to the estimate that holds it. With
    gradient descent, :math:`E\lVert v_r \rVert^2` grows by :math:`1 + (\eta C_2 \sigma_2)^2 d` per round, unless the
    cap on the radius stops it. Well above 1, the run drowns in its own noise, and the step length is not constant.
    None for other routines than gradient descent.

    >>> from diff2 import Diff2, GradientDescent
    >>> algorithm = Diff2(400, 20, 1.0, 3.0, GradientDescent(learning_rate=0.25))
    >>> round(cycle_growth(algorithm, sigma_2=0.018, dimension=51), 2)
    1.09
    """
    if not isinstance(algorithm.routine, GradientDescent) or not math.isfinite(algorithm.clip_smoothness):
        return None
    learning_rate = algorithm.routine.learning_rate
    rounds = min(algorithm.T, algorithm.rounds) - 1
    gain = (learning_rate * algorithm.clip_smoothness * sigma_2) ** 2 * dimension
    return math.exp(min(rounds / 2 * math.log1p(gain), 700.0))


@lru_cache(maxsize=8)  # the same for every step length
def _sigma(single: DPGD, budget: Budget, sizes: tuple[int, ...], protection: Protection | None) -> float:
    return plan(single, budget, sizes, protection).sigma_1 or 0.0


@lru_cache(maxsize=4096)  # asked for again and again, for every rho
def _cycle(restart_interval: int, rounds: int | None, early: bool) -> _Cycle:
    T = restart_interval
    if rounds is None:
        return _Cycle(1 / T, 1 - 1 / T, (T - 1) / 2)
    cycles = Restarts(T, early).cycles(rounds)
    restarts = sum(many for _, many in cycles)
    summed = sum(many * length * (length - 1) / 2 for length, many in cycles)
    return _Cycle(restarts / rounds, 1 - restarts / rounds, summed / rounds)
