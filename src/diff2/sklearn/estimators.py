"""The two estimators."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets

from ..tables.frames import Frame
from ..tables.kinds import DATA, Classes
from ..tables.schema import Schema
from .estimator import PrivateEstimator


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateRegressor(RegressorMixin, PrivateEstimator):
    """A regression within an (epsilon, delta) budget, with nothing to tune.

    Args:
        epsilon: the budget.
        delta: by default the largest power of ten that is at most a tenth of one over the number of units.
        bounds: public bounds of the columns: (low, high) by name or number, one pair for each column, or one for all.
        categories: public lists of values, by the name or number of the column.
        flags: names or numbers of columns that say yes or no.
        target_bounds: public bounds of the target.
        max_count: the largest count, where the target counts something: a Poisson regression, in the place of
            ``target_bounds``.
        unit: what is protected: ``"record"``, ``"group"`` or ``"client"``; ``"auto"``: groups where they are given.
        weighting: ``"records"``: equal weight for all units; ``"clients"``: for all clients.
        random_state: makes the fit repeatable, and NOT private.
        strict: refuse what leaks instead of warning.
        method: ``"features"``, ``"network"``, or ``"auto"``, which is features.
        model: a ``torch.nn.Module`` for ``method="network"``; None: a small one.

    >>> x = np.random.default_rng(2).random((2000, 1))
    >>> model = PrivateRegressor(epsilon=3.0, bounds=[(0, 1)], target_bounds=(0, 5)).fit(x, 5 * x[:, 0])
    >>> bool(abs(model.predict([[0.5]])[0] - 2.5) < 1)
    True
    """

    target_bounds: tuple[float, float] | None = None
    max_count: float | None = None

    def predict(self, X: Any) -> np.ndarray:
        """Return a number for each row."""
        frame = self._frame(X, reset=False)
        return self.model_.predict(frame)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R^2, exactly: it leaks unless these records are public."""
        self._warn_of_score()
        return super().score(X, y, sample_weight)

    def _target_facts(self, target: np.ndarray) -> dict[str, Any]:
        return {"target_bounds": self.target_bounds, "max_count": self.max_count}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # on few records, as privacy demands
        return tags


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateClassifier(ClassifierMixin, PrivateEstimator):
    """A classification within an (epsilon, delta) budget, with nothing to tune.

    Args:
        epsilon: the budget.
        delta: by default the largest power of ten that is at most a tenth of one over the number of units.
        bounds: public bounds of the columns: (low, high) by name or number, one pair for each column, or one for all.
        categories: public lists of values, by the name or number of the column.
        flags: names or numbers of columns that say yes or no.
        classes: the public list of classes. Without it, it is read off the target: that leaks, and the guarantee says
            so. A target of truth values needs none.
        unit: what is protected: ``"record"``, ``"group"`` or ``"client"``; ``"auto"``: groups where they are given.
        weighting: ``"records"``: equal weight for all units; ``"clients"``: for all clients.
        random_state: makes the fit repeatable, and NOT private.
        strict: refuse what leaks instead of warning.
        method: ``"features"``, ``"network"``, or ``"auto"``, which is features.
        model: a ``torch.nn.Module`` for ``method="network"``; None: a small one.
    """

    classes: Sequence[Any] | None = None

    def predict(self, X: Any) -> np.ndarray:
        """Return a class for each row."""
        shares = self.predict_proba(X)
        return self.classes_[shares.argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each of ``classes_``, (rows, classes)."""
        frame = self._frame(X, reset=False)
        return self.model_.predict_proba(frame)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy, exactly: it leaks unless these records are public."""
        self._warn_of_score()
        return super().score(X, y, sample_weight)

    def _schema(self, frame: Frame, target: np.ndarray, groups: bool, clients: bool) -> Schema:
        schema = super()._schema(frame, target, groups, clients)
        known = self.classes is not None or target.dtype.kind == "b"
        return schema if known else replace(schema, target=Classes(schema.target.values, DATA))  # type: ignore[union-attr]

    def _target_facts(self, target: np.ndarray) -> dict[str, Any]:
        if self.classes is not None:
            self.classes_ = np.unique(np.asarray(self.classes))
        elif target.dtype.kind == "b":
            self.classes_ = np.array([False, True])
        else:
            check_classification_targets(target)
            self.classes_ = np.unique(target)
        return {"classes": self.classes_.tolist()}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # on few records, as privacy demands
        return tags
