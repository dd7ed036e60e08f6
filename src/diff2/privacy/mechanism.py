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
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from .._types import Vector
from ..errors import BudgetExceeded, LedgerError
from .ledger import Ledger, ReleaseEntry
from .noise import NoiseSource

REPLACE_ONE = "replace-one"  # of two data sets with the same sizes
ADD_OR_REMOVE_ONE = "add-or-remove-one"
GRID_BITS = 32


@dataclass(frozen=True)
class BoundedMean:
    """A mean of clipped vectors, with how far replacing one record can move it (Euclidean length).

    Not to be built from anything that was not clipped: the mechanism trusts the sensitivity.
    """

    value: Vector  # double precision
    sensitivity: float
    clip: float  # the radius that gave the sensitivity
    rounding: float = 0.0  # share by which floating-point sums may exceed the sensitivity
    adjacency: str = REPLACE_ONE
    sampling: str = "full"  # how the units in the mean were drawn
    rate: float = 1.0
    members: tuple[int, ...] | None = None  # the clients, or parts, that are in the mean; None: all
    sources: tuple[tuple[float, Any], ...] = ()  # where the value is elsewhere: what it is made of, with weights


def combined(parts: Sequence[tuple[float, BoundedMean]]) -> BoundedMean:
    """Return a weighted sum of means over the *same* units; a unit can move it by the weighted sum of its moves."""
    first = parts[0][1]
    if any(_units(mean) != _units(first) for _, mean in parts):
        raise LedgerError("means over different units cannot be combined into one release; release them one by one")
    return BoundedMean(
        value=torch.stack([weight * mean.value for weight, mean in parts]).sum(0),
        sensitivity=sum(abs(weight) * mean.sensitivity for weight, mean in parts),
        clip=sum(abs(weight) * mean.clip for weight, mean in parts),
        rounding=max(mean.rounding for _, mean in parts),
        adjacency=first.adjacency,
        sampling=first.sampling,
        rate=first.rate,
        members=first.members,
        sources=tuple((weight * inner, source) for weight, mean in parts for inner, source in mean.sources),
    )


class Release(NamedTuple):
    """What left, and the ledger line that says so."""

    value: Vector
    entry: ReleaseEntry
    variance: float  # of all the noise in each coordinate, of a tree: of a node; the price may count on less of it


class Mechanism:
    """Adds noise and keeps the books.

    Formal guarantee: ``gaussian(mean, z)`` is (1/z)-GDP, for every history of earlier releases, provided
    ``mean.sensitivity`` bounds the change of ``mean.value`` under replacing one record.
    """

    def __init__(self, ledger: Ledger, noise: NoiseSource, *, limit: float = math.inf):
        """``limit``: the largest sum of 1/z^2 over all releases; where noise is chosen on the way, this is the filter.

        Releases may be chosen from the values of earlier ones as long as that sum is bounded in advance: the whole is
        then sqrt(limit)-GDP (Smith & Thakurta 2022).
        """
        self.ledger = ledger
        self.noise = noise
        self._limit = limit

    def gaussian(self, mean: BoundedMean, multiplier: float, *, round: int, purpose: str, step: int = 0) -> Release:
        """Write the ledger line, then return ``mean.value`` plus noise of deviation multiplier * sensitivity.

        ``step`` tells several releases of one purpose in a round apart: each has a stream of noise to itself.
        """
        entry, grid = self._entry(mean, multiplier, round, purpose, step)
        self._record(entry)
        if entry.mechanism == "zero":
            return Release(torch.zeros_like(mean.value), entry, 0.0)
        if entry.mechanism == "none":
            return Release(mean.value, entry, 0.0)
        noise = self.noise.gaussian(entry.dimension, "noise", round, purpose, step)
        value = _add_on_grid(mean.value, _steps(entry.noise_std * noise, grid), grid)
        return Release(value, entry, entry.noise_std**2)

    def tree(
        self, mean: BoundedMean, multiplier: float, *, round: int, purpose: str, leaf: int, leaves: int
    ) -> Release:
        r"""Release one leaf of a binary tree, so that sums over the first leaves carry little noise.

        Every node of the tree has noise of its own, of deviation :math:`z \sqrt{D}` times the sensitivity, D levels.
        The sum of the first t leaves as released carries the noise of the at most D nodes that make up [0, t): leaf t
        gets what that noise changes by. All prefix sums are functions of the noisy nodes; a unit is in one leaf, hence
        in D nodes, and D Gaussians of multiplier :math:`z \sqrt{D}` cost what one of multiplier z costs.

        The leaves follow each other in the ledger, and all have the same sensitivity, so that the noise of a node has
        one scale. The streams of a tree are labelled by the round of its first leaf: two trees never share noise.
        """
        entry, grid = self._entry(mean, multiplier, round, purpose, leaf, nodes=tree_levels(leaves))
        first = self._first_round(entry, leaf, leaves)
        self._record(entry)
        if entry.mechanism == "zero":
            return Release(torch.zeros_like(mean.value), entry, 0.0)
        if entry.mechanism == "none":
            return Release(mean.value, entry, 0.0)
        noise = leaf_steps(self.noise, entry.noise_std, grid, entry.dimension, leaf, "tree", first, purpose)
        return Release(_add_on_grid(mean.value, noise, grid), entry, entry.noise_std**2)

    def _first_round(self, entry: ReleaseEntry, leaf: int, leaves: int) -> int:
        """Return the round of the first leaf; refuse a leaf that does not follow the ones before it."""
        before = self.ledger.before_next(1)
        if not 0 <= leaf < leaves or (leaf > 0 and (before is None or _node(before) != _node(entry, leaf - 1))):
            raise LedgerError(
                f"leaf {leaf} of {leaves} in round {entry.round} does not follow {before}; nothing was released. The "
                "leaves of a tree are released one after the other, with the same sensitivity and multiplier"
            )
        if leaf == 0 and before is not None and (before.round, before.purpose) == (entry.round, entry.purpose):
            raise LedgerError(
                f"round {entry.round} has released a {entry.purpose} already; a tree that starts there would carry the "
                "same noise again. Nothing was released"
            )
        first = self.ledger.before_next(leaf) if leaf else None
        return entry.round if first is None else first.round

    def _entry(
        self,
        mean: BoundedMean,
        multiplier: float,
        round: int,
        purpose: str,
        step: int,
        nodes: int = 1,
        shares: int = 1,
    ) -> tuple[ReleaseEntry, float]:
        """Return the ledger line and the grid on which value and noise are added."""
        if mean.adjacency != self.ledger.header["adjacency"]:
            raise LedgerError(
                f"the {purpose} of round {round} has its sensitivity for {mean.adjacency!r}, the ledger prices "
                f"{self.ledger.header['adjacency']!r}; nothing was released. State both for the same adjacency"
            )
        if multiplier > 0 and not math.isfinite(mean.sensitivity):
            raise BudgetExceeded(
                f"the {purpose} of round {round} has no finite sensitivity (clip={mean.clip}), so no noise can hide a "
                "record; choose a finite clipping radius, or Budget(epsilon=math.inf) for a run that is not private"
            )
        if mean.sensitivity == 0:
            # Both iterates are equal: the difference is zero for every data set, and says nothing.
            kind, std, multiplier, grid = "zero", 0.0, math.inf, 0.0
        elif multiplier == 0:
            kind, std, grid = "none", 0.0, 0.0
        else:
            kind, (std, grid) = "gaussian", noise_scale(mean, multiplier, nodes)
        entry = ReleaseEntry(
            round, purpose, kind, mean.clip, mean.sensitivity, std, multiplier, mean.value.numel(), step,
            mean.sampling, mean.rate, mean.members, nodes, shares,
        )  # fmt: skip
        return entry, grid

    def _record(self, entry: ReleaseEntry) -> None:
        if math.isfinite(self._limit):
            spent = self.ledger.spent_with(entry)
            if spent > self._limit:
                raise BudgetExceeded(
                    f"the {entry.purpose} of round {entry.round} would raise mu^2 to {spent:.6g}, above the limit of "
                    f"{self._limit:.6g} of this run; nothing was released"
                )
        self.ledger.record(entry)


