r"""The Gaussian mechanism: the only door through which something computed from records leaves.

It takes a :class:`BoundedMean`, which only clipping makes and which carries its own sensitivity, and returns it with
noise of deviation :math:`z \cdot \text{sensitivity}`. The ledger line is written first.

Floating point. Adding a float to a float leaves traces of the secret in the last bits (Mironov 2012). So the value is
rounded to whole steps of a grid, :math:`2^{-32}` of the noise deviation, and the noise is whole numbers of steps from
the exact sampler (``discrete_gaussian.py``); they are added as integers. What leaves is a function of that sum and of
public numbers. Rounding is paid for (:func:`noise_scale`), and so is what noise on whole numbers costs more than
continuous noise (``discrete.py``).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import BudgetExceeded, InvalidArgument, LedgerError
from .discrete import MOST_DRAWS, SCALE
from .ledger import Ledger
from .noise import NoiseSource
from .release import GAUSSIAN, NONE, POISSON, REPLACE_ONE, ZERO, Release, tree_nodes

if TYPE_CHECKING:
    import numpy as np  # imported by what draws noise; a plan needs none

UNIT_OF_ROUNDING = 2.0**-53
MOST_STEPS = 2.0**61  # of a value; noise and sums then stay within 64 bits, but for a probability below exp(-2^50)
SMALLEST, LARGEST = 2.0**-900, 2.0**900  # of a deviation: beyond them doubles are no longer precise


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
    asked: bytes = b""  # a hash of the iterates: other questions get other noise even if the answer is the same


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
        asked=b"".join(repr(float(weight)).encode() + mean.asked for weight, mean in parts),
    )


class Released(NamedTuple):
    """What left, and the ledger line that says so."""

    value: np.ndarray
    release: Release
    variance: float  # of all the noise in each coordinate, of a tree: of a node; the price may count on less of it


class Mechanism:
    """Adds noise and writes the ledger.

    Formal guarantee: ``release(mean, z)`` is (1/z)-GDP up to what ``discrete.py`` prices, for every history of earlier
    releases, provided the sensitivity bounds the change of ``mean.value`` under replacing one unit.
    """

    def __init__(self, ledger: Ledger, noise: NoiseSource):
        self.ledger = ledger
        self.noise = noise

    def release(self, mean: BoundedMean, multiplier: float) -> Released:
        r"""Write the ledger line, then return ``mean.value`` plus noise of deviation multiplier * sensitivity.

        The line holds a hash of what is released. The same question with the same answer is the same release, and has
        one line; another answer has other noise, and is another release.

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
        if release.mechanism == ZERO:
            import numpy as np

            return self._recorded(Released(np.zeros(release.dimension), release, 0.0))
        return self._noised(mean, release, grid)

    def _noised(self, mean: BoundedMean, release: Release, grid: float) -> Released:
        if mean.value is None:
            raise LedgerError(
                "the value to be released is at the sites; ask them, with the mechanism of the federation"
            )
        if mean.value.shape != (release.dimension,):  # one number of noise would be added to several
            raise LedgerError(
                f"a value of shape {tuple(mean.value.shape)} cannot have noise for {release.dimension} numbers; "
                "nothing was released. Give one vector, and its dimension"
            )
        if release.mechanism == NONE:
            return self._recorded(Released(mean.value, release, 0.0))
        steps = whole_steps(mean.value, grid)
        if release.leaves:
            noise = self._leaf_noise(release, steps, mean.asked)
        else:
            from .discrete_gaussian import discrete_gaussian

            digest = self.noise.digest(steps.data, mean.asked)
            noise = discrete_gaussian(self.noise, release.dimension, "noise", *release.label, digest)
        return self._recorded(Released((steps + noise) * grid, release, release.noise_std**2))

    def _leaf_noise(self, release: Release, steps: np.ndarray, asked: bytes) -> np.ndarray:
        """Return the noise of a leaf; a node has noise by the values of all leaves up to its last."""
        leaf, label = release.step, ("tree", release.round - release.step, release.purpose)
        digests = self.noise.trees.get(release.purpose, [])[:leaf]
        if len(digests) < leaf:
            raise LedgerError(
                f"the noise of the leaves before leaf {leaf} in round {release.round} is unknown; nothing was "
                "released. Resume the run from its own checkpoint"
            )
        digests.append(self.noise.digest(steps.data, asked, digests[-1].encode() if digests else b""))
        self.noise.trees[release.purpose] = digests
        return leaf_noise(self.noise, release.dimension, leaf, *label, digests=digests)

    def _recorded(self, made: Released) -> Released:
        """Write the line with a hash of the value, which may then leave."""
        line = made.release._replace(sha256=hashlib.sha256(made.value.astype("<f8").data).hexdigest())
        return made._replace(release=self.ledger.record(line))

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
            # Both iterates are equal: the difference is zero for every data set, and reveals nothing.
            return release._replace(mechanism=ZERO, multiplier=math.inf), 0.0
        if multiplier == 0:
            return release._replace(mechanism=NONE, multiplier=0.0), 0.0
        parties = self._parties(mean, multiplier)
        std, grid = noise_scale(mean, multiplier, parties)
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


