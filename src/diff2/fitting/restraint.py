"""How much of a classification is kept, from the directions that it was learnt from."""

from __future__ import annotations

import math

import numpy as np

USUAL, DEVIATION = 0.9, 0.5  # of the share that is best, before anything is known


class Restraint:
    r"""A factor from 0 to 1 for a mean of iterates, where outputs are small and the loss is about quadratic.

    With b the descent direction at the prior and H the curvature there, predicting by c theta changes the loss by
    :math:`c^2 \theta^T H \theta / 2 - c \theta^T b`. The mean of all directions is b less H times the mean of all
    iterates, with noise; but theta was learnt from the same noise, which makes the product with theta too large. A
    coordinate of theta that goes r for a constant direction of one adds r times the variance of the noise in the mean
    direction, and for the noise of the very records (overfitting) r h times the largest weight of a record. Both
    are taken off. The records' own noise is less where they are predicted well: it is times the share of the entropy of
    the classes that is left, the model explaining about half of the product.

    Where the model is sure the curvature is smaller than at the prior, and a product below the square says that alone:
    the product with all its noise then takes the place of the square.

    What is left has a deviation that is known, too: the factor is between what it says and what is usual, by that.
    """

    def __init__(self, curvature: np.ndarray, prior: np.ndarray, rounds: int, step: float):
        slopes, vectors = np.linalg.eigh(np.diag(prior) - np.outer(prior, prior))
        self._entropy = -float(prior @ np.log(prior))
        self._contrasts = vectors[:, 1:]  # all but the sum of the classes
        self._curvature = curvature[:, None] * np.maximum(slopes[1:], 1e-12)
        ahead = np.clip(1 - step * self._curvature, 0.0, 1.0)
        gone = np.mean([1 - ahead ** (round + 1) for round in range(rounds // 2, rounds)], axis=0)
        self._response = np.where(self._curvature > 1e-12, gone / np.maximum(self._curvature, 1e-12), 0.0)
        self._sum, self._variance, self._rounds = np.zeros_like(self._curvature), 0.0, rounds

    def see(self, theta: np.ndarray, direction: np.ndarray, noise_std: float) -> None:
        """Take in the direction that was released at ``theta``."""
        self._sum += direction @ self._contrasts + self._curvature * (theta @ self._contrasts)
        self._variance += noise_std**2

    def factor(self, theta: np.ndarray, weight: float) -> float:
        """Return the factor for the mean of the last half of the iterates; ``weight`` is the largest of a record."""
        found, noise = theta @ self._contrasts, self._variance / self._rounds**2
        square = float(np.sum(self._curvature * found**2))
        if square <= 0:
            return 1.0
        product = float(np.sum(found * self._sum)) / self._rounds
        square = min(square, max(product, 1e-12 * square))
        product -= noise * float(np.sum(self._response))
        left = min(max(1 - product / (2 * self._entropy), 0.0), 1.0)
        product -= left * weight * float(np.sum(self._response * self._curvature))
        deviation = noise * math.sqrt(2 * float(np.sum(self._response**2))) / square
        share = (USUAL * deviation**2 + product / square * DEVIATION**2) / (deviation**2 + DEVIATION**2)
        return min(max(share, 0.0), 1.0)
