"""What a run costs: what it costs the member that is exposed most."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diff2.privacy import Release, epsilon_of, total_epsilon
from diff2.privacy.composition import by_exposure
from stubs import DELTA


def members(last):
    chosen = st.sets(st.integers(0, last), min_size=1).map(lambda found: tuple(sorted(found)))
    return st.one_of(st.none(), chosen)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([2.0, 3.0, 7.0, math.inf]), members(4)), max_size=14))
def test_the_total_is_that_of_the_member_that_is_exposed_most(made):
    releases = [Release(r, "gradient", members=whose, multiplier=z) for r, (z, whose) in enumerate(made)]
    by_hand = [epsilon_of([z for z, whose in made if whose is None or member in whose], DELTA) for member in range(5)]
    assert total_epsilon(releases, DELTA) == pytest.approx(max(by_hand), rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(
    items=st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([0.1, 0.2, 0.5]), members(3)), max_size=12),
    prices=st.lists(st.floats(0.01, 1), min_size=6, max_size=6),
)
def test_whoever_is_left_out_of_the_profiles_cannot_cost_more(items, prices):
    """For any price of a release that grows with the rate."""
    rates = [0.1, 0.2, 0.5]
    price = {
        (key, rate): sum(prices[3 * i : 3 * i + j + 1]) for i, key in enumerate("ab") for j, rate in enumerate(rates)
    }
    everyone = [sum(price[key, rate] for key, rate, whose in items if whose is None or p in whose) for p in range(4)]
    totals = [sum(count * price[item] for item, count in profile.items()) for profile in by_exposure(items)]
    assert max(totals) == pytest.approx(max(everyone))
