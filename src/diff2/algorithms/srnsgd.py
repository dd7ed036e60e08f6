r"""SRN-SGD: sensitivity-reduced normalised SGD with tree noise. **A reconstruction.**

Tran & Cutkosky (NeurIPS 2022) is not available with code, and this is not a transcript of it: it is an algorithm with
its ingredients whose privacy is proven here. The records of every client are divided once into M batches, visited in
turn; an *epoch* is a visit of all. In a restart epoch (every V epochs) batch j contributes its clipped mean gradient,
in the others the clipped mean of its differences to M rounds ago. Updates are normalised, so the path of an epoch has
the length :math:`\ell = \sum \eta` of its M steps for certain, and differences are clipped to :math:`C_2 \ell`.

The running sum S of the contributions is released through one binary tree an epoch (``Mechanism.tree``), and
:math:`g = S / M` (in a restart epoch: over the batches seen so far). A record is in one batch, hence in one leaf of
each tree, of sensitivity :math:`2 C / b`: an epoch costs a record what one Gaussian release costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from .._types import Vector
from .._validate import at_least, positive
from ..errors import InvalidArgument
from ..privacy.mechanism import tree_nodes
from ..questions.population import Batch, Population
from ..questions.round import DIFFERENCE, GRADIENT, Estimate, Planned, Round
from ..routines import Averaging, NormalizedDescent, Routine
from .base import Estimator, require_finite


@dataclass(frozen=True)
class SRNSGD(Estimator):
    """Sensitivity-reduced normalised SGD, reconstructed.

    Args:
        batches: M, the number of batches that every client's records are divided into.
        restart_epochs: V: every V-th epoch works with gradients, the others with differences.
        clip_gradient: C_1.
        clip_smoothness: C_2; differences are clipped to C_2 times the length of an epoch's path.
        routine: ``NormalizedDescent``: the length of its steps must be known in advance.
        budget_split: u: restart epochs get the share 1/u.
    """

    rounds: int
    batches: int
    restart_epochs: int
    clip_gradient: float
    clip_smoothness: float
    routine: Routine
    budget_split: float = 2.0
    name: ClassVar[str] = "srnsgd"

    def __post_init__(self) -> None:
        at_least("rounds", self.rounds, 1)
        at_least("batches", self.batches, 1)
        at_least("restart_epochs", self.restart_epochs, 1)
        positive("clip_gradient", self.clip_gradient, infinite=True)
        positive("clip_smoothness", self.clip_smoothness, infinite=True)
        positive("budget_split", self.budget_split)
        if self.budget_split <= 1:
            raise InvalidArgument(f"expected budget_split > 1 (restarts get 1/budget_split), got {self.budget_split!r}")
        if not isinstance(_moving(self.routine), NormalizedDescent):
            raise InvalidArgument(
                f"expected routine=NormalizedDescent(...) for SRNSGD, whose radius needs steps of known length, got "
                f"{type(self.routine).__name__}"
            )

    def releases(self, round: int, population: Population) -> Iterable[Planned]:
        epoch, j = divmod(round - 1, self.batches)
        yield Planned(self._purpose(epoch), population.exposure(round, Batch(part=(j, self.batches))))

    def shares(self) -> Mapping[str, float]:
        return {GRADIENT: 1 / self.budget_split, DIFFERENCE: 1 - 1 / self.budget_split}

    def check(self, population: Population, private: bool) -> None:
        population.check(Batch(part=(0, self.batches)))
        if private:
            require_finite("clip_gradient", self.clip_gradient)
            require_finite("clip_smoothness", self.clip_smoothness)

    def init(self, params: Vector, population: Population) -> dict[str, Any]:
        path = torch.zeros(self.batches, params.numel(), dtype=params.dtype, device=params.device)
        zero = torch.zeros_like(params, dtype=torch.float64)
        return {
            "path": path,  # the query points of the last M rounds; row j of batch j
            "sum": zero,
            "closed": 0.0,  # variance of the sum at the end of the last epoch
        }

    def estimate(self, state: dict[str, Any], round: Round) -> tuple[Estimate, dict[str, Any]]:
        epoch, j = divmod(round.number - 1, self.batches)
        purpose, batch = self._purpose(epoch), Batch(part=(j, self.batches))
        path = state["path"].clone()
        before = path[j].clone()
        path[j] = round.params
        if purpose == GRADIENT:
            mean = round.cohort.clipped_gradient(round.params, self.clip_gradient, round=round.number, batch=batch)
        else:
            # The same radius in the whole epoch, for the noise of a node must have one scale.
            radius = self.clip_smoothness * self.longest_path(epoch, round)
            mean = round.cohort.clipped_difference(round.params, before, radius, round=round.number, batch=batch)
        restart = purpose == GRADIENT
        release = round.release_leaf(mean, purpose, leaf=j, leaves=self.batches)
        total = release.value if restart and j == 0 else state["sum"] + release.value
        closed = 0.0 if restart else state["closed"]
        variance = closed + len(tree_nodes(j + 1)) * release.variance
        count = j + 1 if restart else self.batches
        if j + 1 == self.batches:
            closed = variance
        estimate = Estimate(total / count, variance / count**2)
        return estimate, {"path": path, "sum": total, "closed": closed}

    def _purpose(self, epoch: int) -> str:
        return GRADIENT if epoch % self.restart_epochs == 0 else DIFFERENCE

    def longest_path(self, epoch: int, round: Round) -> float:
        """Return the longest that any M steps can be which end in this epoch: between two visits of a batch."""
        routine = _moving(self.routine)
        start = epoch * self.batches
        lengths = [
            routine.step_length(round.at(r)) for r in range(start - self.batches + 1, start + self.batches)
        ]  # fmt: skip
        return max(sum(lengths[j : j + self.batches]) for j in range(self.batches))


def _moving(routine: Any) -> Any:
    """Return the routine that moves the query points; averaging leaves them alone."""
    while isinstance(routine, Averaging):
        routine = routine.routine
    return routine
