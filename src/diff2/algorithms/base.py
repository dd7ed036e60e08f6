"""What an algorithm is: the questions it asks in a round, and how the answers become an estimate of the gradient.

An algorithm is a frozen dataclass that inherits :class:`Algorithm`. It declares *once*, in ``questions``, what it
asks. Pricing, asking, and the check at a site all derive from that. CONTRIBUTING.md has a skeleton.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

from .._registry import require_kind
from .._validate import at_least, positive, wrong
from .._vectors import State, Vector
from ..errors import InvalidArgument
from ..privacy.release import REPLACE_ONE
from ..questions import GRADIENT, Estimate, Population, Question, Round
from ..routines import Routine
from ..routines.given import as_routine


class Algorithm:
    """Settings, and what the loop, the planner and the sites need to know.

    Args:
        rounds: R, the number of rounds.
        routine: what to do with the estimate.
    """

    name: ClassVar[str]  # in run files and ledgers
    adjacency: ClassVar[str] = REPLACE_ONE  # for which neighbouring data sets its releases are priced
    radii: ClassVar[tuple[str, ...]] = ("clip_gradient",)  # fields that must be finite in a private run

    rounds: int
    routine: Routine

    def questions(self, round: int, population: Population) -> Iterable[Question]:
        """Declare what is asked in a round, from public numbers alone."""
        raise NotImplementedError

    def estimate(self, state: State, round: Round) -> tuple[Estimate, State]:
        """Return the estimate of the gradient at ``round.params``, and the next state."""
        raise NotImplementedError

    def shares(self) -> Mapping[str, float]:
        """Return the share of the budget that goes to each purpose; only their proportions matter."""
        return {GRADIENT: 1.0}

    def check(self, population: Population, private: bool) -> None:
        """Raise where the settings do not fit these clients, or, in a private run, a radius is infinite."""
        for name in self.radii if private else ():
            if math.isinf(getattr(self, name)):
                raise InvalidArgument(
                    f"expected {name} to be finite in a private run, got {name}=inf; without clipping no noise hides a "
                    "record. Choose a radius, or Budget(epsilon=math.inf)"
                )

    def settled(self, sigma: Callable[[Algorithm], float], dimension: int | None) -> Algorithm:
        """Return the algorithm with whatever is automatic chosen from public numbers.

        Args:
            sigma: returns the noise of another algorithm's gradients on the same budget, in units of its radius.
            dimension: the number of parameters; None if it is not known.
        """
        return self

    def init(self, params: Vector, population: Population) -> State:
        """Return the state before the first round: tensors and numbers by name."""
        return {}

    def declared(self, round: int, population: Population) -> tuple[Question, ...]:
        """Return all that is asked in a round, by the algorithm and by its routine."""
        return (*self.questions(round, population), *self.routine.questions(round, population))

    def __post_init__(self) -> None:
        at_least("rounds", self.rounds, 1)
        for name in self.radii:
            positive(name, getattr(self, name), infinite=True)
        object.__setattr__(self, "routine", as_routine(self.routine))


def check_algorithm(kind: type[Algorithm]) -> str:
    """Return the name of an algorithm; say what is missing where it cannot be one.

    >>> class Mine(Algorithm):
    ...     name = "mine"
    >>> check_algorithm(Mine)
    Traceback (most recent call last):
    diff2.errors.InvalidArgument: algorithm Mine: it must define questions(...); see help(diff2.Algorithm)
    """
    return require_kind("algorithm", kind, Algorithm, ("questions", "estimate"), ("rounds", "routine"))


def above_one(name: str, value: float) -> None:
    """Require a budget split u > 1: one kind of release gets the share 1/u."""
    positive(name, value)
    if 0 < value <= 1:
        wrong(f"expected {name} > 1 (restarts get the share 1/{name}), got {value!r}")
