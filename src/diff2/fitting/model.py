"""A fitted model: predicts from raw rows, and says what it cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InvalidArgument
from ..privacy import Guarantee, Ledger
from ..tables.encode import encode
from ..tables.kinds import Classes, Counts
from ..tables.schema import Schema
from .counts import expected_counts
from .health import Health
from .linear import LinearModel
from .trees import TreeModel


@dataclass(frozen=True)
class FittedModel:
    """A model with its preparation and its ledger; predicts from tables as people have them."""

    schema: Schema
    model: LinearModel | TreeModel
    bounds: tuple[float, float]  # of the target of a regression
    ledger: Ledger
    health: Health | None = None  # what releases say of its worth

    @property
    def guarantee(self) -> Guarantee:
        """The statement that the ledger justifies; ``str()`` gives the sentence."""
        return self.ledger.guarantee()

    @property
    def epsilon(self) -> float:
        """What the fit cost, at the budget's delta."""
        return self.guarantee.epsilon

    def predict(self, data: Any) -> np.ndarray:
        """Return a number, or a class, for each row of a table."""
        target = self.schema.target
        if isinstance(target, Counts):
            return np.clip(expected_counts(self.model, self._outputs(data)), *self.bounds)  # type: ignore[arg-type]
        if not isinstance(target, Classes):
            return np.clip(self._outputs(data), *self.bounds)
        return np.array(target.values)[self._outputs(data).argmax(axis=1)]

    def predict_proba(self, data: Any) -> np.ndarray:
        """Return the probability of each class, (rows, classes)."""
        if not isinstance(self.schema.target, Classes):
            raise InvalidArgument("predict_proba is for classes; this model predicts numbers: use predict")
        outputs = self._outputs(data)
        shares = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        return shares / shares.sum(axis=1, keepdims=True)

    def _outputs(self, data: Any) -> np.ndarray:
        rows = encode(data, self.schema, with_target=False).rows
        return np.concatenate([self.model.outputs(part, {}) for _, part in rows.chunks()])
