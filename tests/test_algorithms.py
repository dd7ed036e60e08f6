"""What ``diff2.train`` does: against the paper's pseudo-code, at its corners, and the contract of all algorithms."""

import math
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import diff2
from diff2 import DPGD, GD, Budget, Diff2, GradientDescent
from reference import diff2_gd

HIDDEN = 4
NO_NOISE = Budget(epsilon=math.inf, delta=1e-5)
PRIVATE = Budget(epsilon=2.0, delta=1e-3)
STEP = GradientDescent(learning_rate=0.05)


def make_clients(sizes, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    clients = []
    for size in sizes:
        x = torch.randn(size, 3, generator=generator, dtype=torch.float64)
        y = x.sum(1, keepdim=True) + torch.randn(size, 1, generator=generator, dtype=torch.float64)
        clients.append((x.to(dtype), y.to(dtype)))
    return clients


def run(algorithm, sizes=(7, 12, 5), budget=NO_NOISE, dtype=torch.float64, **options):
    options.setdefault("seed", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", diff2.PrivacyLeakWarning)
        warnings.simplefilter("ignore", diff2.WeakDeltaWarning)
        model = diff2.mlp(3, 1, hidden=[HIDDEN], seed=5).to(dtype)
        return diff2.train(model, "squared", make_clients(sizes, dtype=dtype), algorithm, budget, **options)


def start_vector():
    return torch.nn.utils.parameters_to_vector(diff2.mlp(3, 1, hidden=[HIDDEN], seed=5).double().parameters()).detach()


def reference(sizes, **settings):
    clients = [(x.numpy(), y.numpy()[:, 0]) for x, y in make_clients(sizes)]
    return diff2_gd(start_vector().numpy(), clients, hidden=HIDDEN, learning_rate=0.05, **settings)


@pytest.mark.parametrize("sizes", [(7, 12, 5), (9,), (4, 4, 4)])
@pytest.mark.parametrize(("rounds", "restart_interval"), [(11, 4), (8, 4), (6, 1), (6, 6), (5, 9)])
@pytest.mark.parametrize("cap", [True, False])
@pytest.mark.parametrize("weighting", ["clients", "records"])
def test_diff2_gd_without_noise_is_the_papers_pseudo_code(sizes, rounds, restart_interval, cap, weighting):
    # Radii around the median length, so that about half of the records are clipped in both kinds of rounds.
    settings = {"rounds": rounds, "restart_interval": restart_interval, "clip_gradient": 4.0, "clip_smoothness": 5.0}
    result = run(Diff2(**settings, cap=cap, routine=STEP), sizes, weighting=weighting)
    expected = reference(sizes, **settings, cap=cap, by_records=weighting == "records")[-1]
    np.testing.assert_allclose(result.params.numpy(), expected, rtol=1e-10, atol=1e-12)


def test_the_reference_comparison_has_clipping_in_both_kinds_of_rounds():
    wide = {"rounds": 11, "restart_interval": 4, "clip_gradient": 1e9, "clip_smoothness": 1e9}
    base = {**wide, "clip_gradient": 4.0, "clip_smoothness": 5.0}
    paths = [reference((7, 12, 5), **settings)[-1] for settings in (base, wide, {**base, "clip_smoothness": 1e9})]
    assert all(np.linalg.norm(paths[0] - other) > 1e-3 for other in paths[1:])


def test_the_cap_matters_where_the_smoothness_radius_is_large():
    settings = {"rounds": 6, "restart_interval": 6, "clip_gradient": 0.1, "clip_smoothness": 1e6}
    capped, uncapped = (run(Diff2(**settings, cap=cap, routine=STEP)) for cap in (True, False))
    assert capped.history["clip"].max() == pytest.approx(0.2)
    assert uncapped.history["clip"].max() > 0.2
    np.testing.assert_allclose(
        capped.params.numpy(), reference((7, 12, 5), **settings, cap=True)[-1], rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("budget", [PRIVATE, NO_NOISE])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("accounting", ["exact", "paper"])
def test_restart_interval_one_is_dpgd_bit_for_bit(budget, dtype, accounting):
    options = {"budget": budget, "dtype": dtype, "accounting": accounting}
    one = run(Diff2(rounds=20, restart_interval=1, clip_gradient=2.0, clip_smoothness=3.0, routine=STEP), **options)
    two = run(DPGD(rounds=20, clip_gradient=2.0, routine=STEP), **options)
    assert torch.equal(one.params, two.params)
    assert one.ledger.entries == two.ledger.entries


@pytest.mark.parametrize(
    "algorithm",
    [
        GD(rounds=30, routine=STEP),
        DPGD(rounds=30, clip_gradient=math.inf, routine=STEP),
        Diff2(rounds=30, restart_interval=7, clip_gradient=math.inf, clip_smoothness=math.inf, routine=STEP),
    ],
)
@pytest.mark.parametrize("weighting", ["clients", "records"])
def test_no_clip_and_no_noise_is_gradient_descent(algorithm, weighting):
    clients = make_clients((7, 12, 5))
    model = diff2.mlp(3, 1, hidden=[HIDDEN], seed=5).double()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(30):
        optimiser.zero_grad()
        losses = [(model(x) - y).square().sum() for x, y in clients]
        if weighting == "clients":
            objective = sum(loss / len(x) for loss, (x, _) in zip(losses, clients, strict=True)) / len(clients)
        else:
            objective = sum(losses) / sum(len(x) for x, _ in clients)
        objective.backward()
        optimiser.step()
    expected = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    torch.testing.assert_close(run(algorithm, weighting=weighting).params, expected, rtol=1e-10, atol=1e-12)


def test_the_model_passed_in_is_untouched_and_the_result_is_an_independent_module():
    model = diff2.mlp(3, 1, hidden=[HIDDEN], seed=5)
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
    path = reference((7, 12, 5), rounds=4, restart_interval=1, clip_gradient=2.0, clip_smoothness=1.0)
    met = set()
    for seed in range(40):
        result = run(DPGD(rounds=4, clip_gradient=2.0, routine=STEP), output="uniform", seed=seed)
        distances = [np.linalg.norm(result.params.numpy() - iterate) for iterate in path]
        assert min(distances) < 1e-10
        met.add(int(np.argmin(distances)))
    assert met == {0, 1, 2, 3}  # x_0, ..., x_{R-1}: never x_R


def test_equal_iterates_release_zero_for_free():
    # A step too small for single precision: the iterate stays, the difference is zero, and costs nothing.
    algorithm = Diff2(
        rounds=6, restart_interval=6, clip_gradient=1.0, clip_smoothness=1.0, routine=GradientDescent(1e-30)
    )
    result = run(algorithm, budget=PRIVATE, dtype=torch.float32)
    assert list(result.history["mechanism"]) == ["gaussian", *["zero"] * 5]
    assert result.epsilon < result.plan.epsilon


def test_the_estimate_carries_over_when_a_difference_is_zero():
    algorithm = Diff2(
        rounds=3, restart_interval=3, clip_gradient=1.0, clip_smoothness=1.0, routine=GradientDescent(1e-30)
    )
    norms = run(algorithm, budget=PRIVATE, dtype=torch.float32).history["estimate_norm"]
    assert norms.nunique() == 1


CONTRACT = {
    "dpgd": DPGD(rounds=13, clip_gradient=2.0, routine=STEP),
    "diff2": Diff2(rounds=13, restart_interval=5, clip_gradient=2.0, clip_smoothness=3.0, routine=STEP),
    "diff2, T = R": Diff2(rounds=13, restart_interval=13, clip_gradient=2.0, clip_smoothness=3.0, routine=STEP),
    "diff2, T > R": Diff2(rounds=13, restart_interval=99, clip_gradient=2.0, clip_smoothness=3.0, routine=STEP),
    "diff2, u = 2": Diff2(13, 4, 2.0, 3.0, routine=STEP, budget_split=2.0),
    "one round": Diff2(rounds=1, restart_interval=3, clip_gradient=2.0, clip_smoothness=3.0, routine=STEP),
}


@pytest.mark.parametrize("algorithm", CONTRACT.values(), ids=CONTRACT)
class TestContract:
    """What holds for every private algorithm."""

    @pytest.mark.parametrize("accounting", ["exact", "paper"])
    @pytest.mark.parametrize("weighting", ["clients", "records"])
    def test_epsilon_from_the_ledger_is_the_plans_and_within_the_budget(self, algorithm, accounting, weighting):
        result = run(algorithm, budget=PRIVATE, accounting=accounting, weighting=weighting)
        assert result.epsilon == result.plan.epsilon
        assert result.epsilon <= PRIVATE.epsilon
        if accounting == "exact":
            assert result.epsilon == pytest.approx(PRIVATE.epsilon, rel=1e-12)

    def test_a_seed_repeats_the_run_and_another_does_not(self, algorithm):
        first, again, other = (run(algorithm, budget=PRIVATE, seed=seed) for seed in (3, 3, 4))
        assert torch.equal(first.params, again.params)
        assert not torch.equal(first.params, other.params)

    def test_without_a_seed_two_runs_differ(self, algorithm):
        first, second = (run(algorithm, budget=PRIVATE, seed=None) for _ in range(2))
        assert not torch.equal(first.params, second.params)
        assert not first.guarantee.startswith("NOT PRIVATE")

    def test_a_seeded_run_says_it_is_not_private(self, algorithm):
        assert run(algorithm, budget=PRIVATE, seed=3).guarantee.startswith("NOT PRIVATE")

    def test_noise_is_sigma_times_the_radius(self, algorithm):
        result = run(algorithm, budget=PRIVATE)
        sigma = {"gradient": result.plan.sigma_1, "difference": result.plan.sigma_2}
        for entry in result.ledger.entries:
            assert entry.noise_std == pytest.approx(sigma[entry.purpose] * entry.clip, rel=1e-6)
            assert entry.noise_std >= entry.multiplier * entry.sensitivity

    def test_the_history_has_a_row_a_round_and_nothing_exact(self, algorithm):
        history = run(algorithm, budget=PRIVATE).history
        assert list(history["round"]) == list(range(1, algorithm.rounds + 1))
        assert not {"train_loss", "squared_gradient_norm", "test_loss"} & set(history.columns)
        assert history["epsilon"].iloc[-1] == pytest.approx(2.0)

    def test_training_does_not_touch_global_random_states(self, algorithm):
        before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        run(algorithm, budget=PRIVATE)
        assert torch.equal(before, torch.get_rng_state())
        assert (numpy_before == np.random.get_state()[1]).all()  # noqa: NPY002


@pytest.mark.parametrize("factor, is_right", [(1.0, True), (0.95, False), (1.05, False)])  # noqa: PT006
@pytest.mark.parametrize("kind", ["gradient", "difference"])
def test_measured_noise_of_a_run_has_the_planned_scale(kind, factor, is_right):
    """The final parameters of a private run minus those without noise, over many coordinates."""
    from scipy import stats

    model = torch.nn.Linear(20_000, 1, bias=False).double()
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
