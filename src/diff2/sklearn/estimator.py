"""What the estimators have in common: from X, y and public facts to a fitted model."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_random_state, column_or_1d
from sklearn.utils.validation import check_is_fitted, validate_data

from .._validate import one_of
from ..errors import InvalidArgument
from ..fitting import fit
from ..privacy.leaks import leak
from ..tables.frames import Frame, as_frame
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
