r"""What a routine does: move the parameters, given a private estimate of the gradient.

Most routines see released values only, so whatever they do costs no privacy; they inherit :class:`PostProcessing`. A
routine that asks the cohort for more (local steps) declares that in ``questions``.

Learning rates may change from round to round, as is known before the run starts:

================  ===========================================
``schedule``      :math:`\eta_r`, for r = 1, ..., R
================  ===========================================
``constant``      :math:`\eta`
``cosine``        :math:`\eta (1 + \cos(\pi (r - 1) / R)) / 2`
``inverse_root``  :math:`\eta / \sqrt r`
================  ===========================================
"""

import math
from collections.abc import Iterable
from numbers import Real
from typing import Any, ClassVar

from .._registry import require_kind
from .._validate import one_of, positive, wrong
from .._vectors import State, Vector
from ..questions import Estimate, Population, Question, Round

SCHEDULES = ("constant", "cosine", "inverse_root")


class Routine:
    """A frozen dataclass of settings with a pure ``init`` and ``step``."""

    name: ClassVar[str]  # in run files and ledgers
    local_steps: int  # K: points visited in a round; 1 for a routine that moves once

    def init(self, params: Vector) -> State:
        """Return the state before the first round: tensors and numbers by name."""
        return {}

    def step(self, state: State, params: Vector, estimate: Estimate, round: Round) -> tuple[Vector, State]:
        """Return the next parameters, at which gradients will be asked for, and the next state."""
        raise NotImplementedError(f"{type(self).__name__} does not define step(state, params, estimate, round)")

    def output(self, state: State, params: Vector) -> Vector:
        """Return the model that the run has reached."""
        return params

    def questions(self, round: int, population: Population) -> Iterable[Question]:
        """Declare what the routine itself will ask in a round."""
        return ()

    def check(self, population: Population, private: bool) -> None:
        """Raise where the routine cannot work with these clients, or, in a private run, has an infinite radius."""

    def overcount(self) -> dict[str, float]:
        """Return by how much the paper's accounting counts the routine's releases too often, by purpose."""
        return {}


class PostProcessing(Routine):
    """A routine that asks for nothing and moves once per round."""

    local_steps = 1


def check_routine(kind: type[Routine]) -> str:
    """Return the name of a routine; say what is missing where it cannot be one."""
    return require_kind("routine", kind, Routine, ("step",))


def fraction(name: str, value: Any) -> None:
    """Require a number in [0, 1), such as a momentum.

    >>> fraction("momentum", 1.0)
    Traceback (most recent call last):
    diff2.errors.InvalidArgument: expected momentum to be at least 0 and below 1, got momentum=1.0
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < 1:
        wrong(f"expected {name} to be at least 0 and below 1, got {name}={value!r}")


def check_schedule(learning_rate: Any, schedule: Any) -> None:
    """Refuse a learning rate that is not above zero, or a schedule that does not exist."""
    positive("learning_rate", learning_rate)
    one_of("schedule", schedule, SCHEDULES)


def scheduled(learning_rate: float, schedule: str, number: int, total: int) -> float:
    """Return the learning rate of round ``number`` of ``total``; in the first, ``learning_rate`` itself."""
    one_of("schedule", schedule, SCHEDULES)
    if schedule == "cosine":
        return learning_rate * (1 + math.cos(math.pi * (number - 1) / total)) / 2
    if schedule == "inverse_root":
        return learning_rate / math.sqrt(number)
    return learning_rate
