r"""Scaling by means and deviations that were released with noise: ``[data] scale = "private"``.

Before the first round every client sends the sums of its clipped values and of their squares; the server adds them up,
weighted as in training, and one Gaussian release makes the mean public. It is planned together with the run, is the
first release in its ledger (round 0, purpose "scaling"), and the whole costs the budget.

What was released is kept in the run's checkpoint, after its ledger line. A run that is killed in between makes the same
release again, with the same noise.

Every column has a public range [low, high]; a value is clipped to it and mapped to :math:`u \in [-1, 1]`. A record with
p such columns becomes the vector :math:`\phi(u) = (u_1, \dots, u_p, c u_1^2, \dots, c u_p^2)`, and the mean of these
vectors over the records is what is released.

**How far replacing one record moves it.** In one column, from value a to value b, with :math:`d = |a - b|` and
:math:`s = |a + b| \le 2 - d`,

.. math::
    |\phi(a) - \phi(b)|^2 = d^2 (1 + c^2 s^2) \le (2 - t)^2 (1 + c^2 t^2), \qquad t = 2 - d \in [0, 2].

At t = 0, that is from one end of the range to the other, this is 4. It is nowhere more as long as
:math:`c^2 \le (4 - t) / (t (2 - t)^2)` for all t; the right side is smallest at :math:`t = 3 - \sqrt 5`, where it is
:math:`\varphi^5 / 4` with the golden ratio :math:`\varphi`. So with :math:`c = \varphi^{5/2} / 2 \approx 1.665` two
vectors are at most 2 apart in a column, :math:`2 \sqrt p` in all: **the squares cost nothing extra**, and a
record of weight w moves the mean by at most :math:`2 \sqrt p\, w`, like a vector clipped to the radius
:math:`\sqrt p`. The bound is reached by a record that moves from the lower to the upper end in all columns. A mean of
several such vectors (a client as the unit) is in their convex hull, whose diameter is the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from ..planning.plan import opening_release
from ..privacy import BoundedMean
from ..questions import Population

SQUARES = ((1 + math.sqrt(5)) / 2) ** 2.5 / 2 * (1 - 1e-12)  # c, rounded down


class Standard(NamedTuple):
    """Mean and deviation of each column, in units of u."""

    mean: np.ndarray
    deviation: np.ndarray


def radius(columns: int) -> float:
    """Return half the largest distance of two records' vectors."""
    return math.sqrt(columns)


def vector_sum(units: np.ndarray) -> np.ndarray:
    """Return the sum of the records' vectors, shape (2 p,), for values u of shape (records, p)."""
    clipped = np.clip(np.asarray(units, dtype=np.float64), -1.0, 1.0)
    if not np.isfinite(clipped).all():
        raise ValueError("expected finite values")
    return np.concatenate([clipped.sum(0), SQUARES * np.square(clipped).sum(0)])


def standard_of(value: np.ndarray, noise_std: float) -> Standard:
    """Return means and deviations from a released mean of vectors; whatever the noise, deviations are above zero.

    A variance below its own noise is meaningless, so it is raised to that: a constant column then becomes about 0.
    """
    columns = len(value) // 2
    mean = np.clip(value[:columns], -1.0, 1.0)
    least = noise_std * np.sqrt(SQUARES**-2 + 4 * np.square(mean))
    variance = np.clip(value[columns:] / SQUARES - np.square(mean), np.maximum(least, 1e-12), 1.0)
    return Standard(mean, np.sqrt(variance))


@dataclass(frozen=True)
class PrivateScaling:
    """An opening of a run: columns that are within [-1, 1] get a mean and a deviation that were released with noise."""

    columns: tuple[int, ...]  # of the inputs
    share: float  # of the budget's mu^2

    def mean(self, clients: Sequence[np.ndarray], population: Population) -> BoundedMean:
        """Return the weighted mean of the records' vectors, with how far replacing one unit can move it."""
        sums = [vector_sum(inputs[:, list(self.columns)]) for inputs in clients]  # what travels
        everyone = replace(population, clients_per_round=None, client_order="round_robin")
        weights = everyone.weights(range(len(sums)))
        value = np.sum([weight * total for weight, total in zip(weights, sums, strict=True)], axis=0)
        shown, clip = opening_release(population), radius(len(self.columns))
        release = shown._replace(sensitivity=shown.sensitivity * clip, clip=clip, dimension=len(value))
        rounding = 2 * _rounding_error(sum(population.sizes), len(self.columns)) / release.sensitivity
        return BoundedMean(value, release, rounding, population.adjacency)

    def apply(self, value: np.ndarray, noise_std: float, inputs: torch.Tensor) -> torch.Tensor:
        """Return the inputs with the columns scaled."""
        standard, chosen, scaled = standard_of(value, noise_std), list(self.columns), inputs.clone()
        columns = inputs[:, chosen].double().numpy()
        scaled[:, chosen] = torch.from_numpy((columns - standard.mean) / standard.deviation).to(inputs.dtype)
        return scaled


def _rounding_error(records: int, columns: int) -> float:
    """Bound how far a mean in double precision is from the exact one: one rounding per addition, of at most c."""
    return (records + 16) * 2.0**-53 * SQUARES * math.sqrt(2 * columns)
