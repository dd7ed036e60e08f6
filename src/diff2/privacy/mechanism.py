r"""The Gaussian mechanism: the only door through which something computed from records leaves.

It takes a :class:`BoundedMean`, which only clipping makes and which carries its own sensitivity, and returns it with
noise of deviation :math:`z \cdot \text{sensitivity}`. The ledger line is written first.

Floating point. Adding a float to a float leaves traces of the secret in the last bits (Mironov 2012). So value and
noise are both rounded to one power-of-two grid, about :math:`2^{-32}` of the noise deviation, and added there as
integers, exactly. Rounding moves a coordinate by at most half a grid step, so two neighbouring inputs move apart by at
most :math:`\text{grid} \sqrt{d}` more than before. That much, and what the rounding of the sums over records may add,
is added to the sensitivity the noise is scaled by.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ..errors import BudgetExceeded, LedgerError
from .ledger import Ledger
from .noise import NoiseSource
from .release import GAUSSIAN, NONE, REPLACE_ONE, ZERO, Release, tree_nodes

GRID_BITS = 32


@dataclass(frozen=True)
class BoundedMean:
    """A mean of clipped vectors, with how far replacing one unit can move it.

    Not to be built from anything that was not clipped: the mechanism trusts the sensitivity.
    """

    value: np.ndarray | None  # double precision; None where it is still at the sites
    release: Release  # what would be released, before there is noise: units, sensitivity, radius, dimension
    rounding: float = 0.0  # share by which floating-point sums may exceed the sensitivity
    adjacency: str = REPLACE_ONE
    sources: tuple[tuple[float, Any], ...] = ()  # where the value is elsewhere: the questions, with their weights


def combined(parts: Sequence[tuple[float, BoundedMean]]) -> BoundedMean:
    """Return a weighted sum of means over the *same* units; a unit can move it by the weighted sum of its moves."""
    first = parts[0][1]
    if any(_units(mean) != _units(first) for _, mean in parts):
        raise LedgerError("means over different units cannot be combined into one release; release them one by one")
    values = [weight * mean.value for weight, mean in parts if mean.value is not None]
    return replace(
        first,
        value=sum(values[1:], values[0]) if len(values) == len(parts) else None,
        release=first.release._replace(
            sensitivity=sum(abs(weight) * mean.release.sensitivity for weight, mean in parts),
            clip=sum(abs(weight) * mean.release.clip for weight, mean in parts),
        ),
        rounding=max(mean.rounding for _, mean in parts),
        sources=tuple((weight * inner, source) for weight, mean in parts for inner, source in mean.sources),
    )


class Released(NamedTuple):
    """What left, and the ledger line that says so."""

    value: np.ndarray
    release: Release
    variance: float  # of all the noise in each coordinate, of a tree: of a node; the price may count on less of it


class Mechanism:
    """Adds noise and keeps the books.

    Formal guarantee: ``release(mean, z)`` is (1/z)-GDP, for every history of earlier releases, provided the sensitivity
    bounds the change of ``mean.value`` under replacing one unit.
    """

    def __init__(self, ledger: Ledger, noise: NoiseSource):
        self.ledger = ledger
        self.noise = noise

    def release(self, mean: BoundedMean, multiplier: float) -> Released:
        r"""Write the ledger line, then return ``mean.value`` plus noise of deviation multiplier * sensitivity.

        A leaf of a binary tree is released so that sums over the first leaves carry little noise. Every node of the
        tree has noise of its own, of deviation :math:`z \sqrt{D}` times the sensitivity, D levels. The sum of the first
        t leaves as released carries the noise of the at most D nodes that make up [0, t): leaf t gets what that noise
        changes by. All prefix sums are functions of the noisy nodes; a unit is in one leaf, hence in D nodes, and D
        Gaussians of multiplier :math:`z \sqrt{D}` cost what one of multiplier z costs. The leaves of a tree are
        released in consecutive rounds, with one sensitivity, so that the noise of a node has one scale.
        """
        release, grid = self._described(mean, multiplier)
        if release.leaves:
            self._require_next_leaf(release)
        self.ledger.record(release)
        if release.mechanism == ZERO:
            return Released(np.zeros(release.dimension), release, 0.0)
        if release.mechanism == NONE and mean.value is not None:
            return Released(mean.value, release, 0.0)
        return self._noised(mean, release, grid)

    def _noised(self, mean: BoundedMean, release: Release, grid: float) -> Released:
        if mean.value is None:
            raise LedgerError("the value to be released is not here; ask the sites with a mechanism of theirs")
        if release.leaves:
            label: tuple[object, ...] = ("tree", release.round - release.step, release.purpose)
            steps = leaf_steps(self.noise, release.noise_std, grid, release.dimension, release.step, *label)
        else:
            noise = self.noise.gaussian(release.dimension, "noise", *release.label)
            steps = np.rint(release.noise_std * noise / grid)
        # Beyond 2^52 steps a double is a whole number of steps already; the mean of clipped vectors stays far below.
        value = (np.rint(mean.value / grid) + steps) * grid
        return Released(value, release, release.noise_std**2)

    def _parties(self, mean: BoundedMean, multiplier: float) -> int:
        """Return how many parties add the noise together."""
        return 1

    def _described(self, mean: BoundedMean, multiplier: float) -> tuple[Release, float]:
        """Return the ledger line and the grid on which value and noise are added."""
        release, what = mean.release, f"the {mean.release.purpose} of round {mean.release.round}"
        if mean.adjacency != self.ledger.header["adjacency"]:
            raise LedgerError(
                f"{what} has its sensitivity for {mean.adjacency!r}, the ledger prices "
                f"{self.ledger.header['adjacency']!r}; nothing was released. State both for the same adjacency"
            )
        if multiplier > 0 and not math.isfinite(release.sensitivity):
            raise BudgetExceeded(
                f"{what} has no finite sensitivity (clip={release.clip}), so no noise can hide a record; choose a "
                "finite clipping radius, or Budget(epsilon=math.inf) for a run that is not private"
            )
        if release.sensitivity == 0:
            # Both iterates are equal: the difference is zero for every data set, and says nothing.
            return release._replace(mechanism=ZERO, multiplier=math.inf), 0.0
        if multiplier == 0:
            return release._replace(mechanism=NONE, multiplier=0.0), 0.0
        std, grid = noise_scale(mean, multiplier)
        parties = self._parties(mean, multiplier)
        noised = release._replace(mechanism=GAUSSIAN, multiplier=multiplier, noise_std=std, parties=parties)
        return noised._replace(rounding=mean.rounding), grid

    def _require_next_leaf(self, release: Release) -> None:
        """Refuse a leaf that does not follow the ones before it."""
        leaf, before = release.step, self.ledger.last
        follows = leaf == 0 or (before is not None and before.step == leaf - 1 and _tree(before) == _tree(release))
        if not 0 <= leaf < release.leaves or not follows:
            raise LedgerError(
                f"leaf {leaf} of {release.leaves} in round {release.round} does not follow {before}; nothing was "
                "released. The leaves of a tree are released in consecutive rounds, with one sensitivity and multiplier"
            )


def noise_scale(mean: BoundedMean, multiplier: float) -> tuple[float, float]:
    """Return the deviation of the noise that a mean needs, and the grid on which the two are added."""
    release, scale = mean.release, multiplier * math.sqrt(mean.release.nodes)
    grid = 2.0 ** (math.floor(math.log2(scale * release.sensitivity)) - GRID_BITS)
    return scale * (release.sensitivity * (1 + mean.rounding) + grid * math.sqrt(release.dimension)), grid


def leaf_steps(source: NoiseSource, std: float, grid: float, dimension: int, leaf: int, *label: object) -> np.ndarray:
    """Return the noise of a leaf, in grid steps: what the noise of the sum of the first leaves changes by."""

    def prefix(count: int) -> np.ndarray:
        total = np.zeros(dimension)
        for node in tree_nodes(count):
            total += np.rint(std * source.gaussian(dimension, *label, *node) / grid)
        return total

    return prefix(leaf + 1) - prefix(leaf)


def _tree(release: Release) -> tuple[object, ...]:
    """Return what the leaves of one tree have in common."""
    first = release.round - release.step
    return first, release.purpose, release.mechanism, release.leaves, release.noise_std


def _units(mean: BoundedMean) -> tuple[object, ...]:
    """Return what means must have in common to be released together."""
    release = mean.release
    drawn = (release.sampling, release.rate, release.members, release.leaves)
    return mean.adjacency, release.label, drawn, release.dimension
