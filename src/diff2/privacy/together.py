r"""What several runs on the same records cost together.

A record is in every run, in each with what it is exposed to there. So the releases of all runs are composed at one
delta as those of one run are (``composition.py``): exactly, :math:`\mu^2 = \sum \mu_i^2`, and numerically where there
are random batches. Which kind of unit a record was in one run implies nothing for the next, so all combinations count.

A guarantee for a group or a client holds for each of its records. So the whole is stated for the smallest unit.

Runs for *add or remove one* are composed by themselves. Replacing a record is removing one and adding one, so for
*replace one* they cost what two units cost (``attacks.py``); both parts get half of delta, and their epsilons add up.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product
from typing import NamedTuple

from .attacks import gaussian_only, group_epsilon, noised
from .composition import Exposed, gaussian_mu
from .release import ADD_OR_REMOVE_ONE, REPLACE_ONE
from .repeated import REPEATED

MOST_COMBINATIONS = 64
UNITS = ("record", "group", "client")


class Spent(NamedTuple):
    """What one run costs: the collections of releases to which its units are exposed."""

    profiles: tuple[Exposed, ...]
    adjacency: str = REPLACE_ONE
    unit: str = "record"
    private: bool = True  # False: no noise, or noise from a seed

    def epsilon(self, delta: float) -> float:
        """Return what it costs alone."""
        return together([self], delta)


def together(runs: Sequence[Spent], delta: float) -> float:
    """Return the epsilon of all runs, at ``delta``, for a record that is in each of them.

    >>> one = Spent(({("full", 1.0, 4.0): 4},))
    >>> round(together([one], 1e-5), 4), round(together([one] * 4, 1e-5), 4)
    (1.9931, 4.3772)
    """
    if not all(run.private for run in runs):
        return math.inf
    kinds = {kind: [run for run in runs if run.adjacency == kind] for kind in {run.adjacency for run in runs}}
    if len(kinds) < 2:
        return group_epsilon(_combined(runs), delta, 1)
    replaced = group_epsilon(_combined(kinds[REPLACE_ONE]), delta / 2, 1)
    return replaced + group_epsilon(_combined(kinds[ADD_OR_REMOVE_ONE]), delta / 2, 2)


def smallest_unit(runs: Iterable[Spent]) -> str:
    """Return for whom the whole may be stated."""
    return min((run.unit for run in runs), key=UNITS.index, default=UNITS[0])


def _combined(runs: Sequence[Spent]) -> list[Exposed]:
    """Return the collections of releases that a record may be exposed to in all runs."""
    choices = [_largest(run.profiles) for run in runs]
    if math.prod(map(len, choices)) > MOST_COMBINATIONS:
        choices = [[_union(profiles)] for profiles in choices]
    found: list[Exposed] = []
    for chosen in product(*choices):
        total: Counter[tuple[str, float, float]] = Counter()
        for profile in chosen:
            total.update(profile)
        found.append(total)
    return found


def _largest(profiles: Iterable[Exposed]) -> list[Exposed]:
    """Return the collections without Gaussian ones that cost no more than another."""
    found: list[Exposed] = []
    for one in profiles:
        if not any(_covers(other, one) for other in found):
            found = [other for other in found if not _covers(one, other)] + [one]
    return found


def _covers(one: Exposed, other: Exposed) -> bool:
    if one == other:
        return True
    if any(1 / z >= gaussian_mu(other) for kind, _, z in one if kind == REPEATED):
        return gaussian_only(other)  # the releases of the fit that was selected
    both = gaussian_only(one) and gaussian_only(other)
    return both and gaussian_mu(one) >= gaussian_mu(other) and noised(one) >= noised(other)


def _union(profiles: Iterable[Exposed]) -> Exposed:
    """Return a collection that holds each of these."""
    total: Counter[tuple[str, float, float]] = Counter()
    for profile in profiles:
        total |= Counter(profile)
    return total
