"""The paper's Algorithm 1 with GD-Routine, written again in NumPy: double precision, one record after the other.

Independent of the library on purpose: nothing here imports it.
"""

from __future__ import annotations

import numpy as np


def network_gradients(params: np.ndarray, x: np.ndarray, y: np.ndarray, hidden: int) -> np.ndarray:
    """Per-record gradients of (f(x) - y)^2 for Linear-softplus-Linear, one output, parameters in PyTorch's order."""
    inputs = x.shape[1]
    w1 = params[: hidden * inputs].reshape(hidden, inputs)
    b1 = params[hidden * inputs : hidden * inputs + hidden]
    w2 = params[hidden * inputs + hidden : hidden * inputs + 2 * hidden]
    b2 = params[-1]
    rows = []
    for record, target in zip(x, y, strict=True):
        z = w1 @ record + b1
        a = np.logaddexp(0.0, z)
        error = 2 * (w2 @ a + b2 - target)
        back = error * w2 / (1 + np.exp(-z))
        rows.append(np.concatenate([np.outer(back, record).ravel(), back, error * a, [error]]))
    return np.array(rows)


def clipped_mean(vectors: np.ndarray, radius: float) -> np.ndarray:
    """ClippedMean (Algorithm 2)."""
    lengths = np.linalg.norm(vectors, axis=1)
    factors = np.minimum(1.0, np.divide(radius, lengths, out=np.ones_like(lengths), where=lengths > 0))
    return (factors[:, None] * vectors).mean(axis=0)


def diff2_gd(
    start: np.ndarray,
    clients: list[tuple[np.ndarray, np.ndarray]],
    *,
    hidden: int,
    rounds: int,
    restart_interval: int,
    clip_gradient: float,
    clip_smoothness: float,
    learning_rate: float,
    cap: bool = False,
    by_records: bool = False,
) -> list[np.ndarray]:
    """DIFF2-GD without noise; returns x_0, ..., x_R."""
    sizes = np.array([len(x) for x, _ in clients], dtype=float)
    shares = sizes / sizes.sum() if by_records else np.full(len(clients), 1 / len(clients))
    path, estimate = [start], np.zeros_like(start)
    for r in range(1, rounds + 1):
        means = []
        for x, y in clients:
            gradients = network_gradients(path[-1], x, y, hidden)
            if (r - 1) % restart_interval == 0:
                means.append(clipped_mean(gradients, clip_gradient))
            else:
                radius = clip_smoothness * np.linalg.norm(path[-1] - path[-2])
                radius = min(radius, 2 * clip_gradient) if cap else radius
                means.append(clipped_mean(gradients - network_gradients(path[-2], x, y, hidden), radius))
        mean = sum(share * value for share, value in zip(shares, means, strict=True))
        estimate = mean if (r - 1) % restart_interval == 0 else estimate + mean
        path.append(path[-1] - learning_rate * estimate)
    return path
