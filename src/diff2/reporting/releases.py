"""What was released: by purpose, and what it added up to as the run went on."""

from itertools import accumulate
from typing import Any

from ..privacy import Ledger, Release, total_epsilon

POINTS = 120  # of a path, at most


def purposes(ledger: Ledger, delta: float) -> list[dict[str, Any]]:
    """Return what was released for which purpose: how often, with which noise, and what it would cost alone."""
    groups: dict[tuple[str, str, str], list[Release]] = {}
    for release in ledger.releases:
        groups.setdefault((release.purpose, release.mechanism, release.sampling), []).append(release)
    return [
        {
            "purpose": purpose,
            "mechanism": mechanism,
            "sampling": sampling,
            "rate": max(release.rate for release in found),
            "count": len(found),
            "multiplier_min": min(release.multiplier for release in found),
            "multiplier_max": max(release.multiplier for release in found),
            "epsilon_alone": total_epsilon(found, delta),
        }
        for (purpose, mechanism, sampling), found in groups.items()
    ]


def path(ledger: Ledger) -> list[list[float]]:
    """Return pairs of a round and what was released by then, which is no guarantee; at most ``POINTS`` of them."""
    rounds = sorted({release.round for release in ledger.releases})
    if not rounds:
        return []
    step = -(-len(rounds) // POINTS)
    chosen = sorted({*rounds[::step], rounds[-1]})
    return [[float(r), value] for r, value in zip(chosen, accumulate(ledger.epsilon_path(chosen), max), strict=True)]
