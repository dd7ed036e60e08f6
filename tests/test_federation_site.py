"""A site defends itself: it answers what was agreed, once, and whatever else it is asked it refuses, to both sides."""

import math
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from diff2.federation.wire.requests import ANSWER, CLOSE_RUN, DESCRIBE, OPEN, Asked
from hypothesis import given
from hypothesis import strategies as st

from catalogue import NO_NOISE, PRIVATE, SIZES, STEP, TorchOptimizer, diff2_with, start_vector
from diff2 import Batch, Budget
from diff2.federation.site.ledger import read_site_ledger
from diff2.federation.site.policy import Policy
from diff2.federation.site.site import Site
from diff2.federation.wire.messages import Message, digest, read, write
from diff2.questions.population import ALL
from federated import ANYTHING, NAMES, agreement_of, lines, make_site, records_of

RUN = "0123456789abcdef" * 2
START = start_vector()
NEXT = START + 0.01
C1, C2 = 2.0, 3.0  # of the catalogue


@pytest.fixture(scope="module")
def any_site(tmp_path_factory):
    return make_site(0, tmp_path_factory.mktemp("any"))


def tell(site, kind, **fields):
    return read(site.answer(write(Message(kind, fields))))


def opened(directory, name="diff2", policy=ANYTHING, run=RUN, index=0, **changes):
    """A site that has opened a run; (the site, its answer)."""
    site = make_site(index, directory, policy)
    return site, open_run(site, agreement_of(name, **changes), run)


def open_run(site, agreement, run=RUN, sites=NAMES, sizes=SIZES):
    return tell(site, OPEN, agreement=agreement.to_json(), run=run, sites=list(sites), sizes=list(sizes))


def ask(site, kind="gradient", params=START, radius=C1, previous=None, round=1, run=RUN, **options):
    return read(site.answer(write(Asked(kind, run, round, params, radius, previous, **options).message())))


def difference(site, radius=None, params=NEXT, previous=START, round=2, **options):
    apart = float((params - previous).norm())
    return ask(site, "difference", params, C2 * apart if radius is None else radius, previous, round, **options)


def refused(message, part):
    assert message.kind == "refusal", message
    assert part in message.fields["reason"]
    return True


def test_it_describes_itself_and_opens_a_run(tmp_path):
    site = make_site(0, tmp_path)
    described = tell(site, DESCRIBE, agreement=agreement_of("diff2").to_json())
    assert (described.fields["site"], described.fields["size"]) == ("north", SIZES[0])
    answer = open_run(site, agreement_of("diff2"))
    assert (answer.kind, answer.fields["run"]) == ("opened", RUN)
    assert ask(site).kind == ANSWER


def test_it_clips_whatever_it_is_asked(tmp_path):
    """No answer is longer than its records times the radius, and at a tiny radius every record is clipped to it."""
    site, _ = opened(tmp_path)
    value = ask(site, radius=1e-3).arrays["value"]
    assert 0 < np.linalg.norm(value) <= SIZES[0] * 1e-3 * (1 + 1e-9)
    assert value.dtype == np.float64


class TestRadius:
    """The site recomputes the formula from the iterates it was sent."""

    @pytest.mark.parametrize("factor", [0.5, 1.0])
    def test_within(self, tmp_path, factor):
        site, _ = opened(tmp_path)
        assert ask(site, radius=factor * C1).kind == ANSWER
        assert difference(site, radius=factor * C2 * float((NEXT - START).norm())).kind == ANSWER

    @pytest.mark.parametrize("factor", [1 + 1e-9, 2.0, math.inf])
    def test_beyond(self, tmp_path, factor):
        site, _ = opened(tmp_path)
        assert refused(ask(site, radius=factor * C1), "radius")
        assert refused(difference(site, radius=factor * C2 * float((NEXT - START).norm())), "radius")

    def test_the_cap_holds_however_far_the_iterates_are_apart(self, tmp_path):
        site, _ = opened(tmp_path)
        assert refused(difference(site, radius=2 * C1 * 1.001, params=START + 100), "radius")
        assert difference(site, radius=2 * C1, params=START + 100).kind == ANSWER

    def test_equal_iterates_allow_nothing(self, tmp_path):
        site, _ = opened(tmp_path)
        assert refused(difference(site, radius=1e-9, params=START), "radius")

    def test_local_steps(self, tmp_path):
        site, _ = opened(tmp_path, "bvr", index=1)
        batch, apart = Batch(clients=(1,), size=2), float((NEXT - START).norm())
        step = {"round": 1, "batch": batch, "step": 2}
        assert refused(difference(site, radius=C2 * apart * 1.01, **step), "radius")
        assert difference(site, radius=C2 * apart, **step).kind == ANSWER

    def test_an_inner_radius_must_be_the_agreed_one(self, tmp_path):
        site, _ = opened(tmp_path, "diff2, telescoped")
        assert refused(difference(site, inner=math.inf), "inner")
        assert refused(difference(site, inner=C1 / 2), "inner")
        assert difference(site, inner=C1).kind == ANSWER


