"""From a table and what is publicly known of it to a private model."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from .._validate import one_of
from ..errors import InvalidArgument, leak
from ..privacy import Budget, Ledger, Mechanism, NoiseSource
from ..privacy.release import REPLACE_ONE
from ..tables.encode import Encoded, encode
from ..tables.kinds import Classes, Counts, Regression
from ..tables.rows import Rows
from ..tables.schema import Schema
from .bounds import found_bounds, share_of_bounds
from .classification import fit_classification
from .cohort import TableCohort
from .counts import fit_counts
from .health import Health, Watch
from .model import FittedModel
from .preparation import Preparation
from .regression import fit_regression
from .scoring import Errors, score_of
from .session import Session
from .trees import with_trees

TREES_SHARE = 0.3  # of the budget, for trees on the residual of a regression
SCORE_SHARE = 0.02
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
    score: bool = True,
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
        score: spend 2 % of the budget on a private score of the model on these records, see ``FittedModel.health``.

    >>> import numpy as np
    >>> from diff2.tables.schema import Schema
    >>> x = np.linspace(0, 1, 5000)
    >>> schema = Schema.from_arguments(["x"], bounds=[(0, 1)], target_bounds=(0, 4), target="y")
    >>> model = fit({"x": x, "y": 1 + 2 * x}, schema, epsilon=1.0, seed=0)
    >>> bool(abs(model.predict({"x": [0.5]})[0] - 2) < 0.2), round(model.epsilon, 3)
    (True, 1.0)
    """
    one_of("unit", unit, UNITS)
    known = schema if isinstance(schema, Schema) else Schema.read(schema)
    encoded = encode(data, known)
    clients = by_client(encoded)
    cohort = TableCohort(clients, unit=unit, weighting=weighting)
    budget = Budget(epsilon, chosen_delta(delta, sum(cohort.sizes)))
    if not budget.private:
        raise InvalidArgument("fit needs a finite epsilon: what it does without noise is not worth having")
    for sentence in known.leaks():
        leak(sentence, strict=strict, stacklevel=3)
    noise = NoiseSource.from_system() if seed is None else NoiseSource.from_seed(seed)
    target = known.target
    task = {Classes: "classification", Counts: "counts", Regression: "regression"}[type(target)]
    header = {
        "library": "diff2",
        "adjacency": REPLACE_ONE,
        "unit": unit,
        "client_sizes": list(cohort.sizes),
        "weighting": weighting,
        "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
        "algorithm": {"name": "fit", "task": task},
        "seeded": seed is not None,
        "leaks": known.leaks(),
        "schema": known.to_json(),
    }
    ledger = Ledger(header, None if directory is None else os.path.join(directory, "ledger.jsonl"))
    session = Session(cohort, Mechanism(ledger, noise), budget)
    rng = np.random.default_rng(int.from_bytes(noise.bytes(16, "public draws"), "big"))  # public: part of the model
    preparation = Preparation((), known.widths, known.nullable)
    unknown = isinstance(target, Regression) and target.low is None
    ask = Watch(session.ask)
    share = share_of_bounds(int(np.isnan(known.bounds).any(axis=1).sum()) + unknown, session.mu, cohort.heaviest)
    names = [*(one.name for one in known.numeric), known.target_name]
    bounds, found = found_bounds(ask, session.mu * math.sqrt(share), known.bounds, names, unknown)
    scored = SCORE_SHARE if score else 0.0
    mu, weight = session.mu * math.sqrt(1 - share - scored), cohort.heaviest
    limits, model, constant = (-math.inf, math.inf), None, None
    if isinstance(target, Classes):
        model = fit_classification(ask, mu, weight, preparation, bounds, len(target.values), rng)
        constant = model.offset
    elif isinstance(target, Counts):
        model, constant, most = fit_counts(ask, mu, weight, preparation, bounds, float(target.high), rng)
        limits = (0.0, most)
    else:
        limits = found or (float(target.low), float(target.high))  # type: ignore[arg-type]
        linear = fit_regression(ask, mu * math.sqrt(1 - TREES_SHARE), weight, preparation, bounds, limits, rng)
        model = with_trees(ask, session.choose, mu * math.sqrt(TREES_SHARE), linear, limits, rng)
        constant = linear.offset
    worth = None
    if score:
        worth = score_of(ask, session.mu * math.sqrt(scored), weight, Errors(model, target, limits, constant))
    ledger.close()
    return FittedModel(known, model, limits, ledger, Health(ask.stages(), worth))


def chosen_delta(delta: float | str, units: int) -> float:
    """Return delta; ``"auto"``: a power of ten, at most a tenth of one over the number of units."""
    if delta == "auto":
        return 10.0 ** -math.ceil(math.log10(10 * units))
    return delta  # type: ignore[return-value]  # checked by the budget


def by_client(encoded: Encoded) -> list[Encoded]:
    """Return the records of each client."""
    if encoded.clients is None:
        return [encoded]
    names = encoded.clients.astype(str)
    return [_chosen(encoded, names == name) for name in np.unique(names)]


def _chosen(encoded: Encoded, chosen: np.ndarray) -> Encoded:
    rows = Rows(*(part[chosen] for part in encoded.rows))
    groups = None if encoded.groups is None else encoded.groups[chosen]
    return Encoded(rows, encoded.usable[chosen], None, groups)
