"""The best of several candidates, privately, for those who cannot decide beforehand.

A candidate is drawn at random and fitted, again and again, a random and secret number of times; the model whose private
score is best is kept, and nothing else (``privacy/repeated.py``). Each fit gets less than half of the budget, so that
candidates have to differ by much to be worth it.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from .._validate import at_least
from ..errors import InvalidArgument
from ..planning.filter import Filter
from ..planning.project import enter, require_within_limit
from ..privacy import Ledger, Mechanism, NoiseSource
from ..privacy.accounting import gdp_epsilon
from ..privacy.guarantee import SELECTION
from ..privacy.leaks import code_of, leak
from ..privacy.noise import KEY_BYTES
from ..privacy.repeated import repetitions as drawn_repetitions
from ..tables.encode import encode
from ..tables.frames import as_frame
from ..tables.schema import Schema
from .cohort import TableCohort
from .directory import tag
from .fit import algorithm_of, fitted
from .model import FittedModel
from .opening import Opened, Terms, budget_of, by_client, delta_of, header_of, public_draws
from .saving import refuse_folder
from .session import Session


class Selected(NamedTuple):
    """The candidate that was chosen, and its model. How often each was tried stays secret."""

    name: str
    model: FittedModel


def select(
    data: Any,
    candidates: Mapping[str, Schema],
    *,
    epsilon: float,
    delta: float | str = "auto",
    repetitions: int | None = None,
    unit: str = "record",
    weighting: str = "records",
    seed: int | None = None,
    directory: str | os.PathLike[str] | None = None,
) -> Selected:
    """Fit the best of several candidates, within an (epsilon, delta) budget for all of it.

    Args:
        data: a table, as :func:`diff2.fit` takes it.
        candidates: schemas by name: other columns, bounds or categories, and the same target.
        repetitions: how many fits there are on average; by default two for each candidate. The number is geometric,
            and how long it takes shows it: keep that to yourself.
        seed: None takes the noise from the operating system. A seed makes it repeatable and *not private*.
        directory: for the model with its ledger; nothing is written before the end.
    """
    if len({(one.target_name, one.target, one.clients, one.groups) for one in candidates.values()}) != 1:
        raise InvalidArgument("expected candidates to be schemas with one target, clients and groups for all")
    mean = 2 * len(candidates) if repetitions is None else repetitions
    at_least("repetitions", mean, 1)
    terms, frame = Terms(epsilon, delta, unit, weighting, seed, directory), as_frame(data)
    cohorts, records = {}, list[Any]()
    for name, schema in candidates.items():
        terms.check(schema)
        encoded = encode(frame, schema)
        cohorts[name] = TableCohort(by_client(encoded), unit=unit, weighting=weighting)
        records += [*encoded.rows, encoded.usable, encoded.clients, encoded.groups]
    names, sizes = list(candidates), next(iter(cohorts.values())).census.sizes
    budget = budget_of(epsilon, delta_of(delta, sum(sizes)))
    budget.warn()
    one_fit = gdp_epsilon(Filter(budget, mean).mu, budget.delta)
    # Of all candidates: one that was read off the data decides whether another wins.
    leaks = list(dict.fromkeys(sentence for schema in candidates.values() for sentence in schema.leaks()))
    for sentence in leaks:
        leak(code_of(sentence), f"{sentence}.", strict=False)
    headers: dict[str, dict[str, Any]] = {}
    for name, schema in candidates.items():  # of one time: that of a repetition would tell how many came before it
        algorithm = {**algorithm_of(schema), "name": SELECTION, "candidates": names, "repetitions": mean}
        header = header_of(schema, budget, terms, sizes, algorithm, leaks)
        began = headers[names[0]]["time"] if headers else header["time"]
        headers[name] = {**header, "planned": Filter(budget, mean).planned(), "time": began}
    if directory is not None:
        refuse_folder(directory)
    require_within_limit(directory, headers[names[0]])
    source = NoiseSource.from_system() if seed is None else NoiseSource.from_seed(seed)
    best: Selected | None = None
    for number in range(drawn_repetitions(source, mean)):
        name = names[source.integer(len(names), "candidate", number)]
        noise = NoiseSource(source.bytes(KEY_BYTES, "repetition", number), private=source.private)
        schema, filter = candidates[name], Filter(budget, mean)
        ledger = Ledger(headers[name])
        session = Session(cohorts[name], Mechanism(ledger, noise), filter)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # which would tell of models that are not published
            model = fitted(schema, Opened(cohorts[name].census, session, ledger, public_draws(noise)), one_fit)
        if best is None or _score(model) > _score(best.model):
            best = Selected(name, model)
    if best is None:
        raise InvalidArgument(f"expected repetitions to give at least one fit, got repetitions={mean!r}; raise it")
    enter(directory, best.model.ledger.header, lambda key: bytes.fromhex(tag(key, records)))
    if directory is not None:
        best.model.save(directory)
    return best


def _score(model: FittedModel) -> float:
    """Return the private score that every repetition pays for."""
    worth = None if model.health is None else model.health.score
    return -math.inf if worth is None else worth.share
