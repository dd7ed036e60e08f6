"""Numbers as people read them."""

import math
from decimal import ROUND_CEILING, Decimal


def epsilon_text(epsilon: float | None) -> str:
    """Return an epsilon with four decimals, rounded up: a printed one must not be smaller than the true one.

    >>> epsilon_text(1.0), epsilon_text(1.00000000005), epsilon_text(math.inf)
    ('1', '1.0001', 'inf')
    """
    if epsilon is None:
        return "-"
    if not math.isfinite(epsilon):
        return repr(epsilon)
    exact = Decimal(repr(epsilon))
    above = exact.quantize(Decimal("0.0001"), rounding=ROUND_CEILING) if epsilon < 1e9 else exact
    return f"{above.normalize():f}"
