r"""Scaling by means and deviations that were released with noise: ``[data] scale = "private"``.

Before the first round every client sends the sums of its clipped values and of their squares (``data/moments.py``); the
server adds them up, weighted as in training, and one Gaussian release makes the mean public. It is planned together
with the run, is the first release in its ledger (round 0, purpose "scaling"), and the whole costs the budget.

What was released is kept in the run's checkpoint, after its ledger line. A run that is killed in between makes the same
release again, with the same noise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from ..data.loading import EncodedClients
from ..data.moments import SQUARES, Standard, radius, standard_of, vector_sum
from ..data.scaling import Encoding
from ..planning.plan import opening_release
from ..privacy import BoundedMean
from ..questions import Population


@dataclass(frozen=True)
class PrivateScaling:
    """An opening of a run: columns that are within [-1, 1] get a mean and a deviation that were released with noise."""

    columns: tuple[int, ...]  # of the inputs
    share: float  # of the budget's mu^2

    def mean(self, clients: Sequence[np.ndarray], population: Population) -> BoundedMean:
        """Return the weighted mean of the records' vectors, with how far replacing one unit can move it."""
        sums = [vector_sum(inputs[:, list(self.columns)]) for inputs in clients]  # what travels
        everyone = replace(population, clients_per_round=None, client_order="round_robin")
        weights = everyone.weights(range(len(sums)))
        value = np.sum([weight * total for weight, total in zip(weights, sums, strict=True)], axis=0)
        shown, clip = opening_release(population), radius(len(self.columns))
        release = shown._replace(sensitivity=shown.sensitivity * clip, clip=clip, dimension=len(value))
        rounding = 2 * _rounding_error(sum(population.sizes), len(self.columns)) / release.sensitivity
        return BoundedMean(value, release, rounding, population.adjacency)

    def apply(self, value: np.ndarray, noise_std: float, inputs: torch.Tensor) -> torch.Tensor:
        """Return the inputs with the columns scaled."""
        standard, chosen, scaled = standard_of(value, noise_std), list(self.columns), inputs.clone()
        columns = inputs[:, chosen].double().numpy()
        scaled[:, chosen] = torch.from_numpy((columns - standard.mean) / standard.deviation).to(inputs.dtype)
        return scaled


def scaled_encoding(tables: EncodedClients, value: np.ndarray, noise_std: float) -> Encoding:
    """Return the encoding that maps a column to u, and u to (u - mean) / deviation."""
    if tables.pending is None:
        return tables.encoding
    return _composed(tables.encoding, tables.pending.columns, standard_of(value, noise_std))


def _rounding_error(records: int, columns: int) -> float:
    """Bound how far a mean in double precision is from the exact one: one rounding per addition, of at most c."""
    return (records + 16) * 2.0**-53 * SQUARES * math.sqrt(2 * columns)


def _composed(encoding: Encoding, columns: tuple[int, ...], standard: Standard) -> Encoding:
    """Return the encoding that maps a column to u, and u to (u - mean) / deviation."""
    inputs, names = dict(encoding.inputs), list(encoding.inputs)
    for j, mean, deviation in zip(columns, standard.mean.tolist(), standard.deviation.tolist(), strict=True):
        unit = inputs[names[j]]
        inputs[names[j]] = replace(unit, offset=unit.offset + mean * unit.scale, scale=unit.scale * deviation)
    return replace(encoding, inputs=inputs)
