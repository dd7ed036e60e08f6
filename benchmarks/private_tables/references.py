"""What is not private: the mean or prior, a linear model, gradient boosting."""

from __future__ import annotations

from typing import Any

import numpy as np

from .problem import Problem


def mean_or_prior(problem: Problem, epsilon: float, seed: int) -> np.ndarray:
    target, rows = problem.train_rows.target, problem.test_rows.size
    if problem.task == "classes":
        counts = np.bincount(target.astype(int), minlength=problem.classes)
        return np.tile(counts / counts.sum(), (rows, 1))
    return np.full(rows, target.mean())


def linear(problem: Problem, epsilon: float, seed: int) -> np.ndarray:
    from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    models = {
        "regression": Ridge(alpha=1.0),
        "counts": PoissonRegressor(alpha=1e-3, max_iter=1000),
        "classes": LogisticRegression(max_iter=1000),
    }
    train, test = problem.inputs
    model = make_pipeline(StandardScaler(), models[problem.task]).fit(train, problem.train_rows.target)
    return predicted(model, test, problem)


def boosting(problem: Problem, epsilon: float, seed: int) -> np.ndarray:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    numeric, categorical = len(problem.schema.numeric), len(problem.schema.widths)
    options: dict[str, Any] = {
        "categorical_features": [False] * numeric + [True] * categorical,
        "random_state": seed,
    }
    models = {
        "regression": HistGradientBoostingRegressor(**options),
        "counts": HistGradientBoostingRegressor(loss="poisson", **options),
        "classes": HistGradientBoostingClassifier(**options),
    }
    train, test = (
        np.concatenate([rows.numeric, rows.codes], axis=1) for rows in (problem.train_rows, problem.test_rows)
    )
    return predicted(models[problem.task].fit(train, problem.train_rows.target), test, problem)


def predicted(model: Any, inputs: Any, problem: Problem) -> np.ndarray:
    """Return the predictions of a model of scikit-learn; a class that it has not seen has probability zero."""
    if problem.task != "classes":
        return np.clip(model.predict(inputs), *problem.target_bounds)
    probabilities = np.zeros((len(inputs), problem.classes))
    probabilities[:, np.asarray(model.classes_, dtype=int)] = model.predict_proba(inputs)
    return probabilities
