"""The contract of all algorithms: what holds for each of them, with every routine."""

import io
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import diff2
from catalogue import (
    CATALOGUE,
    NO_NOISE,
    NOT_PRIVATE,
    PRIVATE,
    SAMPLED,
    SIZES,
    STEP,
    make_clients,
    plan_options,
    result_of,
    run,
)
from diff2 import DPGD, GD, Budget, Diff2, GradientDescent
from stubs import StubCohort, is_normal, quiet_plan, stub_run


def declared(release):
    """What a release has from the declaration of its question, and from the plan."""
    return release.label, release.sampling, release.rate, release.members, release.leaves, release.multiplier


@pytest.mark.parametrize("name", [*CATALOGUE, *NOT_PRIVATE])
def test_the_releases_in_the_ledger_are_those_of_the_plan(name):
    """Questions are declared once: what was priced, asked, noised and written down is one and the same."""
    result = result_of(name) if name in CATALOGUE else run(NOT_PRIVATE[name])
    planned, made = result.plan.releases, result.ledger.releases
    assert [declared(release) for release in made] == [declared(release) for release in planned]
    for release, expected in zip(made, planned, strict=True):
        assert release.sensitivity == pytest.approx(release.clip * expected.sensitivity, rel=1e-12)
        assert release.mechanism == ("gaussian" if name in CATALOGUE else "none")
        needed = release.multiplier * release.sensitivity * math.sqrt(release.nodes) if name in CATALOGUE else 0.0
        assert needed <= release.noise_std <= needed * (1 + 1e-6)
    assert result.epsilon == result.plan.epsilon


@pytest.mark.parametrize("name", CATALOGUE)
class TestContract:
    """What holds for every private algorithm."""

    def test_the_run_costs_its_budget(self, name):
        epsilon = result_of(name).epsilon
        assert PRIVATE.epsilon * (1 - (1e-3 if name in SAMPLED else 1e-9)) <= epsilon <= PRIVATE.epsilon

    def test_a_seed_repeats_the_run_where_the_cohort_only_answers_questions(self, name):
        """Federation-ready: all that is there of the records is answers. Global generators are not touched."""
        first = result_of(name)
        torch.rand(1), np.random.rand()  # noqa: NPY002 - no state that a seed would give
        before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        training = run(name, budget=PRIVATE, start=diff2.prepare)
        remote = Remote(training.cohort)
        again = replace(training, cohort=remote).run()
        assert torch.equal(before, torch.get_rng_state())
        assert (numpy_before == np.random.get_state()[1]).all()  # noqa: NPY002
        assert torch.equal(first.params, again.params)
        assert first.ledger.releases == again.ledger.releases
        assert remote.asked >= len(again.ledger)
        assert first.guarantee.startswith("NOT PRIVATE")

    def test_without_a_seed_two_runs_differ_and_are_private(self, name):
        public = {"public_sizes": 15} if "poisson" in name else {}  # else the exact sizes leak
        first, second = (run(name, budget=PRIVATE, seed=None, **public) for _ in range(2))
        assert not torch.equal(first.params, second.params)
        assert first.ledger.guarantee().private
        words = {
            "record": "replacing any one record",
            "group": "replacing all the records of any one group",
            "client": "replacing all the records of any one of the 3 clients",
            "poisson": "adding or removing any one record",
        }
        kind = "poisson" if "poisson" in name else plan_options(name).get("unit", "record")
        assert [word for word in words if words[word] in first.guarantee] == [kind]

    def test_the_history_has_a_row_a_round_and_nothing_exact(self, name):
        result = result_of(name)
        history = result.history
        assert list(history["round"]) == list(range(1, CATALOGUE[name].rounds + 1))
        assert history["releases"].sum() == len(result.ledger)
        assert not {"train_loss", "squared_gradient_norm", "test_loss"} & set(history)
        assert (np.diff(history["released_epsilon"]) >= 0).all()
        assert history["released_epsilon"][-1] == result.ledger.released_epsilon() <= result.epsilon
        assert (history["estimate_std"] > 0).all()

    def test_states_are_plain_values_that_no_step_changes(self, name):
        """On a cohort without records. State in, state out: what was saved before a round is the same after it."""
        plan = quiet_plan(CATALOGUE[name], PRIVATE, SIZES, **plan_options(name))
        states, ledger, _ = stub_run(plan, between=lambda state: (state, _through_a_file(state)))
        assert ledger.epsilon() == plan.epsilon <= PRIVATE.epsilon
        for state, stored in states:
            assert_equal(stored, state._asdict())
        assert torch.isfinite(states[-1][0].params).all()


