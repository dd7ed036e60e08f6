"""The one door through which something computed from records leaves: books first, then noise of the stated scale."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

from diff2.errors import BudgetExceeded, LedgerError
from diff2.privacy import Ledger, Mechanism, NoiseSource, combined, epsilon_of
from diff2.privacy.accounting import total_mu
from diff2.privacy.mechanism import GRID_BITS
from stubs import DELTA, Untouchable, in_memory_ledger, ledger_header, mean_of

DIMENSION = 100_000


def release(value=DIMENSION, sensitivity=0.25, *, multiplier=3.0, seed=1, ledger=None, **fields):
    mechanism = Mechanism(in_memory_ledger() if ledger is None else ledger, NoiseSource.from_seed(seed))
    return mechanism.release(mean_of(value, sensitivity, **fields), multiplier)


@pytest.mark.parametrize(("factor", "is_right"), [(1.0, True), (0.95, False), (1.05, False)])
@pytest.mark.parametrize(("sensitivity", "multiplier"), [(0.25, 3.0), (1.7e-5, 135.5), (400.0, 0.2)])
def test_noise_has_the_stated_scale(sensitivity, multiplier, factor, is_right):
    noise = release(20_000, sensitivity, multiplier=multiplier).value
    scale = sensitivity * multiplier * factor
    assert (scipy.stats.kstest(noise, scipy.stats.norm(scale=scale).cdf).pvalue > 0.01) == is_right


def test_noise_is_centred_on_the_value():
    value = np.linspace(-1, 1, 1000)
    np.testing.assert_allclose(release(value, seed=3).value - value, release(1000, seed=3).value, rtol=0, atol=1e-9)


def test_noise_of_a_difference_is_proportional_to_its_radius():
    small, large = (release(1000, 2 * radius / 50, purpose="difference").value for radius in (1e-6, 1e-2))
    np.testing.assert_allclose(large, 1e4 * small, rtol=1e-6)


@pytest.mark.parametrize("other", [{"round": 2}, {"purpose": "difference"}, {"step": 1}, {"seed": 2}])
def test_noise_of_other_rounds_purposes_steps_and_runs_is_independent(other):
    assert abs(np.corrcoef(release().value, release(**other).value)[0, 1]) < 4.5 / math.sqrt(DIMENSION)


def test_the_same_round_again_is_the_same_release():
    value = np.random.default_rng(0).normal(size=50)
    assert np.array_equal(release(value, round=4).value, release(value, round=4).value)


def test_the_result_lies_on_a_grid_that_says_nothing_about_the_value():
    value = np.full(1000, math.pi)
    grid = 2.0 ** (math.floor(math.log2(0.75)) - GRID_BITS)
    steps = release(value).value / grid
    assert np.array_equal(steps, np.rint(steps))
    assert not np.array_equal(value / grid, np.rint(value / grid))
    # The last bits are taken: a coarser grid does not fit.
    assert 0.4 < np.mean(steps % 2) < 0.6


@pytest.mark.parametrize("dimension", [1, 101, 1_000_000])
def test_the_noise_covers_what_rounding_adds_to_the_sensitivity(dimension):
    made = release(dimension).release
    grid = 2.0 ** (math.floor(math.log2(0.75)) - GRID_BITS)
    # Each of two neighbouring values moves by at most half a step per coordinate.
    assert made.noise_std / made.multiplier >= 0.25 + grid * math.sqrt(dimension)
    assert made.noise_std / made.multiplier == pytest.approx(0.25, rel=1e-6)
    of_sums = release(dimension, rounding=1e-3).release
    assert of_sums.noise_std >= 3.0 * (0.25 * (1 + 1e-3) + grid * math.sqrt(dimension))
    assert of_sums.multiplier == 3.0


def test_neighbours_on_the_grid_are_no_further_apart_than_the_noise_assumes():
    first, step = np.random.default_rng(0).uniform(size=(2, 1000))
    one, two = release(first), release(first + 0.25 * step / np.linalg.norm(step))
    assert np.linalg.norm(one.value - two.value) <= one.release.noise_std / one.release.multiplier


def test_an_identically_zero_release_is_free_and_says_so():
    ledger = in_memory_ledger()
    assert not release(np.full(5, 7.0), 0.0, ledger=ledger).value.any()
    assert ledger.releases[0].mechanism == "zero"
    assert ledger.epsilon() == 0.0


def test_without_noise_the_value_leaves_as_it_is_and_costs_everything():
    ledger, value = in_memory_ledger(), np.array([0.1, math.pi])
    assert np.array_equal(release(value, multiplier=0.0, ledger=ledger).value, value)
    assert ledger.releases[0].mechanism == "none"
    assert ledger.epsilon() == math.inf


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"sensitivity": math.inf}, BudgetExceeded, "finite"),
        ({"sensitivity": math.nan}, BudgetExceeded, "finite"),
        ({"adjacency": "add-or-remove-one"}, LedgerError, "add-or-remove-one"),
    ],
)
def test_what_cannot_be_hidden_is_refused_and_nothing_is_written(change, error, message):
    ledger = in_memory_ledger()
    with pytest.raises(error, match=message):
        release(3, ledger=ledger, **change)
    assert len(ledger) == 0


@pytest.mark.parametrize(
    ("change", "multiplier"),
    [({}, 3.0), ({"sensitivity": 0.0}, 3.0), ({}, 0.0), ({"leaves": 2}, 3.0)],
    ids=["gaussian", "zero", "none", "tree"],
)
def test_the_line_is_in_the_ledger_before_the_value_leaves(change, multiplier):
    class FullDisk(Exception):
        pass

    class BrokenLedger(Ledger):
        def record(self, release):
            raise FullDisk

    with pytest.raises(FullDisk):
        Mechanism(BrokenLedger(ledger_header()), Untouchable()).release(mean_of(3, **change), multiplier)


def test_what_is_written_is_what_was_done():
    ledger = in_memory_ledger()
    made = release(101, round=7, step=2, clip=0.5, ledger=ledger).release
    assert ledger.releases == [made]
    assert (made.label, made.mechanism, made.clip) == ((7, "gradient", 2), "gaussian", 0.5)
    assert (made.sensitivity, made.multiplier, made.dimension, made.parties) == (0.25, 3.0, 101, 1)
    assert ledger.epsilon() == epsilon_of([3.0], DELTA)


def test_a_weighted_sum_has_the_weighted_sum_of_the_sensitivities():
    one, other = (mean_of([1.0, 2.0], s, clip=4 * s, rounding=s / 9) for s in (0.25, 0.5))
    mean = combined([(0.3, one), (-0.7, other)])
    np.testing.assert_allclose(mean.value, [-0.4, -0.8])
    assert mean.release.sensitivity == pytest.approx(0.3 * 0.25 + 0.7 * 0.5)
    assert mean.release.clip == pytest.approx(4 * mean.release.sensitivity)
    assert mean.rounding == 0.5 / 9


@pytest.mark.parametrize("other", [{"members": (1,)}, {"sampling": "fixed", "rate": 0.5}, {"step": 1}, {"round": 2}])
def test_means_over_other_units_are_not_combined(other):
    with pytest.raises(LedgerError, match="different units"):
        combined([(0.5, mean_of(3)), (0.5, mean_of(3, **other))])


def test_no_global_generator_is_touched():
    before = torch.get_rng_state(), str(np.random.get_state())  # noqa: NPY002
    release(3)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert str(np.random.get_state()) == before[1]  # noqa: NPY002


def test_a_canary_in_every_round_is_as_visible_as_the_ledger_says():
    """Two runs whose record is +Cu or -Cu in every round differ by mu deviations, and no more."""
    rounds, multiplier, sensitivity = 40, 9.0, 0.02

    def statistic(sign, seed):
        ledger, total = in_memory_ledger(), 0.0
        for r in range(1, rounds + 1):
            made = release(
                [sign * sensitivity / 2], sensitivity, multiplier=multiplier, round=r, seed=seed, ledger=ledger
            )
            total += made.value.item() / made.release.noise_std
        return total / math.sqrt(rounds), total_mu(made.multiplier for made in ledger.releases)

    plus, minus = (np.array([statistic(sign, seed)[0] for seed in range(100)]) for sign in (1, -1))
    mu = statistic(1, 0)[1]
    assert plus.mean() - minus.mean() == pytest.approx(mu, rel=1e-6)  # the same noise on both sides
    assert plus.std() == pytest.approx(1, abs=0.25)
