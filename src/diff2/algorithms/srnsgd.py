r"""SRN-SGD: sensitivity-reduced normalised SGD with tree noise. **A reconstruction.**

Tran & Cutkosky (NeurIPS 2022) is not available with code, and this is not a transcript of it: it is an algorithm with
its ingredients whose privacy is proven here. The records of every client are divided once into M batches, visited in
turn; an *epoch* is a visit of all. In a restart epoch (every V epochs) batch j contributes its clipped mean gradient,
in the others the clipped mean of its differences to M rounds ago. Updates are normalised, so the path of an epoch has
the length :math:`\ell = \sum \eta` of its M steps for certain, and differences are clipped to :math:`C_2 \ell`.

The running sum S of the contributions is released through one binary tree per epoch (``Mechanism.release``), and
:math:`g = S / M` (in a restart epoch: over the batches seen so far). A record is in one batch, hence in one leaf of
each tree, of sensitivity :math:`2 C / b`: an epoch costs a record what one Gaussian release costs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from .._validate import at_least
from .._vectors import State, Vector, zeros
from ..errors import InvalidArgument
from ..privacy.release import tree_nodes
from ..questions import DIFFERENCE, GRADIENT, Batch, Estimate, Population, Question, Round
from ..routines import Averaging, NormalizedDescent, Routine
from .base import Algorithm, above_one


@dataclass(frozen=True)
class SRNSGD(Algorithm):
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
    radii: ClassVar[tuple[str, ...]] = ("clip_gradient", "clip_smoothness")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("batches", self.batches, 1)
        at_least("restart_epochs", self.restart_epochs, 1)
        above_one("budget_split", self.budget_split)
        if not isinstance(_moving(self.routine), NormalizedDescent):
            raise InvalidArgument(
                f"expected routine=NormalizedDescent(...) for SRNSGD, whose radius needs steps of known length, got "
                f"{type(self.routine).__name__}"
            )

    def questions(self, round: int, population: Population) -> Iterable[Question]:
        epoch, j = divmod(round - 1, self.batches)
        leaf: dict[str, Any] = {"batch": Batch(part=(j, self.batches)), "step": j, "leaves": self.batches}
        if epoch % self.restart_epochs == 0:
            yield Question.gradient(self.clip_gradient, **leaf)
        else:
            # The same radius in the whole epoch, for the noise of a node must have one scale.
            yield Question.difference(self.clip_smoothness * self._longest_path(epoch), **leaf)

    def shares(self) -> Mapping[str, float]:
        return {GRADIENT: 1 / self.budget_split, DIFFERENCE: 1 - 1 / self.budget_split}

    def init(self, params: Vector, population: Population) -> State:
        return {
            "path": params.new_zeros(
                self.batches, params.numel()
            ),  # query points of the last M rounds, row j of batch j
            "sum": zeros(params),
            "closed": 0.0,  # variance of the sum at the end of the last epoch
        }

    def estimate(self, state: State, round: Round) -> tuple[Estimate, State]:
        question = round.questions[0]
        j, restart = question.step, question.kind == GRADIENT
        path = state["path"].clone()
        before = None if restart else path[j].clone()
        path[j] = round.params
        released = round.release(round.ask(question, round.params, before))
        total = released.value if restart and j == 0 else state["sum"] + released.value
        closed = 0.0 if restart else state["closed"]
        variance = closed + len(tree_nodes(j + 1)) * released.variance
        count = j + 1 if restart else self.batches
        if j + 1 == self.batches:
            closed = variance
        estimate = Estimate(total / count, variance / count**2)
        return estimate, {"path": path, "sum": total, "closed": closed}

    def _longest_path(self, epoch: int) -> float:
        """Return the longest that any M steps can be which end in this epoch: between two visits of a batch."""
        routine, start = _moving(self.routine), epoch * self.batches
        rounds = range(start - self.batches + 1, start + self.batches)
        lengths = [routine.step_length(r, self.rounds) for r in rounds]
        return max(sum(lengths[j : j + self.batches]) for j in range(self.batches))


def _moving(routine: Any) -> Any:
    """Return the routine that moves the query points; averaging leaves them alone."""
    while isinstance(routine, Averaging):
        routine = routine.routine
    return routine
