"""An audit of releases on random batches: two worlds that differ in one record, told apart as well as can be.

One record, the canary, has the longest gradients and differences that clipping allows, along the one parameter there
is; in the other world they point the other way. All other records are silent. Whoever sees all releases and knows all
but the batches and the noise decides best by the likelihood ratio, that of a mixture: the canary was in the batch, or
not. What they achieve bounds epsilon from below.
"""

import dataclasses
import warnings
from functools import cache

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

import diff2
from diff2 import DPSGD, Budget, BVRLocalSGD, Diff2, DPFedAvg, GradientDescent
from diff2.cohorts.clients import Client
from diff2.cohorts.pooled import LocalCohort
from diff2.privacy import Ledger, Mechanism, NoiseSource

BUDGET = Budget(epsilon=2.0, delta=1e-2)
RECORDS = 8
STEP = GradientDescent(0.05)
ALGORITHMS = {
    "dpsgd": DPSGD(6, 2, 1.0, STEP),
    "bvr": Diff2(4, 2, 1.0, 1.0, BVRLocalSGD(0.05, local_steps=3, batch_size=2, local_clip_smoothness=1.0)),
    "dpfedavg": DPFedAvg(3, 2, 3, 1.0, 0.05, STEP),
}


def signed_square(outputs, targets):
    """A loss whose curvature has the sign of the target."""
    return (outputs.square() * targets).squeeze(1)


def world(sign):
    inputs = torch.zeros(RECORDS, 1, dtype=torch.float64)
    targets = torch.ones(RECORDS, 1, dtype=torch.float64)
    inputs[-1], targets[-1] = 1e5, sign
    return Client(inputs, targets)


class Watched:
    """A cohort that notes which way the canary points, which follows from the points at which it is asked."""

    def __init__(self, cohort):
        self.cohort, self.population, self.towards = cohort, cohort.population, []

    def clipped_gradient(self, params, radius, **options):
        self.towards.append(float(params.sign()))
        return self.cohort.clipped_gradient(params, radius, **options)

    def clipped_difference(self, params, previous, radius, **options):
        self.towards.append(float((params - previous).sign()))
        return self.cohort.clipped_difference(params, previous, radius, **options)


class Noisy(Mechanism):
    """A mechanism that keeps what it releases; with a factor below one it adds less noise than it writes down."""

    def __init__(self, *arguments, factor=1.0):
        super().__init__(*arguments)
        self.factor, self.released = factor, []

    def gaussian(self, mean, multiplier, **options):
        release = super().gaussian(mean, multiplier, **options)
        value = mean.value + self.factor * (release.value - mean.value)
        self.released.append(release._replace(value=value))
        return self.released[-1]


def prepared(name):
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, 0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", diff2.WeakDeltaWarning)
        return diff2.prepare(model, signed_square, tuple(world(1.0)), ALGORITHMS[name], BUDGET)


def statistics(run, sign, runs, factor=1.0):
    """Return the log-likelihood ratio of the worlds for many runs in one of them, each with its own key."""
    ratios = []
    for _ in range(runs):
        source = NoiseSource.from_system()
        cohort = Watched(LocalCohort(run.engine, [world(sign)], run.plan.population, source=source))
        mechanism = Noisy(Ledger(run.mechanism.ledger.header), source, factor=factor)
        fresh = dataclasses.replace(run, cohort=cohort, mechanism=mechanism)
        state = fresh.init()
        while state.round < run.plan.algorithm.rounds:
            state, _ = fresh.step(state)
        ratio = 0.0
        for towards, (value, entry, *_) in zip(cohort.towards, mechanism.released, strict=True):
            if entry.mechanism == "zero":
                continue
            shift = towards * entry.sensitivity / 2
            ratio += mixture(float(value), shift, entry) - mixture(float(value), -shift, entry)
        ratios.append(ratio)
    return np.array(ratios)


def mixture(value, shift, entry):
    """Log-likelihood that the canary, if it is in the batch, moved the mean by ``shift``; up to a constant."""
    inside = (2 * value * shift - shift**2) / (2 * entry.noise_std**2)
    return inside if entry.rate == 1 else np.logaddexp(np.log1p(-entry.rate), np.log(entry.rate) + inside)


def least_epsilon(plus, minus, delta, confidence=0.999):
    """Return what epsilon is at least: the best threshold on the first half, bounded on the second."""
    half = len(plus) // 2
    thresholds = np.quantile(np.concatenate([plus[:half], minus[:half]]), np.linspace(0.02, 0.98, 49))

    def bound(plus, minus, t):
        hits, false = int((plus > t).sum()), int((minus > t).sum())
        low = scipy.stats.beta.ppf((1 - confidence) / 2, hits, len(plus) - hits + 1) if hits else 0.0
        high = scipy.stats.beta.ppf((1 + confidence) / 2, false + 1, len(minus) - false) if false < len(minus) else 1.0
        return np.log(max(low - delta, 1e-12) / high)

    best = max(thresholds, key=lambda t: bound(plus[:half], minus[:half], t))
    return float(bound(plus[half:], minus[half:], best))


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("runs", [60, pytest.param(6000, marks=pytest.mark.slow)])
def test_no_audit_finds_more_than_the_ledger_says(name, runs):
    run = prepared(name)
    found = least_epsilon(statistics(run, 1.0, runs), statistics(run, -1.0, runs), BUDGET.delta)
    assert found <= run.plan.epsilon <= BUDGET.epsilon
    if runs > 1000:
        assert found > 0.3 * run.plan.epsilon  # the canary is seen


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_audit_catches_a_mechanism_that_adds_too_little_noise(name):
    run = prepared(name)
    plus, minus = (statistics(run, sign, 2000, factor=0.25) for sign in (1.0, -1.0))
    assert least_epsilon(plus, minus, BUDGET.delta) > run.plan.epsilon


@cache
def many_releases():
    run = prepared("dpsgd")
    mechanism = Noisy(Ledger(run.mechanism.ledger.header), NoiseSource.from_seed(5))
    cohort = LocalCohort(run.engine, [world(1.0)], run.plan.population, source=NoiseSource.from_seed(6))
    for r in range(1, 4001):
        mean = cohort.clipped_gradient(run.start, 1.0, round=r, batch=diff2.Batch(size=2))
        mechanism.gaussian(mean, 0.2, round=r, purpose="gradient")
    return np.array([float(release.value) for release in mechanism.released]), mechanism.released[0].entry


@pytest.mark.parametrize(
    ("scale", "rate", "is_right"), [(1, 1, True), (0.85, 1, False), (1.15, 1, False), (1, 1.3, False), (1, 0.7, False)]
)
def test_a_release_is_the_mixture_that_is_priced(scale, rate, is_right):
    """The released values of many rounds: the canary's, with the stated probability, plus noise of the stated scale."""
    values, entry = many_releases()
    assert (entry.rate, entry.sensitivity) == (0.25, 1.0)
    rate, scale = rate * entry.rate, scale * entry.noise_std

    def cdf(x):
        return (1 - rate) * scipy.stats.norm.cdf(x / scale) + rate * scipy.stats.norm.cdf((x - 0.5) / scale)

    assert (scipy.stats.kstest(values, cdf).pvalue > 0.01) == is_right
