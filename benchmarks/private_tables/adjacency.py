r"""One guarantee for all: replacing one record, at (epsilon, delta).

Libraries that protect against *adding or removing* a record promise less: a replacement is a removal and an addition.
They run at a smaller epsilon, at which they protect a replacement as the others do.
"""

from __future__ import annotations

from diff2.privacy.accounting import gdp_epsilon, gdp_mu


def gaussian(epsilon: float, delta: float) -> float:
    """Return the add/remove epsilon of a Gaussian mechanism that replaces at ``epsilon``: two steps cost twice mu.

    Exact for compositions of Gaussian releases, and in the limit of many small steps for those on random batches.

    >>> round(gaussian(1.0, 1e-5), 3), round(gaussian(8.0, 1e-5), 3)
    (0.469, 3.547)
    """
    return gdp_epsilon(gdp_mu(epsilon, delta) / 2, delta)


def pure(epsilon: float) -> float:
    """Return the add/remove epsilon of an (epsilon, 0) mechanism that replaces at ``epsilon``: two steps cost twice."""
    return epsilon / 2