class TestQuestionsOutsideOfTheAgreement:
    @pytest.mark.parametrize(
        ("name", "index", "question"),
        [
            ("diff2", 0, {"round": 2}),  # a gradient where the algorithm asks for a difference
            ("diff2", 0, {"round": 0}),
            ("diff2", 0, {"round": 8}),  # after the last round
            ("diff2", 0, {"step": 1}),
            ("diff2", 0, {"batch": Batch(size=3)}),
            ("diff2", 0, {"batch": Batch(part=(0, 2))}),
            ("diff2", 0, {"batch": Batch(clients=(0,))}),
            ("dpsgd, fixed", 0, {"batch": ALL}),
            ("dpsgd, fixed", 0, {"batch": Batch(size=1)}),
            ("dpsgd, poisson", 0, {"batch": Batch(rate=1.0)}),
            ("srnsgd", 0, {"batch": Batch(part=(1, 2))}),
            ("dpfedavg", 0, {"batch": Batch(clients=(1,), size=2), "step": 2}),  # another client's
            ("dpfedavg", 0, {"batch": Batch(clients=(0,), size=2), "step": 2}),  # another client's step
            ("diff2, 2 of 3 clients", 2, {}),  # not this client's turn in round 1
        ],
    )
    def test_is_refused(self, tmp_path, name, index, question):
        site, answer = opened(tmp_path, name, index=index)
        assert answer.kind == "opened"
        assert refused(ask(site, **question), "does not ask this site")

    def test_a_difference_in_a_restart_is_refused(self, tmp_path):
        site, _ = opened(tmp_path)
        assert refused(difference(site, round=1), "does not ask this site")

    def test_local_steps_of_another_client_are_refused(self, tmp_path):
        site, _ = opened(tmp_path, "bvr", index=0)
        assert refused(difference(site, round=1, batch=Batch(clients=(1,), size=2), step=2), "does not ask")

    def test_an_unknown_run_is_refused(self, tmp_path):
        site, _ = opened(tmp_path)
        assert refused(ask(site, run="f" * 32), "no run")

    def test_a_run_must_be_opened_after_a_restart_of_the_site(self, tmp_path):
        opened(tmp_path)
        assert refused(ask(make_site(0, tmp_path)), "not open")


class TestMalformedQuestions:
    @pytest.mark.parametrize(
        "params",
        [
            START[:-1],
            torch.cat([START, START]),
            START.float(),
            START.reshape(1, -1),
            torch.full_like(START, math.nan),
            torch.full_like(START, math.inf),
        ],
    )
    def test_parameters(self, tmp_path, params):
        site, _ = opened(tmp_path)
        assert refused(ask(site, params=params), "params")
        assert difference(site, params=NEXT).kind == ANSWER

    @pytest.mark.parametrize("name", ["round", "step", "radius", "inner", "clients", "size", "rate", "part"])
    @pytest.mark.parametrize("value", [-1, "1", [0.5], True, {"a": 1}, ["x"]])
    def test_fields(self, tmp_path, name, value):
        site, _ = opened(tmp_path)
        message = Asked("gradient", RUN, 1, START, C1).message()
        payload = write(replace(message, fields={**message.fields, name: value}))
        assert read(site.answer(payload)).kind == "refusal"

    def test_arrays(self, tmp_path):
        site, _ = opened(tmp_path)
        message = Asked("gradient", RUN, 1, START, C1).message()
        more = replace(message, arrays={**message.arrays, "previous": START.numpy()})
        assert refused(read(site.answer(write(more))), "arrays")
        assert refused(read(site.answer(write(replace(message, arrays={})))), "arrays")

    @given(payload=st.binary(max_size=200))
    def test_any_bytes(self, payload, any_site):
        assert read(any_site.answer(payload)).kind == "refusal"

    def test_an_unknown_kind(self, tmp_path):
        site, _ = opened(tmp_path)
        assert refused(tell(site, "records", run=RUN), "kind")


