"""The one door through which something computed from records leaves: books first, then noise of the stated scale."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

from diff2.errors import BudgetExceeded, LedgerError
from diff2.privacy import BoundedMean, Ledger, Mechanism, NoiseSource, epsilon_of
from diff2.privacy.accounting import total_mu
from diff2.privacy.mechanism import GRID_BITS
from helpers import DELTA, in_memory_ledger, ledger_header

DIMENSION = 100_000


def release(value=None, *, sensitivity=0.25, multiplier=3.0, seed=1, round=1, purpose="gradient", ledger=None):
    value = torch.zeros(DIMENSION, dtype=torch.float64) if value is None else value
    mechanism = Mechanism(in_memory_ledger() if ledger is None else ledger, NoiseSource.from_seed(seed))
    return mechanism.gaussian(BoundedMean(value, sensitivity, clip=1.0), multiplier, round=round, purpose=purpose)


def correlation(first, second):
    return abs(np.corrcoef(first, second)[0, 1])


@pytest.mark.parametrize(("factor", "is_right"), [(1.0, True), (0.95, False), (1.05, False)])
@pytest.mark.parametrize(("sensitivity", "multiplier"), [(0.25, 3.0), (1.7e-5, 135.5), (400.0, 0.2)])
def test_noise_has_the_stated_scale(sensitivity, multiplier, factor, is_right):
    noise = release(sensitivity=sensitivity, multiplier=multiplier).value
    scale = sensitivity * multiplier * factor
    assert (scipy.stats.kstest(noise, scipy.stats.norm(scale=scale).cdf).pvalue > 0.01) == is_right


def test_a_sensitivity_for_another_adjacency_is_refused_and_nothing_is_written():
    ledger = in_memory_ledger()
    mechanism = Mechanism(ledger, NoiseSource.from_seed(1))
    mean = BoundedMean(torch.zeros(3, dtype=torch.float64), sensitivity=0.1, clip=1.0, adjacency="add-or-remove-one")
    with pytest.raises(LedgerError, match="add-or-remove-one"):
        mechanism.gaussian(mean, 3.0, round=1, purpose="gradient")
    assert len(ledger) == 0


def test_noise_is_centred_on_the_value():
    value = torch.linspace(-1, 1, DIMENSION, dtype=torch.float64)
    assert torch.allclose(release(value, seed=3).value - value, release(seed=3).value, rtol=0, atol=1e-9)


def test_noise_of_a_difference_is_proportional_to_its_radius():
    small, large = (release(sensitivity=2 * radius / 50, purpose="difference").value for radius in (1e-6, 1e-2))
    assert torch.allclose(large, 1e4 * small, rtol=1e-8)


@pytest.mark.parametrize("other", [{"round": 2}, {"purpose": "difference"}, {"seed": 2}])
def test_noise_of_other_rounds_purposes_and_runs_is_independent(other):
    assert correlation(release().value, release(**other).value) < 4.5 / math.sqrt(DIMENSION)


def test_the_same_round_again_is_the_same_release():
    value = torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(release(value, round=4).value, release(value, round=4).value)


def test_the_result_lies_on_a_grid_that_says_nothing_about_the_value():
    value = torch.full((1000,), math.pi, dtype=torch.float64)
    result = release(value, sensitivity=0.25, multiplier=3.0)
    grid = 2.0 ** (math.floor(math.log2(0.75)) - GRID_BITS)
    steps = result.value.numpy() / grid
    assert np.array_equal(steps, np.rint(steps))
    assert not np.array_equal(value.numpy() / grid, np.rint(value.numpy() / grid))
    # The last bits are taken: a coarser grid does not fit.
    assert 0.4 < np.mean(steps % 2) < 0.6


@pytest.mark.parametrize("dimension", [1, 101, 1_000_000])
def test_the_noise_covers_what_rounding_adds_to_the_sensitivity(dimension):
    entry = release(torch.zeros(dimension, dtype=torch.float64), sensitivity=0.25, multiplier=3.0).entry
    grid = 2.0 ** (math.floor(math.log2(0.75)) - GRID_BITS)
    # Each of two neighbouring values moves by at most half a step a coordinate.
    assert entry.noise_std / entry.multiplier >= 0.25 + grid * math.sqrt(dimension)
    assert entry.noise_std / entry.multiplier == pytest.approx(0.25, rel=1e-6)


def test_the_noise_covers_what_rounding_of_sums_adds_to_the_sensitivity():
    mean = BoundedMean(torch.zeros(10, dtype=torch.float64), 0.25, clip=1.0, rounding=1e-3)
    mechanism = Mechanism(in_memory_ledger(), NoiseSource.from_seed(1))
    entry = mechanism.gaussian(mean, 3.0, round=1, purpose="gradient").entry
    assert entry.noise_std >= 3.0 * 0.25 * (1 + 1e-3)
    assert entry.multiplier == 3.0


def test_neighbours_on_the_grid_are_no_further_apart_than_the_noise_assumes():
    generator = torch.Generator().manual_seed(0)
    first = torch.rand(1000, generator=generator, dtype=torch.float64)
    step = torch.rand(1000, generator=generator, dtype=torch.float64)
    second = first + 0.25 * step / step.norm()
    one, two = release(first), release(second)
    assert float((one.value - two.value).norm()) <= one.entry.noise_std / one.entry.multiplier


def test_an_identically_zero_release_is_free_and_says_so():
    ledger = in_memory_ledger()
    result = release(torch.full((5,), 7.0, dtype=torch.float64), sensitivity=0.0, ledger=ledger)
    assert torch.equal(result.value, torch.zeros(5, dtype=torch.float64))
    assert ledger.entries[0].mechanism == "zero"
    assert ledger.epsilon() == 0.0


def test_without_noise_the_value_leaves_as_it_is_and_costs_everything():
    ledger, value = in_memory_ledger(), torch.tensor([0.1, math.pi], dtype=torch.float64)
    assert torch.equal(release(value, multiplier=0.0, ledger=ledger).value, value)
    assert ledger.entries[0].mechanism == "none"
    assert ledger.epsilon() == math.inf


@pytest.mark.parametrize("sensitivity", [math.inf, math.nan])
def test_no_noise_hides_an_unbounded_value(sensitivity):
    ledger = in_memory_ledger()
    with pytest.raises(BudgetExceeded, match="finite"):
        release(sensitivity=sensitivity, ledger=ledger)
    assert len(ledger) == 0


@pytest.mark.parametrize(
    ("sensitivity", "multiplier"), [(0.25, 3.0), (0.0, 3.0), (0.25, 0.0)], ids=["gaussian", "zero", "none"]
)
def test_the_line_is_in_the_ledger_before_the_value_leaves(sensitivity, multiplier):
    class FullDisk(Exception):
        pass

    class Untouchable(NoiseSource):
        def gaussian(self, *arguments):
            raise AssertionError("noise was drawn before the release was on the books")

    class BrokenLedger(Ledger):
        def record(self, entry):
            raise FullDisk

    mechanism = Mechanism(BrokenLedger(ledger_header()), Untouchable(b"", private=False))
    with pytest.raises(FullDisk):
        mechanism.gaussian(
            BoundedMean(torch.zeros(3, dtype=torch.float64), sensitivity, 1.0), multiplier, round=1, purpose="gradient"
        )


def test_what_is_written_is_what_was_done():
    ledger = in_memory_ledger()
    result = release(torch.zeros(101, dtype=torch.float64), sensitivity=0.25, multiplier=3.0, round=7, ledger=ledger)
    assert ledger.entries == [result.entry]
    entry = result.entry
    assert (entry.round, entry.purpose, entry.mechanism, entry.clip) == (7, "gradient", "gaussian", 1.0)
    assert (entry.sensitivity, entry.multiplier, entry.dimension) == (0.25, 3.0, 101)
    assert ledger.epsilon() == epsilon_of([3.0], DELTA)


def test_no_global_generator_is_touched():
    before = torch.get_rng_state(), str(np.random.get_state())  # noqa: NPY002
    release(torch.zeros(3, dtype=torch.float64))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert str(np.random.get_state()) == before[1]  # noqa: NPY002


def test_a_canary_in_every_round_is_as_visible_as_the_ledger_says():
    """Two runs whose record is +Cu or -Cu in every round differ by mu deviations, and no more."""
    rounds, multiplier, sensitivity = 40, 9.0, 0.02
    direction = torch.ones(1, dtype=torch.float64)

    def statistic(sign, seed):
        ledger, total = in_memory_ledger(), 0.0
        for r in range(1, rounds + 1):
            mean = direction * sign * sensitivity / 2
            result = release(
                mean,
                sensitivity=sensitivity,
                multiplier=multiplier,
                round=r,
                seed=seed,
                ledger=ledger,
                purpose="difference",
            )
            total += float(result.value) / result.entry.noise_std
        return total / math.sqrt(rounds), total_mu(entry.multiplier for entry in ledger.entries)

    plus, minus = (np.array([statistic(sign, seed)[0] for seed in range(150)]) for sign in (1, -1))
    mu = statistic(1, 0)[1]
    assert plus.mean() - minus.mean() == pytest.approx(mu, rel=1e-6)  # the same noise on both sides
    assert plus.std() == pytest.approx(1, abs=0.2)
