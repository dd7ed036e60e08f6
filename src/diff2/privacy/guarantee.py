"""The statement a privacy officer can sign: what is guaranteed, for whom, and on which assumptions."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from .._numbers import epsilon_text
from .leaks import code_of

PROTECTED = {  # in words, by unit and adjacency
    ("record", "replace-one"): "each record",
    ("record", "add-or-remove-one"): "each record, against being added or removed",
    ("group", "replace-one"): "each group of records of a client",
    ("client", "replace-one"): "each client, with all its records",
}

SELECTION = "select"


@dataclass(frozen=True)
class Guarantee:
    """An (epsilon, delta) statement with its adjacency, its unit and its conditions. ``str()`` gives the sentence."""

    epsilon: float
    delta: float
    adjacency: str
    unit: str
    client_sizes: tuple[int, ...]
    releases: int
    planned: int | None  # releases of the whole plan, whose epsilon this is; None: as many as the budget allows
    algorithm: str
    seeded: bool
    leaks: tuple[str, ...] = ()
    complete: bool = True
    noise: str = "server"  # who adds it
    sites: int = 0
    min_honest_sites: int = 0  # of the sites, where they add the noise
    secure_aggregation: str = "none"
    epsilon_of_one: float = math.inf  # for whoever sees each site's answer by itself

    @property
    def private(self) -> bool:
        """Whether the statement may be relied on."""
        return math.isfinite(self.epsilon) and not self.seeded and not self.leaks

    def __str__(self) -> str:
        if math.isinf(self.epsilon):
            return (
                f"NOT PRIVATE: {self.algorithm} made {self.releases} releases without noise; "
                "the model has no differential-privacy guarantee (LEAK-NO-NOISE)."
            )
        epsilon = epsilon_text(self.epsilon)
        text = (
            f"The {self.releases} releases made by {self.algorithm}, and everything computed from them, satisfy "
            f"({epsilon}, {self.delta!r})-differential privacy: {self._change()} changes the probability of any "
            f"outcome by at most a factor exp({epsilon}), except with probability {self.delta!r}; "
            f"{self.assumptions()}."
        )
        if self.algorithm == SELECTION:
            text += (
                " It is the best of several models by a score among its releases; all others, how many there were and "
                "how long it took have to stay secret."
            )
        if self.noise == "sites":
            text += f" {self._against_the_server()}"
        if not self.complete:
            whole = "budget" if self.planned is None else f"plan of {self.planned} releases"
            text += f" The run is not complete: epsilon is that of its whole {whole}."
        elif self.planned is not None and self.releases < self.planned:
            text += (
                f" The run ended before its plan of {self.planned} releases; epsilon is that of the whole plan, since "
                "when a run ends may depend on what it released."
            )
        if self.seeded:
            guessed = "because the noise came from a seed that can be guessed (LEAK-SEED)"
            text = f"NOT PRIVATE, {guessed}. Without the seed: {text}"
        if self.leaks:
            named = "; ".join(f"{leak} ({code_of(leak)})" for leak in self.leaks)
            text = f"NOT PRIVATE AS A WHOLE, because of {named}. Apart from that: {text}"
        return text

    def _change(self) -> str:
        records, clients = sum(self.client_sizes), len(self.client_sizes)
        among = f"the {records:,} of {clients} client{'s' if clients > 1 else ''}"
        if self.unit == "client":
            return f"replacing all the records of any one of the {clients} clients"
        if self.unit == "group":
            return f"replacing all the records of any one group at a client, among {among},"
        if self.adjacency == "add-or-remove-one":
            return f"adding or removing any one record, {among.replace('the', 'among at most', 1)},"
        return f"replacing any one record among {among}"

    def assumptions(self) -> str:
        """Say what is public, and who is trusted."""
        if self.unit == "client":
            return f"the numbers of clients and records are public, and {self._trusted('adds the noise')}"
        public = f"the number of records of each client is public, {self._trusted('adds the noise')}"
        if self.unit == "group":
            return f"{public}, and records of the same group at two clients are not protected as one"
        if self.adjacency == "add-or-remove-one":
            public = (
                "the sampling rate and the numbers by which sums are divided are public constants, "
                f"{self._trusted('draws the batches and adds the noise')}"
            )
        return f"{public}, and records of the same person are not protected as one"

    def _trusted(self, task: str) -> str:
        """Say who is trusted with what, by those who see the releases."""
        if self.noise == "server":
            return f"the server that {task} is trusted"
        task = task.replace("draws", "draw").replace("adds", "add")
        if self.min_honest_sites == self.sites:
            whom = f"all {self.sites} sites, which {task} themselves, are trusted to do so and to keep it secret"
        else:
            whom = (
                f"at least {self.min_honest_sites} of the {self.sites} sites, the protected one's own among them, are "
                f"trusted to {task} as agreed and to keep it secret, while the others may tell all they know"
            )
        if self.secure_aggregation != "none":
            return f"{whom}, and no site gives the server the key"
        return f"{whom}, the server is trusted to pass on nothing but sums over all sites that are asked"

    def _against_the_server(self) -> str:
        one = epsilon_text(self.epsilon_of_one)
        if self.secure_aggregation != "none":
            return (
                "The server sees ciphertexts, which nobody without the sites' key can read, and is trusted with one "
                "thing: to hand out nothing but sums over all sites that are asked. Against the server and a site "
                "together, who could decrypt the answer of each site, the same holds with the noise of that site "
                f"alone: with epsilon {one} instead."
            )
        return (
            "Against the server itself, which sees the answer of each site by itself, with the noise of that site "
            f"alone, the same holds with epsilon {one} instead, and no trust in the server."
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, the sentence included."""
        numbers = {name: getattr(self, name) for name in ("epsilon", "epsilon_of_one")}
        words = {name: value if math.isfinite(value) else "inf" for name, value in numbers.items()}
        fields = {**asdict(self), **words, "private": self.private, "sentence": str(self)}
        if self.noise == "server":
            for name in ("noise", "sites", "min_honest_sites", "secure_aggregation", "epsilon_of_one"):
                del fields[name]
        return fields
