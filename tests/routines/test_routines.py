"""Routines against torch.optim, or against a recursion written by hand."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from walks import DIMENSION, ROUNDS, assert_same_path, at, estimates, path_of, start, torch_path

from diff2.errors import InvalidArgument
from diff2.questions.round import Estimate
from diff2.routines import (
    SCHEDULES,
    Adam,
    Averaging,
    GradientDescent,
    Momentum,
    Nesterov,
    NormalizedDescent,
    TorchOptimizer,
    scheduled,
)


@pytest.mark.parametrize(
    ("schedule", "number", "total", "expected"),
    [
        ("constant", 1, 8, 0.3),
        ("constant", 8, 8, 0.3),
        ("cosine", 1, 8, 0.3),
        ("cosine", 5, 8, 0.15),
        ("cosine", 8, 8, 0.3 * (1 + math.cos(7 * math.pi / 8)) / 2),
        ("inverse_root", 1, 8, 0.3),
        ("inverse_root", 4, 8, 0.15),
    ],
)
def test_a_schedule_is_its_formula(schedule, number, total, expected):
    assert scheduled(0.3, schedule, number, total) == pytest.approx(expected, rel=1e-14)


@given(st.sampled_from(SCHEDULES), st.floats(1e-6, 1e3), st.integers(1, 500), st.data())
def test_a_schedule_starts_at_the_learning_rate_and_never_rises_or_ends(schedule, learning_rate, total, data):
    number = data.draw(st.integers(1, total))
    values = [scheduled(learning_rate, schedule, r, total) for r in (1, number, min(number + 1, total))]
    assert values[0] == learning_rate
    assert 0 < values[2] <= values[1] <= learning_rate


@pytest.mark.parametrize("cls", [GradientDescent, Momentum, Nesterov, Adam, NormalizedDescent])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_routine_with_a_schedule_uses_the_rate_of_the_round(cls, schedule):
    estimate, state = estimates()[0], cls(0.4).init(start())
    for r in (1, 4, 9):
        moved, _ = cls(0.4, schedule=schedule).step(state, start(), estimate, at(r))
        expected, _ = cls(scheduled(0.4, schedule, r, ROUNDS)).step(state, start(), estimate, at(r))
        assert torch.equal(moved, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_descent_is_the_papers_line_in_double_precision(dtype):
    estimate = Estimate(torch.tensor([1e-9, -1.0, 3.0, 0.1, 7.0], dtype=torch.float64), 0.5)
    moved, state = GradientDescent(0.1).step({}, start(dtype), estimate, at(3))
    assert torch.equal(moved, (start(dtype).double() - 0.1 * estimate.value).to(dtype))
    assert moved.dtype == dtype
    assert state == {}


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_and_nesterov_are_those_of_torch(beta, nesterov):
    routine = (Nesterov if nesterov else Momentum)(0.1, beta)
    points, _ = path_of(routine, estimates())
    expected = torch_path(torch.optim.SGD, estimates(), lr=0.1, momentum=beta, nesterov=nesterov and beta > 0)
    assert_same_path(points, expected)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_nesterov_asks_ahead_of_the_point_it_returns(schedule):
    eta, beta = 0.1, 0.8
    points, outputs = path_of(Nesterov(eta, beta, schedule), estimates())
    x = y = start()
    for r, estimate in enumerate(estimates()):
        last, x = x, y - scheduled(eta, schedule, r + 1, ROUNDS) * estimate.value
        y = x + beta * (x - last)
        np.testing.assert_allclose(outputs[r], x, rtol=1e-13)
        np.testing.assert_allclose(points[r], y, rtol=1e-13)
    assert not torch.allclose(points[-1], outputs[-1])


def test_nesterov_is_faster_than_gradient_descent_on_a_narrow_valley():
    curvature, risk = torch.tensor([1.0, 0.01], dtype=torch.float64), {}
    for routine in (GradientDescent(1.0), Nesterov(1.0, 0.8)):
        params = torch.ones(2, dtype=torch.float64)
        state = routine.init(params)
        for r in range(1, 101):
            params, state = routine.step(state, params, Estimate(curvature * params, 0.0), at(r, 100))
        risk[routine.name] = float((curvature * routine.output(state, params).square()).sum())
    assert risk["nesterov"] < 1e-3 * risk["gradient_descent"]


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.5), (0.7, 0.0)])
def test_adam_without_correction_is_that_of_torch(betas):
    points, _ = path_of(Adam(0.05, *betas, floor=1e-200, correct_noise=False), estimates())
    assert_same_path(points, torch_path(torch.optim.Adam, estimates(), lr=0.05, betas=betas, eps=0.0))


def test_adam_without_noise_needs_no_correction():
    silent = [estimate._replace(variance=0.0) for estimate in estimates()]
    corrected, plain = (path_of(Adam(0.05, correct_noise=correct), silent)[0] for correct in (True, False))
    assert all(torch.equal(a, b) for a, b in zip(corrected, plain, strict=True))


def test_adam_takes_the_noise_off_the_second_moment():
    """The definition, as sums over the past instead of recursions."""
    eta, b1, b2, floor, past = 0.05, 0.8, 0.9, 0.3, estimates(variance=0.2)
    points, _ = path_of(Adam(eta, b1, b2, floor), past)
    x, floored = start(), []
    for r in range(1, len(past) + 1):
        weights1 = torch.tensor([b1 ** (r - i) for i in range(1, r + 1)], dtype=torch.float64)
        weights2 = torch.tensor([b2 ** (r - i) for i in range(1, r + 1)], dtype=torch.float64)
        values = torch.stack([estimate.value for estimate in past[:r]])
        variances = torch.tensor([estimate.variance for estimate in past[:r]], dtype=torch.float64)
        signal = weights2 @ (values.square() - variances[:, None]) / weights2.sum()
        floored += (signal < floor**2).tolist()
        x = x - eta * (weights1 @ values / weights1.sum()) / signal.clamp(min=floor**2).sqrt()
        np.testing.assert_allclose(points[r - 1], x, rtol=1e-11)
    assert 5 < sum(floored) < len(floored) - 5  # both sides of the floor were seen


@pytest.mark.parametrize(("factor", "is_right"), [(1.0, True), (0.95, False), (1.05, False)])
@pytest.mark.parametrize("signal", [0.0, 0.7])
def test_the_noise_correction_leaves_the_square_of_the_gradient(signal, factor, is_right):
    """Noise of a known variance that differs from round to round: its average goes, to within its own deviation."""
    dimension, rounds, routine = 20_000, 20, Adam(0.01, beta2=0.95)
    generator, state = torch.Generator().manual_seed(3), routine.init(torch.zeros(dimension))
    params = torch.zeros(dimension, dtype=torch.float64)
    for r in range(1, rounds + 1):
        variance = 0.5 + (r % 7)
        noise = math.sqrt(variance) * torch.randn(dimension, generator=generator, dtype=torch.float64)
        estimate = Estimate(signal + noise, factor * variance)
        params, state = routine.step(state, params, estimate, at(r, rounds))
    rest = (state["second_moment"] - state["noise_moment"]) / (1 - 0.95**rounds)
    deviation = float(rest.std()) / math.sqrt(dimension)
    assert (abs(float(rest.mean()) - signal**2) < 4 * deviation) == is_right


@pytest.mark.parametrize("floor", [0.02, 1e-200])  # the square of the second is zero
def test_adam_stays_where_the_gradient_is_zero(floor):
    zero = Estimate(torch.zeros(DIMENSION, dtype=torch.float64), 0.1)
    points, _ = path_of(Adam(0.1, floor=floor), [zero, zero])
    assert torch.equal(points[-1], start())


@given(st.floats(0.0, 100.0), st.floats(0.01, 10.0))
def test_the_denominator_of_adam_is_never_below_the_floor(variance, floor):
    routine, past = Adam(0.1, floor=floor), [estimate._replace(variance=variance) for estimate in estimates(3)]
    state, params = routine.init(start()), start()
    for r, estimate in enumerate(past, start=1):
        params, state = routine.step(state, params, estimate, at(r))
        assert (routine.denominator(state) >= floor).all()
    assert torch.isfinite(params).all()


def test_adam_takes_no_step_longer_than_the_longest():
    past = estimates(20)
    free, bound = (path_of(Adam(0.1, max_step_norm=most), past)[0] for most in (None, 0.05))
    lengths = [float((after - before).norm()) for before, after in itertools.pairwise(free)]
    shortened = [float((after - before).norm()) for before, after in itertools.pairwise(bound)]
    assert max(lengths) > 0.05
    assert shortened == pytest.approx([min(length, 0.05) for length in lengths])


@pytest.mark.parametrize("inner", [GradientDescent(0.3), Nesterov(0.1), Adam(0.05)], ids=lambda routine: routine.name)
@pytest.mark.parametrize("share", [0.0, 0.3, 1 / 3, 0.5, 0.99])
def test_averaging_returns_the_mean_of_what_was_reached_after_the_start(inner, share):
    _, reached = path_of(inner, estimates())
    _, outputs = path_of(Averaging(inner, start=share), estimates())
    for r in range(1, ROUNDS + 1):
        averaged = [x for i, x in enumerate(reached[:r], start=1) if i > share * ROUNDS]
        expected = torch.stack(averaged).mean(0) if averaged else reached[r - 1]
        np.testing.assert_allclose(outputs[r - 1], expected, rtol=1e-12)


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9])
def test_averaging_with_decay_is_the_moving_average_without_bias(decay):
    _, reached = path_of(Momentum(0.1), estimates())
    _, outputs = path_of(Averaging(Momentum(0.1), start=0.5, decay=decay), estimates())
    average, count = torch.zeros_like(reached[0]), 0
    for r in range(1, ROUNDS + 1):
        if r > 0.5 * ROUNDS:
            average, count = decay * average + (1 - decay) * reached[r - 1], count + 1
        expected = average / (1 - decay**count) if count else reached[r - 1]
        np.testing.assert_allclose(outputs[r - 1], expected, rtol=1e-12)


def test_averaging_leaves_the_query_points_alone():
    for inner in (Nesterov(0.1), TorchOptimizer("Adam", {"lr": 0.1})):
        plain, averaged = (path_of(routine, estimates())[0] for routine in (inner, Averaging(inner)))
        assert all(torch.equal(a, b) for a, b in zip(plain, averaged, strict=True))


def test_averaging_asks_for_what_its_routine_asks_for():
    class Local(GradientDescent):
        local_steps = 7

        def questions(self, round, population):
            return [(round, population)]

        def overcount(self):
            return {"local": 1.5}

        def check(self, population, private):
            raise InvalidArgument(f"{population} {private}")

    routine = Averaging(Local(0.1))
    assert routine.local_steps == 7
    assert list(routine.questions(3, "people")) == [(3, "people")]
    assert routine.overcount() == {"local": 1.5}
    with pytest.raises(InvalidArgument, match="people True"):
        routine.check("people", True)


def test_averaging_brings_noise_down():
    distances = {}
    for routine in (GradientDescent(0.5), Averaging(GradientDescent(0.5))):
        params, state = start(), routine.init(start())
        for r, noise in enumerate(estimates(400, seed=5), start=1):
            gradient = Estimate(params + noise.value, 1.0)  # of |x|^2 / 2, so that the minimum is zero
            params, state = routine.step(state, params, gradient, at(r, 400))
        distances[routine.name] = float(routine.output(state, params).norm())
    assert distances["averaging"] < distances["gradient_descent"] / 3


@given(st.lists(st.floats(-1e3, 1e3), min_size=DIMENSION, max_size=DIMENSION), st.floats(1e-3, 10.0))
def test_a_normalized_step_has_the_stated_length_and_direction(values, learning_rate):
    estimate = Estimate(torch.tensor(values, dtype=torch.float64), 0.1)
    norm = float(estimate.value.norm())
    moved, _ = NormalizedDescent(learning_rate).step({}, start(), estimate, at(1))
    if norm == 0:
        assert torch.equal(moved, start())
    elif norm > 1e-100:
        np.testing.assert_allclose(moved, start() - learning_rate * estimate.value / norm, atol=1e-9 * learning_rate)
        assert float((moved - start()).norm()) == pytest.approx(learning_rate, rel=1e-9)


@given(st.floats(0.1, 10.0), st.floats(0.5, 2.0), st.sampled_from(SCHEDULES), st.integers(1, ROUNDS))
def test_a_step_is_shortened_to_the_longest_and_never_lengthened(norm, most, schedule, number):
    value = torch.linspace(1.0, -3.0, DIMENSION, dtype=torch.float64)
    estimate = Estimate(norm * value / value.norm(), 0.1)
    routine = NormalizedDescent(0.5, most, schedule)
    moved, _ = routine.step({}, start(), estimate, at(number))
    rate = min(most / norm, scheduled(0.5, schedule, number, ROUNDS))
    np.testing.assert_allclose(moved, start() - rate * estimate.value, rtol=1e-12, atol=1e-12)
    assert float((moved - start()).norm()) <= routine.step_length(number, ROUNDS) * (1 + 1e-12)


def test_the_step_length_is_known_beforehand():
    assert NormalizedDescent(0.5).step_length(4, ROUNDS) == 0.5
    assert NormalizedDescent(0.5, schedule="inverse_root").step_length(4, ROUNDS) == 0.25
    assert NormalizedDescent(0.5, max_step_norm=0.125, schedule="inverse_root").step_length(4, ROUNDS) == 0.125


BAD = [
    (lambda: GradientDescent(0.0), "expected learning_rate > 0, got learning_rate=0.0"),
    (lambda: GradientDescent(math.nan), "learning_rate > 0"),
    (lambda: GradientDescent("0.1"), "learning_rate to be a number"),
    (lambda: GradientDescent(0.1, "cosin"), "schedule='cosin'; did you mean 'cosine'"),
    (lambda: scheduled(0.1, "linear", 1, 9), "schedule to be one of"),
    (lambda: Momentum(-0.1), "learning_rate > 0"),
    (lambda: Momentum(0.1, 1.0), "expected momentum to be at least 0 and below 1, got momentum=1.0"),
    (lambda: Momentum(0.1, -0.1), "momentum=-0.1"),
    (lambda: Momentum(0.1, False), "momentum=False"),
    (lambda: Momentum(0.1, schedule=None), "schedule=None"),
    (lambda: Nesterov(math.inf), "learning_rate to be finite"),
    (lambda: Nesterov(0.1, math.nan), "momentum=nan"),
    (lambda: Nesterov(0.1, schedule="none"), "schedule='none'"),
    (lambda: Adam(0.0), "learning_rate > 0"),
    (lambda: Adam(0.1, 1.0), "beta1=1.0"),
    (lambda: Adam(0.1, 0.9, "0.9"), "beta2='0.9'"),
    (lambda: Adam(0.1, floor=0.0), "expected floor > 0"),
    (lambda: Adam(0.1, floor=math.inf), "floor to be finite"),
    (lambda: Adam(0.1, correct_noise=1), "correct_noise to be True or False, got correct_noise=1"),
    (lambda: Adam(0.1, schedule="x"), "schedule='x'"),
    (lambda: Averaging(GradientDescent), "diff2.Routine such as"),
    (lambda: Averaging({"name": "momentum"}), "got routine={'name': 'momentum'}"),
    (lambda: Averaging(GradientDescent(0.1), start=1.0), "start=1.0"),
    (lambda: Averaging(GradientDescent(0.1), start=-0.5), "start=-0.5"),
    (lambda: Averaging(GradientDescent(0.1), decay=1.0), "decay=1.0"),
    (lambda: NormalizedDescent(0.0), "learning_rate > 0"),
    (lambda: Adam(0.1, max_step_norm=0.0), "expected max_step_norm > 0"),
    (lambda: NormalizedDescent(0.1, max_step_norm=0.0), "expected max_step_norm > 0"),
    (lambda: NormalizedDescent(0.1, max_step_norm=math.inf), "max_step_norm to be finite"),
    (lambda: NormalizedDescent(0.1, schedule="x"), "schedule='x'"),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_settings_are_refused_with_argument_and_value(make, message):
    with pytest.raises(InvalidArgument, match=message):
        make()
