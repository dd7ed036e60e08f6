r"""Which client gets which record of one table, for experiments that need clients where there is one table.

A partition names how many clients there are and returns, for the records or the groups of records, which of them each
client gets; every one goes to exactly one client.

``Dirichlet`` makes clients differ: the records of each class are shared out by proportions drawn from a Dirichlet
distribution with all parameters ``alpha``. Large ``alpha`` gives all clients the same mixture, small ``alpha`` gives
each class to few clients. For a regression, quantiles of the target stand for classes. Such a partition looks at the
targets: it simulates clients on public data, and is no way to divide private records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from .._validate import at_least, positive
from ..errors import InvalidArgument

ATTEMPTS = 100  # draws until every client is large enough

if TYPE_CHECKING:
    import numpy as np

    Parts: TypeAlias = list[np.ndarray]  # the numbers of each client's records, in rising order


class Partition(Protocol):
    """A way to divide records among clients."""

    @property
    def by_target(self) -> bool:
        """Whether it looks at the targets, which leaks."""

    def parts(self, count: int, groups: np.ndarray | None = None) -> Parts:
        """Divide ``count`` records; ``groups`` has the number of each one's class where ``by_target`` asks for it."""


@dataclass(frozen=True)
class Equal:
    """In turn: record i to client i mod ``clients``. Sizes differ by one at most.

    >>> [part.tolist() for part in Equal(3).parts(7)]
    [[0, 3, 6], [1, 4], [2, 5]]
    """

    clients: int
    by_target = False

    def __post_init__(self) -> None:
        at_least("clients", self.clients, 1)

    def parts(self, count: int, groups: np.ndarray | None = None) -> Parts:
        import numpy as np

        require_units(count, self.clients)
        return [np.arange(p, count, self.clients) for p in range(self.clients)]


@dataclass(frozen=True)
class Sizes:
    """Clients of given sizes, filled at random.

    Args:
        sizes: shares that add up to 1, or numbers of records that add up to all there are.
        seed: draws which records a client gets.

    >>> [len(part) for part in Sizes((0.5, 0.3, 0.2)).parts(11)]
    [6, 3, 2]
    """

    sizes: tuple[float, ...]
    seed: int = 0
    by_target = False

    def __post_init__(self) -> None:
        if not self.sizes:
            raise InvalidArgument("expected sizes to name at least one client, got sizes=[]")
        for i, size in enumerate(self.sizes):
            positive(f"sizes[{i}]", size)
        at_least("seed", self.seed, 0)
        if not self._are_shares and any(float(size) != int(size) for size in self.sizes):
            raise InvalidArgument(
                f"expected sizes to be shares that add up to 1, or whole numbers of records, got sizes="
                f"{list(self.sizes)!r}, which add up to {math.fsum(self.sizes):g}"
            )

    @property
    def _are_shares(self) -> bool:
        return abs(math.fsum(self.sizes) - 1) < 1e-9

    def parts(self, count: int, groups: np.ndarray | None = None) -> Parts:
        require_units(count, len(self.sizes))
        total = math.fsum(self.sizes)
        if self._are_shares:
            numbers = rounded_shares(self.sizes, count)
        elif total == count:
            numbers = [int(size) for size in self.sizes]
        else:
            raise InvalidArgument(f"sizes={list(self.sizes)!r} add up to {total:g}, not to the {count} there are")
        if min(numbers) == 0:
            raise InvalidArgument(f"sizes={list(self.sizes)!r} leave a client without a record; raise its share")
        import numpy as np

        order = np.random.default_rng(self.seed).permutation(count)
        return [np.sort(part) for part in np.split(order, np.cumsum(numbers)[:-1])]


@dataclass(frozen=True)
class Dirichlet:
    """Clients that differ in the classes (of a regression, the quantiles of the target) they hold.

    Args:
        alpha: large for equal mixtures, small for few classes per client.
        seed: draws proportions and records.
        smallest: least size of a client; drawn again, up to 100 times, until all have it.
        quantiles: into how many groups the target of a regression is divided.
    """

    clients: int
    alpha: float
    seed: int = 0
    smallest: int = 1
    quantiles: int = 10
    by_target = True

    def __post_init__(self) -> None:
        at_least("clients", self.clients, 1)
        positive("alpha", self.alpha)
        at_least("seed", self.seed, 0)
        at_least("smallest", self.smallest, 1)
        at_least("quantiles", self.quantiles, 1)

    def parts(self, count: int, groups: np.ndarray | None = None) -> Parts:
        require_units(count, self.clients, self.smallest)
        import numpy as np

        labels = np.zeros(count, dtype=np.int64) if groups is None else groups
        generator = np.random.default_rng(self.seed)
        for _ in range(ATTEMPTS):
            client = self._drawn(labels, generator)
            if np.bincount(client, minlength=self.clients).min() >= self.smallest:
                return [np.flatnonzero(client == p) for p in range(self.clients)]
        raise InvalidArgument(
            f"in {ATTEMPTS} draws a client had fewer than smallest={self.smallest} records with alpha={self.alpha!r} "
            f"and clients={self.clients}; raise alpha, or lower smallest or clients"
        )

    def _drawn(self, labels: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        import numpy as np

        client = np.empty(len(labels), dtype=np.int64)
        for label in np.unique(labels):
            rows = generator.permutation(np.flatnonzero(labels == label))
            shares = generator.dirichlet(np.full(self.clients, self.alpha))
            ends = np.rint(np.cumsum(shares) * len(rows)).astype(np.int64)
            # Tiny parameters can underflow to no shares at all; the last client then has the rest.
            client[rows] = np.minimum(np.searchsorted(ends, np.arange(len(rows)), side="right"), self.clients - 1)
        return client


PARTITIONS: dict[str, type] = {"equal": Equal, "sizes": Sizes, "dirichlet": Dirichlet}


def quantile_groups(values: np.ndarray, groups: int) -> np.ndarray:
    """Return for each value the number of its quantile, from 0; equal values are in one group.

    >>> import numpy as np
    >>> quantile_groups(np.array([0.0, 0.0, 0.0, 1.0, 2.0, 3.0]), 3).tolist()
    [0, 0, 0, 1, 2, 2]
    """
    import numpy as np

    edges = np.unique(np.quantile(values, np.arange(1, groups) / groups))
    return np.unique(np.searchsorted(edges, values, side="left"), return_inverse=True)[1]


def rounded_shares(shares: Sequence[float], count: int) -> list[int]:
    """Return whole numbers that add up to ``count``, each less than one away from its share of it.

    >>> rounded_shares([0.5, 0.25, 0.25], 10)
    [5, 3, 2]
    """
    exact = [share * count for share in shares]
    numbers = [math.floor(value + 1e-9) for value in exact]
    rest = sorted(range(len(exact)), key=lambda i: numbers[i] - exact[i])
    for i in rest[: count - sum(numbers)]:
        numbers[i] += 1
    return numbers


def require_units(count: int, clients: int, smallest: int = 1) -> None:
    """Refuse more clients than can be given something."""
    if count < clients * smallest:
        each = f" with smallest={smallest} records each" if smallest > 1 else ""
        raise InvalidArgument(f"clients={clients}{each} is more than the records or groups there are; lower it")