class TestTwice:
    def test_the_same_question_gets_the_same_bytes(self, tmp_path):
        site, _ = opened(tmp_path, "dpsgd, fixed")
        payload = write(Asked("gradient", RUN, 1, START, C1, batch=Batch(size=6)).message())
        other = write(Asked("gradient", RUN, 2, START, C1, batch=Batch(size=6)).message())
        first = site.answer(payload)
        assert read(first).kind == ANSWER
        assert site.answer(payload) == first
        assert site.answer(other) != first
        assert site.answer(payload) == first
        again = make_site(0, tmp_path)  # restarted
        open_run(again, agreement_of("dpsgd, fixed"))
        assert again.answer(payload) == first
        assert [line["kind"] for line in lines(site.ledger.path)].count("answer") == 2

    @pytest.mark.parametrize("change", [{"params": NEXT}, {"radius": C1 / 2}, {"remember": True}])
    @pytest.mark.parametrize("restarted", [False, True])
    def test_a_changed_one_is_refused(self, tmp_path, change, restarted):
        site, _ = opened(tmp_path)
        assert ask(site).kind == ANSWER
        if restarted:
            site, _ = opened(tmp_path)
        assert refused(ask(site, **change), "answered already")
        assert ask(site).kind == ANSWER

    def test_what_would_come_out_differently_is_refused(self, tmp_path):
        site, _ = opened(tmp_path)
        ask(site)
        text = site.ledger.path.read_text()
        answer = next(line["answer"] for line in lines(site.ledger.path) if line["kind"] == "answer")
        site.ledger.path.write_text(text.replace(answer, digest(b"another")))
        again, _ = opened(tmp_path)
        assert refused(ask(again), "come out differently")

    def test_without_a_seed_batches_are_drawn_from_the_sites_own_secret(self, tmp_path):
        payload = write(Asked("gradient", RUN, 1, START, C1, batch=Batch(size=6)).message())
        answers = []
        for place in ("one", "two"):
            site, _ = opened(tmp_path / place, "dpsgd, fixed", seed=None)
            answers.append(site.answer(payload))
            key = tmp_path / place / "north" / f"{RUN}.key"
            assert key.stat().st_mode & 0o777 == 0o600
            again, _ = opened(tmp_path / place, "dpsgd, fixed", seed=None)
            assert again.answer(payload) == answers[-1]
        assert answers[0] != answers[1]
        key.unlink()
        _, answer = opened(tmp_path / "two", "dpsgd, fixed", seed=None)
        assert refused(answer, "key")


