"""The two estimators: from X, y and public facts to a fitted model."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_array, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from .._validate import one_of
from ..errors import InvalidArgument
from ..fitting import fit
from ..privacy.leaks import leak
from ..tables.frames import Frame, as_frame
from ..tables.kinds import DATA, Classes
from ..tables.schema import Schema

UNITS = ("auto", "record", "group", "client")


@dataclass(eq=False, repr=False)
class PrivateEstimator(BaseEstimator):
    """A regression or a classification within an (epsilon, delta) budget."""

    epsilon: float = 1.0
    _: KW_ONLY
    delta: float | str = "auto"
    bounds: Any = None
    categories: Mapping[Any, Sequence[Any]] | None = None
    flags: Sequence[Any] = ()
    unit: str = "auto"
    weighting: str = "records"
    random_state: Any = None
    strict: bool = False
    method: str = "auto"
    model: Any = None

    def fit(self, X: Any, y: Any, groups: Any = None, clients: Any = None) -> Any:
        """Fit the model, within the budget.

        Args:
            X: a data frame, or an array whose columns are called x0, x1, ...
            y: the target.
            groups: which records belong together, say those of a person; they are then protected as one.
            clients: whose each record is.
        """
        one_of("unit", self.unit, UNITS)
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        unit = ("record" if groups is None else "group") if self.unit == "auto" else self.unit
        if unit != "group" and groups is not None:
            raise InvalidArgument(f"groups are protected as one with unit='group', got unit={unit!r}; leave one out")
        frame = self._frame(X, reset=True)
        target = np.asarray(y)
        target = column_or_1d(target.astype(object) if target.dtype.kind == "c" else target, warn=True)
        schema = self._schema(frame, target, groups is not None, clients is not None)
        given = {schema.target_name: target, schema.groups: groups, schema.clients: clients}
        self.model_ = fit(
            frame.having(**{name: values for name, values in given.items() if name is not None}),
            schema,
            epsilon=self.epsilon,
            delta=self.delta,
            unit=unit,
            weighting=self.weighting,
            seed=self._seed(),
            strict=self.strict,
            method=self.method,
            model=self.model,
        )
        self.schema_, self.ledger_ = self.model_.schema, self.model_.ledger
        self.guarantee_, self.epsilon_ = self.model_.guarantee, self.model_.epsilon
        return self

    def report(self) -> str:
        """Return what the budget was spent on, and the guarantee."""
        check_is_fitted(self)
        return self.model_.report()

    def _frame(self, X: Any, *, reset: bool) -> Frame:
        """Return the inputs as named columns; rows are looked at by nobody."""
        if not reset:
            check_is_fitted(self)
        frame = as_frame(X)
        shape = frame.size, len(frame.names)  # all that scikit-learn sees: its errors quote values
        check_array(np.broadcast_to(0.0, shape), ensure_min_samples=2 if reset else 1, estimator=self)
        validate_data(self, X, reset=reset, skip_check_array=True)
        return frame if reset else Frame(tuple(self.schema_.columns), frame.cells, frame.size)

    def _schema(self, frame: Frame, target: np.ndarray, groups: bool, clients: bool) -> Schema:
        names = frame.names
        categories = _by_name(self.categories or {}, names)
        flags = [_name(key, names) for key in self.flags]
        bounds = self.bounds
        if isinstance(bounds, Mapping):
            bounds = _by_name(bounds, names)
        elif isinstance(bounds, Sequence) and len(bounds) == 2 and all(isinstance(one, Real) for one in bounds):
            bounds = dict.fromkeys((name for name in names if name not in {*categories, *flags}), bounds)
        return Schema.from_arguments(
            names,
            bounds=bounds,
            categories=categories,
            flags=flags,
            target=_free("target", names),
            groups=_free("groups", names) if groups else None,
            clients=_free("clients", names) if clients else None,
            **self._target_facts(target),
        )

    def _target_facts(self, target: np.ndarray) -> dict[str, Any]:
        raise NotImplementedError

    def _seed(self) -> int | None:
        if self.random_state is None or isinstance(self.random_state, Integral):
            return None if self.random_state is None else int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _warn_of_score(self) -> None:
        leak(
            "LEAK-SCORE",
            "an exact score leaks information about the records it is computed on: publish it only if these are public "
            "(diff2 evaluate gives a private one).",
            strict=self.strict,
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        tags.non_deterministic = self.random_state is None
        return tags


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


def _name(key: Any, names: tuple[str, ...]) -> str:
    """Return the name of a column that is given by its name or, in an array, by its number."""
    numbered = isinstance(key, Integral) and str(key) not in names and 0 <= int(key) < len(names)
    return names[int(key)] if numbered else str(key)


def _by_name(given: Mapping[Any, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {_name(key, names): value for key, value in given.items()}


def _free(name: str, names: tuple[str, ...]) -> str:
    """Return a name that no column has."""
    while name in names:
        name += "_"
    return name
