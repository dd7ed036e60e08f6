r"""Who takes part in a question, and how far one of them can move the answer.

This is the one place where sensitivities come from: the plan prices releases with it before there is any data, and
the cohort attaches the same numbers to the means it returns.

An answer is a weighted sum of vectors clipped to the radius :math:`C`. With :math:`w` the largest weight of a unit,

* replacing one unit moves the sum by at most :math:`2 C w`;
* adding or removing one moves it by at most :math:`C w` (Poisson batches). What is compared then are data sets of at
  most :math:`n_p` records each, a public number of *slots*: weights, draws, and the place of each record follow from
  it, the number of records itself is used nowhere, and a slot is filled or emptied (``cohorts/draws.py``).

Weights of a record of client p, for m clients that take part, :math:`N` records among them and a batch of
:math:`b_p` of its :math:`n_p` records:

================  ==========================  ==========================
weighting         all records                 a batch
================  ==========================  ==========================
``"clients"``     :math:`1/(m n_p)`           :math:`1/(m b_p)`
``"records"``     :math:`1/N`                 :math:`n_p/(N b_p)`
================  ==========================  ==========================

A client as the unit has the weight :math:`1/m`. A group of records has the weight of a record: what is clipped is the
sum over the records of the group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from .._validate import at_least, one_of
from ..errors import InvalidArgument
from ..privacy.calibration import ACCOUNTINGS
from ..privacy.release import ADD_OR_REMOVE_ONE, FIXED, FULL, POISSON, REPLACE_ONE, Release
from .question import ALL, Batch, Question

WEIGHTINGS = ("clients", "records")
UNITS = ("record", "group", "client")
CLIENT_ORDERS = ("round_robin", "random")


@dataclass(frozen=True)
class Protection:
    """What is protected, and how that is accounted.

    Args:
        unit: a ``"record"``, a ``"group"`` of records of one client (say, those of a person), or a whole ``"client"``.
        weighting: ``"clients"``, the mean of the clients' means; ``"records"``, the mean over all records.
        clients_per_round: how many clients take part in a round; None: all.
        client_order: ``"round_robin"`` in a shuffled public order, or, for ``unit="client"``, ``"random"``.
        accounting: ``"exact"``, or ``"paper"`` for the closed forms of the paper, which need more noise.
    """

    unit: str = "record"
    weighting: str = "clients"
    clients_per_round: int | None = None
    client_order: str = "round_robin"
    accounting: str = "exact"

    def __post_init__(self) -> None:
        one_of("unit", self.unit, UNITS)
        one_of("weighting", self.weighting, WEIGHTINGS)
        one_of("client_order", self.client_order, CLIENT_ORDERS)
        one_of("accounting", self.accounting, ACCOUNTINGS)
        at_least("clients_per_round", self.clients_per_round, 1, optional=True)

    def population(self, sizes: Sequence[int], adjacency: str = REPLACE_ONE) -> Population:
        """Return the units of clients of these sizes."""
        counts = tuple(int(size) for size in sizes)
        return Population(counts, self.weighting, self.unit, self.clients_per_round, self.client_order, adjacency)


@dataclass(frozen=True)
class Population:
    """The units that are protected. Sizes are public.

    Args:
        sizes: records of each client; with Poisson batches, the public number of its slots.
        weighting: ``"clients"`` or ``"records"``.
        unit: ``"record"``, ``"group"`` (several records of one client), ``"client"``.
        clients_per_round: m of the P clients take part in a round; None: all.
        client_order: ``"round_robin"`` in a shuffled order that is public, or ``"random"``, drawn in secret.
        adjacency: what is compared: data sets of the same sizes, or with one unit more.
    """

    sizes: tuple[int, ...]
    weighting: str = "clients"
    unit: str = "record"
    clients_per_round: int | None = None
    client_order: str = "round_robin"
    adjacency: str = REPLACE_ONE

    def __post_init__(self) -> None:
        at_least("number of clients", len(self.sizes), 1)
        for p, size in enumerate(self.sizes):
            at_least(f"client_sizes[{p}]", size, 1)
        Protection(self.unit, self.weighting, self.clients_per_round, self.client_order)
        if self.clients_per_round is not None and self.clients_per_round > len(self.sizes):
            raise InvalidArgument(
                f"expected clients_per_round to be at most the number of clients, {len(self.sizes)}, got "
                f"clients_per_round={self.clients_per_round}"
            )
        if self.unit == "client" and self.weighting == "records":
            raise InvalidArgument(
                "unit='client' clips the mean of each client, so clients weigh alike; use weighting='clients'"
            )
        if self._drawn and self.unit != "client":
            raise InvalidArgument(
                f"client_order='random' lowers the cost of a whole client only, not of a {self.unit}: whether a client "
                "took part can be seen. Use client_order='round_robin', or unit='client'"
            )
        if self.unit == "group" and not self.everyone:
            raise InvalidArgument("groups and clients_per_round cannot be combined yet; leave one of them out")

    @property
    def everyone(self) -> bool:
        """Whether all clients take part in every round."""
        return self.clients_per_round in (None, len(self.sizes))

    @property
    def units(self) -> int:
        """The number of units; for groups an upper bound, their records."""
        return len(self.sizes) if self.unit == "client" else sum(self.sizes)

    def participants(self, round: int) -> tuple[int, ...]:
        """Return the clients of a round, where their order is public."""
        clients, m = len(self.sizes), self.clients_per_round
        if m is None or m == clients:
            return tuple(range(clients))
        block, place = divmod(round - 1, clients)
        order = _shuffled(clients, block)
        # In a block of P rounds each client is met exactly m times, and never twice in a round.
        return tuple(sorted(order[(place * m + k) % clients] for k in range(m)))

    def batch_sizes(self, size: int, clients: Sequence[int]) -> list[int]:
        """Return how a batch of ``size`` records divides among clients: by their sizes, at least one each."""
        if len(clients) == 1:
            return [size]
        total = sum(self.sizes[p] for p in clients)
        return [max(1, min(self.sizes[p], round(size * self.sizes[p] / total))) for p in clients]

    def weights(self, clients: Sequence[int], batch: Batch = ALL) -> list[float]:
        """Return the weight of a record of each of these clients in the answer."""
        sizes = [self.sizes[p] for p in clients]
        m, total = len(clients), sum(sizes)
        shares = [1 / m if self.weighting == "clients" else size / total for size in sizes]
        return [share / count for share, count in zip(shares, self._counts(clients, batch), strict=True)]

    def count(self, client: int, batch: Batch, round: int) -> int:
        """Return how many records of a client are in a batch that is not drawn at random."""
        together = (client,) if batch.size is None else self.participants(round)
        clients = together if batch.clients is None else batch.clients
        return int(self._counts(clients, batch)[clients.index(client)])

    def check(self, batch: Batch) -> None:
        """Refuse a batch that these clients cannot give, or that could not be priced."""
        if (batch.rate is not None) != (self.adjacency == ADD_OR_REMOVE_ONE):
            raise InvalidArgument(
                "Poisson batches are priced for adding or removing a record, all other questions for replacing one, "
                "and one run has one adjacency; use sampling='fixed', or a routine that asks for nothing itself"
            )
        if batch == ALL:
            return
        if self.unit != "record":
            raise InvalidArgument(
                f"unit={self.unit!r} needs an algorithm that asks all records of all clients in a round; batches of "
                "records are not drawn by that unit. Use Diff2, RecursiveDiff2, DPGD or GD"
            )
        if not self.everyone and (batch.part is not None or batch.rate is not None or batch.clients is None):
            raise InvalidArgument(
                "clients_per_round cannot be combined with batches drawn from all clients; leave one of them out"
            )
        clients = range(len(self.sizes)) if batch.clients is None else batch.clients
        sizes = [self.sizes[p] for p in clients]
        if batch.size is not None:
            limit = sum(sizes) if batch.clients is None else min(sizes)
            at_least("batch_size", batch.size, 1)
            if batch.size > limit:
                whose = "all clients together have" if batch.clients is None else "the smallest client has"
                most = limit if batch.clients is None else min(self.sizes)
                raise InvalidArgument(f"batch_size={batch.size} is more than the {most} records {whose}; lower it")
        if batch.rate is not None and not 0 < batch.rate <= 1:
            raise InvalidArgument(f"expected a sampling rate above 0 and at most 1, got {batch.rate!r}")
        if batch.part is not None and batch.part[1] > min(sizes):
            raise InvalidArgument(
                f"{batch.part[1]} batches cannot be made of the {min(sizes)} records of the smallest client; lower it"
            )

    def release(self, question: Question, round: int) -> Release:
        """Return how a unit shows in the answer to a question of this round, as a release for the radius one."""
        shown = _shown(self, 1 if self.everyone or self._drawn else round, question.batch)
        return shown._replace(round=round, purpose=question.purpose, step=question.step, leaves=question.leaves)

    def takes_part(self, client: int, round: int, batch: Batch) -> bool:
        """Return whether a client may be asked in a round; where clients are drawn in secret, anyone may."""
        if batch.clients is not None:
            return client in batch.clients
        return self._drawn or client in self.participants(round)

    @property
    def _drawn(self) -> bool:
        return self.client_order == "random" and not self.everyone

    def _counts(self, clients: Sequence[int], batch: Batch) -> list[float]:
        """Return the number of records by which each client's part of the sum is divided."""
        sizes = [self.sizes[p] for p in clients]
        if batch.size is not None:
            return [float(size) for size in self.batch_sizes(batch.size, clients)]
        if batch.rate is not None:
            return [size * batch.rate for size in sizes]
        if batch.part is not None:
            j, parts = batch.part
            return [float(len(part_range(size, j, parts))) for size in sizes]
        return [float(size) for size in sizes]


