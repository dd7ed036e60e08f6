"""What several runs cost together, against sums of squares, dp-accounting and the price of one run with it all."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from diff2.privacy.accounting import gdp_epsilon, gdp_mu
from diff2.privacy.composition import price
from diff2.privacy.together import Spent, smallest_unit, together

FULL = Spent(({("full", 1.0, 4.0): 4},))  # mu = 0.5


def of_mu(mu, **fields):
    return Spent(({("full", 1.0, 1 / mu): 1},), **fields)


def test_eight_models_each_at_one():
    """Each "(1, 1e-5)": together mu is sqrt(8) times as large, epsilon neither 1 nor 8."""
    one = gdp_mu(1.0, 1e-5)
    found = together([of_mu(one)] * 8, 1e-5)
    assert found == pytest.approx(gdp_epsilon(math.sqrt(8) * one, 1e-5), rel=1e-7)
    assert 3.1 < found < 3.4
    assert together([of_mu(one)], 1e-5) == pytest.approx(1.0, rel=1e-7)


def test_runs_on_random_batches_are_composed_with_the_others():
    sampled = Spent(({("fixed", 0.05, 2.0): 200},))
    found = together([FULL, sampled, sampled], 1e-5)
    assert found == price({("full", 1.0, 4.0): 4, ("fixed", 0.05, 2.0): 400}, 1e-5)
    assert found < together([FULL], 1e-5) + 2 * together([sampled], 1e-5)


def test_gaussian_runs_agree_with_dp_accounting():
    mus = (0.2, 0.31, 0.47)
    total = None
    for mu in mus:
        one = pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=1e-4)
        total = one if total is None else total.compose(one)
    assert together([of_mu(mu) for mu in mus], 1e-6) == pytest.approx(total.get_epsilon_for_delta(1e-6), rel=2e-3)


def test_both_adjacencies_are_added_on_the_safe_side():
    """Replacing is removing and adding: for Gaussian releases that is twice mu, and half of delta for each part."""
    added = of_mu(0.3, adjacency="add-or-remove-one")
    found = together([FULL, added], 1e-5)
    assert found == pytest.approx(gdp_epsilon(0.5, 5e-6) + gdp_epsilon(0.6, 5e-6), rel=1e-6)
    assert found > together([FULL, of_mu(0.6)], 1e-5)  # what exact composition of both would give
    assert together([added, added], 1e-5) == pytest.approx(gdp_epsilon(0.3 * math.sqrt(2), 1e-5), rel=1e-6)


def test_a_record_may_be_of_the_dearest_kind_in_every_run():
    """Clients in turn: a record of a dear kind here may be of another there; all combinations count."""
    cheap, dear = {("fixed", 0.02, 2.0): 10}, {("fixed", 0.02, 2.0): 30}
    one = Spent((cheap, dear))
    assert together([one, one], 1e-5) == price({("fixed", 0.02, 2.0): 60}, 1e-5)
    other = Spent(({("fixed", 0.3, 4.0): 5}, {("fixed", 0.02, 2.0): 30}))
    expected = max(
        price({("fixed", 0.02, 2.0): 60}, 1e-5), price({("fixed", 0.02, 2.0): 30, ("fixed", 0.3, 4.0): 5}, 1e-5)
    )
    assert together([one, other], 1e-5) == expected
    many = [Spent(({("fixed", 0.1, 4.0): 5}, {("fixed", 0.02, 2.0): 9}))] * 7  # 128 combinations: a bound of all
    assert together(many, 1e-5) == price({("fixed", 0.1, 4.0): 35, ("fixed", 0.02, 2.0): 63}, 1e-5)


def test_what_is_not_private_makes_the_whole_not_private_and_units_shrink():
    assert together([FULL, FULL._replace(private=False)], 1e-5) == math.inf
    assert together([FULL, Spent(({("full", 1.0, 0.0): 1},))], 1e-5) == math.inf
    assert together([], 1e-5) == 0.0
    assert smallest_unit([FULL._replace(unit="client"), FULL._replace(unit="group")]) == "group"
    assert smallest_unit([FULL, FULL._replace(unit="group")]) == "record"


def selection(mean=4, mu=0.2):
    return Spent(({("repeated", float(mean), 1 / mu): 1},))


def test_selections_add_up():
    """Two alike were one entry of a table, and a hundred of them cost what one costs."""
    one, orders = selection(), np.exp(np.linspace(math.log(1.01), math.log(3000), 4000))
    inner = 2 * (1 - 1 / orders) * orders * 0.02 + 2 * math.log(4) / orders
    divergence = orders * 0.02 + inner.min() + math.log(4) / (orders - 1)
    for count, beside in ((1, 0.0), (2, 0.0), (30, 0.0), (2, 0.5)):
        whole = count * divergence + orders * beside**2 / 2
        expected = (whole + np.log1p(-1 / orders) - (math.log(1e-5) + np.log(orders)) / (orders - 1)).min()
        found = together([one] * count + ([of_mu(beside)] if beside else []), 1e-5)
        assert found == pytest.approx(expected, rel=0.002)
    assert together([one, selection(mean=8)], 1e-5) > together([one, one], 1e-5)
    assert together([one, Spent(({("fixed", 0.05, 2.0): 20},))], 1e-5) == math.inf  # not known


def test_a_selection_holds_the_releases_of_its_winner():
    """Its ledger holds both; a project of more than six had no finite price."""
    plan, winner = {("repeated", 4.0, 5.0): 1}, {("full", 1.0, 40.0): 50}
    both = Spent((plan, winner))
    assert together([both] * 8, 1e-5) == together([Spent((plan,))] * 8, 1e-5) < math.inf
    for dearer in ({("full", 1.0, 1.0): 1}, {("fixed", 0.5, 1.0): 20}):
        assert together([Spent((plan, dearer))], 1e-5) == price(dearer, 1e-5) > 2 * price(plan, 1e-5)
