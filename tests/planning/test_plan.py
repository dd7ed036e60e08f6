"""Plans: printed check values, an independent composition, never above the budget, and every setting in its place."""

import math
from dataclasses import fields, replace

import pytest
from dp_accounting import pld
from hypothesis import given, settings
from hypothesis import strategies as st

import diff2
from catalogue import CATALOGUE, PRIVATE, SIZES, STEP, diff2_with, plan_options, run
from diff2 import DPGD, DPSGD, Budget, Diff2, DPFedAvg, InvalidArgument, Protection, RecursiveDiff2
from diff2.privacy import Mechanism, NoiseSource, epsilon_of
from diff2.privacy.accounting import total_mu
from diff2.privacy.calibration import paper_order
from stubs import DELTA, in_memory_ledger, mean_of, quiet_plan, stub_run


def noise_plan(epsilon, restart_interval, accounting="exact", *, rounds=2000, sizes=(16512,), delta=DELTA, **options):
    algorithm = Diff2(rounds, restart_interval, 3.0, 10.0, STEP, **options)
    return diff2.plan(algorithm, Budget(epsilon, delta), sizes, accounting=accounting)


@pytest.mark.parametrize(
    ("restart_interval", "accounting", "sigma_1", "sigma_2"),
    [
        (20, "paper", 0.002345556775, 0.02044808989),
        (20, "exact", 0.001883152555, 0.01641694336),
        (1, "paper", 0.009382227098, None),
        (1, "exact", 0.007532610218, None),
    ],
)
def test_check_values_hold_to_nine_digits(restart_interval, accounting, sigma_1, sigma_2):
    """Exact accounting pays for noise on whole numbers with nine parts in 10^10."""
    plan = noise_plan(3.0, restart_interval, accounting)
    more = 1 + 9e-10 * (accounting == "exact")
    assert plan.sigma_1 == pytest.approx(sigma_1 * more, rel=5e-10)
    assert plan.sigma_2 == (None if sigma_2 is None else pytest.approx(sigma_2 * more, rel=5e-10))
    assert plan.sigma_3 is None
    assert len(plan.releases) == 2000


# T and its restarts; then, by epsilon, sigma_1 and sigma_2 of the paper's closed form and of exact accounting.
TABLE = {
    (0.5, 1, 2000): (5.3074e-2, None, 3.8090e-2, None),
    (0.5, 20, 100): (1.3268e-2, 1.1567e-1, 9.5226e-3, 8.3016e-2),
    (0.5, 200, 10): (4.1959e-3, 1.1838e-1, 3.0113e-3, 8.4959e-2),
    (1.0, 1, 2000): (2.7084e-2, None, 2.0208e-2, None),
    (1.0, 6, 334): (1.2375e-2, 5.5274e-2, 9.2330e-3, 4.1242e-2),
    (1.0, 60, 34): (3.9482e-3, 6.0045e-2, 2.9458e-3, 4.4801e-2),
    (3.0, 6, 334): (4.2867e-3, 1.9148e-2, 3.4416e-3, 1.5373e-2),
    (3.0, 20, 100): (2.3456e-3, 2.0448e-2, 1.8832e-3, 1.6417e-2),
    (3.0, 200, 10): (7.4173e-4, 2.0927e-2, 5.9551e-4, 1.6801e-2),
    (5.0, 1, 2000): (5.9338e-3, None, 4.8311e-3, None),
    (5.0, 6, 334): (2.7111e-3, 1.2110e-2, 2.2073e-3, 9.8595e-3),
    (5.0, 60, 34): (8.6500e-4, 1.3155e-2, 7.0425e-4, 1.0710e-2),
}
# By epsilon: the paper's order, mu of its noise, mu of the exact noise, their ratio, what the paper's noise costs.
RATIOS = {
    0.5: (48, 0.10206, 0.14221, 1.3934, 0.348),
    1.0: (25, 0.20000, 0.26805, 1.3403, 0.726),
    3.0: (9, 0.57735, 0.71912, 1.2455, 2.341),
    5.0: (6, 0.91287, 1.12124, 1.2283, 3.940),
}


