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
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from .._types import Vector
from ..errors import BudgetExceeded, LedgerError
from .ledger import Ledger, ReleaseEntry
from .noise import NoiseSource

ADJACENCY = "replace-one"
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
    adjacency: str = ADJACENCY


class Release(NamedTuple):
    """What left, and the ledger line that says so."""

    value: Vector
    entry: ReleaseEntry


class Mechanism:
    """Adds noise and keeps the books.

    Formal guarantee: ``gaussian(mean, z)`` is (1/z)-GDP, for every history of earlier releases, provided
    ``mean.sensitivity`` bounds the change of ``mean.value`` under replacing one record.
    """

    def __init__(self, ledger: Ledger, noise: NoiseSource):
        self.ledger = ledger
        self.noise = noise

    def gaussian(self, mean: BoundedMean, multiplier: float, *, round: int, purpose: str) -> Release:
        """Write the ledger line, then return ``mean.value`` plus noise of deviation multiplier * sensitivity."""
        dimension = mean.value.numel()
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
            entry = ReleaseEntry(round, purpose, "zero", mean.clip, 0.0, 0.0, math.inf, dimension)
            self.ledger.record(entry)
            return Release(torch.zeros_like(mean.value), entry)
        if multiplier == 0:
            entry = ReleaseEntry(round, purpose, "none", mean.clip, mean.sensitivity, 0.0, 0.0, dimension)
            self.ledger.record(entry)
            return Release(mean.value, entry)
        grid = 2.0 ** (math.floor(math.log2(multiplier * mean.sensitivity)) - GRID_BITS)
        std = multiplier * (mean.sensitivity * (1 + mean.rounding) + grid * math.sqrt(dimension))
        entry = ReleaseEntry(round, purpose, "gaussian", mean.clip, mean.sensitivity, std, multiplier, dimension)
        self.ledger.record(entry)
        noise = std * self.noise.gaussian(dimension, "noise", round, purpose)
        return Release(_add_on_grid(mean.value, noise, grid), entry)


def _add_on_grid(value: Vector, noise: np.ndarray, grid: float) -> Vector:
    """Return value + noise, both rounded to multiples of ``grid`` first; the sum of the integers is exact."""
    # Beyond 2^52 grid steps a double is a whole number of steps already; the mean of clipped vectors stays far below.
    steps = np.rint(value.detach().cpu().numpy() / grid) + np.rint(noise / grid)
    return torch.from_numpy(steps * grid).to(value.device)
