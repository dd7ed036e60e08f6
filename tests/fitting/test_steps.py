"""No table makes a recipe run away: outputs stay bounded on adversarial data, for the largest number of rounds."""

from __future__ import annotations

import numpy as np
import pytest

from diff2.fitting.asking import Answer
from diff2.fitting.centred import Centred, gram_seen
from diff2.fitting.classification import fit_classification, most_uneven, public_radius
from diff2.fitting.descent import CautiousStep
from diff2.fitting.linear import half_octaves, quiet_radius, radius_from
from diff2.fitting.preparation import Preparation
from diff2.fitting.regression import MAX_ROUNDS, fit_regression, share_of_mean
from diff2.fitting.restraint import Restraint
from diff2.fitting.second_moment import noise_norm
from diff2.fitting.shrinking import Shrinkage
from diff2.fitting.statistics import LENGTHS
from diff2.tables.rows import Rows

N, LOW, HIGH = 400, -1.0, 1.0


def tables():
    """Return adversarial inputs and targets within [-1, 1]."""
    rng = np.random.default_rng(0)
    base = rng.uniform(-1, 1, size=(N, 3))
    clusters = np.where(np.arange(N)[:, None] % 2, 1.0, -1.0) + 1e-6 * rng.normal(size=(N, 3))
    heavy = np.clip(rng.standard_cauchy((N, 3)) / 50, -1, 1)
    yield "opposite bounds", base, np.where(base[:, 0] > 0, HIGH, LOW)
    yield "opposite bounds at random", base, rng.choice([LOW, HIGH], N)
    yield "duplicates", np.repeat(base[:4], N // 4, axis=0), np.repeat(rng.choice([LOW, HIGH], 4), N // 4)
    yield "all equal", np.full((N, 3), 0.3), np.full(N, HIGH)
    yield "all equal with opposite targets", np.full((N, 3), 0.3), np.where(np.arange(N) % 2, HIGH, LOW)
    yield "heavy tails", heavy, np.clip(50 * heavy[:, 0], LOW, HIGH)
    yield "constant columns", np.concatenate([np.full((N, 2), -1.0), base[:, 2:]], axis=1), np.sign(base[:, 2])
    yield "two clusters", clusters, clusters[:, 0].clip(LOW, HIGH)
    yield "one record apart", np.concatenate([np.ones((1, 3)), -np.ones((N - 1, 3))]), np.eye(1, N)[0] * 2 - 1
    yield "missing", np.full((N, 3), np.nan), np.where(np.arange(N) % 3, HIGH, LOW)


TABLES = {name: (inputs, target) for name, inputs, target in tables()}
HARDEST = ["opposite bounds at random", "all equal with opposite targets", "missing"]
BOUNDS = np.array([[-1.0, 1.0]] * 3)


class Asker:
    """Answers on a table with the noise that a price means, or a multiple of it; counts the steps."""

    def __init__(self, inputs, target, noise):
        self.rows = Rows(inputs, np.zeros((N, 0), dtype=np.int64), target)
        self.noise, self.rng, self.steps, self.cache = noise, np.random.default_rng(1), 0, {}
        self.prices = {}  # squares of what was paid, by purpose

    def __call__(self, statistic, mu):
        self.steps += statistic.purpose == "descent"
        self.prices[statistic.purpose] = self.prices.get(statistic.purpose, 0.0) + mu**2
        total = statistic.total(self.rows, np.full(N, 1 / N), self.cache)
        std = max(statistic.diameter, statistic.longest) / N / mu
        return Answer(total + self.noise * std * self.rng.standard_normal(total.shape), std)

    def choose(self, scores, mu):
        return int(scores.scores(scores.total(self.rows, np.ones(N), self.cache)).argmax())


class TestRegression:
    # With mu = 400 the noise is that of 160,000 records at mu = 1, which takes all 160 rounds.
    @pytest.mark.parametrize(
        ("name", "noise"),
        [*((name, 1.0) for name in TABLES), *((name, noise) for name in HARDEST for noise in (0.0, 3.0))],
    )
    def test_outputs_stay_near_the_targets(self, name, noise):
        inputs, target = TABLES[name]
        ask = Asker(inputs, target, noise)
        preparation = Preparation((), (), (0, 1, 2))
        model = fit_regression(
            ask, ask.choose, 400.0, 1 / N, preparation, BOUNDS, (LOW, HIGH), np.random.default_rng(2)
        )
        assert ask.steps == MAX_ROUNDS
        outputs = model.outputs(ask.rows, {})
        assert np.isfinite(outputs).all()
        assert np.abs(outputs).max() < 2 * (HIGH - LOW)
        if noise <= 1:  # with three times the noise that is stated, only bounds hold
            assert np.mean((outputs - target) ** 2) < target.var() + 0.01

    @pytest.mark.parametrize("mu", [0.02, 0.1, 0.5, 2.0])
    def test_noise_does_not_make_it_much_worse_than_the_mean(self, mu):
        """It was worse by 5 to 20 variances of the target at 100 to 250 records and epsilon 0.3."""
        inputs, target = TABLES["opposite bounds at random"]
        excess = []
        for seed in range(5):
            ask = Asker(inputs, 0.25 * target, 1.0)
            ask.rng = np.random.default_rng(seed)
            preparation = Preparation((), (), (0, 1, 2))
            model = fit_regression(
                ask, ask.choose, mu, 1 / N, preparation, BOUNDS, (LOW, HIGH), np.random.default_rng(seed)
            )
            outputs = np.clip(model.outputs(ask.rows, {}), LOW, HIGH)
            excess.append(np.mean((outputs - 0.25 * target) ** 2) / 0.0625 - 1)
        assert np.mean(excess) < 0.1 + 64 / (N * mu) ** 2 * 2 / share_of_mean(mu, 1 / N)


class TestClassification:
    @pytest.mark.parametrize(("name", "noise"), [*((name, 1.0) for name in TABLES), *((name, 0.0) for name in HARDEST)])
    def test_probabilities_stay_bounded(self, name, noise):
        inputs, target = TABLES[name]
        labels = (target > 0).astype(np.float64)
        ask = Asker(inputs, labels, noise)
        preparation = Preparation((), (), (0, 1, 2))
        model = fit_classification(ask, ask.choose, 400.0, 1 / N, preparation, BOUNDS, 2, np.random.default_rng(2))
        assert ask.steps >= 32
        outputs = model.outputs(ask.rows, {})
        assert np.isfinite(outputs).all()
        assert np.abs(outputs - outputs.mean(axis=1, keepdims=True)).max() < 50
        chances = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        loss = -np.log(np.maximum(chances[np.arange(N), labels.astype(int)], 1e-300)).mean()
        share = np.clip(labels.mean(), 1 / N, 1 - 1 / N)
        prior = -(share * np.log(share) + (1 - share) * np.log(1 - share))
        assert loss < prior + 0.05  # clipping draws to the majority

    @pytest.mark.parametrize("mu", [0.1, 0.3, 1.0])
    def test_noise_does_not_make_it_much_worse_than_the_prior(self, mu):
        inputs, target = TABLES["opposite bounds at random"]
        labels, excess = (target > 0).astype(np.float64), []
        for seed in range(8):
            ask = Asker(inputs, labels, 1.0)
            ask.rng = np.random.default_rng(seed)
            preparation = Preparation((), (), (0, 1, 2))
            model = fit_classification(ask, ask.choose, mu, 1 / N, preparation, BOUNDS, 2, np.random.default_rng(seed))
            outputs = model.outputs(ask.rows, {})
            losses = np.logaddexp(outputs[:, 0], outputs[:, 1]) - outputs[np.arange(N), labels.astype(int)]
            excess.append(losses.mean() - np.log(2))
        assert np.mean(excess) < 0.1

    @pytest.mark.parametrize(("mu", "asked"), [(0.1, "features"), (0.3, "gram"), (3.0, "gram")])
    def test_a_matrix_that_noise_would_hide_is_not_asked_for_and_all_is_spent(self, mu, asked):
        ask = Asker(*TABLES["two clusters"], 1.0)
        ask.rows = ask.rows._replace(target=(ask.rows.target > 0).astype(np.float64))
        preparation = Preparation((), (), (0, 1, 2))
        fit_classification(ask, None, mu, 1 / N, preparation, BOUNDS, 2, np.random.default_rng(0))
        assert {"features", "gram"} & set(ask.prices) == {asked}
        assert sum(ask.prices.values()) == pytest.approx(mu**2, rel=0.11)  # what is not asked for may be left over
        assert sum(ask.prices.values()) <= mu**2 * (1 + 1e-9)

    def test_a_matrix_is_seen_where_its_noise_is_small(self):
        assert [gram_seen(50, mu, 1e-3) for mu in (0.14, 0.15)] == [False, True]

    def test_lengths_give_the_mean_and_a_scale(self):
        mean = np.array([0.5, 0.0, 0.0])
        found = Centred.of_lengths(np.append(mean, LENGTHS * (0.25 + 0.3)), 1e-6)
        assert found.mean == pytest.approx(mean)
        assert found.rest == pytest.approx(0.3, rel=1e-3)
        assert found.largest == pytest.approx(1.0)
        assert found.dimension == pytest.approx(2.0 + 0.09)
        assert found.matrix[1:, 1:] == pytest.approx(np.eye(3) / np.sqrt(0.15), rel=1e-3)

    def test_less_is_clipped_where_records_are_many_and_no_class_is_rare(self):
        even, rare = np.array([0.3, 0.7]), np.array([0.03, 0.97])
        assert [most_uneven(3000, prior) for prior in (even, rare)] == [0.05, 0.15]
        sizes = np.array([0.7, 0.3]) * np.sqrt(2)
        for share in (0.05, 0.1, 0.15):  # two classes differ from their mean by what is clipped
            beyond = even @ np.maximum(sizes - public_radius(even, share), 0.0)
            assert beyond / (even @ sizes) == pytest.approx(share)

    def test_classes_that_are_clipped_alike_need_no_larger_radius(self):
        """Red before: letters had 12 % more noise, and explained less."""
        prior = np.full(26, 1 / 26)
        assert public_radius(prior, 0.05) == public_radius(prior, 0.15) == pytest.approx(0.85 * np.sqrt(25 / 26))

    def test_one_eigenvalue_little_above_the_noise_does_not_set_the_scale(self):
        """Features grew by ten, and steps along a direction that noise hides ran away."""
        noise_std, size = 0.01, 40
        edge = noise_norm(size, noise_std)
        moment = np.diag(np.r_[0.25, 1.01 * edge, np.full(size - 1, 0.1 * edge)])
        assert Centred.of(moment, noise_std).largest > 0.2


class TestCautiousStep:
    def test_a_curvature_beyond_two_is_noticed_and_does_not_grow(self):
        safe = CautiousStep(1.9 / 5.0)
        theta, curvature, size = np.ones(3), np.array([5.0, 1.0, 0.01]), []
        for _ in range(200):
            direction = -curvature * theta
            theta = theta + safe.after(Answer(direction, 1e-9)) * direction
            size.append(np.abs(theta).max())
        assert max(size) <= 5.0
        assert size[-1] < 0.8

    def test_directions_divided_by_the_share_that_is_kept_do_not_grow_where_all_are_kept_later(self):
        """Red with a safe step that is not times that share: it grew without end."""
        safe, theta, curvature = CautiousStep(0.95), np.ones(2), np.array([2.0, 0.1])
        for _ in range(200):
            direction = -curvature * theta / 0.4
            theta = theta + safe.after(Answer(direction, 1e-9), 0.4) * direction
        assert np.abs(theta).max() < 1.0

    def test_noise_alone_leaves_the_step_at_one(self):
        rng, step = np.random.default_rng(0), CautiousStep(0.1)
        assert all(step.after(Answer(rng.standard_normal(200), 1.0)) == 1.0 for _ in range(500))


class TestRestraint:
    PRIOR = np.array([0.4, 0.6])

    def factors(self, signal, noise, rounds=10, step=2.0, size=60):
        """Return the factor, and that which is best, for descent on a quadratic loss, of twenty seeds."""
        curvature, found, rng = np.full(size, 0.1), [], np.random.default_rng(0)
        matrix = np.diag(self.PRIOR) - np.outer(self.PRIOR, self.PRIOR)
        best = np.outer(np.eye(size)[0], [-1.0, 1.0]) * signal
        for _ in range(20):
            restraint, theta = Restraint(curvature, self.PRIOR, rounds, step), np.zeros((size, 2))
            total = np.zeros_like(theta)
            for round in range(rounds):
                direction = curvature[:, None] * (best - theta) @ matrix + noise * rng.standard_normal((size, 2))
                direction -= direction.mean(axis=1, keepdims=True)
                restraint.see(theta, direction, noise)
                theta = theta + step * direction
                total += theta * (round >= rounds // 2) / (rounds - rounds // 2)
            ideal = np.sum(total @ matrix * best) / np.sum(total @ matrix * total)
            found.append((restraint.factor(total, 0.0), min(max(ideal, 0.0), 1.0)))
        return np.array(found).T

    @pytest.mark.parametrize(("signal", "noise"), [(0.0, 0.1), (2.0, 0.1), (30.0, 0.1), (30.0, 0.01)])
    def test_what_noise_made_is_drawn_back_and_what_records_say_is_not(self, signal, noise):
        """Red where the noise that theta and its directions share is not taken off: the factor of noise was 1."""
        found, ideal = self.factors(signal, noise)
        assert found.mean() == pytest.approx(ideal.mean(), abs=0.35)

    def test_what_was_learnt_by_heart_counts_less(self):
        restraint, theta = Restraint(np.ones(5), self.PRIOR, 1, 1.0), np.outer(np.ones(5), [-1.0, 1.0])
        restraint.see(np.zeros((5, 2)), 0.05 * theta, 1e-3)
        assert restraint.factor(theta, 0.5) < restraint.factor(theta, 0.0)

    def test_a_loss_that_curves_less_where_the_model_is_sure_draws_nothing_back(self):
        """Red where the square is that of the curvature at the prior: the factor was .1, and digits lost."""
        curvature, theta = np.ones(5), 10 * np.outer(np.ones(5), [-1.0, 1.0])
        restraint = Restraint(curvature, self.PRIOR, 1, 1.0)
        restraint.see(np.zeros((5, 2)), 0.024 * theta, 1e-6)
        assert restraint.factor(theta, 0.01) > 0.95


class TestShrinkage:
    @staticmethod
    def descended(curvature, best, noises, rng, **options):
        """Return the estimate from descent on a quadratic loss, and the mean of the last half of the iterates."""
        shrinkage, theta, total = Shrinkage(curvature, **options), np.zeros_like(best), np.zeros_like(best)
        ahead, first = np.ones_like(best), len(noises) // 2
        for round, noise in enumerate(noises):
            direction = curvature * (best - theta) + noise * rng.standard_normal(len(best))
            shrinkage.see(theta, direction, noise, ahead)
            theta, ahead = theta + direction, ahead * (1 - curvature)
            total += theta * (round >= first) / (len(noises) - first)
        return shrinkage.estimate(), total

    @pytest.mark.parametrize("scale", [None, np.ones(200)])
    def test_iterates_of_noise_are_drawn_to_zero_and_others_are_not(self, scale):
        """Red where the noise that the estimate and its directions share is not taken off: noise is kept whole."""
        rng, curvature, best = np.random.default_rng(1), np.full(200, 0.5), np.zeros(200)
        noise, _ = self.descended(curvature, best, np.ones(20), rng, scale=scale)
        assert np.linalg.norm(noise) < 1.5  # of 6
        best[0] = 30.0
        found, _ = self.descended(curvature, best, np.ones(20), rng, scale=scale)
        assert found[0] == pytest.approx(30.0, rel=0.1)

    @pytest.mark.parametrize("noises", [np.ones(8), np.r_[np.full(4, 3.0), np.full(4, 1.0)]])
    def test_all_rounds_count_by_their_precision(self, noises):
        """Red with the mean of the last half of the iterates, or of all rounds alike."""
        rng, best = np.random.default_rng(2), np.full(5000, 50.0)
        for curvature in (0.95, 0.5):
            found, half = self.descended(np.full(5000, curvature), best, noises, rng)
            assert found.std() / found.mean() < 0.97 * half.std() / half.mean()
        found, half = self.descended(np.full(5000, 0.95), best, noises, rng)
        least = 1 / np.sqrt(np.sum(noises**-2.0)) / 0.95 / 50  # the noise of all rounds together
        assert found.std() / found.mean() == pytest.approx(least, rel=0.05)

    def test_a_loss_that_hardly_curves_and_rounds_without_noise(self):
        rng, curvature, best = np.random.default_rng(3), np.r_[np.zeros(3), np.ones(3)], np.ones(6)
        found, _ = self.descended(curvature, best, np.zeros(5), rng)
        assert np.isfinite(found).all()
        assert found[3:] == pytest.approx(np.ones(3))

    def test_what_was_learnt_by_heart_is_taken_back_where_features_vary_little(self):
        """Red without the term for it: all factors were one, and the error on other records was .33 in place of .04."""
        rng, size, records = np.random.default_rng(0), 200, 600
        scale = np.r_[np.full(5, 1.0), np.full(size - 5, 0.01)]
        best = np.r_[np.full(5, 1.0), np.zeros(size - 5)]
        psi = rng.standard_normal((records, size))
        target = psi @ best + rng.standard_normal(records)
        found = np.linalg.solve(psi.T @ psi, psi.T @ target)
        shrinkage = Shrinkage(np.ones(size), scale)
        shrinkage.see(found, np.zeros(size), 1e-9, np.zeros(size))
        kept = shrinkage.estimate(1 / records)
        assert (kept / found)[:5].min() > 0.8
        assert (kept / found)[5:].max() < 0.4
        assert np.sum((kept - best) ** 2) < 0.15 < np.sum((found - best) ** 2)


class TestQuietRadius:
    EDGES = half_octaves(8.0, 30)

    def of(self, values, noise):
        counts = np.bincount(np.searchsorted(self.EDGES, np.abs(values)), minlength=len(self.EDGES) + 1) / len(values)
        return quiet_radius(counts, self.EDGES, 1e-4, noise)

    def test_the_louder_the_noise_the_smaller_it_is_and_never_larger_than_what_most_are_below(self):
        values = np.random.default_rng(0).standard_normal(20_000)
        found = [self.of(values, noise) for noise in (0.0, 1e-4, 1e-2, 1.0)]
        radii, kept = zip(*found, strict=True)
        assert list(radii) == sorted(radii, reverse=True)
        assert radii[0] == radius_from(np.histogram(np.abs(values), [0, *self.EDGES, 99])[0] / 20_000, self.EDGES, 1e-4)
        assert radii[-1] < 0.5 * radii[0]
        for radius, share in found:
            assert share == pytest.approx(np.mean(np.abs(values) <= radius), abs=0.01)
        assert min(kept) >= 0.4

    def test_heavy_tails_keep_it_larger(self):
        """Red without the cost of what is clipped."""
        rng = np.random.default_rng(1)
        normal, heavy = rng.standard_normal(20_000), 0.5 * np.exp(1.2 * rng.standard_normal(20_000))
        ratios = [self.of(values, 3e-3)[0] / self.of(values, 1.0)[0] for values in (normal, heavy)]
        assert ratios[1] > ratios[0]

    def test_noise_that_hides_all_leaves_what_there_is(self):
        assert quiet_radius(np.zeros(31), self.EDGES, 1.0, 1.0) == (8.0, 1.0)