class Remote:
    """A cohort that answers questions and gives nothing else away."""

    def __init__(self, cohort):
        self.population, self.asked, self._answer = cohort.population, 0, cohort.answer

    def answer(self, question):
        self.asked += 1
        return self._answer(question)


def _through_a_file(state):
    file = io.BytesIO()
    torch.save(state._asdict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


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


def test_every_algorithm_and_routine_is_in_the_table():
    algorithms = {algorithm.name: type(algorithm) for algorithm in (*CATALOGUE.values(), *NOT_PRIVATE.values())}
    assert algorithms == dict(diff2.ALGORITHMS)
    assert {type(algorithm.routine) for algorithm in CATALOGUE.values()} == set(diff2.ROUTINES.values())


def test_the_stub_is_a_cohort():
    assert {name for name in vars(diff2.Cohort) if not name.startswith("_")} <= set(dir(StubCohort(None)))


def test_restart_interval_one_is_dpgd_bit_for_bit():
    one = run(Diff2(9, 1, 2.0, 3.0, STEP), budget=PRIVATE)
    other = run(DPGD(9, 2.0, STEP), budget=PRIVATE)
    assert torch.equal(one.params, other.params)
    assert one.ledger.releases == other.ledger.releases


def test_another_seed_is_another_run():
    assert not torch.equal(result_of("diff2").params, result_of("diff2", seed=4).params)


def test_the_model_passed_in_is_untouched_and_the_result_is_an_independent_module():
    model = diff2.mlp(3, 1, hidden=[4], seed=5)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.warns(diff2.PrivacyLeakWarning):
        result = diff2.train(model, "squared", make_clients((6,))[0], GD(rounds=3, routine=STEP), NO_NOISE, seed=0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in result.model.parameters())
    assert not result.model[0]._forward_hooks
    result.model(torch.zeros(2, 3)).sum().backward()
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
    # A step too small for single precision: the iterate stays, the difference is zero, and says nothing.
    algorithm = Diff2(6, 6, clip_gradient=1.0, clip_smoothness=1.0, routine=GradientDescent(1e-30))
    result = run(algorithm, budget=PRIVATE, dtype=torch.float32)
    assert list(result.history["mechanism"]) == ["gaussian", *["zero"] * 5]
    assert result.ledger.released_epsilon() < result.epsilon == result.plan.epsilon
    assert len(set(result.history["estimate_norm"])) == 1  # the estimate carries over


@pytest.mark.parametrize("kind", ["gradient", "difference"])
def test_measured_noise_of_a_run_has_the_planned_scale(kind):
    """The final parameters of a private run minus those without noise, over many coordinates; 5 % off is noticed."""
    model = nn.Linear(20_000, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    data = (torch.zeros(50, 20_000, dtype=torch.float64), torch.zeros(50, 1, dtype=torch.float64))
    rounds = 1 if kind == "gradient" else 2
    algorithm = Diff2(rounds, 2, clip_gradient=0.5, clip_smoothness=1e-4, routine=GradientDescent(1.0))
    points, budget = [], Budget(1.0, 1e-5)
    result = diff2.train(
        model, "squared", data, algorithm, budget, seed=11, callbacks=[lambda state, info: points.append(state.params)]
    )
    if kind == "gradient":
        noise, scale = -points[0], result.plan.sigma_1 * 0.5
    else:
        # x_2 = x_1 - v_2 and v_2 = v_1 + increment with x_1 = -v_1, so the increment is 2 x_1 - x_2.
        noise, scale = 2 * points[0] - points[1], result.plan.sigma_2 * result.ledger.releases[-1].clip
    for factor, is_right in ((1.0, True), (0.95, False), (1.05, False)):
        assert is_normal(noise.numpy(), scale * factor) == is_right
