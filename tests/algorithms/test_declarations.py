"""An algorithm or a routine of somebody else: it works like ours, and where a part is missing the message names it."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import diff2
from catalogue import PRIVATE, SIZES, STEP, run
from diff2 import DPGD, Algorithm, Batch, Estimate, InvalidArgument, PostProcessing, Question, Routine
from diff2.algorithms.base import check_algorithm
from diff2.routines.base import check_routine
from stubs import quiet_plan


@dataclass(frozen=True)
class Mine(Algorithm):
    """A complete algorithm: what a package from outside would hold. The others here lack one thing of it."""

    rounds: int = 3
    routine: Routine = STEP
    clip_gradient: float = 2.0
    name: ClassVar[str] = "mine"

    def questions(self, round, population):
        yield Question.gradient(self.clip_gradient)

    def estimate(self, state, round):
        released = round.release(round.ask(round.questions[0], round.params))
        return Estimate(released.value, released.variance), state


class Unasking(Mine):
    questions = Algorithm.questions


class Unestimated(Mine):
    estimate = Algorithm.estimate


@dataclass
class Melted:
    rounds: int
    routine: Routine


class Nameless(Mine):
    name = None


Thawed = type("Thawed", (Algorithm,), {"name": "thawed", "questions": Mine.questions, "estimate": Mine.estimate})


@dataclass(frozen=True)
class Endless(Algorithm):
    routine: Routine
    name: ClassVar[str] = "endless"
    questions, estimate = Mine.questions, Mine.estimate


@dataclass(frozen=True)
class MyRoutine(PostProcessing):
    name: ClassVar[str] = "my_routine"

    def step(self, state, params, estimate, round):
        return params - 0.1 * estimate.value.to(params), state


class Stepless(MyRoutine):
    step = Routine.step


INCOMPLETE = {
    "not a class": (check_algorithm, 3, "inherits diff2.Algorithm"),
    "another class": (check_algorithm, Melted, r"algorithm Melted: .*inherits diff2.Algorithm"),
    "no name": (check_algorithm, Nameless, "algorithm Nameless: it must have a class attribute name"),
    "no questions": (check_algorithm, Unasking, r"algorithm Unasking: it must define questions\("),
    "no estimate": (check_algorithm, Unestimated, r"algorithm Unestimated: it must define estimate\("),
    "no dataclass": (check_algorithm, Thawed, r"algorithm Thawed: it must be a frozen dataclass"),
    "no rounds": (check_algorithm, Endless, "algorithm Endless: its fields must include rounds and routine"),
    "routine, another class": (check_routine, Melted, r"routine Melted: .*inherits diff2.Routine"),
    "routine, no name": (check_routine, type("A", (MyRoutine,), {"name": 3}), "class attribute name"),
    "routine, no step": (check_routine, Stepless, r"routine Stepless: it must define step\("),
    "routine, no dataclass": (
        check_routine,
        type("A", (PostProcessing,), {"name": "a", "step": MyRoutine.step}),
        "frozen dataclass",
    ),
}


@pytest.mark.parametrize(("check", "kind", "message"), INCOMPLETE.values(), ids=INCOMPLETE)
def test_a_class_without_a_part_is_refused_and_the_part_is_named(check, kind, message):
    with pytest.raises(InvalidArgument, match=message) as refusal:
        check(kind)
    assert "see help(diff2." in str(refusal.value)
    registry = diff2.ALGORITHMS if check is check_algorithm else diff2.ROUTINES
    known = dict(registry)
    with pytest.raises(InvalidArgument, match=message):
        registry.register(kind)
    assert dict(registry) == known


class Unpaid(Mine):
    def shares(self):
        return {"difference": 1.0}


class Silent(Mine):
    def questions(self, round, population):
        return [Question.gradient(2.0)] if round != 2 else []


class Ambiguous(Mine):
    """Two questions that would be one release, about different records."""

    def questions(self, round, population):
        return [Question.gradient(2.0), Question.gradient(2.0, batch=Batch(clients=(1,)))]


UNPLANNED = {
    "no share": (Unpaid(), r"mine: questions\(\) asks for releases of purpose 'gradient', and shares\(\) gives .*no"),
    "no question": (Silent(), r"mine: questions\(\) declares nothing for round 2; every round asks once"),
    "two in one": (
        Ambiguous(),
        "mine: two questions of round 1 with purpose 'gradient' and step 0 are about different",
    ),
    "no questions": (Unasking(), r"Unasking: it must define questions\("),
    "no estimate": (Unestimated(), r"Unestimated: it must define estimate\("),
    "no name": (Nameless(), "class attribute name"),
    "a routine without a step": (DPGD(3, 2.0, Stepless()), r"Stepless: it must define step\("),
    "no algorithm": (Melted(3, STEP), "diff2.Algorithm such as diff2.Diff2.*got Melted"),
}


@pytest.mark.parametrize(("algorithm", "message"), UNPLANNED.values(), ids=UNPLANNED)
def test_a_declaration_that_cannot_be_priced_is_refused_before_anything_is_spent(algorithm, message, tmp_path):
    with pytest.raises(InvalidArgument, match=message):
        quiet_plan(algorithm, PRIVATE, SIZES)
    with pytest.raises(InvalidArgument, match=message):
        run(algorithm, budget=PRIVATE, directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@dataclass(frozen=True)
class Doubled(Mine):
    """Two releases a round on batches drawn at random, with different purposes and the same step."""

    def questions(self, round, population):
        batch = Batch(size=6)
        return [Question.gradient(2.0, purpose, batch=batch) for purpose in ("gradient", "local")]

    def shares(self):
        return {"gradient": 0.5, "local": 0.5}

    def estimate(self, state, round):
        first, second = (round.release(round.ask(question, round.params)) for question in round.questions)
        return Estimate((first.value + second.value) / 2, (first.variance + second.variance) / 4), state


def test_two_releases_of_a_round_do_not_share_a_draw_that_is_priced_twice():
    """Each is priced as amplified by a draw of its own: on one draw, a record that is in is seen by both."""
    try:
        training = run(Doubled(), budget=PRIVATE, start=diff2.prepare)
    except InvalidArgument as refusal:
        assert "step" in str(refusal)  # noqa: PT017 - to refuse is as good as to draw twice
        return
    first, second = (training.cohort.answer(q.at(1, training.start)) for q in Doubled().questions(1, None))
    assert (first.value != second.value).any()


def test_an_algorithm_of_somebody_else_trains_as_ours_do():
    assert check_algorithm(Mine) == "mine"
    mine, ours = run(Mine(), budget=PRIVATE), run(DPGD(3, 2.0, STEP), budget=PRIVATE)
    assert torch.equal(mine.params, ours.params)
    assert mine.ledger.releases == ours.ledger.releases


def test_a_registered_class_is_known_by_its_name(monkeypatch):
    for registry, kind in ((diff2.ALGORITHMS, Mine), (diff2.ROUTINES, MyRoutine)):
        monkeypatch.setattr(registry, "_known", dict(registry._known))
        assert kind.name not in registry
        assert registry.register(kind) is kind
        assert registry[kind.name] is kind


def test_a_class_announced_by_another_package_is_found_when_a_name_is_looked_up(monkeypatch):
    class Point:
        def load(self):
            return Mine

    asked = []
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: asked.append(group) or [Point()])
    registry = type(diff2.ALGORITHMS)("diff2.algorithms", [DPGD], check_algorithm)
    assert asked == []
    assert dict(registry) == {"dpgd": DPGD, "mine": Mine}
    assert asked == ["diff2.algorithms"]
