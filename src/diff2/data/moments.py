r"""Means and deviations of columns from one release, for scaling that is private.

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
from typing import NamedTuple

import numpy as np

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
