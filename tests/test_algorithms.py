"""The contract of all algorithms: what holds for each of them, with every routine."""

import io
import math
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import diff2
from catalogue import CATALOGUE, NO_NOISE, PRIVATE, SAMPLED, SIZES, STEP, make_clients, plan_options, run
from diff2 import DPGD, GD, Budget, Diff2, GradientDescent
from diff2.privacy.composition import profiles
from helpers import StubCohort, quiet_plan, stub_run


@cache
def result_of(name, seed=1):
    """A private run; its result is not changed by anybody."""
    return run(name, budget=PRIVATE, seed=seed)


@pytest.mark.parametrize("name", CATALOGUE)
class TestContract:
    """What holds for every private algorithm."""

    def test_epsilon_from_the_ledger_is_the_plans_and_within_the_budget(self, name):
        result = result_of(name)
        assert result.epsilon == result.plan.epsilon
        assert PRIVATE.epsilon * (1 - (1e-3 if name in SAMPLED else 1e-9)) <= result.epsilon <= PRIVATE.epsilon

    def test_the_ledger_holds_the_releases_of_the_plan(self, name):
        result = result_of(name)
        planned, made = result.plan.releases, result.ledger.entries
        assert [release.round for release in planned] == [entry.round for entry in made]
        assert [release.exposure.members for release in planned] == [entry.members for entry in made]
        assert [release.exposure.rate for release in planned] == [entry.rate for entry in made]
        if not CATALOGUE[name].adaptive:
            assert [release.purpose for release in planned] == [entry.purpose for entry in made]
            assert [release.multiplier for release in planned] == [entry.multiplier for entry in made]
            same = [profiles(one.spend for one in releases) for releases in (planned, made)]
            assert same[0] == same[1]

    def test_noise_is_the_multiplier_times_the_sensitivity(self, name):
        for entry in result_of(name).ledger.entries:
            assert entry.mechanism == "gaussian"
            needed = entry.multiplier * entry.sensitivity * math.sqrt(entry.nodes)
            assert needed <= entry.noise_std <= needed * (1 + 1e-6)
            assert entry.sensitivity <= entry.clip  # no batch here has fewer than two units

    def test_a_seed_repeats_the_run_and_another_does_not(self, name):
        first, other = result_of(name), result_of(name, seed=4)
        torch.rand(1), np.random.rand()  # noqa: NPY002 - no state that a seed would give
        before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        again = run(name, budget=PRIVATE)
        # Global generators are neither used nor touched.
        assert torch.equal(before, torch.get_rng_state())
        assert (numpy_before == np.random.get_state()[1]).all()  # noqa: NPY002
        assert torch.equal(first.params, again.params)
        assert first.ledger.entries == again.ledger.entries
        assert not torch.equal(first.params, other.params)
        assert first.guarantee.startswith("NOT PRIVATE")

    def test_without_a_seed_two_runs_differ_and_are_private(self, name):
        first, second = result_of(name, seed=None), run(name, budget=PRIVATE, seed=None)
        assert not torch.equal(first.params, second.params)
        assert first.guarantee.startswith("The ")
        assert first.ledger.guarantee().private

    def test_the_guarantee_names_what_is_compared(self, name):
        words = {
            "record": "replacing any one record",
            "owner": "replacing all the records that any one owner has",
            "client": "replacing all the records of any one of the 3 clients",
            "poisson": "adding or removing any one record",
        }
        sentence = result_of(name, seed=None).guarantee
        kind = "poisson" if "poisson" in name else plan_options(name).get("unit", "record")
        assert [word for word in words if words[word] in sentence] == [kind]

    def test_the_history_has_a_row_a_round_and_nothing_exact(self, name):
        result = result_of(name)
        history = result.history
        assert list(history["round"]) == list(range(1, CATALOGUE[name].rounds + 1))
        assert history["releases"].sum() == len(result.ledger)
        assert not {"train_loss", "squared_gradient_norm", "test_loss"} & set(history.columns)
        assert history["epsilon"].is_monotonic_increasing
        assert history["epsilon"].iloc[-1] == result.epsilon
        assert (history["estimate_std"] > 0).all()

    def test_only_questions_to_the_cohort_touch_records(self, name):
        """Federation-ready: the run is the same where all that is there of the records is a cohort's two questions."""
        training = run(name, budget=PRIVATE, start=diff2.prepare)
        remote = Remote(training.cohort)
        result = replace(training, cohort=remote).run()
        assert torch.equal(result.params, result_of(name).params)
        assert len(remote.asked) >= len(result.ledger)
        assert all(kind in ("clipped_gradient", "clipped_difference") for kind, *_ in remote.asked)

    def test_it_runs_on_a_cohort_without_records(self, name):
        plan = quiet_plan(CATALOGUE[name], PRIVATE, SIZES, **plan_options(name))
        states, ledger, _ = stub_run(plan)
        assert ledger.epsilon() == plan.epsilon <= PRIVATE.epsilon
        assert torch.isfinite(states[-1].params).all()

    def test_states_are_plain_values_that_a_file_can_hold(self, name):
        states, _, _ = stub_run(quiet_plan(CATALOGUE[name], PRIVATE, SIZES, **plan_options(name)))
        for state in (states[0], states[1], states[-1]):
            file = io.BytesIO()
            torch.save(state._asdict(), file)
            file.seek(0)
            read = torch.load(file, weights_only=True)
            assert_equal(read, state._asdict())

    def test_a_step_leaves_the_state_before_it_alone(self, name):
        """State in, state out: what was saved before a round is still what it was after it."""
        training = run(name, budget=PRIVATE, start=diff2.prepare)
        state = training.init()
        for _ in range(min(3, CATALOGUE[name].rounds)):
            file = io.BytesIO()
            torch.save(state._asdict(), file)
            after, _ = training.step(state)
            file.seek(0)
            assert_equal(torch.load(file, weights_only=True), state._asdict())
            state = after


