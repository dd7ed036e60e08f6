"""When DIFF2 takes a fresh gradient: every T rounds, and earlier at first where that is asked for.

At the start gradients are long. A restart clips them, the differences that follow need no clipping, and so the estimate
of a first long cycle can point anywhere, even uphill. Early restarts come in rounds 1, 4, 16, 64, ..., for as long as
those are closer together than T: no cycle is longer than three times the run before it. They are about log4 T more.
"""

from typing import NamedTuple


class Restarts(NamedTuple):
    """Cycles of T rounds, each of which begins with a gradient.

    >>> [round for round in range(1, 71) if Restarts(20).at(round)]
    [1, 21, 41, 61]
    >>> [round for round in range(1, 71) if Restarts(20, early=True).at(round)]
    [1, 4, 16, 36, 56]
    """

    interval: int  # T
    early: bool = False

    @property
    def settled(self) -> int:
        """The round from which on all cycles have T rounds."""
        round = 1
        while self.early and 3 * round < self.interval:
            round *= 4
        return round

    def at(self, round: int) -> bool:
        """Whether a round, counted from 1, takes a gradient."""
        settled = self.settled
        if round >= settled:
            return (round - settled) % self.interval == 0
        return round & (round - 1) == 0 and round.bit_length() % 2 == 1  # a power of four

    def cycles(self, rounds: int) -> list[tuple[int, int]]:
        """Return the lengths of the cycles of a run, and how many have each; the last one may be cut off.

        >>> Restarts(20, early=True).cycles(70)
        [(3, 1), (12, 1), (20, 2), (15, 1)]
        """
        settled, found, start = self.settled, [], 1
        while start < settled and start <= rounds:
            found.append((min(3 * start, rounds + 1 - start), 1))
            start *= 4
        whole, rest = divmod(max(0, rounds + 1 - start), self.interval)
        return [cycle for cycle in (*found, (self.interval, whole), (rest, 1)) if all(cycle)]

    def count(self, rounds: int) -> int:
        """Return how many of the first rounds take a gradient."""
        return sum(many for _, many in self.cycles(rounds))
