"""Other libraries for private models, used as their documentation shows, with bounds and classes given."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from diff2.tables.rows import Rows

from . import adjacency
from .problem import Problem, largest_norm
from .references import predicted as predicted_by
from .trained import DELTA, NETWORK, predicted, tensors

EPOCHS, BATCH, HIDDEN, MOST_STEPS = 20, 64, 64, 5000
SGD, RMSPROP = (0.05, 1.0), (1e-3, 1.2)  # rate and clip, as on its front page and in its tutorial on images
INPUTS = NETWORK.split(";")[0]
OPACUS = (
    f"{INPUTS}; make_private_with_epsilon, {EPOCHS} epochs as in its tutorial; one hidden layer of {HIDDEN} rectified "
    f"units, batches of {BATCH}, doubled until there are at most {MOST_STEPS:,} steps; "
)
GIVEN = {
    "sgd": f"{OPACUS}as on its front page SGD with rate {SGD[0]:g}, clip {SGD[1]:g}",
    "rmsprop": f"{OPACUS}as in its tutorial RMSprop with rate {RMSPROP[0]:g}, clip {RMSPROP[1]:g}",
    "linear": f"{INPUTS}; LinearRegression with bounds_X and bounds_y. Counts as numbers",
    "logistic": f"{INPUTS}; LogisticRegression with data_norm, the largest norm that the bounds allow",
    "forest": f"{INPUTS}; RandomForestClassifier with bounds and classes, its ten trees of depth five",
    "ebm": "raw columns, their types and bounds and those of the target; its defaults. Missing numbers, which it "
    "refuses, are the middle of their bounds. Counts as numbers",
}


def opacus_sgd(problem: Problem, epsilon: float, seed: int) -> np.ndarray:
    return _opacus(problem, epsilon, seed, torch.optim.SGD, *SGD)


def opacus_rmsprop(problem: Problem, epsilon: float, seed: int) -> np.ndarray:
    return _opacus(problem, epsilon, seed, torch.optim.RMSprop, *RMSPROP)


def _opacus(problem: Problem, epsilon: float, seed: int, kind: Any, rate: float, clip: float) -> np.ndarray:
    from opacus import PrivacyEngine

    torch.manual_seed(seed)
    inputs, targets, test = tensors(problem)
    batch = BATCH
    while EPOCHS * len(inputs) / batch > MOST_STEPS:
        batch *= 2
    network = nn.Sequential(nn.Linear(inputs.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, problem.classes or 1))
    losses = {"regression": nn.MSELoss(), "counts": nn.PoissonNLLLoss(), "classes": nn.CrossEntropyLoss()}
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), batch_size=batch)
    model, optimizer, batches = PrivacyEngine().make_private_with_epsilon(
        module=network,
        optimizer=kind(network.parameters(), lr=rate),
        data_loader=loader,
        target_epsilon=adjacency.gaussian(epsilon, DELTA),
        target_delta=DELTA,
        epochs=EPOCHS,
        max_grad_norm=clip,
    )
    for _ in range(EPOCHS):
        for some, wanted in batches:
            optimizer.zero_grad()
            losses[problem.task](model(some), wanted).backward()
            optimizer.step()
    with torch.no_grad():
        return predicted(model(test), problem)


def diffprivlib_linear(problem: Problem, epsilon: float, seed: int) -> np.ndarray:
    from diffprivlib.models import LinearRegression

    train, test = problem.inputs
    low, high = problem.target_bounds
    bounds = _bounds(problem)
    model = LinearRegression(epsilon=epsilon, bounds_X=bounds, bounds_y=(low, high), random_state=seed)
    return np.clip(model.fit(train, problem.train_rows.target).predict(test), low, high)


def diffprivlib_logistic(problem: Problem, epsilon: float, seed: int) -> np.ndarray:
    from diffprivlib.models import LogisticRegression

    norm = largest_norm(problem.schema)
    model = LogisticRegression(epsilon=epsilon, data_norm=norm, random_state=seed)
    train, test = problem.inputs
    return predicted_by(model.fit(train, problem.target), test, problem)


def diffprivlib_forest(problem: Problem, epsilon: float, seed: int) -> np.ndarray:
    from diffprivlib.models import RandomForestClassifier

    train, test = problem.inputs
    model = RandomForestClassifier(
        epsilon=adjacency.pure(epsilon), bounds=_bounds(problem), classes=range(problem.classes), random_state=seed
    )
    return predicted_by(model.fit(train, problem.target.astype(int)), test, problem)


def dp_ebm(problem: Problem, epsilon: float, seed: int) -> np.ndarray:
    from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor

    numeric, categorical = problem.schema.numeric, len(problem.schema.widths)
    options = {
        "epsilon": adjacency.gaussian(epsilon, DELTA),
        "delta": DELTA,
        "feature_names": [one.name for one in numeric] + [f"category {j}" for j in range(categorical)],
        "feature_types": ["continuous"] * len(numeric) + ["nominal"] * categorical,
        "privacy_bounds": {one.name: (one.low, one.high) for one in numeric},
        "random_state": seed,
        "n_jobs": 1,
    }
    train, test = (_raw(rows, problem) for rows in (problem.train_rows, problem.test_rows))
    if problem.task == "classes":
        classifier = DPExplainableBoostingClassifier(**options).fit(train, problem.target.astype(int))
        return predicted_by(classifier, test, problem)
    low, high = problem.target_bounds
    model = DPExplainableBoostingRegressor(privacy_target_min=low, privacy_target_max=high, **options)
    return np.clip(model.fit(train, problem.train_rows.target).predict(test), low, high)


def _bounds(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of ``inputs``: numbers of [-1, 1], then columns of 0 and 1."""
    low = np.zeros(problem.inputs[0].shape[1])
    low[: len(problem.schema.numeric)] = -1
    return low, np.ones_like(low)


def _raw(rows: Rows, problem: Problem) -> np.ndarray:
    numeric = np.where(np.isnan(rows.numeric), problem.schema.bounds.mean(1), rows.numeric)
    return np.concatenate([numeric.astype(object), rows.codes.astype(str).astype(object)], axis=1)