class Remote:
    """A cohort that answers the two questions and gives nothing else away; it writes down what it was asked."""

    def __init__(self, cohort):
        self.population = cohort.population
        self.asked = []
        self._answer = {"clipped_gradient": cohort.clipped_gradient, "clipped_difference": cohort.clipped_difference}

    def clipped_gradient(self, params, radius, **options):
        return self._ask("clipped_gradient", params, radius, **options)

    def clipped_difference(self, params, previous, radius, **options):
        return self._ask("clipped_difference", params, previous, radius, **options)

    def _ask(self, question, *arguments, **options):
        self.asked.append((question, options))
        return self._answer[question](*arguments, **options)


def assert_equal(one, other):
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    else:
        assert type(one) is type(other)
        assert one == other


# Large clients, small batches: here the paper's lemma on batches can reach the budget.
LARGE = (2000, 3000, 2000)


@pytest.mark.parametrize("name", [name for name in CATALOGUE if not name.endswith(("poisson", "drawn"))])
def test_the_papers_accounting_stays_within_the_budget(name):
    algorithm, options = CATALOGUE[name], plan_options(name)
    paper = quiet_plan(algorithm, PRIVATE, LARGE, accounting="paper", **options)
    assert 0 < paper.epsilon <= 0.7 * PRIVATE.epsilon
    ledger = stub_run(paper).ledger
    assert ledger.epsilon() == paper.epsilon
    if name not in SAMPLED:
        exact = quiet_plan(algorithm, PRIVATE, LARGE, **options)
        assert all(paper.multipliers[purpose] > exact.multipliers[purpose] for purpose in exact.multipliers)


def test_every_algorithm_is_in_the_table():
    names = {algorithm.name for algorithm in CATALOGUE.values()}
    assert names == set(diff2.algorithms.ALGORITHMS) - {"gd"}
    routines = {type(algorithm.routine) for algorithm in CATALOGUE.values()}
    assert routines == set(diff2.routines.ROUTINES.values())


def test_the_stub_is_a_cohort():
    assert {name for name in vars(diff2.Cohort) if not name.startswith("_")} <= set(dir(StubCohort(None)))


def test_restart_interval_one_is_dpgd_bit_for_bit():
    one = run(Diff2(9, 1, 2.0, 3.0, STEP), budget=PRIVATE)
    other = run(DPGD(9, 2.0, STEP), budget=PRIVATE)
    assert torch.equal(one.params, other.params)
    assert one.ledger.entries == other.ledger.entries


