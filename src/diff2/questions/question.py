r"""A question: what is asked of the records, declared once.

An algorithm *declares* the questions of a round: gradient or difference, of whose records, clipped by which rule, for
which release. What a run will cost, what the cohort is asked and what a site agrees to answer all follow from that
declaration. A question that is *asked* has its iterates, and the rule has become a radius.

>>> question = Question.difference(Smoothness(3.0, cap=2.0))
>>> question.kind, question.purpose, question.radius
('difference', 'difference', Smoothness(factor=3.0, cap=2.0))
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .._vectors import distance
from ..errors import InvalidArgument

if TYPE_CHECKING:
    from .._vectors import Vector

GRADIENT, DIFFERENCE = "gradient", "difference"  # kinds of questions; also purposes: sigma_1 and sigma_2 of the paper
LOCAL = "local"  # purpose of a release of a local step; sigma_3
SCALING = "scaling"  # purpose of the release, before the first round, of the columns' means and squares
LEAST_RADIUS = 2.0**-50  # below it, the factors that clip would leave the range of single precision


@dataclass(frozen=True)
class Batch:
    """Which records a question is about. At most one of ``size``, ``rate`` and ``part``; none of them: all records.

    Args:
        clients: only these clients; None: all that take part in the round.
        size: number of records, drawn without replacement: of the one client in ``clients``, or of all together, in
            proportion to their sizes.
        rate: every record with this probability, independently (Poisson).
        part: (j, M): the j-th of M fixed parts into which every client's records are divided, j from 0.
    """

    clients: tuple[int, ...] | None = None
    size: int | None = None
    rate: float | None = None
    part: tuple[int, int] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all records of the clients are in it."""
        return self.size is None and self.rate is None and self.part is None


ALL = Batch()


@dataclass(frozen=True)
class Smoothness:
    """The radius of a difference: ``factor`` times the distance between the two iterates, at most ``cap``.

    It depends on released iterates alone, hence costs no privacy. Equal iterates give the radius zero, others at least
    ``LEAST_RADIUS``.
    """

    factor: float
    cap: float = math.inf

    def radius(self, params: Vector, previous: Vector) -> float:
        apart = distance(params, previous)
        return max(min(self.factor * apart, self.cap), LEAST_RADIUS) if apart > 0 else 0.0


@dataclass(frozen=True)
class Question:
    """The mean over records of their gradients, or of the differences of their gradients, each clipped.

    Questions of one round with the same purpose and step are released together, as one weighted sum. The iterates are
    no part of the declaration, and of no comparison; nor is the transform, which moves neither radius nor price.
    """

    kind: str  # "gradient" or "difference"
    radius: float | Smoothness  # a rule for differences; a number once the question is asked
    purpose: str  # of its release
    batch: Batch = ALL
    step: int = 0  # tells releases of one purpose in a round apart; each draws its own batch. Of a tree: which leaf
    leaves: int = 0  # of the tree that its release is a leaf of; 0: of none
    round: int = 0  # 0 until it is asked
    params: Vector | None = field(default=None, compare=False, repr=False)
    previous: Vector | None = field(default=None, compare=False, repr=False)  # of a difference
    remember: bool = field(default=False, compare=False)  # a difference to ``params`` may be asked for next
    transform: Any = field(default=None, compare=False, repr=False)  # before clipping: ``gradients/transform.py``

    def __post_init__(self) -> None:
        if not isinstance(self.radius, Smoothness) and not (self.radius == 0 or self.radius >= LEAST_RADIUS):
            raise InvalidArgument(
                f"expected a clipping radius of zero or at least {LEAST_RADIUS:.2g}, got {self.radius!r}; choose a "
                "larger one, or scale the loss"
            )

    @classmethod
    def gradient(
        cls, radius: float, purpose: str = GRADIENT, *, batch: Batch = ALL, step: int = 0, leaves: int = 0
    ) -> Question:
        """Declare a mean of gradients, each clipped to ``radius``."""
        return cls(GRADIENT, radius, purpose, batch, step, leaves)

    @classmethod
    def difference(
        cls,
        radius: float | Smoothness,
        purpose: str = DIFFERENCE,
        *,
        batch: Batch = ALL,
        step: int = 0,
        leaves: int = 0,
    ) -> Question:
        """Declare a mean of gradient(params) - gradient(previous), each difference clipped to ``radius``."""
        return cls(DIFFERENCE, radius, purpose, batch, step, leaves)

    def at(self, round: int, params: Vector, previous: Vector | None = None, *, remember: bool = False) -> Question:
        """Return the question as it is asked in a round."""
        if (self.kind == DIFFERENCE) != (previous is not None):
            needs = "two iterates, params and previous" if self.kind == DIFFERENCE else "one iterate, params"
            raise InvalidArgument(
                f"a {self.kind} is asked at {needs}; got previous={'None' if previous is None else '...'}"
            )
        return replace(
            self,
            radius=self.radius_at(params, previous),
            round=round,
            params=params,
            previous=previous,
            remember=remember,
        )

    def radius_at(self, params: Vector, previous: Vector | None) -> float:
        """Return the radius that the declared rule gives for these iterates."""
        if isinstance(self.radius, Smoothness):
            return self.radius.radius(params, params if previous is None else previous)
        return float(self.radius)
