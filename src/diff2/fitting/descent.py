"""Descent with clipped gradients on whitened features, whose radius, step and shrinkage follow from releases."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .asking import Answer, Ask
from .linear import clipped_size, half_octaves, quiet_radius
from .second_moment import noise_norm
from .shrinking import Shrinkage
from .statistics import ClippedDescent, Design, MeanResidual, NormHistogram, Residuals

LOOKS = (0, 1, 2, 4, 8, 16)  # rounds at which the radius is found again
NORM_BINS = 30
NORMS_SHARE, MEAN_RESIDUAL_SHARE = 0.02, 0.05
SMALL, SMALL_KEPT = 0.7, 0.5  # a radius in mean residuals, and the share of normal ones that it keeps whole, about


class Whitener(NamedTuple):
    """The eigenvectors of a Gram matrix, with eigenvalues freed of noise, and the ridge."""

    values: np.ndarray
    vectors: np.ndarray
    ridge: float
    likely: np.ndarray  # eigenvalues without noise, those that it hides by their mean
    largest: float  # bound of the features' second moment after the matrix, if the noise has the norm it should

    @property
    def safe_step(self) -> float:
        """A step for which descent cannot oscillate with growing length."""
        return min(1.0, 1.9 / self.largest)

    @property
    def matrix(self) -> np.ndarray:
        return self.vectors / np.sqrt(self.values + self.ridge)

    @property
    def curvature(self) -> np.ndarray:
        """The second moment of the features after the matrix, about."""
        return self.likely / (self.values + self.ridge)

    @property
    def effective_dimension(self) -> float:
        return float(np.sum(self.values / (self.values + self.ridge)))


def shrunk(moment: np.ndarray, noise_std: float) -> Whitener:
    """Return the eigenvalues that a matrix has below its noise."""
    values, vectors = np.linalg.eigh(moment)
    edge = noise_norm(len(moment), noise_std)
    kept = values > edge
    cleaned = (values + np.sqrt(np.maximum(values**2 - edge**2, 0.0))) / 2
    smallest = float(cleaned[kept].min()) if kept.any() else edge
    hidden = max(float(values.sum() - cleaned[kept].sum()), 0.0) / max(1, int((~kept).sum()))
    likely = np.where(kept, cleaned, hidden)
    cleaned, ridge = np.where(kept, cleaned, 0.1 * min(smallest, edge / 2)), edge / 2
    # The true matrix is at most the noisy one plus the norm of the noise; a larger ridge makes this smaller.
    largest = float(np.max((np.maximum(values, 0.0) + edge) / (cleaned + ridge)))
    return Whitener(cleaned, vectors, ridge, likely, largest)


def radius_looks(signal: float) -> tuple[int, float]:
    """Return how many histograms of gradients noise leaves readable, and their share; none: the mean residual.

    Noise is to have a deviation of at most .05 in a bin.

    >>> [radius_looks(signal)[0] for signal in (100, 300, 5000)]
    [0, 2, 6]
    """
    looks = min(len(LOOKS), int(NORMS_SHARE * (0.05 * signal) ** 2 / 2))
    return looks, NORMS_SHARE if looks else MEAN_RESIDUAL_SHARE


class Descent(NamedTuple):
    """Descent with clipped gradients, in coordinates in which the loss is about round."""

    design: Design
    whitener: Whitener
    rounds: int
    left: float  # of mu^2, for the descent
    looks: int  # rounds at which the radius is found
    norms: float  # of mu^2, for that
    weight: float  # of the heaviest unit

    def run(
        self, ask: Ask, residuals_at: Callable[[np.ndarray], Residuals], longest: float, *, linear: bool = True
    ) -> tuple[np.ndarray, float]:
        """Return the estimate from all rounds, and about the deviation of the residuals.

        Args:
            longest: bound of the first residuals.
            linear: whether predictions are linear in the parameters, so that a ridge can be chosen.
        """
        whitener, rounds = self.whitener, self.rounds
        looks = [round for round in LOOKS[: self.looks] if round < rounds]
        # The longest gradient of the first round: the longest residual times the longest features.
        edges = half_octaves(longest / math.sqrt(whitener.ridge + float(whitener.values.min())), NORM_BINS)
        radius, kept, theta = float(edges[-1]), 1.0, np.zeros(len(whitener.values))
        curvature, step, size = whitener.curvature, CautiousStep(whitener.safe_step), longest
        shrinkage = Shrinkage(curvature, whitener.values + whitener.ridge if linear else None)
        ahead = np.ones_like(theta)  # the share of the way that is still to go
        # A gradient is the residual times features whose squared length is about the sum of their curvatures.
        squared = float(curvature.sum())
        if not looks:
            mean = ask(MeanResidual(residuals_at(theta), longest), math.sqrt(self.norms))
            size, kept = max(float(mean.value[0]), mean.noise_std), SMALL_KEPT
            radius = min(radius, SMALL * size * math.sqrt(whitener.effective_dimension))
        for round in range(rounds):
            residuals = residuals_at(theta)
            if round in looks:
                counts = ask(NormHistogram(residuals, edges), math.sqrt(self.norms / len(looks)))
                noise = (2 * self.weight * squared) ** 2 / self.left
                found, share = quiet_radius(counts.value, edges, counts.noise_std, noise)
                radius, kept = (found, share) if found <= radius else (radius, kept)
                size = clipped_size(counts.value, edges, counts.noise_std, radius) / kept / math.sqrt(squared)
            answer = ask(ClippedDescent(residuals, radius), math.sqrt(self.left / rounds))
            answer = Answer(answer.value / kept, answer.noise_std / kept)
            shrinkage.see(theta, answer.value, answer.noise_std, ahead)
            length = step.after(answer, kept)
            theta, ahead = theta + length * answer.value, ahead * (1 - length * curvature)
        return shrinkage.estimate(self.weight * size**2 if linear else 0.0), size


class CautiousStep:
    r"""Step one, until two descent directions in a row point against each other by more than noise explains.

    Where the second moment of the features exceeds 2 in a direction, steps of one go back and forth along it with
    growing length: successive directions then have a negative product. From then on the step is the safe one, for
    which no direction grows.

    *Why.* Clipping :math:`r \psi` to the radius C clips r to :math:`C / |\psi|`: the clipped sum is minus the gradient
    of a sum F of Huber losses, convex, whose Hessian is at most the second moment of :math:`\psi`, hence at most L =
    ``largest`` if the noise of the Gram matrix has the norm it should. For a step a <= 2 / L the map
    :math:`\theta - a \nabla F` brings no two points further apart (Baillon and Haddad 1977), so with noise
    :math:`\xi_j` in round j

    .. math::
        |\theta_k - \theta^*| \le |\theta_0 - \theta^*| + a \sum_{j<k} |\xi_j|.

    Directions are divided by the share k of the gradients that are not clipped, so the safe step is times k.

    Whatever the noise was, and before the step is a safe one, a round moves :math:`\theta` by at most C / k and its
    noise: iterates grow no faster than by that sum, never geometrically. Trees change an output by at most 0.7 of a
    radius.
    """

    def __init__(self, safe: float):
        self._safe = safe
        self._careful = False
        self._before: Answer | None = None

    def after(self, answer: Answer, kept: float = 1.0) -> float:
        """Return the length of the step along this direction, which was divided by ``kept``."""
        if self._before is not None:
            product = float(self._before.value @ answer.value)
            noise = self._before.noise_std * answer.noise_std * math.sqrt(len(answer.value))
            noise += (self._before.noise_std + answer.noise_std) * float(np.linalg.norm(answer.value))
            if product < -3 * noise:
                self._careful = True
        self._before = answer
        return self._safe * kept if self._careful else 1.0
