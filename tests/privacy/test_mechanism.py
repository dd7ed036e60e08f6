"""The one door through which something computed from records leaves: books first, then noise of the stated scale."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from diff2.errors import BudgetExceeded, InvalidArgument, LedgerError
from diff2.privacy import Ledger, Mechanism, NoiseSource, combined, epsilon_of
from diff2.privacy.accounting import total_mu
from diff2.privacy.mechanism import MOST_STEPS, UNIT_OF_ROUNDING, noise_scale
from stubs import DELTA, DrawnNoise, Untouchable, in_memory_ledger, is_normal, ledger_header, mean_of

DIMENSION = 100_000


def release(value=DIMENSION, sensitivity=0.25, *, multiplier=3.0, seed=1, ledger=None, **fields):
    mechanism = Mechanism(in_memory_ledger() if ledger is None else ledger, NoiseSource.from_seed(seed))
    return mechanism.release(mean_of(value, sensitivity, **fields), multiplier)


@pytest.mark.parametrize(("factor", "is_right"), [(1.0, True), (0.95, False), (1.05, False)])
@pytest.mark.parametrize(("sensitivity", "multiplier"), [(0.25, 3.0), (1.7e-5, 135.5), (400.0, 0.2)])
def test_noise_has_the_stated_scale(sensitivity, multiplier, factor, is_right):
    noise = release(20_000, sensitivity, multiplier=multiplier).value
    scale = sensitivity * multiplier * factor
    assert is_normal(noise, scale) == is_right


def test_noise_is_centred_on_the_value():
    value = np.linspace(-1, 1, 1000)
    np.testing.assert_allclose(release(value, seed=3).value - value, release(1000, seed=3).value, rtol=0, atol=1e-9)


def test_noise_of_a_difference_is_proportional_to_its_radius():
    small, large = (release(1000, 2 * radius / 50, purpose="difference").value for radius in (1e-6, 1e-2))
    np.testing.assert_allclose(large, 1e4 * small, rtol=1e-6)


@pytest.mark.parametrize("other", [{"value": 1e-9}, {"asked": b"another iterate"}, {"key": b"2" * 32}])
def test_noise_of_another_value_or_question_is_independent(other):
    """One grid step is enough. With the same noise the difference of two releases would be that of the values."""

    def noise(value=0.0, asked=b"", key=b"1" * 32):
        mean = replace(mean_of(np.full(DIMENSION, value)), asked=asked)
        return Mechanism(in_memory_ledger(), NoiseSource(key, private=True)).release(mean, 3.0).value - value

    assert np.array_equal(noise(), noise())
    assert abs(np.corrcoef(noise(), noise(**other))[0, 1]) < 4.5 / math.sqrt(DIMENSION)


def test_seeded_noise_is_the_same_for_values_that_differ_by_rounding():
    one, other = (release(np.full(50, value)).value for value in (1.0, 1.0 + 1e-12))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-9)


@pytest.mark.parametrize("other", [{"round": 2}, {"purpose": "difference"}, {"step": 1}, {"seed": 2}])
def test_noise_of_other_rounds_purposes_steps_and_runs_is_independent(other):
    assert abs(np.corrcoef(release().value, release(**other).value)[0, 1]) < 4.5 / math.sqrt(DIMENSION)


def test_the_same_round_again_is_the_same_release():
    value = np.random.default_rng(0).normal(size=50)
    assert np.array_equal(release(value, round=4).value, release(value, round=4).value)


def test_what_leaves_is_a_whole_number_of_steps_with_exact_noise(monkeypatch):
    """Red with Box-Muller: not a single coordinate agreed."""
    drawn, value = DrawnNoise(monkeypatch), np.random.default_rng(0).normal(size=1000)
    made = release(value)
    grid = made.release.noise_std / 2**32
    steps = np.rint(value / grid).astype(np.int64) + drawn.steps["noise", 1, "gradient", 0]
    assert np.array_equal(made.value, steps * grid)
    assert 0.4 < np.mean(steps % 2) < 0.6  # the last bits are taken: a coarser grid does not fit


@pytest.mark.parametrize("dimension", [1, 101, 1_000_000])
def test_the_noise_covers_what_rounding_adds_to_the_sensitivity(dimension):
    for parties, rounding in [(1, 0.0), (1, 1e-3), (5, 1e-3)]:
        std, grid = noise_scale(mean_of(dimension, rounding=rounding), 3.0, parties)
        assert grid * math.sqrt(parties) * 2**32 == pytest.approx(std, rel=1e-15)
        # Each of two neighbouring values moves by at most half a step per coordinate, and by the division.
        moved = 0.25 * (1 + rounding) + grid * math.sqrt(dimension) + 2 * UNIT_OF_ROUNDING
        assert moved <= std / 3.0 < moved * (1 + 1e-14)
    made = release(dimension).release
    assert (made.noise_std, made.multiplier) == (noise_scale(mean_of(dimension), 3.0)[0], 3.0)


@pytest.mark.parametrize(
    "change",
    [
        dict(sensitivity=1e-10, clip=2.0),
        dict(sensitivity=1e-300, clip=1e-299),
        dict(sensitivity=1e300, clip=1e300),
        dict(sensitivity=1e-9, clip=1.0, sampling="poisson", rate=0.2),
        dict(dimension=2**27 + 1),
        dict(dimension=2**26 + 1, leaves=2),
        dict(multiplier=2.0**31),
    ],
)
def test_what_64_bits_or_the_grid_cannot_hold_is_refused_beforehand(change):
    ledger, change = in_memory_ledger(), dict(change)
    multiplier, dimension = change.pop("multiplier", 1.0), change.pop("dimension", 3)
    mean = mean_of(3, **change)
    mean = replace(mean, release=mean.release._replace(dimension=dimension))
    with pytest.raises(InvalidArgument, match=r"64 bits|grid of the noise"):
        Mechanism(ledger, Untouchable()).release(mean, multiplier)
    assert len(ledger) == 0


def test_the_largest_values_are_added_without_overflow():
    made = release([1.0, -1.0], 4 / MOST_STEPS * 2**32, multiplier=1.0)
    np.testing.assert_allclose(made.value, [1.0, -1.0], rtol=2.0**-25)


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


@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (), (2,), (4,)])
def test_a_value_that_is_not_one_vector_of_its_dimension_is_refused(shape):
    """Noise of another shape would be the same for several numbers, whose differences would then be exact."""
    ledger = in_memory_ledger()
    mean = replace(mean_of(np.zeros(3), 0.25), value=np.zeros(shape))
    with pytest.raises(LedgerError, match="cannot have noise for 3 numbers"):
        Mechanism(ledger, NoiseSource.from_seed(1)).release(mean, 3.0)
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
        Mechanism(BrokenLedger(ledger_header()), NoiseSource.from_seed(1)).release(mean_of(3, **change), multiplier)


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
