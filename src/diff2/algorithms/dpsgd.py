r"""DP-SGD: the clipped mean gradient of a random batch with noise, every round (Abadi et al. 2016).

Two ways to draw the batch, which are priced differently; the formula of one must never be used for the other:

* ``sampling="fixed"``: b records without replacement, from each client in proportion to its size. Sensitivity
  :math:`2 C / b` under *replacing one record*, as in the rest of the library.
* ``sampling="poisson"``: every record with probability q = b/N, independently; the sum is divided by the *expected*
  size b. Sensitivity :math:`C / b` under *adding or removing one record*: a guarantee of another kind.
  N is then a public bound of the number of records (``public_sizes``); the exact number would be a leak.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from .._validate import at_least, one_of, positive
from .._vectors import State
from ..errors import InvalidArgument
from ..privacy.release import ADD_OR_REMOVE_ONE, REPLACE_ONE
from ..questions import Batch, Estimate, Population, Question, Round
from ..routines import Routine
from .base import Algorithm

SAMPLINGS = ("fixed", "poisson")


@dataclass(frozen=True)
class DPSGD(Algorithm):
    """DP-SGD with any routine.

    Args:
        batch_size: b, of all clients together; with Poisson sampling its expectation.
        clip_gradient: the radius for a record's gradient.
        sampling: ``"fixed"`` (replace-one) or ``"poisson"`` (add-or-remove-one).
    """

    rounds: int
    batch_size: int
    clip_gradient: float
    routine: Routine
    sampling: str = "fixed"
    name: ClassVar[str] = "dpsgd"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("batch_size", self.batch_size, 1)
        one_of("sampling", self.sampling, SAMPLINGS)

    @property
    def adjacency(self) -> str:  # type: ignore[override]
        return REPLACE_ONE if self.sampling == "fixed" else ADD_OR_REMOVE_ONE

    def questions(self, round: int, population: Population) -> Iterable[Question]:
        if self.sampling == "fixed":
            batch = Batch(size=self.batch_size)
        else:
            batch = Batch(rate=self.batch_size / sum(population.sizes))
        yield Question.gradient(self.clip_gradient, batch=batch)

    def check(self, population: Population, private: bool) -> None:
        super().check(population, private)
        if self.batch_size > sum(population.sizes):
            raise InvalidArgument(
                f"batch_size={self.batch_size} is more than the {sum(population.sizes)} records there are; lower it"
            )

    def estimate(self, state: State, round: Round) -> tuple[Estimate, State]:
        released = round.release(round.ask(round.questions[0], round.params))
        return Estimate(released.value, released.variance), state


def rounds_for(*, epochs: float, batch_size: int, records: int | Sequence[int]) -> int:
    """Return how many batches a ``DataLoader`` makes in these epochs: the rounds of a run with batches of this size.

    Batches are drawn afresh in every round, so an epoch is a count, not a pass through the data: in each round a record
    takes part with probability ``batch_size / records``, the sampling rate that the guarantee is computed from.

    Args:
        records: how many there are, of all clients or of each: public numbers. With Poisson batches, ``public_sizes``.

    >>> rounds_for(epochs=3, batch_size=256, records=60_000)
    705
    """
    positive("epochs", epochs)
    at_least("batch_size", batch_size, 1)
    sizes = list(records) if isinstance(records, Sequence) else [records]
    for size in sizes or [0]:
        at_least("records", size, 1)
    if batch_size > sum(sizes):
        raise InvalidArgument(f"batch_size={batch_size} is more than the {sum(sizes)} records there are; lower it")
    return math.ceil(epochs * -(-sum(sizes) // batch_size))
