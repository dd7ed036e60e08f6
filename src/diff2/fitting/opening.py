"""From a table and a budget to a session that may ask about its records, with a ledger."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from .._validate import one_of
from .._version import __version__
from ..errors import InvalidArgument
from ..planning.filter import Filter
from ..privacy import Budget, Ledger, Mechanism, NoiseSource
from ..privacy.leaks import code_of, leak
from ..privacy.release import REPLACE_ONE
from ..tables.encode import Encoded
from ..tables.rows import Rows
from ..tables.schema import Schema
from .cohort import Census, TableCohort, label_numbers
from .directory import FitDirectory
from .session import Progress, Session

MOST_INPUTS = 3000  # numbers and categories; the Gram matrix has their square
UNITS = ("record", "group", "client")


class Opened(NamedTuple):
    """Who is asked, by whom, where it is written, and what is drawn."""

    census: Census
    session: Session
    ledger: Ledger
    rng: np.random.Generator  # public draws
    directory: FitDirectory | None = None  # where it can be resumed


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
                f"unit={self.unit!r} needs the column of each record's {self.unit}: name {self.unit}s in the schema"
            )
        inputs = len(schema.numeric) + sum(schema.widths)
        if inputs > MOST_INPUTS:
            raise InvalidArgument(
                f"the schema has {inputs:,} inputs, and a fit takes {MOST_INPUTS:,}: " + "; ".join(schema.warnings())
            )


def opened(
    encoded: Encoded,
    schema: Schema,
    terms: Terms,
    algorithm: dict[str, Any],
    *,
    leaks: list[str],
    strict: bool = False,
    progress: Progress | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Opened:
    """Return a session within the budget; nothing is released yet.

    Args:
        settings: what the header does not say, and must be the same for a fit to be resumed.
    """
    cohort = TableCohort(by_client(encoded), unit=terms.unit, weighting=terms.weighting)
    sizes = cohort.census.sizes
    budget = budget_of(terms.epsilon, delta_of(terms.delta, sum(sizes)))
    budget.warn(stacklevel=4)
    for sentence in leaks:
        leak(code_of(sentence), f"{sentence}.", strict=strict, stacklevel=4)
    header = header_of(schema, budget, terms, sizes, algorithm, leaks)
    directory = FitDirectory(
        terms.directory, header, settings=settings or {}, seed=terms.seed,
        records=[*encoded.rows, encoded.usable, encoded.clients, encoded.groups],
    )  # fmt: skip
    session = Session(cohort, Mechanism(directory.ledger, directory.noise), Filter(budget), progress)
    return Opened(cohort.census, session, directory.ledger, public_draws(directory.noise), directory)


def budget_of(epsilon: float, delta: float) -> Budget:
    """Return the budget of a fit; refuse an infinite one."""
    budget = Budget(epsilon, delta)
    if not budget.private:
        raise InvalidArgument("a fit needs a finite epsilon: without noise use another library")
    return budget


def public_draws(noise: NoiseSource) -> np.random.Generator:
    """Return what draws random features and candidates: they may be known to everybody."""
    return np.random.default_rng(int.from_bytes(noise.bytes(16, "public draws"), "big"))


def header_of(
    schema: Schema,
    budget: Budget,
    terms: Terms,
    sizes: Sequence[int],
    algorithm: dict[str, Any],
    leaks: Sequence[str],
    trust: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the first line of the ledger; ``trust`` says who adds the noise where it is not who writes the ledger."""
    return {
        "library": "diff2",
        "version": __version__,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "adjacency": REPLACE_ONE,
        "unit": terms.unit,
        "client_sizes": list(sizes),
        "weighting": terms.weighting,
        "clients_per_round": None,
        "client_order": "round_robin",
        "accounting": "exact",
        "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
        "algorithm": algorithm,
        "opening_share": None,
        "trust": trust,
        "multipliers": {},
        "planned": Filter(budget).planned(1 if trust is None else trust["min_honest_sites"]),
        "dimension": max(1, len(schema.names)),
        "engine": "table",
        "seeded": terms.seed is not None,
        "leaks": list(leaks),
        "columns": schema.to_json(),
        "run_file": None,
        "signed_by": None,
    }


def delta_of(delta: float | str, units: int) -> float:
    """Return delta, by default the largest power of ten that is at most a tenth of one over the number of units."""
    if delta == "auto":
        return 10.0 ** -math.ceil(math.log10(10 * units))
    return delta  # type: ignore[return-value]  # checked by the budget


def by_client(encoded: Encoded) -> list[Encoded]:
    """Return the records of each client."""
    if encoded.clients is None:
        return [encoded]
    names, numbers = label_numbers(encoded.clients)
    return [_chosen(encoded, numbers == place) for place in range(len(names))]


def _chosen(encoded: Encoded, chosen: np.ndarray) -> Encoded:
    rows = Rows(*(part[chosen] for part in encoded.rows))
    groups = None if encoded.groups is None else encoded.groups[chosen]
    return Encoded(rows, encoded.usable[chosen], None, groups)
