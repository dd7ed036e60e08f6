"""A round: what algorithms and routines are given, and the one way in which they may let something out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from .._types import Vector
from ..cohorts.pooled import Cohort
from ..errors import LedgerError
from ..privacy import BoundedMean, Mechanism, Release, ReleaseEntry
from .population import Exposure

GRADIENT = "gradient"  # purpose of a release of the mean gradient; its sigma is the paper's sigma_1
DIFFERENCE = "difference"  # purpose of a release of the mean difference; sigma_2
SCALING = "scaling"  # purpose of the release, before the first round, of the columns' means and squares
LOCAL = "local"  # purpose of a release of a local step; sigma_3


class Estimate(NamedTuple):
    """A private estimate of the gradient."""

    value: Vector  # double precision
    variance: float  # of the noise in each coordinate, known exactly; 0 without noise


class Planned(NamedTuple):
    """A release to come: priced before there is any data."""

    purpose: str
    exposure: Exposure
    factor: float = 1.0  # its noise multiplier in units of the purpose's
    padding: float = 1.0  # by how much the paper counts it too often


@dataclass
class Round:
    """Round r: where we are, whom to ask, and how much noise to add."""

    number: int  # r, from 1
    total: int  # R
    params: Vector  # x_{r-1}
    cohort: Cohort
    mechanism: Mechanism
    multipliers: Mapping[str, float]  # noise multiplier of each purpose, as calibrated
    allowance: float  # sum of 1/z^2 that the plan's full releases have; inf without noise
    output_step: int = 0  # the local step whose starting point is wanted, if this round's is
    entries: list[ReleaseEntry] = field(default_factory=list)  # ledger lines of this round
    visited: Vector | None = None  # the point that was wanted

    @property
    def rounds_left(self) -> int:
        """This round and those to come."""
        return self.total - self.number + 1

    def release(self, mean: BoundedMean, purpose: str, *, multiplier: float | None = None, step: int = 0) -> Release:
        """Let a mean out with noise. ``multiplier`` instead of the calibrated one must keep the run's total.

        Args:
            step: tells several releases of one purpose in a round apart; each has noise of its own.
        """
        if any((entry.purpose, entry.step) == (purpose, step) for entry in self.entries):
            raise LedgerError(
                f"round {self.number} has released a {purpose} of step {step} already; a second one would carry the "
                "same noise, and their difference none. Give each release of a round its own step"
            )
        z = self.multipliers[purpose] if multiplier is None else multiplier
        release = self.mechanism.gaussian(mean, z, round=self.number, purpose=purpose, step=step)
        self.entries.append(release.entry)
        return release

    def release_leaf(self, mean: BoundedMean, purpose: str, *, leaf: int, leaves: int) -> Release:
        """Let a mean out as one leaf of a tree: sums of leaves carry the noise of a few nodes."""
        release = self.mechanism.tree(
            mean, self.multipliers[purpose], round=self.number, purpose=purpose, leaf=leaf, leaves=leaves
        )
        self.entries.append(release.entry)
        return release

    def at(self, number: int) -> Round:
        """Return another round of the same run, for what depends on its number alone."""
        return replace(self, number=number)

    def visit(self, step: int, params: Vector) -> None:
        """Say that a local step starts from these parameters; the output may be drawn from such points."""
        if step == self.output_step:
            self.visited = params