class TestOpening:
    def test_a_run_goes_on_only_as_it_was_agreed(self, tmp_path):
        site, _ = opened(tmp_path)
        other = agreement_of("diff2", weighting="records")
        assert refused(open_run(site, other), "other agreement")
        assert open_run(site, agreement_of("diff2")).kind == "opened"

    def test_other_records_are_refused(self, tmp_path):
        opened(tmp_path)
        site = Site("north", lambda agreement: records_of(0).first(8), ANYTHING, tmp_path / "north")
        site._load = lambda agreement: records_of(0)._replace(
            client=records_of(0).client._replace(inputs=records_of(0).client.inputs + 1)
        )
        assert refused(open_run(site, agreement_of("diff2")), "other records")

    @pytest.mark.parametrize("run", ["", "x", "../../../etc/passwd", "A" * 32, "0" * 31, None, 3])
    def test_a_run_has_a_plain_name(self, tmp_path, run):
        assert refused(open_run(make_site(0, tmp_path), agreement_of("diff2"), run), "hexadecimal")

    def test_sizes_and_sites_must_fit(self, tmp_path):
        site, agreement = make_site(0, tmp_path), agreement_of("diff2")
        assert refused(open_run(site, agreement, sizes=(9, 12, 4)), "size stated")
        assert refused(open_run(site, agreement, sites=("a", "b", "c")), "not among")
        assert refused(open_run(site, agreement, sites=("north", "north", "east")), "not among")
        assert refused(open_run(site, agreement, sizes=(8, 12)), "same length")
        assert refused(open_run(site, agreement, sizes=(8, 12, -4)), "whole number")

    def test_a_closed_run_stays_closed(self, tmp_path):
        site, _ = opened(tmp_path, seed=None)
        assert tell(site, CLOSE_RUN, run=RUN).kind == "closed"
        assert tell(site, CLOSE_RUN, run=RUN).kind == "closed"
        assert refused(ask(site), "complete")
        assert refused(open_run(site, agreement_of("diff2", seed=None)), "complete")
        assert not (tmp_path / "north" / f"{RUN}.key").exists()

    @pytest.mark.parametrize("change", [{"format": 0}, {"algorithm": None}, {"model": {"name": "resnet"}}, {"run": 3},
                                        {"algorithm": {"name": "unknown"}}, {"encoding": {}}, {"privacy": {}},
                                        {"group_column": 3}, {"leaks": "all"}])  # fmt: skip
    def test_an_agreement_that_cannot_be_read_is_refused(self, tmp_path, change):
        fields = {**agreement_of("diff2").to_json(), **change}
        assert refused(tell(make_site(0, tmp_path), DESCRIBE, agreement=fields), "agreement")

    def test_no_code_is_named_by_the_server(self, tmp_path):
        routine = TorchOptimizer("AdamW", {"lr": 0.1})
        fields = agreement_of(diff2_with(routine)).to_json()
        assert tell(make_site(0, tmp_path), DESCRIBE, agreement=fields).kind == "description"
        fields["algorithm"]["routine"]["optimizer"] = "antigravity.Fly"
        assert refused(tell(make_site(0, tmp_path), DESCRIBE, agreement=fields), "cannot name other code")


class TestPolicy:
    """What the site agrees to, whatever the server asks."""

    def test_epsilon(self, tmp_path):
        policy = Policy(epsilon=1.9, delta=1e-3)
        _, answer = opened(tmp_path, policy=policy, seed=None)
        assert refused(answer, "allows epsilon=1.9")
        _, answer = opened(tmp_path, policy=replace(policy, epsilon=2.0), seed=None)
        assert answer.kind == "opened"

    def test_epsilon_over_all_runs(self, tmp_path):
        policy = Policy(epsilon=4.5, delta=1e-2)
        for run, expected in (("a" * 32, "opened"), ("b" * 32, "opened"), ("c" * 32, "refusal"), ("a" * 32, "opened")):
            site, answer = opened(tmp_path, policy=policy, seed=None, run=run)
            assert answer.kind == expected
        assert site.ledger.epsilon == 4.0
        assert "6" in site.ledger.refusals[-1]

    def test_delta(self, tmp_path):
        _, answer = opened(tmp_path, policy=Policy(epsilon=3.0, delta=1e-4), seed=None)
        assert refused(answer, "delta=0.0001")
        policy = Policy(epsilon=9.0, delta=1.5e-3)
        assert opened(tmp_path, policy=policy, seed=None, run="a" * 32)[1].kind == "opened"
        assert refused(opened(tmp_path, policy=policy, seed=None, run="b" * 32)[1], "delta=0.002")

    def test_a_run_that_is_not_private(self, tmp_path):
        policy = Policy(epsilon=100.0, delta=1e-3)
        assert refused(opened(tmp_path, policy=policy)[1], "seeded")
        assert refused(opened(tmp_path, policy=policy, seed=None, budget=NO_NOISE)[1], "epsilon=inf")
        site, answer = opened(tmp_path, budget=NO_NOISE, seed=None)
        assert answer.kind == "opened"
        assert site.ledger.epsilon == math.inf

    def test_algorithms(self, tmp_path):
        policy = replace(ANYTHING, algorithms=("diff2",))
        assert opened(tmp_path, policy=policy)[1].kind == "opened"
        assert refused(opened(tmp_path, "fused", policy=policy, run="a" * 32)[1], "'fused_diff2'")

    def test_models(self, tmp_path):
        assert refused(opened(tmp_path, policy=replace(ANYTHING, models=()))[1], "model")

    def test_the_smallest_size(self, tmp_path):
        assert opened(tmp_path, policy=replace(ANYTHING, smallest_size=8))[1].kind == "opened"
        answer = opened(tmp_path / "other", policy=replace(ANYTHING, smallest_size=9))[1]
        assert refused(answer, "fewer records than its policy demands")
        assert "8" not in answer.fields["reason"]

    def test_its_size_is_not_told(self, tmp_path):
        site = make_site(0, tmp_path, replace(ANYTHING, told_size=6))
        assert tell(site, DESCRIBE, agreement=agreement_of("diff2").to_json()).fields["size"] == 6
        assert open_run(site, agreement_of("diff2"), sizes=(6, 12, 4)).kind == "opened"
        whole, _ = opened(tmp_path / "whole")
        assert ask(site).fields["count"] == 6
        assert not np.allclose(ask(site).arrays["value"], ask(whole).arrays["value"])
        larger = make_site(0, tmp_path / "larger", replace(ANYTHING, told_size=9))
        assert refused(tell(larger, DESCRIBE, agreement=agreement_of("diff2").to_json()), "fewer")