def part_range(size: int, part: int, parts: int) -> range:
    """Return the records of a part: ``size`` records in ``parts`` runs whose lengths differ by at most one.

    >>> [list(part_range(5, j, 2)) for j in range(2)]
    [[0, 1], [2, 3, 4]]
    """
    return range(size * part // parts, size * (part + 1) // parts)


@lru_cache(maxsize=4096)
def _shown(population: Population, round: int, batch: Batch) -> Release:
    population.check(batch)
    shown, everyone = Release(round, ""), tuple(range(len(population.sizes)))
    m = len(everyone) if population.clients_per_round is None else population.clients_per_round
    if population._drawn:
        return shown._replace(sensitivity=2 / m, sampling=FIXED, rate=m / len(everyone))
    clients = population.participants(round) if batch.clients is None else batch.clients
    shown = shown._replace(members=None if clients == everyone else clients)
    if population.unit == "client":
        return shown._replace(sensitivity=2 / len(clients))
    if batch.part is not None:
        # One bound for all parts, so that the noise of a tree over them has one scale.
        j, parts = batch.part
        each = [max(population.weights(clients, Batch(part=(i, parts)))) for i in range(parts)]
        return shown._replace(sensitivity=2 * max(each), members=(j,))
    heaviest = max(population.weights(clients, batch))
    if batch.rate is not None:
        return shown._replace(sensitivity=heaviest, sampling=POISSON, rate=batch.rate)
    if batch.size is not None:
        drawn = population.batch_sizes(batch.size, clients)
        rate = max(count / population.sizes[p] for count, p in zip(drawn, clients, strict=True))
        return shown._replace(sensitivity=2 * heaviest, sampling=FIXED if rate < 1 else FULL, rate=rate)
    return shown._replace(sensitivity=2 * heaviest)


@lru_cache(maxsize=64)
def _shuffled(count: int, block: int) -> tuple[int, ...]:
    """Return an order of 0, ..., count - 1 that anyone can compute: nothing is claimed from its being secret."""
    keys = [hashlib.sha256(f"diff2 clients {block} {i}".encode()).digest() for i in range(count)]
    return tuple(sorted(range(count), key=keys.__getitem__))