@pytest.mark.parametrize("key", TABLE, ids=str)
def test_noise_of_both_accountings_is_that_of_the_table(key):
    epsilon, restart_interval, restarts = key
    order, mu_paper, mu_exact, ratio, true_epsilon = RATIOS[epsilon]
    paper, exact = (noise_plan(epsilon, restart_interval, accounting) for accounting in ("paper", "exact"))
    for plan, (sigma_1, sigma_2), mu in ((paper, TABLE[key][:2], mu_paper), (exact, TABLE[key][2:], mu_exact)):
        assert plan.sigma_1 == pytest.approx(sigma_1, rel=5e-5)
        assert plan.sigma_2 == (None if sigma_2 is None else pytest.approx(sigma_2, rel=5e-5))
        assert [r.round for r in plan.releases if r.purpose == "gradient"] == list(range(1, 2001, restart_interval))
        assert total_mu(release.multiplier for release in plan.releases) == pytest.approx(mu, abs=6e-6)
    assert len(range(1, 2001, restart_interval)) == restarts
    assert paper_order(paper.budget) == order
    for purpose in exact.multipliers:
        assert paper.multipliers[purpose] / exact.multipliers[purpose] == pytest.approx(ratio, abs=6e-5)
    assert paper.epsilon == pytest.approx(true_epsilon, abs=6e-4)
    assert epsilon * (1 - 1e-12) <= exact.epsilon <= epsilon


@pytest.mark.parametrize(
    ("epsilon", "rounds", "restart_interval", "accounting"),
    [(3.0, 60, 10, "exact"), (3.0, 60, 10, "paper"), (0.5, 45, 7, "exact")],
)
def test_epsilon_agrees_with_numerical_composition(epsilon, rounds, restart_interval, accounting):
    plan = noise_plan(epsilon, restart_interval, accounting, rounds=rounds)
    composed = None
    for purpose, z in plan.multipliers.items():
        one = pld.privacy_loss_distribution.from_gaussian_mechanism(z, value_discretization_interval=1e-4)
        group = one.self_compose(sum(release.purpose == purpose for release in plan.releases))
        composed = group if composed is None else composed.compose(group)
    assert plan.epsilon == pytest.approx(composed.get_epsilon_for_delta(DELTA), rel=1e-3)


@settings(max_examples=40, deadline=None)
@given(
    rounds=st.integers(1, 120),
    restart_interval=st.integers(1, 150),
    budget_split=st.floats(1.001, 50),
    epsilon=st.floats(0.01, 40),
    exponent=st.floats(-12, -6),
    sizes=st.lists(st.integers(1, 10_000), min_size=1, max_size=5),
    accounting=st.sampled_from(["exact", "paper"]),
)
def test_the_ledger_never_shows_more_than_the_budget(
    rounds, restart_interval, budget_split, epsilon, exponent, sizes, accounting
):
    delta = 10**exponent
    plan = noise_plan(
        epsilon, restart_interval, accounting, rounds=rounds, sizes=sizes, delta=delta, budget_split=budget_split
    )
    ledger = in_memory_ledger(delta=delta)
    mechanism = Mechanism(ledger, NoiseSource.from_seed(0))
    for release in plan.releases:
        mechanism.release(mean_of(1, 0.1 / release.round, **_label(release)), release.multiplier)
    assert len(ledger) == rounds
    assert ledger.epsilon() == plan.epsilon <= epsilon
    if accounting == "exact":
        assert ledger.epsilon() >= epsilon * (1 - 1e-9)  # and nothing of the budget is wasted


def _label(release):
    return {"round": release.round, "purpose": release.purpose, "step": release.step}


def test_an_infinite_budget_asks_for_no_noise():
    plan = noise_plan(math.inf, 20)
    assert plan.sigma_1 == plan.sigma_2 == 0.0
    assert plan.epsilon == math.inf


# What each field of Protection is changed to, and what must be said besides.
CHANGED = {
    "unit": ("client", {}),
    "weighting": ("records", {}),
    "clients_per_round": (2, {}),
    "client_order": ("random", {"unit": "client", "clients_per_round": 2}),
    "accounting": ("paper", {}),
}


@pytest.mark.parametrize("name", [field.name for field in fields(Protection)])
def test_every_field_of_protection_reaches_the_plan(name):
    value, besides = CHANGED[name]
    before = Protection(**besides)
    after = replace(before, **{name: value})
    budget = Budget(30.0, 1e-3)  # at which the plans of all settings have noise of their own
    plans = [quiet_plan(diff2_with(), budget, SIZES, protection=protection) for protection in (before, after)]
    by_name = quiet_plan(diff2_with(), budget, SIZES, protection=before, **{name: value})
    in_a_run = run(diff2_with(), budget=budget, start=diff2.prepare, protection=after).plan
    for plan in (plans[1], by_name, in_a_run):
        assert getattr(plan if name == "accounting" else plan.population, name) == value
        assert plan.releases == plans[1].releases
    assert plans[0].releases != plans[1].releases


def test_a_setting_that_protection_does_not_have_is_refused():
    with pytest.raises(InvalidArgument, match=r"unknown setting epsilon=3.*set by: unit, weighting"):
        diff2.plan(diff2_with(), PRIVATE, SIZES, epsilon=3)