def test_the_model_passed_in_is_untouched_and_the_result_is_an_independent_module():
    model = diff2.mlp(3, 1, hidden=[4], seed=5)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.warns(diff2.PrivacyLeakWarning):
        result = diff2.train(model, "squared", make_clients((6,))[0], GD(rounds=3, routine=STEP), NO_NOISE, seed=0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in result.model.parameters())
    assert not result.model[0]._forward_hooks
    outputs = result.model(torch.zeros(2, 3))
    outputs.sum().backward()
    vector = torch.nn.utils.parameters_to_vector(result.model.parameters()).detach()
    assert torch.equal(vector, result.params)


def test_uniform_output_is_one_of_the_first_iterates_and_each_is_met():
    algorithm = DPGD(rounds=4, clip_gradient=2.0, routine=STEP)
    training = run(algorithm, output="uniform", start=diff2.prepare)
    path = [training.init()]
    for _ in range(4):
        path.append(training.step(path[-1])[0])
    met = set()
    for seed in range(15):
        value = run(algorithm, output="uniform", seed=seed).params
        (index,) = [r for r, state in enumerate(path) if torch.equal(value, state.params)]
        met.add(index)
    assert met == {0, 1, 2, 3}  # x_0, ..., x_{R-1}: never x_R


def test_equal_iterates_release_zero_for_free():
    # A step too small for single precision: the iterate stays, the difference is zero, and costs nothing.
    algorithm = Diff2(
        rounds=6, restart_interval=6, clip_gradient=1.0, clip_smoothness=1.0, routine=GradientDescent(1e-30)
    )
    result = run(algorithm, budget=PRIVATE, dtype=torch.float32)
    assert list(result.history["mechanism"]) == ["gaussian", *["zero"] * 5]
    assert result.epsilon < result.plan.epsilon
    assert result.history["estimate_norm"].nunique() == 1  # the estimate carries over


@pytest.mark.parametrize("factor, is_right", [(1.0, True), (0.95, False), (1.05, False)])  # noqa: PT006
@pytest.mark.parametrize("kind", ["gradient", "difference"])
def test_measured_noise_of_a_run_has_the_planned_scale(kind, factor, is_right):
    """The final parameters of a private run minus those without noise, over many coordinates."""
    from scipy import stats

    model = nn.Linear(20_000, 1, bias=False).double()
    with torch.no_grad():
        model.weight.zero_()
    data = (torch.zeros(50, 20_000, dtype=torch.float64), torch.zeros(50, 1, dtype=torch.float64))
    rounds = 1 if kind == "gradient" else 2
    algorithm = Diff2(
        rounds=rounds, restart_interval=2, clip_gradient=0.5, clip_smoothness=1e-4, routine=GradientDescent(1.0)
    )
    result = diff2.train(model, "squared", data, algorithm, Budget(1.0, 1e-5), seed=11)
    entry = result.ledger.entries[-1]
    if kind == "gradient":
        noise, expected = -result.params, result.plan.sigma_1 * 0.5
    else:
        # x_2 = x_1 - v_2 and v_2 = v_1 + increment with x_1 = -v_1, so the increment is 2 x_1 - x_2.
        first = diff2.train(model, "squared", data, algorithm, Budget(1.0, 1e-5), seed=11, callbacks=[_stop_after_one])
        noise, expected = 2 * first.params - result.params, result.plan.sigma_2 * entry.clip
    pvalue = stats.kstest(noise.numpy(), stats.norm(scale=expected * factor).cdf).pvalue
    assert (pvalue > 0.01) == is_right


def _stop_after_one(state, info):
    return True


def test_the_public_surface_is_what_it_says():
    source = Path(diff2.__file__).read_text(encoding="utf-8")
    declared = set(re.findall(r"^    from \.\w+ import (\w+) as \1$", source, re.M))
    assert declared == set(diff2.__all__) - {"__version__"}
    assert all(getattr(diff2, name).__name__ == name for name in declared)
    assert callable(diff2.plan)  # a function, not the module of a like name


def test_help_does_not_wait_for_pytorch():
    code = "import sys, diff2.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
