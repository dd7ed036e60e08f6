"""The statement a privacy officer can sign: what is guaranteed, for whom, and on which assumptions."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Any


@dataclass(frozen=True)
class Guarantee:
    """An (epsilon, delta) statement with its adjacency, its unit and its conditions. ``str()`` gives the sentence."""

    epsilon: float
    delta: float
    adjacency: str
    unit: str
    client_sizes: tuple[int, ...]
    releases: int
    algorithm: str
    seeded: bool
    leaks: tuple[str, ...] = ()
    complete: bool = True

    @property
    def private(self) -> bool:
        """Whether the statement may be relied on."""
        return math.isfinite(self.epsilon) and not self.seeded and not self.leaks

    def __str__(self) -> str:
        if math.isinf(self.epsilon):
            return (
                f"NOT PRIVATE: {self.algorithm} made {self.releases} releases without noise; "
                "the model has no differential-privacy guarantee."
            )
        # Rounded up: a printed epsilon must not be smaller than the true one.
        exact = Decimal(repr(self.epsilon))
        above = exact.quantize(Decimal("0.0001"), rounding=ROUND_CEILING) if self.epsilon < 1e9 else exact
        epsilon = f"{above.normalize():f}"
        text = (
            f"The {self.releases} releases made by {self.algorithm}, and everything computed from them, satisfy "
            f"({epsilon}, {self.delta!r})-differential privacy: {self._change()} changes the probability of any "
            f"outcome by at most a factor exp({epsilon}), but for a probability of {self.delta!r}; "
            f"{self._assumptions()}."
        )
        if not self.complete:
            text += " The run is not complete: this is what has been released so far."
        if self.seeded:
            text = f"NOT PRIVATE, because the noise came from a seed that can be guessed. Without the seed: {text}"
        if self.leaks:
            text = f"NOT PRIVATE AS A WHOLE, because of {'; '.join(self.leaks)}. Apart from that: {text}"
        return text

    def _change(self) -> str:
        records, clients = sum(self.client_sizes), len(self.client_sizes)
        among = f"the {records:,} of {clients} client{'s' if clients > 1 else ''}"
        if self.unit == "client":
            return f"replacing all the records of any one of the {clients} clients"
        if self.unit == "owner":
            return f"replacing all the records that any one owner has at a client, among {among},"
        if self.adjacency == "add-or-remove-one":
            return f"adding or removing any one record, among {among},"
        return f"replacing any one record among {among}"

    def _assumptions(self) -> str:
        public = "the number of records of each client is public, the server that adds the noise is trusted"
        if self.unit == "client":
            return "the numbers of clients and records are public, and the server that adds the noise is trusted"
        if self.unit == "owner":
            return f"{public}, and records of the same owner at two clients are not protected as one"
        if self.adjacency == "add-or-remove-one":
            public = (
                "the sampling rate and the numbers by which sums are divided are public constants, the server that "
                "draws the batches and adds the noise is trusted"
            )
        return f"{public}, and records of the same person are not protected as one"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, the sentence included."""
        epsilon: float | str = self.epsilon if math.isfinite(self.epsilon) else "inf"
        return {**asdict(self), "epsilon": epsilon, "private": self.private, "sentence": str(self)}
