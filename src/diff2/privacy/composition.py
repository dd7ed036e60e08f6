r"""What a whole run costs: the price of the unit that is exposed most.

Releases differ in whom they expose. A full release exposes every unit; a local step exposes the records of one client,
and these only with the probability to be in the batch. So the units are divided by what they are exposed to, the
releases that concern each kind of unit are composed, and the largest epsilon counts.

* Full Gaussian releases: exactly, :math:`\mu^2 = \sum 1/z^2` (``accounting.py``).
* Releases on random batches: numerically, as privacy-loss distributions (``sampled.py``), together with the former.
* The best of a random number of repetitions: by its Renyi divergence (``repeated.py``).
* Noise on whole numbers: with what this costs more than continuous noise (``discrete.py``).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from .accounting import gdp_epsilon
from .discrete import discrete_epsilon
from .release import FULL, Release
from .repeated import REPEATED, selections_epsilon

Key = TypeVar("Key")
Exposed = Mapping[tuple[str, float, float], int]  # (sampling, rate, multiplier) -> releases


def total_epsilon(releases: Iterable[Release], delta: float) -> float:
    """Return the epsilon that these releases cost together, at ``delta``, for whoever is exposed most.

    >>> one, other = (Release(1, "gradient", members=(p,), multiplier=4.0) for p in (0, 1))
    >>> round(total_epsilon([one] * 4, 1e-5), 4)
    1.9931
    >>> total_epsilon([one, other], 1e-5) == total_epsilon([one], 1e-5)
    True
    """
    return max((price(profile, delta) for profile in profiles(releases)), default=0.0)


def profiles(releases: Iterable[Release]) -> list[Exposed]:
    """Return the distinct collections of releases to which a unit can be exposed, without those inside another."""
    return [profile_of(rows) for rows in exposure_of(releases)]


def exposure_of(releases: Iterable[Release]) -> list[list[dict[str, Any]]]:
    """Return what units are exposed to as plain values that can be priced again: one list for each kind of unit.

    >>> exposure_of([Release(r, "gradient", multiplier=4.0) for r in (1, 2, 3)])
    [[{'sampling': 'full', 'rate': 1.0, 'multiplier': 4.0, 'parties': 1, 'releases': 3}]]
    """
    found = by_exposure(((r.sampling, r.multiplier, r.parties), r.rate, r.members) for r in releases)
    return [
        [
            {"sampling": sampling, "rate": rate, "multiplier": multiplier, "parties": parties, "releases": count}
            for ((sampling, multiplier, parties), rate), count in profile.items()
        ]
        for profile in found
    ]


def exposure_epsilon(exposure: Iterable[Iterable[Mapping[str, Any]]], delta: float, *, of_one: bool = False) -> float:
    """Return what :func:`exposure_of` costs at ``delta``; ``of_one``: with the noise of one of the parties alone."""
    return max((price(profile_of(rows, of_one=of_one), delta) for rows in exposure), default=0.0)


def profile_of(rows: Iterable[Mapping[str, Any]], *, of_one: bool = False) -> Exposed:
    """Return one list of :func:`exposure_of` as a collection that can be priced."""
    profile: Counter[tuple[str, float, float]] = Counter()
    for row in rows:
        alone = math.sqrt(row["parties"]) if of_one else 1.0
        profile[row["sampling"], float(row["rate"]), float(row["multiplier"]) / alone] += row["releases"]
    return profile


def by_exposure(items: Iterable[tuple[Key, float, tuple[int, ...] | None]]) -> list[dict[tuple[Key, float], int]]:
    """Return what members are exposed to, as counts of (key, rate): one collection for all, or one for each member.

    Members that are exposed to no more releases than another, at no higher rates, are left out: they cannot cost more.

    >>> by_exposure([("a", 1.0, None), ("b", 0.2, (0, 1)), ("b", 0.2, (1,)), ("b", 0.1, (2,))])
    [{('a', 1.0): 1, ('b', 0.2): 2}]
    """
    common: Counter[tuple[Key, float]] = Counter()
    own: defaultdict[int, Counter[tuple[Key, float]]] = defaultdict(Counter)
    for key, rate, members in items:
        if members is None:
            common[key, rate] += 1
        else:
            for member in members:
                own[member][key, rate] += 1
    distinct = list({frozenset(counter.items()): counter for counter in own.values()}.values())
    largest: list[Counter[tuple[Key, float]]] = []
    for one in distinct:
        if not any(_covers(other, one) for other in largest):
            largest = [other for other in largest if not _covers(one, other)] + [one]
    return [dict(common + counter) for counter in largest] or [dict(common)]


def _covers(one: Mapping[tuple[Key, float], int], other: Mapping[tuple[Key, float], int]) -> bool:
    """Whether ``one`` holds, for each release of ``other``, one of the same key at the same or a higher rate."""
    for key in {key for key, _ in other}:
        mine = sorted(((rate, count) for (k, rate), count in one.items() if k == key), reverse=True)
        theirs = sorted(((rate, count) for (k, rate), count in other.items() if k == key), reverse=True)
        # From the highest rate down: at every rate, at least as many of mine are at or above it.
        total = 0
        for rate, count in theirs:
            total += count
            if sum(n for r, n in mine if r >= rate) < total:
                return False
    return True


def price(profile: Exposed, delta: float) -> float:
    """Return the epsilon of one collection of releases."""
    mu = gaussian_mu(profile)
    sampled = {key: count for key, count in profile.items() if key[0] != FULL}
    selections = frozenset(((mean, 1 / z), n) for (kind, mean, z), n in sampled.items() if kind == REPEATED)
    if selections:  # beside random batches they have no price
        return selections_epsilon(selections, mu, delta) if len(selections) == len(sampled) else math.inf
    noised = sum(count for (_, _, multiplier), count in profile.items() if multiplier != math.inf)
    if not sampled or math.isinf(mu):
        return discrete_epsilon(partial(gdp_epsilon, mu), delta, noised)
    from .sampled import sampled_epsilon  # slow to import

    return discrete_epsilon(partial(sampled_epsilon, mu, sampled), delta, noised)


def gaussian_mu(profile: Exposed) -> float:
    """Return the GDP parameter of the full Gaussian releases."""
    full = {multiplier: count for (sampling, _, multiplier), count in profile.items() if sampling == FULL}
    if 0 in full:
        return math.inf
    return math.sqrt(math.fsum(count / multiplier**2 for multiplier, count in full.items()))