def test_refusals_are_written_down_at_the_site(tmp_path):
    site, _ = opened(tmp_path)
    answer = ask(site, radius=5.0)
    found = read_site_ledger(site.ledger.path)
    assert len(found.refusals) == 1
    assert found.refusals[0] in answer.fields["reason"]
    assert "'north'" in answer.fields["reason"]


def test_what_goes_wrong_with_its_records_stays_at_the_site(tmp_path):
    def load(agreement):
        raise ValueError("patient 4711 has no age")

    site = Site("north", load, ANYTHING, tmp_path / "north")
    answer = tell(site, DESCRIBE, agreement=agreement_of("diff2").to_json())
    assert refused(answer, "site.log")
    assert "4711" not in answer.fields["reason"]
    assert "4711" not in site.ledger.path.read_text()
    assert "4711" in (tmp_path / "north" / "site.log").read_text()


def test_a_line_cut_off_by_a_crash_was_never_answered(tmp_path):
    site, _ = opened(tmp_path)
    ask(site)
    size = site.ledger.path.stat().st_size
    os.truncate(site.ledger.path, size - 5)
    again, answer = opened(tmp_path)
    assert answer.kind == "opened"
    assert again.ledger.count(RUN) == 0
    assert ask(again, params=NEXT).kind == ANSWER


def test_two_processes_of_a_site_share_its_memory(tmp_path):
    """The process of an earlier job may still be there when the next one begins."""
    old, _ = opened(tmp_path)
    new, _ = opened(tmp_path)
    first = ask(old)
    assert refused(ask(new, params=NEXT), "answered already")
    assert ask(new).arrays["value"].tobytes() == first.arrays["value"].tobytes()
    assert difference(new).kind == ANSWER
    assert refused(difference(old, radius=1e-3), "answered already")
    assert [line["kind"] for line in lines(old.ledger.path)].count("answer") == 2
    assert len(read_site_ledger(old.ledger.path).refusals) == 2


def test_the_line_is_written_before_the_answer_leaves(tmp_path, monkeypatch):
    site, _ = opened(tmp_path)
    monkeypatch.setattr(site.ledger, "record", lambda line: 1 / 0)
    assert ask(site).kind == "refusal"
    assert site._last == ("", b"")


def test_budgets_are_what_the_tests_above_take_them_for():
    assert Budget(2.0, 1e-3) == PRIVATE
    assert diff2_with(STEP).clip_gradient == C1
    assert diff2_with(STEP).clip_smoothness == C2
