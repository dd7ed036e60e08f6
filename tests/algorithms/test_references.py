"""Every algorithm against itself written again in NumPy: without noise, with it, and at the corners."""

import math
from dataclasses import replace

import numpy as np
import pytest

import diff2
from catalogue import (
    CATALOGUE,
    HIDDEN,
    OPTIONS,
    PRIVATE,
    ROUNDS,
    STEP,
    make_clients,
    run,
    start_vector,
)
from diff2 import (
    DPSRM,
    SRNSGD,
    BVRLocalSGD,
    Diff2,
    DPFedAvg,
    DPScaffold,
    NormalizedDescent,
    RecursiveDiff2,
)
from diff2.privacy import Ledger, Mechanism, NoiseSource
from reference import (
    Problem,
    binary_parts,
    dpsrm,
    federated,
    recursive_diff2,
    srnsgd,
)
from reference import (
    diff2 as reference_diff2,
)
from stubs import DrawnNoise, stub_run

EQUAL = (6, 6, 6)
SIZES = (8, 12, 4)
START = start_vector().numpy()


def problem(sizes=SIZES, weighting="clients"):
    clients = [(x.numpy(), y.numpy()[:, 0]) for x, y in make_clients(sizes)]
    return Problem(clients, HIDDEN, weighting == "records")


@pytest.fixture
def drawn(monkeypatch):
    return DrawnNoise(monkeypatch)


class Replay:
    """The noise of a run again: scale from the ledger's line, which must be that of the radius asked for."""

    def __init__(self, result, drawn, sensitivity):
        self.releases = {release.label: release for release in result.ledger.releases}
        self.sensitivity = sensitivity  # of a mean of vectors no longer than one; by purpose
        self.drawn, self.used = drawn, set()

    def __call__(self, round, purpose, step, radius):
        release = self.releases[round, purpose, step]
        self.used.add(release.label)
        assert release.clip == pytest.approx(radius, rel=1e-6)
        assert release.noise_std == pytest.approx(release.multiplier * self.sensitivity[purpose] * radius, rel=1e-6)
        return release.noise_std * self.drawn("noise", round, purpose, step)

    def finish(self, value, expected):
        """All releases were met, and the run ended in the same place."""
        assert self.used == set(self.releases)
        np.testing.assert_allclose(value.numpy(), expected, rtol=1e-6, atol=1e-8)


