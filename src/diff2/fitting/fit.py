"""From a table and what is publicly known of it to a private model."""

from __future__ import annotations

import math
import os
import warnings
from typing import Any

import numpy as np

from .._validate import one_of, torch_installed
from ..errors import InvalidArgument, WeakModelWarning
from ..planning.filter import FILTER
from ..tables.encode import encode
from ..tables.frames import as_frame
from ..tables.kinds import Classes, Counts, Regression
from ..tables.schema import Schema
from .bounds import found_bounds, share_of_bounds
from .classification import fit_classification
from .counts import FEWEST, fit_counts
from .expectation import warning_of
from .health import Health, Watch
from .model import FittedModel
from .opening import Opened, Terms, opened
from .preparation import Preparation
from .regression import fit_regression
from .repeats import warn_of_repeats
from .saving import model_sha256
from .scoring import Errors, score_of
from .session import Progress

SCORE_SHARE = 0.02  # of the budget, for the score
AUTO, FEATURES, NETWORK = "auto", "features", "network"
TASKS = {Classes: "classification", Counts: "counts", Regression: "regression"}


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
    method: str = "auto",
    model: Any = None,
    progress: Progress | None = None,
) -> FittedModel:
    """Fit a model to a table, within an (epsilon, delta) budget. There is nothing to tune.

    Args:
        data: a table: data frame, arrays by name, or anything :func:`diff2.tables.frames.as_frame` takes.
        schema: what is publicly known about it, or the path of a schema file.
        delta: by default the largest power of ten that is at most a tenth of one over the number of units.
        unit: what is protected: a ``"record"``, a ``"group"`` of records, a ``"client"``.
        weighting: ``"records"``: equal weight for all units; ``"clients"``: for all clients.
        seed: None takes the noise from the operating system. A seed makes the fit repeatable and *not private*.
        directory: for the model, as :meth:`FittedModel.save` writes it, and its ledger. Called again with the same
            arguments on the same records after it was killed, a fit is resumed, and pays for nothing twice.
        strict: refuse leaks instead of warning.
        score: spend 2 % of the budget on a private score of the model on these records, see ``FittedModel.health``.
        method: ``"features"``: random features, for regressions with trees; ``"network"``; ``"auto"`` is
            features, and ``FittedModel.health`` says why.
        model: a ``torch.nn.Module`` instead of the small network of ``method="network"``. It takes the prepared
            inputs of a record and gives one number, or one score per class.
        progress: called at each release with the share of the budget that is spent, and the purpose.

    >>> import numpy as np
    >>> from diff2.tables.schema import Schema
    >>> x = np.linspace(0, 1, 5000)
    >>> schema = Schema.from_arguments(["x"], bounds=[(0, 1)], target_bounds=(0, 4), target="y")
    >>> model = fit({"x": x, "y": 1 + 2 * x}, schema, epsilon=1.0, seed=0)
    >>> bool(abs(model.predict({"x": [0.5]})[0] - 2) < 0.2), round(model.epsilon, 3)
    (True, 1.0)
    """
    known = schema if isinstance(schema, Schema) else Schema.read(schema)
    terms = Terms(epsilon, delta, unit, weighting, seed, directory)
    terms.check(known)
    chosen, why = method_of(method, model)
    if model is not None:
        from .network_records import own_module

        model = own_module(model, known.width, len(known.target.values) if isinstance(known.target, Classes) else 1)
    frame = as_frame(data, tuple(known.columns))
    opening = opened(
        encode(frame, known), known, terms, algorithm_of(known, chosen), leaks=known.leaks(), strict=strict,
        progress=progress, settings={"score": score, "model": repr(model)},
    )  # fmt: skip
    if seed is None and not (opening.directory and opening.directory.resumed):
        warn_of_repeats(frame, known, unit, opening.ledger)
    found = fitted(known, opening, epsilon, score=score, method=chosen, why=why, module=model)
    if directory is not None and opening.directory is not None:
        found.save(directory)
        opening.directory.finish()
    return found


def algorithm_of(schema: Schema, method: str = FEATURES) -> dict[str, str]:
    """Return what the header of a ledger says of a fit."""
    return {"name": FILTER, "task": TASKS[type(schema.target)]} | ({"method": method} if method == NETWORK else {})


def fitted(
    known: Schema,
    opening: Opened,
    epsilon: float,
    *,
    score: bool = True,
    trees: bool = True,
    method: str = FEATURES,
    why: str = "",
    module: Any = None,
) -> FittedModel:
    """Fit a model by asking whoever answers.

    Args:
        trees: False where nobody sees exact scores, so that no tree can be chosen; their share goes to the rest.
        method, why: features or network, and why that.
        module: in the place of the small network.
    """
    target = known.target
    census, session, ledger, rng = opening[:4]
    weight, ask, choose = census.heaviest, Watch(session.ask), session.choose if trees else None
    classes = len(target.values) if isinstance(target, Classes) else None
    fewest = FEWEST if isinstance(target, Counts) else 0.0
    expected = warning_of(epsilon, ledger.delta, weight, len(known.columns), classes, fewest)
    if expected is not None:
        warnings.warn(expected, WeakModelWarning, stacklevel=3)
    preparation = Preparation((), known.widths, known.nullable)
    unknown = isinstance(target, Regression) and target.low is None
    share = share_of_bounds(int(np.isnan(known.bounds).any(axis=1).sum()) + unknown, session.mu, weight)
    names = [*(one.name for one in known.numeric), known.target_name]
    bounds, found = found_bounds(ask, session.mu * math.sqrt(share), known.bounds, names, unknown)
    scored = SCORE_SHARE if score else 0.0
    mu = session.mu * math.sqrt(1 - share - scored)
    limits = (-math.inf, math.inf)
    model: Any
    constant: Any
    if method == NETWORK:
        from .network import network_of

        limits = found or limits if isinstance(target, Regression) else limits
        model, constant, limits = network_of(ask, mu, weight, preparation, bounds, target, limits, rng, module)
    elif isinstance(target, Classes):
        model = fit_classification(ask, choose, mu, weight, preparation, bounds, len(target.values), rng)
        constant = model.offset
    elif isinstance(target, Counts):
        model, constant, most = fit_counts(ask, mu, weight, preparation, bounds, float(target.high), rng)
        limits = (0.0, most)
    else:
        limits = found or (float(target.low), float(target.high))  # type: ignore[arg-type]
        model = fit_regression(ask, choose, mu, weight, preparation, bounds, limits, rng)
        constant = model.offset
    worth = None
    if score:
        errors = Errors(model, target, limits, constant, ask.noise("target") if isinstance(target, Regression) else 0.0)
        worth = score_of(ask, session.mu * math.sqrt(scored), weight, errors)
    ledger.close(model_sha256(known, model, limits))
    return FittedModel(known, model, limits, ledger, Health(ask.stages(), worth, expected, why))


def method_of(method: str, model: Any) -> tuple[str, str]:
    """Return the method, and why: what public numbers decide, never records."""
    one_of("method", method, (AUTO, FEATURES, NETWORK))
    if model is not None and method != NETWORK:
        raise InvalidArgument(f"model goes with method='network', got method={method!r}; set that, or leave model out")
    if method == NETWORK:
        torch_installed("method='network'")
    if method != AUTO:
        return method, f"{method}, as asked for"
    return FEATURES, (
        "features, not a network: of seven tables, a network did as well on three and worse on four, and nothing "
        "public says which; method='network' fits one"
    )
