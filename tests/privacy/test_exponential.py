"""The exponential mechanism: probabilities, bounded range and price."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, norm

from diff2.privacy import Ledger, Mechanism, NoiseSource, gdp_epsilon
from diff2.privacy.exponential import RATE_BITS, bounded_range_mu, choice_mu, choose, paid, rate_of, release_choice
from diff2.privacy.release import EXPONENTIAL, Release

SOURCE = NoiseSource.from_seed(5)
HEADER = {
    "adjacency": "replace-one", "unit": "record", "client_sizes": [10], "budget": {"epsilon": 1.0, "delta": 1e-5},
    "algorithm": {"name": "fit"}, "seeded": True, "planned": {"releases": 1, "exposure": []},
}  # fmt: skip


class TestChoice:
    def test_candidates_come_with_the_probabilities_of_their_scores(self):
        scores, rate = np.array([0, 1, 2, 5]), 2**RATE_BITS // 2
        counts = np.bincount([choose(SOURCE, scores, rate, i) for i in range(5000)], minlength=4)
        shares = np.exp(scores / 2)
        assert chisquare(counts, 5000 * shares / shares.sum()).pvalue > 1e-4

    def test_equal_scores_are_chosen_alike_however_large_they_are(self):
        counts = np.bincount([choose(SOURCE, np.full(3, 10**15), 2**RATE_BITS, i) for i in range(3000)], minlength=3)
        assert chisquare(counts).pvalue > 1e-4

    def test_other_scores_are_chosen_from_by_draws_of_their_own(self):
        """A choice that is made again, of other scores, tells no more than a second choice."""
        one, other = np.zeros(1000, np.int64), np.ones(1000, np.int64)
        mechanisms = [Mechanism(Ledger(HEADER), NoiseSource(bytes([i]) * 32, private=True)) for i in range(3)]
        chosen = [
            [release_choice(m, scores, 2, 0.1, 1, "structure") for m in mechanisms] for scores in (one, one, other)
        ]
        assert chosen[0] == chosen[1] != chosen[2]

    def test_it_is_recorded_before_it_is_made_and_priced(self):
        ledger = Ledger(HEADER)
        release_choice(Mechanism(ledger, SOURCE), np.array([1, 2, 3]), 2, 0.5, 1, "structure")
        (release,) = ledger.releases
        assert release.multiplier == 2.0
        assert choice_mu(round(release.noise_std * 2**RATE_BITS), 2) <= 0.5
        assert ledger.released_epsilon() == pytest.approx(gdp_epsilon(0.5, 1e-5), rel=1e-6)


class TestPrice:
    @settings(deadline=None, max_examples=20)
    @given(st.floats(0.01, 4.0), st.integers(0, 10**6), st.integers(2, 6))
    def test_no_choice_is_told_apart_better_than_gaussians_that_far_apart(self, eta, seed, count):
        """Random mechanisms of bounded range: for every event, the error rates lie above those of the Gaussians."""
        rng, mu = np.random.default_rng(seed), bounded_range_mu(eta)
        scores = rng.uniform(-3, 3, count)
        moved = scores + rng.choice([-0.5, 0.5], count) * eta
        first, second = (np.exp(one) / np.exp(one).sum() for one in (scores, moved))
        order = np.argsort(second / first)[::-1]
        type_one, type_two = np.cumsum(first[order]), 1 - np.cumsum(second[order])
        assert (type_two >= norm.cdf(norm.isf(np.minimum(type_one, 1.0)) - mu) - 1e-9).all()

    @pytest.mark.parametrize("eta", [0.01, 1.0, 14.0, 50.0, 100.0, 400.0])
    def test_the_worst_mechanism_reaches_it(self, eta):
        """Above 80, where probabilities are one but for rounding, the price was nothing."""
        t = eta * np.linspace(0.01, 0.99, 99)
        rest = np.exp(-eta) * np.expm1(t) / -math.expm1(-eta)
        best = (norm.isf(rest) - norm.ppf(-np.expm1(t - eta) / -math.expm1(-eta) * np.exp(-t))).max()
        assert bounded_range_mu(eta) == pytest.approx(best, rel=1e-4)
        assert bounded_range_mu(eta) >= best

    @pytest.mark.parametrize("eta", [90.0, 501.0, 1e6])
    def test_a_choice_that_hides_nothing_is_not_paid(self, eta):
        line = Release(1, "structure", sensitivity=1.0, mechanism=EXPONENTIAL, multiplier=100.0, noise_std=eta / 2)
        assert not paid(line)

    @settings(deadline=None, max_examples=20)
    @given(st.floats(1e-3, 2.0), st.integers(1, 5000))
    def test_the_rate_costs_no_more_than_it_may(self, mu, sensitivity):
        rate = rate_of(mu, sensitivity)
        assert choice_mu(rate, sensitivity) <= mu <= choice_mu(rate + 2**20, sensitivity) + 1e-9 or rate == 0