def assert_same(result, expected):
    np.testing.assert_allclose(result.params.numpy(), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("sizes", [(7, 12, 5), (9,)])
@pytest.mark.parametrize(("rounds", "restart_interval"), [(11, 4), (6, 1), (6, 6), (5, 9)])
@pytest.mark.parametrize("cap", [True, False])
@pytest.mark.parametrize("weighting", ["clients", "records"])
def test_diff2_gd_without_noise_is_the_papers_pseudo_code(sizes, rounds, restart_interval, cap, weighting):
    # Radii around the median length, so that about half of the records are clipped in both kinds of rounds.
    settings = {"rounds": rounds, "restart_interval": restart_interval, "clip_gradient": 4.0, "clip_smoothness": 5.0}
    result = run(Diff2(**settings, cap=cap, routine=STEP), sizes, weighting=weighting)
    path = reference_diff2(problem(sizes, weighting), START, **settings, cap=cap, learning_rate=0.05)
    assert_same(result, path[-1][0])


FULL = [
    name
    for name, algorithm in CATALOGUE.items()
    if algorithm.name in ("diff2", "dpgd") and algorithm.routine is STEP and name not in OPTIONS
]


@pytest.mark.parametrize("name", FULL)
@pytest.mark.parametrize("weighting", ["clients", "records"])
def test_diff2_with_its_noise_is_the_reference_with_the_same_noise(name, weighting, drawn):
    algorithm = CATALOGUE[name]
    result = run(algorithm, budget=PRIVATE, weighting=weighting)
    sensitivity = 2 / (3 * 4) if weighting == "clients" else 2 / 24
    replay = Replay(result, drawn, {"gradient": sensitivity, "difference": sensitivity})
    path = reference_diff2(
        problem(SIZES, weighting),
        START,
        rounds=algorithm.rounds,
        restart_interval=getattr(algorithm, "restart_interval", 1),
        clip_gradient=2.0,
        clip_smoothness=3.0,
        learning_rate=0.05,
        cap=True,
        restarts={1, 4} if name == "diff2, early restarts" else None,
        noise=replay,
    )
    replay.finish(result.params, path[-1][0])


LOCAL = {"local_steps": 4, "local_clip_smoothness": 3.0}
BVR = {"rounds": 5, "restart_interval": 3, "clip_gradient": 4.0, "clip_smoothness": 5.0}


def bvr(batch_size, **changes):
    return Diff2(
        **{**BVR, **changes}, cap=False, routine=BVRLocalSGD(learning_rate=0.05, batch_size=batch_size, **LOCAL)
    )


@pytest.mark.parametrize("smoothness", [1.0, 5.0, math.inf])
def test_bvr_local_sgd_on_all_records_is_the_papers_pseudo_code(smoothness):
    settings = {**LOCAL, "local_clip_smoothness": smoothness}
    algorithm = replace(bvr(6), routine=BVRLocalSGD(learning_rate=0.05, batch_size=6, **settings))
    path = reference_diff2(problem(EQUAL), START, **BVR, **settings, learning_rate=0.05)
    assert_same(run(algorithm, EQUAL), path[-1][0])


def test_bvr_local_sgd_with_its_noise_is_the_reference_with_the_same_noise(drawn):
    result = run(bvr(6), EQUAL, budget=PRIVATE)
    replay = Replay(result, drawn, {"gradient": 2 / 18, "difference": 2 / 18, "local": 2 / 6})
    path = reference_diff2(problem(EQUAL), START, **BVR, **LOCAL, learning_rate=0.05, noise=replay)
    replay.finish(result.params, path[-1][0])


def test_bvr_local_sgd_with_a_uniform_output_returns_any_point_but_the_last():
    path = reference_diff2(problem(EQUAL), START, **{**BVR, "rounds": 2}, **LOCAL, learning_rate=0.05)
    drawn = [run(bvr(6, rounds=2), EQUAL, output="uniform", seed=seed, start=diff2.prepare) for seed in range(12)]
    indices = {(training.output_round, training.output_step) for training in drawn}
    points = {(r, k): point for r, visited in enumerate(path[:-1]) for k, point in enumerate(visited)}
    assert len(points) == 8
    assert indices <= set(points)
    assert len(indices) > 4
    for (r, k), point in points.items():
        mechanism = Mechanism(Ledger(drawn[0].mechanism.ledger.header), NoiseSource.from_seed(0))
        training = replace(drawn[0], output_round=r, output_step=k, mechanism=mechanism)
        state = training.init()
        while state.round < 2:
            state, _ = training.step(state)
        np.testing.assert_allclose(state.output.numpy(), point, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("smoothness", [0.5, 3.0, 8.0, 100.0])
def test_recursive_momentum_takes_the_gain_that_leaves_the_least_noise(smoothness, drawn):
    result = run(RecursiveDiff2(ROUNDS, 2.0, smoothness, routine=STEP), budget=PRIVATE)
    replay = Replay(result, drawn, {"gradient": 2 / 12})
    z = result.plan.multipliers["gradient"]
    expected, gains, variances = recursive_diff2(
        problem(),
        START,
        rounds=ROUNDS,
        clip_gradient=2.0,
        clip_smoothness=smoothness,
        learning_rate=0.05,
        noise=replay,
        deviation=lambda r, radius: z * 2 / 12 * radius,
    )
    replay.finish(result.params, expected)
    assert list(result.history["estimate_std"] ** 2) == pytest.approx(variances, rel=1e-6)
    assert gains[0] == 1.0
    if smoothness == 3.0:
        assert 0 < min(gains) < max(gains[1:]) < 1


def test_recursive_momentum_without_noise_is_the_reference():
    expected, _, _ = recursive_diff2(
        problem(),
        START,
        rounds=ROUNDS,
        clip_gradient=4.0,
        clip_smoothness=5.0,
        learning_rate=0.05,
        deviation=lambda r, radius: radius,
    )
    assert_same(run(RecursiveDiff2(ROUNDS, 4.0, 5.0, routine=STEP)), expected)


def test_recursive_momentum_knows_its_noise_where_other_clients_take_part_in_each_round():
    """The noise of a gradient differs from round to round; the gain is best, and P right, in absolute numbers."""
    algorithm = RecursiveDiff2(12, 2.0, 3.0, routine=diff2.GradientDescent(0.02))
    plan = diff2.plan(algorithm, diff2.Budget(2.0, 1e-3), (90, 30, 300), clients_per_round=1)
    states, ledger, _ = stub_run(plan, dimension=6)
    units, P = set(), math.inf
    for r, release in enumerate(ledger.releases, start=1):
        unit = release.noise_std / release.clip  # of a radius of one
        gain = 1.0
        if r > 1:
            radius = min(3.0 * float((states[r - 1].params - states[r - 2].params).norm()), 4.0)
            at = np.array([0.0, 0.5, 1.0])
            square, slope, _ = np.polyfit(at, (1 - at) ** 2 * P + (unit * (2 * at + (1 - at) * radius)) ** 2, 2)
            gain = min(max(-slope / (2 * square), 0.0), 1.0) if radius < 2 else 1.0
            assert release.clip == pytest.approx(2.0 * gain + (1 - gain) * radius, rel=1e-6)
        P = (0.0 if gain == 1 else (1 - gain) ** 2 * P) + release.noise_std**2
        assert states[r].estimator["variance"] * (2.0 * unit) ** 2 == pytest.approx(P, rel=1e-6)
        units.add(round(unit, 9))
    assert len(units) == 3


@pytest.mark.parametrize("clip", [(4.0, 0.4), (math.inf, math.inf)], ids=["clipped", "free"])
def test_dpsrm_on_all_records_is_the_reference(clip):
    routine = NormalizedDescent(0.05, max_step_norm=0.15)
    settings = {"rounds": ROUNDS, "clip_gradient": clip[0], "clip_difference": clip[1], "gain": 0.3}
    expected = dpsrm(problem(), START, **settings, learning_rate=0.05, max_step_norm=0.15)
    assert_same(run(DPSRM(**settings, batch_size=24, routine=routine)), expected)


def test_dpsrm_with_its_noise_is_the_reference_with_the_same_noise(drawn):
    settings = {"rounds": ROUNDS, "clip_gradient": 2.0, "clip_difference": 0.4, "gain": 0.3}
    algorithm = DPSRM(**settings, batch_size=24, routine=NormalizedDescent(0.05, max_step_norm=0.15))
    result = run(algorithm, budget=PRIVATE)
    replay = Replay(result, drawn, {"gradient": 2 / 12, "difference": 2 / 12})
    replay.finish(
        result.params, dpsrm(problem(), START, **settings, learning_rate=0.05, max_step_norm=0.15, noise=replay)
    )  # fmt: skip


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("schedule", ["constant", "inverse_root"])
@pytest.mark.parametrize(("batches", "epochs", "restarts"), [(4, 3, 2), (2, 4, 3), (1, 5, 2)])
def test_srnsgd_is_the_reference(private, schedule, batches, epochs, restarts, drawn):
    rounds = batches * epochs - 1
    algorithm = SRNSGD(rounds, batches, restarts, 3.0, 2.0, routine=NormalizedDescent(0.1, schedule=schedule))
    result = run(algorithm, **({"budget": PRIVATE} if private else {}))

    def noise(epoch, count, purpose, radius):
        release = result.ledger.releases[epoch * batches + count - 1]
        assert (release.round, release.purpose) == (epoch * batches + count, purpose)
        assert release.clip == pytest.approx(radius)
        # A record of the smallest client, with 4/M records in a part, among three clients.
        assert release.sensitivity == pytest.approx(2 * radius / (3 * 4 / batches))
        levels = math.ceil(math.log2(batches)) + 1
        assert release.noise_std == pytest.approx(
            release.multiplier * release.sensitivity * math.sqrt(levels), rel=1e-6
        )
        first = epoch * batches + 1
        return release.noise_std * sum(
            drawn("tree", first, purpose, int(math.log2(length)), start // length)
            for start, length in binary_parts(count)
        )

    lengths = [0.1 / math.sqrt(r) if schedule == "inverse_root" else 0.1 for r in range(1, rounds + 1)]
    expected, norms = srnsgd(
        problem(),
        START,
        lengths=lengths,
        batches=batches,
        restart_epochs=restarts,
        clip_gradient=3.0,
        clip_smoothness=2.0,
        noise=noise if private else lambda *_: 0.0,
    )
    np.testing.assert_allclose(result.params.numpy(), expected, rtol=1e-6, atol=1e-8)
    assert list(result.history["estimate_norm"]) == pytest.approx(norms, rel=1e-5)
    closed = variance = 0.0
    variances = []
    for r, release in enumerate(result.ledger.releases):
        epoch, j = divmod(r, batches)
        if j == 0:
            closed = 0.0 if epoch % restarts == 0 else variance
        variance = closed + (j + 1).bit_count() * release.noise_std**2
        variances.append(variance / (j + 1 if epoch % restarts == 0 else batches) ** 2)
    assert list(result.history["estimate_std"] ** 2) == pytest.approx(variances, rel=1e-9)


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("algorithm", [DPFedAvg, DPScaffold])
@pytest.mark.parametrize("clip", [2.0, 6.0])
def test_federated_averaging_on_all_records_is_the_reference(private, algorithm, clip, drawn):
    settings = {"rounds": 4, "local_steps": 3, "clip_gradient": clip, "local_learning_rate": 0.04}
    server = diff2.GradientDescent(0.7)
    result = run(
        algorithm(**settings, batch_size=6, routine=server), EQUAL, **({"budget": PRIVATE} if private else {})
    )  # fmt: skip
    options = {"server_rate": 0.7, "scaffold": algorithm is DPScaffold}
    if private:
        replay = Replay(result, drawn, {"local": 2 / 6})
        replay.finish(result.params, federated(problem(EQUAL), START, **settings, **options, noise=replay))
    else:
        assert_same(result, federated(problem(EQUAL), START, **settings, **options))