@pytest.mark.parametrize("algorithm", [Diff2(10, 3, 2.0, 3.0, STEP), RecursiveDiff2(10, 2.0, 3.0, STEP)])
@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.parametrize("m", [1, 2, 3, 5])
def test_a_client_pays_for_the_rounds_it_was_in(algorithm, unit, m):
    plan = quiet_plan(algorithm, PRIVATE, (8, 30, 12, 8, 9), unit=unit, clients_per_round=m)
    ledger, everyone = stub_run(plan).ledger, range(5)
    paid = {p: [r.multiplier for r in ledger.releases if r.members is None or p in r.members] for p in everyone}
    assert all(len(paid[p]) in (math.floor(10 * m / 5), math.ceil(10 * m / 5)) for p in everyone)
    expected = max(epsilon_of(paid[p], 1e-3) for p in everyone)
    assert ledger.epsilon() == plan.epsilon == pytest.approx(expected, rel=1e-12)
    assert 2.0 * (1 - 1e-9) <= plan.epsilon <= 2.0


def test_fedavg_asks_and_prices_the_participants_only():
    plan = quiet_plan(DPFedAvg(6, 2, 8, 2.0, 0.1, STEP), PRIVATE, (8, 8, 8), clients_per_round=2)
    ledger = stub_run(plan).ledger
    for r in range(1, 7):
        members = [release.members for release in ledger.releases if release.round == r]
        assert members == [(p,) for p in plan.population.participants(r) for _ in range(2)]
    # Each client is in 4 of the 6 rounds, on all of its records.
    assert plan.epsilon == epsilon_of([plan.multipliers["local"]] * 8, 1e-3)


# Large clients, small batches: here the paper's lemma on batches can reach the budget.
LARGE = (2000, 3000, 2000)


@pytest.mark.parametrize(
    "name",
    sorted(
        {"dpgd", "diff2", "bvr", "recursive, bvr", "dpsgd, fixed", "dpsrm", "srnsgd", "dpfedavg", "diff2, groups"}
        | {"recursive, client", "recursive, 2 of 3 clients", "bvr, 2 of 3 clients", "diff2, client, 2 of 3 in turn"}
    ),
)
def test_the_papers_accounting_stays_within_the_budget(name):
    options = plan_options(name)
    paper = quiet_plan(CATALOGUE[name], PRIVATE, LARGE, accounting="paper", **options)
    assert 0 < paper.epsilon <= 0.7 * PRIVATE.epsilon
    assert stub_run(paper).ledger.epsilon() == paper.epsilon
    if all(release.sampling == "full" for release in paper.releases):
        exact = quiet_plan(CATALOGUE[name], PRIVATE, LARGE, **options)
        assert all(paper.multipliers[purpose] > exact.multipliers[purpose] for purpose in exact.multipliers)


OPENED = {"dpgd": DPGD(50, 1.0, STEP), "diff2": Diff2(50, 10, 1.0, 1.0, STEP), "dpsgd": DPSGD(50, 40, 1.0, STEP)}


@pytest.mark.parametrize("name", OPENED)
@pytest.mark.parametrize("share", [0.02, 0.3])
def test_a_release_before_the_first_round_has_its_share_of_the_budget(name, share):
    budget = Budget(1.0, 1e-5)
    plan, without = (diff2.plan(OPENED[name], budget, [300, 200], opening_share=part) for part in (share, None))
    assert 0.9999 * budget.epsilon <= plan.epsilon <= budget.epsilon
    assert plan.releases[0].label == (0, "scaling", 0)
    assert len(plan.releases) == 51
    if name != "dpsgd":  # whose other releases are not full ones
        total = total_mu(release.multiplier for release in plan.releases) ** 2
        assert plan.multipliers["scaling"] ** -2 / total == pytest.approx(share, rel=1e-6)
    assert all(plan.multipliers[purpose] > z for purpose, z in without.multipliers.items())
    if name == "diff2":
        assert diff2.plan(OPENED[name], budget, [300, 200], opening_share=share, accounting="paper").epsilon <= 1.0


@pytest.mark.parametrize(
    ("algorithm", "options", "message"),
    [
        (DPSGD(5, 4, 1.0, STEP, sampling="poisson"), {}, "priced for replacing a record"),
        (DPGD(5, 1.0, STEP), {"unit": "group"}, "groups of records are not bounded"),
        (DPGD(5, 1.0, STEP), {"opening_share": 1.0}, "opening_share between 0 and 1"),
    ],
)
def test_a_release_before_the_first_round_that_cannot_be_priced_is_refused(algorithm, options, message):
    with pytest.raises(InvalidArgument, match=message):
        diff2.plan(algorithm, Budget(1.0, 1e-3), [30], **{"opening_share": 0.1, **options})
