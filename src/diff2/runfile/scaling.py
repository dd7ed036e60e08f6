r"""Scaling by means and deviations that were released with noise: ``[data] scale = "private"``.

Before the first round every client sends the sums of its clipped values and of their squares (``data/moments.py``); the
server adds them up, weighted as in training, and one Gaussian release makes the mean public. It is planned together
with the run, is the first release in its ledger (round 0, purpose "scaling"), and the whole costs the budget.

What was released is kept in ``scaling.json`` beside the ledger, with its ledger line, and written before it is used: a
run that is killed and goes on finds it there and releases nothing a second time. Nothing in that file is secret; the
key of its noise is kept nowhere.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..data import EncodedClients, Encoding
from ..data.moments import SQUARES, Standard, radius, standard_of, vector_sum
from ..errors import CheckpointError
from ..planning.plan import Opening, Plan, opening_exposure
from ..privacy import BoundedMean, Ledger, Mechanism, NoiseSource, ReleaseEntry
from ..questions.population import Population
from ..questions.round import SCALING

FILE = "scaling.json"


def scale_privately(
    tables: EncodedClients, noise_plan: Plan, *, seed: int | None = None, directory: Path | None = None
) -> tuple[EncodedClients, Opening | None]:
    """Return the tables with the pending columns scaled, and the release that told how.

    Args:
        noise_plan: of the run, with ``opening_share=tables.pending.share``.
        seed: makes the noise repeatable, and the release *not private*.
        directory: of the run; what was released there before is used again.
    """
    pending = tables.pending
    if pending is None:
        return tables, None
    path = None if directory is None else directory / FILE
    kept = None if path is None else _read(path, noise_plan)
    if kept is None:
        noise = NoiseSource.from_system() if seed is None else NoiseSource.from_seed(seed)
        kept = released(tables, noise_plan, noise)
        if path is not None:
            _write(path, *kept)
    value, entry = kept
    standard = standard_of(value, entry.noise_std)
    scaled = tables._replace(
        clients=[(_apply(inputs, pending.columns, standard), targets) for inputs, targets in tables.clients],
        holdout=None
        if tables.holdout is None
        else (_apply(tables.holdout[0], pending.columns, standard), tables.holdout[1]),
        encoding=_composed(tables.encoding, pending.columns, standard),
        pending=None,
    )
    return scaled, Opening(pending.share, entry)


def released(tables: EncodedClients, noise_plan: Plan, noise: NoiseSource) -> tuple[np.ndarray, ReleaseEntry]:
    """Release the mean of the records' values and squares; return it and its ledger line."""
    population = noise_plan.population
    header = {"adjacency": population.adjacency, "budget": {"delta": noise_plan.budget.delta}}
    mechanism = Mechanism(Ledger(header), noise)
    release = mechanism.gaussian(
        bounded_mean(tables, population), noise_plan.multipliers[SCALING], round=0, purpose=SCALING
    )
    return release.value.numpy(), release.entry


def bounded_mean(tables: EncodedClients, population: Population) -> BoundedMean:
    """Return the weighted mean of the records' vectors, with how far replacing one unit can move it."""
    columns = list(tables.pending.columns) if tables.pending is not None else []
    sums = [vector_sum(inputs[:, columns]) for inputs, _ in tables.clients]  # what travels
    everyone = replace(population, clients_per_round=None, client_order="round_robin")
    weights = everyone.weights(range(len(sums)))
    value = np.sum([weight * total for weight, total in zip(weights, sums, strict=True)], axis=0)
    sensitivity = opening_exposure(population).sensitivity * radius(len(columns))
    return BoundedMean(
        value=torch.from_numpy(value),
        sensitivity=sensitivity,
        clip=radius(len(columns)),
        rounding=2 * _rounding_error(sum(population.sizes), len(columns)) / sensitivity,
        adjacency=population.adjacency,
    )


def _rounding_error(records: int, columns: int) -> float:
    """Bound how far a mean in double precision is from the exact one: one rounding an addition, of at most c."""
    return (records + 16) * 2.0**-53 * SQUARES * math.sqrt(2 * columns)


def _apply(inputs: np.ndarray, columns: tuple[int, ...], standard: Standard) -> np.ndarray:
    scaled, chosen = inputs.copy(), list(columns)
    scaled[:, chosen] = (inputs[:, chosen].astype(np.float64) - standard.mean) / standard.deviation
    return scaled


def _composed(encoding: Encoding, columns: tuple[int, ...], standard: Standard) -> Encoding:
    """Return the encoding that maps a column to u, and u to (u - mean) / deviation."""
    inputs, names = dict(encoding.inputs), list(encoding.inputs)
    for j, mean, deviation in zip(columns, standard.mean.tolist(), standard.deviation.tolist(), strict=True):
        unit = inputs[names[j]]
        inputs[names[j]] = replace(unit, offset=unit.offset + mean * unit.scale, scale=unit.scale * deviation)
    return replace(encoding, inputs=inputs)


def _write(path: Path, value: np.ndarray, entry: ReleaseEntry) -> None:
    """Write the file so that it is either there, whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump({"release": entry._asdict(), "value": value.tolist()}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _read(path: Path, noise_plan: Plan) -> tuple[np.ndarray, ReleaseEntry] | None:
    if not path.exists():
        return None
    try:
        content: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        entry, value = ReleaseEntry(**content["release"]), np.array(content["value"], dtype=np.float64)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error!r}); start a new run in another directory") from None
    if entry.multiplier != noise_plan.multipliers[SCALING] or value.shape != (entry.dimension,):
        raise CheckpointError(
            f"{path} was released by a run with other settings; restore them, or start a new run in another directory"
        )
    return value, entry
