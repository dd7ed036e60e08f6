"""From a table and a budget to a session that may ask about its records, with a ledger."""

from __future__ import annotations

import hmac
import math
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .._validate import one_of
from .._version import __version__
from ..errors import InvalidArgument
from ..leaks import code_of, leak
from ..planning.filter import Filter
from ..planning.project import enter
from ..privacy import Budget, Ledger, Mechanism, NoiseSource
from ..privacy.release import REPLACE_ONE
from ..tables.encode import Encoded
from ..tables.rows import Rows
from ..tables.schema import Schema
from .cohort import TableCohort
from .session import Progress, Session

UNITS = ("record", "group", "client")


class Opened(NamedTuple):
    """Who is asked, by whom, where it is written, and what is drawn."""

    cohort: TableCohort
    session: Session
    ledger: Ledger
    rng: np.random.Generator  # public draws


class Terms(NamedTuple):
    """What records are asked for: budget, protected unit, weights, where the noise is from, and the ledger's place."""

    epsilon: float
    delta: float | str = "auto"
    unit: str = "record"
    weighting: str = "records"
    seed: int | None = None
    directory: str | os.PathLike[str] | None = None

    def check(self, schema: Schema) -> None:
        """Refuse what no table could make right."""
        one_of("unit", self.unit, UNITS)
        one_of("weighting", self.weighting, ("records", "clients"))
        if {"group": schema.groups, "client": schema.clients, "record": ""}[self.unit] is None:
            raise InvalidArgument(
                f"unit={self.unit!r} needs the column that says whose a record is: name {self.unit}s in the schema"
            )


def opened(
    encoded: Encoded,
    schema: Schema,
    terms: Terms,
    algorithm: dict[str, str],
    *,
    leaks: list[str],
    strict: bool = False,
    progress: Progress | None = None,
) -> Opened:
    """Return a session within the budget; nothing is released yet."""
    cohort = TableCohort(_by_client(encoded), unit=terms.unit, weighting=terms.weighting)
    budget = Budget(terms.epsilon, _delta(terms.delta, sum(cohort.sizes)))
    if not budget.private:
        raise InvalidArgument(
            f"{algorithm['name']} needs a finite epsilon: what it does without noise is not worth having"
        )
    for sentence in leaks:
        leak(code_of(sentence), f"{sentence}.", strict=strict, stacklevel=4)
    noise = NoiseSource.from_system() if terms.seed is None else NoiseSource.from_seed(terms.seed)
    filter = Filter(budget)
    header = {
        "library": "diff2",
        "version": __version__,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "adjacency": REPLACE_ONE,
        "unit": terms.unit,
        "client_sizes": list(cohort.sizes),
        "weighting": terms.weighting,
        "clients_per_round": None,
        "client_order": "round_robin",
        "accounting": "exact",
        "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
        "algorithm": algorithm,
        "opening_share": None,
        "trust": None,
        "multipliers": {},
        "planned": filter.planned(),
        "dimension": max(1, len(schema.names)),
        "engine": "table",
        "seeded": terms.seed is not None,
        "leaks": leaks,
        "columns": schema.to_json(),
        "run_file": None,
        "signed_by": None,
    }
    path = None if terms.directory is None else Path(terms.directory) / "ledger.jsonl"
    if path is not None and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        enter(path.parent, header, lambda key: _tag(key, encoded))
    ledger = Ledger(header, path)
    session = Session(cohort, Mechanism(ledger, noise), filter, progress)
    rng = np.random.default_rng(int.from_bytes(noise.bytes(16, "public draws"), "big"))
    return Opened(cohort, session, ledger, rng)


def _tag(key: bytes, encoded: Encoded) -> bytes:
    """Return a hash of all records that says nothing without the key."""
    digest = hmac.new(key, digestmod="blake2b")
    for part in encoded.rows:
        digest.update(f"{part.shape} {part.dtype};".encode())
        digest.update(np.ascontiguousarray(part).data)
    return digest.digest()


def _delta(delta: float | str, units: int) -> float:
    if delta == "auto":
        return 10.0 ** -math.ceil(math.log10(10 * units))
    return delta  # type: ignore[return-value]  # checked by the budget


def _by_client(encoded: Encoded) -> list[Encoded]:
    """Return the records of each client."""
    if encoded.clients is None:
        return [encoded]
    names = encoded.clients.astype(str)
    return [_chosen(encoded, names == name) for name in np.unique(names)]


def _chosen(encoded: Encoded, chosen: np.ndarray) -> Encoded:
    rows = Rows(*(part[chosen] for part in encoded.rows))
    groups = None if encoded.groups is None else encoded.groups[chosen]
    return Encoded(rows, encoded.usable[chosen], None, groups)