def noise_scale(mean: BoundedMean, multiplier: float, nodes: int = 1) -> tuple[float, float]:
    """Return the deviation of the noise that a mean needs, and the grid on which the two are added."""
    scale = multiplier * math.sqrt(nodes)
    grid = 2.0 ** (math.floor(math.log2(scale * mean.sensitivity)) - GRID_BITS)
    return scale * (mean.sensitivity * (1 + mean.rounding) + grid * math.sqrt(mean.value.numel())), grid


def tree_levels(leaves: int) -> int:
    """Return D, the number of nodes above and including a leaf.

    >>> [tree_levels(leaves) for leaves in (1, 2, 3, 4, 5)]
    [1, 2, 3, 3, 4]
    """
    return (leaves - 1).bit_length() + 1


def tree_nodes(count: int) -> list[tuple[int, int]]:
    """Return the (level, index) of the nodes that make up the first ``count`` leaves.

    >>> tree_nodes(6)
    [(2, 0), (1, 2)]
    """
    nodes, start = [], 0
    for level in reversed(range(count.bit_length())):
        if count >> level & 1:
            nodes.append((level, start >> level))
            start += 1 << level
    return nodes


def leaf_steps(source: NoiseSource, std: float, grid: float, dimension: int, leaf: int, *label: object) -> np.ndarray:
    """Return the noise of a leaf, in grid steps: what the noise of the sum of the first leaves changes by."""

    def prefix(count: int) -> np.ndarray:
        total = np.zeros(dimension)
        for node in tree_nodes(count):
            total += _steps(std * source.gaussian(dimension, *label, *node), grid)
        return total

    return prefix(leaf + 1) - prefix(leaf)


def _node(entry: ReleaseEntry, leaf: int | None = None) -> tuple[object, ...]:
    """Return what the leaves of one tree have in common, and which of them this is."""
    return entry.purpose, entry.mechanism, entry.nodes, entry.noise_std, entry.step if leaf is None else leaf


def _units(mean: BoundedMean) -> tuple[object, ...]:
    return mean.adjacency, mean.sampling, mean.rate, mean.members


def _steps(noise: np.ndarray, grid: float) -> np.ndarray:
    return np.rint(noise / grid)


def _add_on_grid(value: Vector, noise_steps: np.ndarray, grid: float) -> Vector:
    """Return value + noise on the grid: the value is rounded to it, and the sum of the integers is exact."""
    # Beyond 2^52 grid steps a double is a whole number of steps already; the mean of clipped vectors stays far below.
    steps = np.rint(value.detach().cpu().numpy() / grid) + noise_steps
    return torch.from_numpy(steps * grid).to(value.device)