def noise_scale(mean: BoundedMean, multiplier: float, parties: int = 1) -> tuple[float, float]:
    r"""Return the deviation of the noise that a mean needs, and the grid on which the two are added.

    Of h parties each adds noise of deviation :math:`\tau / \sqrt h`, which is :math:`\sigma = 2^{32}` grid steps.
    Rounding moves a coordinate by half a step; before that, the division by the grid is off by :math:`2^{-53}` of its
    result. So two neighbours are up to :math:`g \sqrt d + 2 \cdot 2^{-53} \lVert v \rVert` further apart. With
    :math:`s = z \sqrt{\text{nodes}}`,

    .. math::
        \tau = s \, (m + g \sqrt d) = s\, m \,/\, (1 - s \sqrt{d / h}\, / \sigma), \qquad
        g = \tau / \sqrt h \sigma, \qquad m = \text{sensitivity} + \text{rounding}.
    """
    release, scale = mean.release, multiplier * math.sqrt(mean.release.nodes)
    share = scale * math.sqrt(release.dimension / parties) / SCALE
    if release.dimension * release.nodes > MOST_DRAWS or share > 0.5:
        raise InvalidArgument(
            f"{release.dimension} parameters with the noise multiplier {multiplier:g} are more than the grid of the "
            "noise allows; use a smaller model, or raise epsilon"
        )
    std = scale * (release.sensitivity + rounding_of(mean)) / (1 - share) * (1 + 2.0**-48)
    grid = std / math.sqrt(parties) / SCALE
    if not SMALLEST < std < LARGEST or not reach(mean) / grid < MOST_STEPS:
        raise InvalidArgument(
            f"the {release.purpose} of round {release.round} needs noise of standard deviation {std:g} on values up to "
            f"{reach(mean):g}: whole numbers of more than 64 bits. Lower epsilon, or scale the data"
        )
    return std, grid


def reach(mean: BoundedMean) -> float:
    """Return how long the value can be: no longer than the radius, but in a Poisson batch all units may be."""
    release = mean.release
    return release.clip * (1 + mean.rounding) / (release.rate if release.sampling == POISSON else 1)


def rounding_of(mean: BoundedMean) -> float:
    """Return how much further apart rounding may move neighbours: of the sums over records, and of the division."""
    return mean.rounding * mean.release.sensitivity + 2 * UNIT_OF_ROUNDING * reach(mean)


def whole_steps(value: np.ndarray, grid: float) -> np.ndarray:
    """Return a value as whole numbers of grid steps."""
    import numpy as np

    return np.rint(value / grid).astype(np.int64)


def leaf_noise(
    source: NoiseSource, dimension: int, leaf: int, *label: object, digests: Sequence[str] = ()
) -> np.ndarray:
    """Return the noise of a leaf, in grid steps: what the noise of the sum of the first leaves changes by.

    Args:
        digests: for each leaf up to this one, which noise a node that ends with it gets.
    """
    import numpy as np

    from .discrete_gaussian import discrete_gaussian

    before, after = tree_nodes(leaf), tree_nodes(leaf + 1)
    total = np.zeros(dimension, dtype=np.int64)
    for sign, nodes in ((1, set(after) - set(before)), (-1, set(before) - set(after))):
        for level, index in nodes:
            digest = [digests[(index + 1 << level) - 1]] if digests else []
            total += sign * discrete_gaussian(source, dimension, *label, level, index, *digest)
    return total


def _tree(release: Release) -> tuple[object, ...]:
    """Return what the leaves of one tree have in common."""
    first = release.round - release.step
    return first, release.purpose, release.mechanism, release.leaves, release.noise_std


def _units(mean: BoundedMean) -> tuple[object, ...]:
    """Return what means must have in common to be released together."""
    release = mean.release
    drawn = (release.sampling, release.rate, release.members, release.leaves)
    return mean.adjacency, release.label, drawn, release.dimension
