"""Questions are declared once: what was not declared is not asked, and what was released is not released again."""

import math
from dataclasses import replace

import pytest
import torch

import diff2
from diff2 import Batch, Population, Question, Round, Smoothness
from diff2.privacy import Mechanism, NoiseSource
from stubs import StubCohort, in_memory_ledger

X = torch.tensor([3.0, 4.0], dtype=torch.float64)
GRADIENT = Question.gradient(2.0)
DIFFERENCE = Question.difference(Smoothness(0.5, cap=1.0))
LOCAL = Question.difference(Smoothness(0.5), "local", batch=Batch(clients=(1,), size=3), step=2)
MULTIPLIERS = {"gradient": 3.0, "difference": 5.0, "local": 7.0}


def make_round(questions=(GRADIENT, DIFFERENCE), routine_questions=(LOCAL,), number=4):
    mechanism = Mechanism(in_memory_ledger(), NoiseSource.from_seed(1))
    cohort = StubCohort(Population((8, 12)))
    return Round(number, 9, X, cohort, mechanism, MULTIPLIERS, tuple(questions), tuple(routine_questions))


def test_a_declared_question_is_asked_in_its_round_at_the_iterates():
    round = make_round()
    assert round.ask(GRADIENT, X).release.label == (4, "gradient", 0)
    assert round.ask(LOCAL, X, X + 1).release.members == (1,)
    (gradient, local) = round.cohort.asked
    assert (gradient.round, gradient.radius, gradient.previous) == (4, 2.0, None)
    assert (local.batch, local.step, local.radius) == (LOCAL.batch, 2, pytest.approx(0.5 * math.sqrt(2)))


@pytest.mark.parametrize(
    "changes",
    [
        {"radius": 2.1},
        {"purpose": "difference"},
        {"batch": Batch(size=3)},
        {"step": 1},
        {"leaves": 2},
        {"kind": "difference"},
    ],
    ids=str,
)
def test_a_question_that_was_not_declared_is_refused_and_named(changes):
    """Whatever of it differs: what is asked is what was priced."""
    round = make_round()
    other = replace(GRADIENT, **changes)
    with pytest.raises(diff2.InvalidArgument, match="round 4 asks for what was not declared") as refusal:
        round.ask(other, X, X if other.kind == "difference" else None)
    for named in (repr(other), repr(GRADIENT), repr(LOCAL), "questions()"):
        assert named in str(refusal.value)
    assert round.cohort.asked == []


def test_a_question_of_another_round_is_refused():
    with pytest.raises(diff2.InvalidArgument, match="what was not declared"):
        make_round(questions=(DIFFERENCE,)).ask(GRADIENT, X)


@pytest.mark.parametrize(("question", "previous"), [(GRADIENT, X), (DIFFERENCE, None)])
def test_a_question_is_asked_at_as_many_iterates_as_it_needs(question, previous):
    with pytest.raises(diff2.InvalidArgument, match=rf"a {question.kind} is asked at (one|two) iterate"):
        make_round().ask(question, X, previous)


@pytest.mark.parametrize(
    ("rule", "previous", "radius"),
    [
        (Smoothness(0.5), X - X, 2.5),
        (Smoothness(0.5, cap=1.0), X - X, 1.0),
        (Smoothness(math.inf, cap=1.0), X, 0.0),  # equal iterates: zero, not infinity times zero
        (Smoothness(math.inf), X - X, math.inf),
        (0.7, X, 0.7),
    ],
)
def test_the_radius_of_a_difference_is_its_rule(rule, previous, radius):
    assert Question.difference(rule).at(1, X, previous).radius == radius


def test_the_distance_of_single_precision_iterates_is_taken_in_double_precision():
    one, other = torch.tensor([1.0]), torch.tensor([1e-9])
    assert Smoothness(1.0).radius(one, other) == pytest.approx(1 - 1e-9, rel=1e-12)  # 1 in single precision


def test_a_release_gets_the_multiplier_of_its_purpose_and_is_noted():
    round = make_round()
    noisy = round.release(round.ask(LOCAL, X, X + 1))
    assert noisy.release.multiplier == 7.0
    assert noisy.variance == noisy.release.noise_std**2
    assert noisy.value.dtype == torch.float64
    assert round.releases == round.mechanism.ledger.releases == [noisy.release]


def test_a_weighted_sum_is_one_release():
    two = (Question.gradient(2.0), Question.difference(0.5, "gradient"))
    round = make_round(questions=two, routine_questions=())
    gradient, difference = round.ask(two[0], X), round.ask(two[1], X, 2 * X)
    noisy = round.release((0.25, gradient), (0.75, difference))
    assert noisy.release.clip == pytest.approx(0.25 * 2.0 + 0.75 * 0.5)
    assert noisy.release.sensitivity == pytest.approx(2 / 16 * noisy.release.clip)
    assert len(round.releases) == 1


def test_what_was_declared_once_is_not_released_twice_in_a_round():
    round = make_round()
    mean = round.ask(GRADIENT, X)
    round.release(mean)
    with pytest.raises(diff2.LedgerError, match=r"round 4 has released a gradient of step 0 already"):
        round.release(mean)
    assert len(round.mechanism.ledger) == 1
