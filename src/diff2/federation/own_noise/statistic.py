"""The noise that sites add to their parts of a statistic, as ``noise.py`` has it for gradients.

A part is a sum of bounded vectors, each times the weight of its unit. Replacing a unit moves it by the diameter times
that weight, and the sum over all sites by no more.
"""

import numpy as np

from ...errors import InvalidArgument
from ...fitting.asking import Statistic
from ...fitting.cohort import Census, diameter_of
from ...privacy import NoiseSource
from ...privacy.discrete_gaussian import discrete_gaussian
from ...privacy.mechanism import noise_scale, whole_steps
from ..wire.request import StatisticRequest
from .noise import TOLERANCE, NoiseScale, NoisyAnswer, norm_limit, own_release


def statistic_scale(census: Census, request: StatisticRequest, honest: int) -> NoiseScale:
    """Return how much noise a release needs, if at least ``honest`` of the sites, all of which are asked, are so."""
    mean = census.bounded(request.statistic, request.number, None, request.dimension)
    std, grid = noise_scale(mean, request.multiplier, honest)
    return NoiseScale(mean, std, grid, tuple(range(len(census.sizes))), honest)


def longest_part(census: Census, client: int, statistic: Statistic) -> float:
    """Return the largest length of a site's part, without noise."""
    return census.weights[client] * census.sizes[client] * statistic.longest * (1 + TOLERANCE)


def max_part_norm(census: Census, client: int, request: StatisticRequest, scale: NoiseScale) -> float:
    """Return the largest norm of an honest answer, in grid steps."""
    return norm_limit(longest_part(census, client, request.statistic), scale, f"release {request.number}")


def noisy_part(
    part: np.ndarray,
    census: Census,
    client: int,
    request: StatisticRequest,
    sent: str,
    scale: NoiseScale,
    source: NoiseSource,
) -> NoisyAnswer:
    """Add the site's noise to its part, in whole steps of the grid; ``sent``, a hash of the request, tells it too."""
    steps, release = whole_steps(part, scale.grid), scale.mean.release
    if steps.shape != (release.dimension,):  # one number of noise would be added to several
        raise InvalidArgument(f"a part of shape {steps.shape} has no noise for {release.dimension} numbers")
    digest, label = source.digest(steps.data, sent.encode()), (release.round, release.step, release.purpose, client)
    noise = discrete_gaussian(source, release.dimension, "share", *label, digest)
    moved = diameter_of(request.statistic) * census.weights[client]
    return NoisyAnswer(steps + noise, scale, own_release(scale, moved))
