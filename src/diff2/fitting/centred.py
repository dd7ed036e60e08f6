"""Features of a classification about their mean, in coordinates in which they vary alike, from a release."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .second_moment import ROOT, noise_norm
from .statistics import CONSTANT, LENGTHS

SEEN = 0.1  # norm of the noise of a Gram matrix, at most: features of length one vary by about .4 in all
HIDDEN_DIMENSION = 2.0  # the trace over the ridge, where no direction is known to vary more than others
HIDDEN_CONSTANT = 0.3  # the prior is known; a larger constant would be most of the gradients that are clipped
LEAST_TRACE = 0.01


def gram_seen(features: int, mu: float, weight: float) -> bool:
    """Return whether a Gram matrix of this many features at this price shows more than its noise."""
    return noise_norm(features, ROOT * weight / mu) <= SEEN


class Centred(NamedTuple):
    """A second moment of features about their mean, with eigenvalues less the noise, and a ridge."""

    values: np.ndarray
    vectors: np.ndarray
    rest: float  # the trace that is in no eigenvalue
    mean: np.ndarray  # drawn towards zero by its noise
    ridge: float
    noise: float  # its norm
    constant: float = 1.0  # what the constant feature becomes

    @classmethod
    def of(cls, moment: np.ndarray, noise_std: float) -> Centred:
        """Take off the mean, which the constant feature shows in the first row."""
        mean = moment[0, 1:] / CONSTANT  # off the diagonal the noise has half the variance
        kept = max(0.0, 1 - 2 * len(mean) * noise_std**2 / max(float(mean @ mean), 1e-300))
        centred = moment[1:, 1:] - (2 * kept - kept**2) * np.outer(mean, mean)
        ridge = noise_norm(len(mean), noise_std)
        values, vectors = np.linalg.eigh(centred)
        values = np.maximum(values - ridge, 0.0)
        trace = likely_trace(float(np.trace(centred)), noise_std * math.sqrt(len(mean)))
        return cls(values, vectors, max(trace - float(values.sum()), 0.0), kept * mean, ridge, ridge)

    @classmethod
    def of_lengths(cls, moments: np.ndarray, noise_std: float) -> Centred:
        """Take the mean of features and of their squared lengths: no direction is known to vary more than others."""
        mean, length = moments[:-1], float(moments[-1]) / LENGTHS
        kept = max(0.0, 1 - len(mean) * noise_std**2 / max(float(mean @ mean), 1e-300))
        squared = kept**2 * float(mean @ mean)
        trace = likely_trace(length - squared, noise_std * math.sqrt(LENGTHS**-2 + 4 * squared))
        ridge = max(trace, LEAST_TRACE) / HIDDEN_DIMENSION
        zeros = np.zeros(len(mean))
        # The largest variance may be as large as the ridge: four times its quarter.
        return cls(zeros, np.eye(len(mean)), ridge * HIDDEN_DIMENSION, kept * mean, ridge, 4 * ridge, HIDDEN_CONSTANT)

    @property
    def largest(self) -> float:
        """The largest variance after division by itself and the ridge; noise may hide one of a quarter of its norm."""
        most = float(self.values.max())
        return (most + self.noise / 4) / (most + self.ridge)

    @property
    def curvature(self) -> np.ndarray:
        """The variances of the model's features, about."""
        variances = (self.values + self.rest / len(self.values)) / ((self.values + self.ridge) * self.largest)
        return np.concatenate([[self.constant**2], variances])

    @property
    def effective(self) -> float:
        """How many directions count, those that noise hides among them."""
        return float(np.sum(self.values / (self.values + self.ridge))) + self.rest / self.ridge

    @property
    def dimension(self) -> float:
        """The mean squared length of the model's features, about."""
        return self.effective / self.largest + self.constant**2

    @property
    def matrix(self) -> np.ndarray:
        """What scales the constant, and makes the other features uncorrelated and at most of variance one."""
        matrix = np.zeros((len(self.values) + 1, len(self.values) + 1))
        matrix[0, 0] = self.constant / CONSTANT
        matrix[1:, 1:] = self.vectors / np.sqrt((self.values + self.ridge) * self.largest)
        return matrix

    def rounds(self, left: float, weight: float, classes: int) -> int:
        """Return how many rounds the noise allows."""
        return int(0.2 * left / (4.84 * (self.effective + 1) ** 2 * weight**2 * (classes - 1)))


def likely_trace(trace: float, noise_std: float) -> float:
    """Return the trace of features with length at most sqrt .75, between what was released and what is usual, by noise.

    >>> round(likely_trace(0.6, 0.01), 2), round(likely_trace(3.0, 10.0), 2)
    (0.6, 0.4)
    """
    usual, deviation = 0.4, 0.2
    return (trace * deviation**2 + usual * noise_std**2) / (deviation**2 + noise_std**2)
