r"""The problems of the scaling law: drawn ones, and two on the public table Cover Type.

* ``covertype_softmax``: softmax regression from zero. The inputs of a record and a 1 are scaled to length 1 together,
  record by record, so :math:`\lVert p - e_y \rVert \le \sqrt 2` and :math:`\operatorname{diag}(p) - p p^T \preceq I/2`
  give :math:`G = \sqrt 2` and :math:`L = 1/2`; and the loss starts at :math:`\log 7`, above a least value that is not
  below 0. Convex, and all that the theorems assume holds.
* ``covertype``: the paper's network. Its G and L are not known; the caller says what stands for them.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import nn

from diff2._validate import one_of
from diff2.data.datasets import load_dataset
from diff2.errors import InvalidArgument
from diff2.models.mlp import mlp

from .synthetic import PROBLEMS, Bounds, Problem, draw_problem

NETWORK, SOFTMAX = "covertype", "covertype_softmax"
NAMES = (*PROBLEMS, SOFTMAX, NETWORK)
CLASSES = 7


class Problems:
    """A problem at each N; a table is read once, and its records are put in an order that is drawn once."""

    def __init__(self, name: str, dimension: int | None, bounds: Bounds | None, data_dir: Path | None):
        """``dimension``: of a drawn problem; ``bounds``: of the network."""
        one_of("problem", name, NAMES)
        if (name in PROBLEMS) != (dimension is not None):
            raise InvalidArgument("dimension is needed for a drawn problem, and is that of the model for a table")
        if (name == NETWORK) != (bounds is not None):
            raise InvalidArgument(
                "gradient, smoothness and gap are all needed for the network on covertype, and known for other problems"
            )
        self._name, self._dimension, self._bounds = name, dimension, bounds
        self._data_dir = data_dir
        self._table: tuple[np.ndarray, np.ndarray] | None = None

    def __call__(self, records: int, seed: int) -> Problem:
        """Return the problem with so many records; ``seed`` draws the start of a network."""
        if self._dimension is not None:
            return draw_problem(self._name, records, self._dimension, 0)
        inputs, targets = self._read()
        if records > len(inputs):
            raise InvalidArgument(f"{self._name} has {len(inputs)} records, fewer than {records}")
        x, y = torch.from_numpy(inputs[:records]), torch.from_numpy(targets[:records])
        if self._bounds is not None:
            return Problem(x, y, mlp(x.shape[1], CLASSES, seed=seed), "cross_entropy", self._bounds)
        x = nn.functional.normalize(torch.cat([x, torch.ones(records, 1)], 1)) * (1 - 1e-6)  # not above 1 when rounded
        with torch.random.fork_rng(devices=[]):  # its own start, drawn from the global generator, is not used
            model = nn.Linear(x.shape[1], CLASSES, bias=False)
        nn.init.zeros_(model.weight)
        return Problem(x, y, model, "cross_entropy", Bounds(math.sqrt(2), 0.5, math.log(CLASSES)))

    def _read(self) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs of mean 0 and deviation 1, and class numbers; shuffled, for the file is sorted."""
        if self._table is None:
            table = load_dataset("covertype", self._data_dir)
            order = np.random.default_rng(0).permutation(len(table.inputs))
            deviation = table.inputs.std(0, dtype=np.float64)
            inputs = (table.inputs - table.inputs.mean(0, dtype=np.float64)) / np.where(deviation > 0, deviation, 1)
            self._table = inputs[order].astype(np.float32), table.targets[order]
        return self._table
