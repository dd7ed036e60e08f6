r"""The paper's utility theorem as a recipe: how many rounds, which restart interval, which learning rate.

With N records (:math:`n_{\min} P`), d parameters, records' gradients no longer than G and L-smooth, a start that is at
most :math:`\Delta` above the least value, and a budget of :math:`\mu` (GDP), everything is in terms of
:math:`x = \sqrt d / (N \mu)`. None of it depends on the records, so a private run may follow the recipe.

**DIFF2-GD** (:math:`C_1 = G`, :math:`C_2 = L`). The proof gives, for
:math:`\eta \le \min\{1/(2L),\, 1/(2 \sqrt{T d}\, \sigma_2 L)\}`,

.. math::
    \frac 1 R \sum_{r=1}^R E \lVert \nabla f(x_{r-1}) \rVert^2 \le \frac{2 \Delta}{\eta R} + 2 \sigma_1^2 G^2 d .

With :math:`T = \tau R`, :math:`\sigma_1^2 = 4 u / (\tau N^2 \mu^2)`, :math:`\sigma_2^2 = 4 q^2 R / (N^2 \mu^2)`,
:math:`q^2 = u / (u-1)`, and the second condition on :math:`\eta` at its limit, the bound is
:math:`8 q \Delta L \sqrt\tau\, x + 8 u G^2 x^2 / \tau`, for every R. It is least at
:math:`\tau = (2 u G^2 x / (q \Delta L))^{2/3}`, where it falls like :math:`x^{4/3}`. R is the smallest for which the
two conditions on :math:`\eta` meet, :math:`R = 1 / (2 q \sqrt\tau\, x)`; and u = 2 is best, for :math:`u^2/(u-1)` is
least there.

**DP-GD**. :math:`2 L \Delta / R + \sigma^2 G^2 d` for :math:`\eta = 1/L`, with :math:`\sigma^2 = 4 R / (N^2 \mu^2)`:
least at :math:`R = \sqrt{L \Delta / 2} / (G x)`, where it falls like x.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from diff2._validate import at_least, positive
from diff2.algorithms import DPGD, Algorithm, Diff2
from diff2.routines import GradientDescent

from .synthetic import Bounds

DPGD_EXPONENT = -1.0  # of the mean squared gradient norm, against N epsilon
DIFF2_EXPONENT = -4 / 3
SPLIT = 2.0  # u


class Schedule(NamedTuple):
    """Settings of a run, and the theorem's bound on the mean over its rounds of the squared gradient norm."""

    rounds: int  # R
    restart_interval: int  # T; 1 is DP-GD
    learning_rate: float  # eta
    bound: float

    def algorithm(self, bounds: Bounds, *, cap: bool = False) -> Algorithm:
        """Return the algorithm that follows the schedule; without ``cap`` it is the paper's."""
        routine = GradientDescent(self.learning_rate)
        if self.restart_interval == 1:
            return DPGD(self.rounds, bounds.gradient, routine)
        return Diff2(
            self.rounds,
            self.restart_interval,
            bounds.gradient,
            bounds.smoothness,
            routine,
            budget_split=SPLIT,
            cap=cap,
        )


def dpgd_schedule(bounds: Bounds, dimension: int, records: int, mu: float, *, rounds: float = 1.0) -> Schedule:
    """Return the schedule of DP-GD, with ``rounds`` times as many rounds as it says.

    >>> dpgd_schedule(Bounds(gradient=1.0, smoothness=2.0, gap=1.0), dimension=4, records=1000, mu=0.5)
    Schedule(rounds=250, restart_interval=1, learning_rate=0.5, bound=0.032)
    """
    x = _unit(dimension, records, mu)
    count = max(1, round(rounds * math.sqrt(bounds.smoothness * bounds.gap / 2) / (bounds.gradient * x)))
    bound = 2 * bounds.smoothness * bounds.gap / count + 4 * count * (bounds.gradient * x) ** 2
    return Schedule(count, 1, 1 / bounds.smoothness, bound)


def diff2_schedule(
    bounds: Bounds, dimension: int, records: int, mu: float, *, rounds: float = 1.0, interval: float = 1.0
) -> Schedule:
    """Return the schedule of DIFF2-GD, with ``rounds`` and ``interval`` times the R and T it says.

    Where T comes out as 1 there are no differences, and the schedule is one for DP-GD.
    """
    x, (G, L, gap) = _unit(dimension, records, mu), bounds
    q = math.sqrt(SPLIT / (SPLIT - 1))
    share = min(1.0, (2 * SPLIT * G**2 * x / (q * gap * L)) ** (2 / 3))  # tau
    R = max(1, math.ceil(rounds / (2 * q * math.sqrt(share) * x)))
    T = min(R, max(1, round(interval * share * R)))
    restarts = math.ceil(R / T)
    differences = R - restarts
    gradient_noise = 2 * math.sqrt(restarts * (SPLIT if differences else 1.0)) * x  # sigma_1 sqrt(d)
    difference_noise = 2 * q * math.sqrt(differences) * x  # sigma_2 sqrt(d)
    rate = 1 / (2 * L * max(1.0, math.sqrt(T) * difference_noise))
    return Schedule(R, T, rate, 2 * gap / (rate * R) + 2 * (gradient_noise * G) ** 2)


def _unit(dimension: int, records: int, mu: float) -> float:
    at_least("dimension", dimension, 1)
    at_least("records", records, 1)
    positive("mu", mu)
    return math.sqrt(dimension) / (records * mu)
