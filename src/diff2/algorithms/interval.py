r"""The restart interval of DIFF2 from public numbers: what noise does to the iterates, by itself.

On a quadratic of curvature h, gradient descent with rate :math:`\eta` keeps :math:`a = 1 - \eta h` of an iterate. DP-GD
adds fresh noise of variance :math:`\sigma^2` to each gradient, and its iterates come to vary by
:math:`\eta^2 \sigma^2 / (1 - a^2)`. In a cycle of DIFF2 the noise of the restart stays in all T estimates, and that of
the j-th difference in the T - j that follow, so

.. math::
    \operatorname{Var} x = \frac{(1 - a^T)^2 \sigma_1^2 + \sum_{j=1}^{T-1} (1 - a^{T-j})^2 \sigma_2^2}
                                {h^2 (1 - a^{2T})} .

Let n of the R rounds restart, early ones included. With the share 1/u of the budget for them,
:math:`\sigma_1^2 = \sigma^2 u n / R` and :math:`\sigma_2^2 = \sigma^2 \rho^2`,
:math:`\rho^2 = (C_2 \eta \lVert v \rVert / C_1)^2 (1 - n/R)\, u / (u - 1)`. The estimate v is a gradient of length
:math:`C_1 / 100` and its own noise, whose length follows from :math:`\kappa^2 = d \sigma^2 / C_1^2`:

.. math::
    \lVert v \rVert^2 / C_1^2 = 10^{-4} + \kappa^2 \left( u n / R + \rho^2 (T - 1) / 2 \right) .

Where that has no solution the noise of the differences feeds itself, and the run drowns in it. In flat directions
(:math:`\eta h T \ll 1`) DIFF2 varies u times as much as DP-GD; it gains in steep ones. Curvatures are taken as spread
evenly, on a logarithmic scale, over two decades below :math:`\min(C_2, 1/\eta)`, and T is the one of least variance in
the loss, :math:`h \operatorname{Var} x`.

The model knows neither clipping nor long steps. Gradients that are clipped at the start send a first long cycle
astray, so the first cycles are short (``restarts.py``). Steps of :math:`C_2 \eta > 1`, twice what the paper's proof of
convergence allows, made squared gradients of a table 1.2 to 2 times those of DP-GD, so they get T = 1. A cycle is at
most a twentieth of the rounds: what goes wrong in it costs no more than that. docs/which-algorithm.md compares the
rule with runs.
"""

import math
from typing import NamedTuple

from .restarts import Restarts

AUTO = "auto"
GRADIENT = 0.01  # length of a gradient near the end of a run, in units of C1
DECADES, POINTS = 2.0, 41  # of curvatures
LEAST, MOST = 3, 200  # a shorter cycle is not worth its differences
LONGEST_STEP = 1.0  # learning rate times C2
LONGEST_CYCLE = 0.05  # of the rounds
LEAST_GAIN = 0.05  # in the loss; below that DP-GD is the simpler choice
FEEDBACK = 0.5  # of the noise that differences may feed back


class Interval(NamedTuple):
    """A restart interval, with the variance of the iterates as it shows in loss and squared gradient norm.

    Both are in units of DP-GD's, and of noise alone.
    """

    restart_interval: int
    loss: float = 1.0
    squared_gradient_norm: float = 1.0
    cause: str = ""  # of an interval of 1

    @property
    def reason(self) -> str:
        if self.restart_interval == 1:
            return f"restart_interval='auto' is 1, which is DP-GD: {self.cause}"
        return (
            f"restart_interval='auto' is {self.restart_interval}, with early_restarts: noise is expected to add to the "
            f"loss {self.loss:.2f} times what it adds with DP-GD, and to the squared gradient norm "
            f"{self.squared_gradient_norm:.2f} times"
        )


def best_interval(rounds: int, step: float, noise: float, split: float, schedule: str = "constant") -> Interval:
    """Return the interval of least noise in the loss, or 1 where DIFF2 is not clearly better than DP-GD.

    With a step that decays it is 1: the last, small steps average the fresh noise of DP-GD, but not noise that stays
    for a cycle. On runs with a cosine the intervals of constant steps cost up to half of the loss.

    Args:
        rounds: R.
        step: the learning rate times C2.
        noise: the squared length of DP-GD's noise, in units of C1^2.
        split: u.
        schedule: of the learning rate.

    >>> best_interval(2000, step=0.5, noise=0.0006, split=1.25)[0], best_interval(2000, 0.5, 0.06, 1.25)[0]
    (51, 1)
    """
    if schedule != "constant":
        return Interval(
            1,
            cause=f"a step that decays ({schedule!r}) averages the noise of DP-GD as well, and differences then gain "
            "nothing",
        )
    if step > LONGEST_STEP:
        return Interval(
            1,
            cause=f"learning_rate * clip_smoothness is {step:.3g}; above {LONGEST_STEP:g} DIFF2 may lose or diverge",
        )
    candidates = [
        Interval(T, *_variance(T, step, noise, split, Restarts(T, early=True).count(rounds) / rounds))
        for T in _intervals(min(MOST, int(LONGEST_CYCLE * rounds)))
    ]
    best = min(candidates, key=lambda one: one.loss, default=Interval(1))
    if best.loss <= 1 - LEAST_GAIN:
        return best
    return Interval(
        1,
        cause="with this budget, number of records and learning rate the noise of differences would cost more than "
        "fewer restarts save",
    )


def _variance(T: int, step: float, noise: float, split: float, restarts: float) -> tuple[float, float]:
    """Return the variance of DIFF2's iterates in the loss and in the squared gradient norm, in units of DP-GD's.

    ``restarts`` is their share of the rounds.
    """
    reach = step**2 * (1 - restarts) * split / (split - 1)
    fed_back = reach * noise * (T - 1) / 2
    if fed_back > FEEDBACK:
        return math.inf, math.inf
    difference = reach * (GRADIENT**2 + noise * split * restarts) / (1 - fed_back)
    loss, norm = [0.0, 0.0], [0.0, 0.0]
    for place in range(POINTS):
        h = min(step, 1.0) * 10 ** (-DECADES * place / (POINTS - 1))  # curvature times learning rate
        kept = 1 - h
        later = T - 1 - 2 * _powers(kept, T) + _powers(kept**2, T)
        variance = ((1 - kept**T) ** 2 * split * restarts + later * difference) / h**2 / (1 - kept ** (2 * T))
        for of, part in enumerate((variance, 1 / (1 - kept**2))):
            loss[of] += h * part
            norm[of] += h**2 * part
    return loss[0] / loss[1], norm[0] / norm[1]


def _powers(base: float, T: int) -> float:
    """Return the sum of the powers of ``base`` from 1 to T - 1."""
    return base * (1 - base ** (T - 1)) / (1 - base)


def _intervals(last: int) -> list[int]:
    """Return whole numbers from 3 on, a tenth apart."""
    found, T = [], LEAST
    while last >= T:
        found.append(T)
        T = max(T + 1, round(T * 1.1))
    return found
