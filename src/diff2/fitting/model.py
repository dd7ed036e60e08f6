"""A fitted model: predicts from raw rows, and says what it cost."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InvalidArgument
from ..privacy import Guarantee, Ledger
from ..tables.encode import encode
from ..tables.kinds import Classes, Counts
from ..tables.schema import Schema
from .counts import expected_counts
from .health import Health, spending
from .linear import LinearModel
from .perceptron import ModuleModel, NetworkModel
from .saving import load, save
from .tree_model import TreeModel


@dataclass(frozen=True)
class FittedModel:
    """A model with its preparation and its ledger; predicts from raw tables."""

    schema: Schema
    model: LinearModel | TreeModel | NetworkModel
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

    def report(self) -> str:
        """Return what the budget was spent on, and the guarantee."""
        return spending(self.ledger)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the model to a folder that holds no code: arrays, schema, preparation, ledger, and what may be shared.

        >>> import tempfile
        >>> from diff2 import fit
        >>> table = {"x": np.linspace(0, 1, 500), "y": np.arange(500) >= 250}
        >>> schema = Schema.from_arguments(["x"], bounds=[(0, 1)], classes=[False, True], target="y")
        >>> model = fit(table, schema, epsilon=1.0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     again = FittedModel.load(model.save(folder))
        >>> bool((again.predict_proba(table) == model.predict_proba(table)).all())
        True
        """
        return save(folder, self)

    def to_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write predictor and preparation as one ONNX file, which takes raw rows (extra ``onnx``).

        Each column is an input of shape (rows, 1): categories as text, all others as numbers in double precision, flags
        as 1 and 0, dates as days since 1970. Missing values are NaN or the empty text. The output is ``prediction``
        and, for classes, ``probabilities``.
        """
        from .onnx_export import to_onnx

        to_onnx(path, self)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], module: Any = None) -> FittedModel:
        """Read what :meth:`save` wrote; nothing in the folder is run.

        Args:
            module: the ``torch.nn.Module`` that was given to ``fit``, if one was: only its state is saved.
        """
        saved = load(folder)
        model = saved["model"]
        if isinstance(model, ModuleModel) != (module is not None):
            if module is None:
                remedy = "is that of a torch module, whose code is not saved; load it in Python, with module=..."
            else:
                remedy = "needs no module; leave module out"
            raise InvalidArgument(f"the model in {folder} {remedy}")
        return cls(**saved if module is None else {**saved, "model": model.having(module)})

    def _outputs(self, data: Any) -> np.ndarray:
        rows = encode(data, self.schema, with_target=False).rows
        parts = [self.model.outputs(part, {}) for _, part in rows.chunks()]
        return np.concatenate(parts) if parts else self.model.outputs(rows, {})
