"""From a table and what is publicly known of it to a private model."""

from __future__ import annotations

import math
import os
from datetime import UTC, datetime
from typing import Any

import numpy as np

from .._validate import one_of
from .._version import __version__
from ..errors import InvalidArgument, leak
from ..planning.filter import FILTER, Filter
from ..privacy import Budget, Ledger, Mechanism, NoiseSource
from ..privacy.release import REPLACE_ONE
from ..tables.encode import Encoded, encode
from ..tables.kinds import Classes, Regression
from ..tables.rows import Rows
from ..tables.schema import Schema
from .classification import fit_classification
from .cohort import TableCohort
from .model import FittedModel
from .preparation import Preparation
from .regression import fit_regression
from .saving import model_sha256
from .session import Progress, Session
from .trees import with_trees

TREES_SHARE = 0.3  # of the budget, for trees on the residual of a regression
UNITS = ("record", "group", "client")


def fit(
    data: Any,
    schema: Schema | str | os.PathLike[str],
    *,
    epsilon: float,
    delta: float | str = "auto",
    unit: str = "record",
    weighting: str = "records",
    seed: int | None = None,
    directory: str | os.PathLike[str] | None = None,
    strict: bool = False,
    progress: Progress | None = None,
) -> FittedModel:
    """Fit a model to a table, within an (epsilon, delta) budget. There is nothing to tune.

    Args:
        data: a table: data frame, arrays by name, or anything :func:`diff2.tables.frames.as_frame` takes.
        schema: what is publicly known of it, or the path of a schema file.
        delta: by default the largest power of ten that is at most a tenth of one over the number of units.
        unit: what is protected: a ``"record"``, a ``"group"`` of records, a ``"client"``.
        weighting: ``"records"``: all units count alike; ``"clients"``: all clients.
        seed: None takes the noise from the operating system. A seed makes the fit repeatable and *not private*.
        directory: for the ledger.
        strict: refuse leaks instead of warning.
        progress: is called at each release with the share of the budget that is spent, and what is asked for.

    >>> import numpy as np
    >>> from diff2.tables.schema import Schema
    >>> x = np.linspace(0, 1, 5000)
    >>> schema = Schema.from_arguments(["x"], bounds=[(0, 1)], target_bounds=(0, 4), target="y")
    >>> model = fit({"x": x, "y": 1 + 2 * x}, schema, epsilon=1.0, seed=0)
    >>> bool(abs(model.predict({"x": [0.5]})[0] - 2) < 0.2), round(model.epsilon, 3)
    (True, 1.0)
    """
    one_of("unit", unit, UNITS)
    one_of("weighting", weighting, ("records", "clients"))
    known = schema if isinstance(schema, Schema) else Schema.read(schema)
    if {"group": known.groups, "client": known.clients, "record": ""}[unit] is None:
        raise InvalidArgument(f"unit={unit!r} needs the column that says whose a record is: name {unit}s in the schema")
    bounds, target = known.bounds, known.target
    if np.isnan(bounds).any() or (isinstance(target, Regression) and target.low is None):
        raise InvalidArgument("every numeric column, and the target of a regression, needs bounds for now")
    encoded = encode(data, known)
    clients = _by_client(encoded)
    cohort = TableCohort(clients, unit=unit, weighting=weighting)
    budget = Budget(epsilon, _delta(delta, sum(cohort.sizes)))
    if not budget.private:
        raise InvalidArgument("fit needs a finite epsilon: what it does without noise is not worth having")
    for sentence in known.leaks():
        leak(sentence, strict=strict, stacklevel=3)
    noise = NoiseSource.from_system() if seed is None else NoiseSource.from_seed(seed)
    task = "classification" if isinstance(target, Classes) else "regression"
    filter = Filter(budget)
    header = {
        "library": "diff2",
        "version": __version__,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "adjacency": REPLACE_ONE,
        "unit": unit,
        "client_sizes": list(cohort.sizes),
        "weighting": weighting,
        "clients_per_round": None,
        "client_order": "round_robin",
        "accounting": "exact",
        "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
        "algorithm": {"name": FILTER, "task": task},
        "opening_share": None,
        "trust": None,
        "multipliers": {},
        "planned": filter.planned(),
        "dimension": max(1, len(known.names)),
        "engine": "table",
        "seeded": seed is not None,
        "leaks": known.leaks(),
        "columns": known.to_json(),
        "run_file": None,
        "signed_by": None,
    }
    if directory is not None:
        os.makedirs(directory, exist_ok=True)
    ledger = Ledger(header, None if directory is None else os.path.join(directory, "ledger.jsonl"))
    session = Session(cohort, Mechanism(ledger, noise), filter, progress)
    rng = np.random.default_rng(int.from_bytes(noise.bytes(16, "public draws"), "big"))  # public: part of the model
    preparation = Preparation((), known.widths, known.nullable)
    if isinstance(target, Classes):
        model: Any = fit_classification(
            session.ask, session.mu, cohort.heaviest, preparation, bounds, len(target.values), rng
        )
        limits = (-math.inf, math.inf)
    else:
        limits = (
            (float(target.low), float(target.high)) if isinstance(target, Regression) else (0.0, float(target.high))
        )
        linear = fit_regression(
            session.ask, session.mu * math.sqrt(1 - TREES_SHARE), cohort.heaviest, preparation, bounds, limits, rng
        )
        model = with_trees(session.ask, session.choose, session.mu * math.sqrt(TREES_SHARE), linear, limits, rng)
    ledger.close(model_sha256(known, model, limits))
    return FittedModel(known, model, limits, ledger)


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
