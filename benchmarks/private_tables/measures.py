"""How good predictions are, and which share of what boosting explains they explain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LEAST_PROBABILITY = 1e-3  # a class that was held for impossible counts as this
LEAST_COUNT = 1e-2  # a mean that was held for zero, or below, counts as this
LEAST_EXPLAINED = 0.02  # of the deviance: where boosting explains less, there is nothing to take a share of
WORST_SHARE, BEST_SHARE = -1.0, 1.5  # bounds of one table's part in a mean, so that no table decides it alone


def measured(task: str, target: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Return the mean deviance, and for classes accuracy and (two classes) AUC.

    The deviance is the squared error, the log loss or the Poisson deviance. Predictions are values, means, or
    probabilities (rows, classes).

    >>> measured("classes", np.array([0, 1]), np.array([[0.9, 0.1], [0.4, 0.6]]))["accuracy"]
    1.0
    """
    if not np.isfinite(predicted).all():
        raise FloatingPointError("predictions are not finite")
    if predicted.shape[0] != len(target):
        raise ValueError(f"expected {len(target)} predictions, got {predicted.shape[0]}")
    if task == "regression":
        return {"deviance": float(np.mean((target - predicted) ** 2))}
    if task == "counts":
        mean = np.maximum(predicted, LEAST_COUNT)
        ratio = np.where(target > 0, target, 1) / mean
        return {"deviance": float(np.mean(2 * (np.where(target > 0, target * np.log(ratio), 0) - target + mean)))}
    labels = target.astype(int)
    likelihood = np.clip(predicted[np.arange(len(labels)), labels], LEAST_PROBABILITY, 1)
    found = {
        "deviance": float(-np.log(likelihood).mean()),
        "accuracy": float((predicted.argmax(1) == labels).mean()),
    }
    if predicted.shape[1] == 2 and 0 < labels.sum() < len(labels):
        found["auc"] = auc(labels, predicted[:, 1])
    return found


def auc(labels: np.ndarray, score: np.ndarray) -> float:
    """Return the probability that a 1 scores higher than a 0; ties count half.

    >>> auc(np.array([0, 1, 1, 0]), np.array([0.1, 0.9, 0.5, 0.5]))
    0.875
    """
    from scipy.stats import rankdata

    ones = labels.sum()
    ranks = rankdata(score)[labels == 1].sum()
    return float((ranks - ones * (ones + 1) / 2) / (ones * (len(labels) - ones)))


def share(baseline: Sequence[float], contestant: Sequence[float], boosting: Sequence[float]) -> float | None:
    """Return (baseline - contestant) / (baseline - boosting), of means over seeds of deviances or of error rates.

    None where boosting explains less than 2 % of the baseline.

    >>> round(share([1.0, 1.0], [0.7, 0.5], [0.5, 0.5]), 6)
    0.8
    >>> share([1.0], [0.7], [0.99]) is None
    True
    """
    base, mine, best = (float(np.mean(values)) for values in (baseline, contestant, boosting))
    return (base - mine) / (base - best) if base - best >= LEAST_EXPLAINED * base > 0 else None


def bounded(value: float) -> float:
    """Return a share as it enters a mean over tables."""
    return min(max(value, WORST_SHARE), BEST_SHARE)
