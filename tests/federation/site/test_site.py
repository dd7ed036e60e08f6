"""A site defends itself: it answers what was agreed, once, and refuses everything else, to both sides."""

import math
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from catalogue import NO_NOISE, PRIVATE, SIZES, STEP, TorchOptimizer, diff2_with
from diff2 import Batch, Budget
from diff2.federation.site.ledger import read_site_ledger
from diff2.federation.site.policy import Policy
from diff2.federation.site.site import Site
from diff2.federation.wire.messages import digest, read, write
from diff2.federation.wire.request import ANSWER, CLOSE, DESCRIBE
from federated import (
    ANYTHING,
    APART,
    C1,
    C2,
    NAMES,
    NEXT,
    RUN,
    START,
    agreement_of,
    answer_labels,
    ask,
    describe,
    difference,
    gradient,
    lines,
    make_site,
    open_run,
    opened,
    records_of,
    refused,
    request,
    tell,
)

BATCH = Batch(size=6)
DIFF2 = agreement_of("diff2")


@pytest.fixture(scope="module")
def any_site(tmp_path_factory):
    return opened(tmp_path_factory.mktemp("any"), DIFF2)


def opening(directory, policy=ANYTHING, run=RUN, name="diff2", **changes):
    """What a new site with this policy says to a run."""
    site = make_site(0, directory, policy)
    return site, open_run(site, agreement_of(name, **changes), run)


def test_it_describes_itself_and_opens_a_run(tmp_path):
    site = make_site(0, tmp_path)
    described = describe(site, DIFF2)
    assert (described.fields["site"], described.fields["size"]) == ("north", SIZES[0])
    answer = open_run(site, DIFF2)
    assert (answer.kind, answer.fields["run"]) == ("opened", RUN)
    assert ask(site, gradient()).kind == ANSWER


def test_it_clips_whatever_it_is_asked(tmp_path):
    """No answer is longer than its records times the radius, and at a tiny radius every record is clipped to it."""
    value = ask(opened(tmp_path, DIFF2), gradient(radius=1e-3)).arrays["value"]
    assert 0 < np.linalg.norm(value) <= SIZES[0] * 1e-3 * (1 + 1e-9)
    assert value.dtype == np.float64


class TestRadius:
    """The site recomputes the radius by the declared rule, from the iterates it was sent."""

    @pytest.mark.parametrize("factor", [0.5, 1.0])
    def test_within(self, tmp_path, factor):
        site = opened(tmp_path, DIFF2)
        assert ask(site, gradient(radius=factor * C1)).kind == ANSWER
        assert ask(site, difference(radius=factor * C2 * APART)).kind == ANSWER

    @pytest.mark.parametrize("factor", [1 + 1e-9, 2.0, math.inf])
    def test_beyond(self, any_site, factor):
        assert refused(ask(any_site, gradient(radius=factor * C1)), "radius")
        assert refused(ask(any_site, difference(radius=factor * C2 * APART)), "radius")

    def test_the_cap_holds_however_far_the_iterates_are_apart(self, tmp_path):
        site = opened(tmp_path, DIFF2)
        assert refused(ask(site, difference(radius=2 * C1 * 1.001, params=START + 100)), "radius")
        assert ask(site, difference(radius=2 * C1, params=START + 100)).kind == ANSWER

    def test_equal_iterates_allow_nothing(self, any_site):
        assert refused(ask(any_site, difference(radius=1e-9, params=START)), "radius")

    def test_local_steps(self, tmp_path):
        site = opened(tmp_path, agreement_of("bvr"), index=1)
        step = {"round": 1, "batch": Batch(clients=(1,), size=2), "step": 2, "purpose": "local"}
        assert refused(ask(site, difference(radius=C2 * APART * 1.01, **step)), "radius")
        assert ask(site, difference(**step)).kind == ANSWER


class TestQuestionsOutsideOfTheAgreement:
    @pytest.mark.parametrize(
        ("name", "index", "question"),
        [
            ("diff2", 0, {"round": 2}),  # a gradient where the algorithm asks for a difference
            ("diff2", 0, {"round": 0}),
            ("diff2", 0, {"round": 8}),  # after the last round
            ("diff2", 0, {"step": 1}),
            ("diff2", 0, {"purpose": "difference"}),
            ("diff2", 0, {"purpose": "anything"}),
            ("diff2", 0, {"leaves": 2}),
            ("diff2", 0, {"batch": Batch(size=3)}),
            ("diff2", 0, {"batch": Batch(part=(0, 2))}),
            ("diff2", 0, {"batch": Batch(clients=(0,))}),
            ("dpsgd, fixed", 0, {}),
            ("dpsgd, fixed", 0, {"batch": Batch(size=1)}),
            ("dpsgd, poisson", 0, {"batch": Batch(rate=1.0)}),
            ("srnsgd", 0, {"batch": Batch(part=(1, 2))}),
            ("dpfedavg", 0, {"batch": Batch(clients=(1,), size=2), "step": 2}),  # another client's
            ("dpfedavg", 0, {"batch": Batch(clients=(0,), size=2), "step": 2}),  # another client's step
            ("diff2, 2 of 3 clients", 2, {}),  # not this client's turn in round 1
        ],
    )
    def test_is_refused(self, tmp_path, name, index, question):
        site = opened(tmp_path, agreement_of(name), index=index)
        assert refused(ask(site, gradient(**question)), "does not ask this site")

    def test_a_difference_in_a_restart_is_refused(self, any_site):
        assert refused(ask(any_site, difference(round=1)), "does not ask this site")

    def test_local_steps_of_another_client_are_refused(self, tmp_path):
        site = opened(tmp_path, agreement_of("bvr"))
        step = {"round": 1, "batch": Batch(clients=(1,), size=2), "step": 2, "purpose": "local"}
        assert refused(ask(site, difference(**step)), "does not ask")

    def test_an_unknown_run_is_refused(self, any_site):
        assert refused(ask(any_site, gradient(), run="f" * 32), "no run")

    def test_a_run_must_be_opened_after_a_restart_of_the_site(self, tmp_path):
        opened(tmp_path, DIFF2)
        assert refused(ask(make_site(0, tmp_path), gradient()), "not open")


class TestMalformedRequests:
    """``wire/test_requests.py`` has them all; a site turns each into a refusal."""

    def test_is_refused(self, any_site):
        assert refused(ask(any_site, gradient(params=START[:-1])), "params")
        assert refused(tell(any_site, "records", run=RUN), "kind")

    @given(payload=st.binary(max_size=200))
    def test_any_bytes(self, payload, any_site):
        assert read(any_site.answer(payload)).kind == "refusal"


class TestTwice:
    def test_the_same_question_gets_the_same_bytes(self, tmp_path):
        agreement = agreement_of("dpsgd, fixed")
        site = opened(tmp_path, agreement)
        payload, other = (write(request(gradient(batch=BATCH, round=r)).message()) for r in (1, 2))
        first = site.answer(payload)
        assert read(first).kind == ANSWER
        assert site.answer(payload) == first
        assert site.answer(other) != first
        assert site.answer(payload) == first
        assert opened(tmp_path, agreement).answer(payload) == first  # restarted
        assert len(answer_labels(site.ledger.path)) == 2

    @pytest.mark.parametrize("change", [{"params": NEXT}, {"radius": C1 / 2}, {"remember": True}])
    @pytest.mark.parametrize("restarted", [False, True])
    def test_a_changed_one_is_refused(self, tmp_path, change, restarted):
        site = opened(tmp_path, DIFF2)
        assert ask(site, gradient()).kind == ANSWER
        if restarted:
            site = opened(tmp_path, DIFF2)
        assert refused(ask(site, gradient(**change)), "answered already")
        assert ask(site, gradient()).kind == ANSWER

    def test_what_would_come_out_differently_is_refused(self, tmp_path):
        site = opened(tmp_path, DIFF2)
        ask(site, gradient())
        answer = next(line["answer"] for line in lines(site.ledger.path) if line["kind"] == "answer")
        site.ledger.path.write_text(site.ledger.path.read_text().replace(answer, digest(b"another")))
        assert refused(ask(opened(tmp_path, DIFF2), gradient()), "come out differently")

    def test_without_a_seed_batches_are_drawn_from_the_sites_own_secret(self, tmp_path):
        agreement, answers = agreement_of("dpsgd, fixed", seed=None), []
        payload = write(request(gradient(batch=BATCH)).message())
        for place in map(str, range(8)):  # two of eight records are drawn: all eight alike once in 10^10 runs
            answers.append(opened(tmp_path / place, agreement).answer(payload))
            key = tmp_path / place / "north" / f"{RUN}.key"
            assert key.stat().st_mode & 0o777 == 0o600
            assert opened(tmp_path / place, agreement).answer(payload) == answers[-1]
        assert len(set(answers)) > 1
        key.unlink()
        assert refused(open_run(make_site(0, tmp_path / place), agreement), "key")


class TestOpening:
    def test_a_run_is_resumed_only_as_it_was_agreed(self, tmp_path):
        site = opened(tmp_path, DIFF2)
        assert refused(open_run(site, agreement_of("diff2", weighting="records")), "other agreement")
        assert open_run(site, DIFF2).kind == "opened"

    def test_other_records_are_refused(self, tmp_path):
        opened(tmp_path, DIFF2)
        records = records_of(0)
        changed = records._replace(client=records.client._replace(inputs=records.client.inputs + 1))
        site = Site("north", lambda agreement: changed, ANYTHING, tmp_path / "north")
        assert refused(open_run(site, DIFF2), "other records")

    def test_other_threads_are_not_the_same_run_where_they_change_bits(self, tmp_path, monkeypatch):
        """They change the last bits of a sum by the ghost engine, hence an answer that is asked for again."""
        monkeypatch.setattr("diff2.gradients.columns.ColumnsEngine.any_threads", False)
        opened(tmp_path, DIFF2)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 17)
        monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # lanes would leave torch with 17
        assert refused(open_run(make_site(0, tmp_path), DIFF2), "with other threads")

    def test_other_threads_are_the_same_run_where_they_change_none(self, tmp_path, monkeypatch):
        opened(tmp_path, DIFF2)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 17)
        monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # lanes would leave torch with 17
        assert open_run(make_site(0, tmp_path), DIFF2).kind == "opened"

    def test_another_engine_is_refused(self, tmp_path):
        """It would give other bytes than the server's ledger states."""
        assert refused(open_run(make_site(0, tmp_path), DIFF2, engine="loop"), "the server expects 'loop'")

    @pytest.mark.parametrize("run", ["", "x", "../../../etc/passwd", "A" * 32, "0" * 31, None, 3])
    def test_a_run_has_a_plain_name(self, any_site, run):
        assert refused(open_run(any_site, DIFF2, run), "hexadecimal")

    def test_sizes_and_sites_must_fit(self, any_site):
        for stated, reason in (
            ({"sizes": (9, 12, 4)}, "size stated"),
            ({"sites": ("a", "b", "c")}, "not among"),
            ({"sites": ("north", "north", "east")}, "not among"),
            ({"sizes": (8, 12)}, "same length"),
            ({"sizes": (8, 12, -4)}, "whole number"),
        ):
            assert refused(open_run(any_site, DIFF2, **stated), reason)

    def test_a_closed_run_stays_closed(self, tmp_path):
        agreement = agreement_of("diff2", seed=None)
        site = opened(tmp_path, agreement)
        assert tell(site, CLOSE, run=RUN).kind == "closed"
        assert tell(site, CLOSE, run=RUN).kind == "closed"
        assert refused(ask(site, gradient()), "complete")
        assert refused(open_run(site, agreement), "complete")
        assert not (tmp_path / "north" / f"{RUN}.key").exists()

    @pytest.mark.parametrize("change", [{"format": 0}, {"algorithm": None}, {"model": {"name": "resnet"}}, {"run": 3},
                                        {"algorithm": {"name": "unknown"}}, {"encoding": {}}, {"privacy": {}},
                                        {"group_column": 3}, {"leaks": "all"},
                                        {"run": {"metrics_every": 1}}])  # fmt: skip
    def test_an_agreement_that_cannot_be_read_is_refused(self, any_site, change):
        fields = {**DIFF2.to_json(), **change}
        assert refused(tell(any_site, DESCRIBE, agreement=fields), "agreement")

    def test_no_code_is_named_by_the_server(self, any_site):
        agreement = agreement_of(diff2_with(TorchOptimizer("AdamW", {"lr": 0.1})))
        assert describe(any_site, agreement).kind == "description"
        fields = agreement.to_json()
        fields["algorithm"]["routine"]["optimizer"] = "antigravity.Fly"
        assert refused(tell(any_site, DESCRIBE, agreement=fields), "cannot name other code")


class TestPolicy:
    """What the site agrees to, whatever the server asks."""

    def test_epsilon(self, tmp_path):
        policy = Policy(epsilon=1.9, delta=1e-3)
        assert refused(opening(tmp_path, policy, seed=None)[1], "allows epsilon=1.9")
        assert opening(tmp_path, replace(policy, epsilon=2.0), seed=None)[1].kind == "opened"

    def test_epsilon_over_all_runs(self, tmp_path):
        policy = Policy(epsilon=4.5, delta=1e-2)
        for run, expected in (("a" * 32, "opened"), ("b" * 32, "opened"), ("c" * 32, "refusal"), ("a" * 32, "opened")):
            site, answer = opening(tmp_path, policy, run, seed=None)
            assert answer.kind == expected
            ask(site, gradient(), run=run)
        assert site.ledger.epsilon == 4.0
        assert "epsilon=6" in "".join(line.reason for line in site.ledger.refusals)

    def test_delta(self, tmp_path):
        assert refused(opening(tmp_path, Policy(epsilon=3.0, delta=1e-4), seed=None)[1], "delta=0.0001")
        policy = Policy(epsilon=9.0, delta=1.5e-3)
        ask(opening(tmp_path, policy, "a" * 32, seed=None)[0], gradient(), run="a" * 32)
        assert refused(opening(tmp_path, policy, "b" * 32, seed=None)[1], "delta=0.002")

    def test_a_run_that_is_not_private(self, tmp_path):
        policy = Policy(epsilon=100.0, delta=1e-3)
        assert refused(opening(tmp_path, policy)[1], "seeded")
        assert refused(opening(tmp_path, policy, seed=None, budget=NO_NOISE)[1], "epsilon=inf")
        site, answer = opening(tmp_path, budget=NO_NOISE, seed=None)
        assert answer.kind == "opened"
        ask(site, gradient())
        assert site.ledger.epsilon == math.inf

    def test_algorithms(self, tmp_path):
        policy = replace(ANYTHING, algorithms=("diff2",))
        assert opening(tmp_path, policy)[1].kind == "opened"
        assert refused(opening(tmp_path, policy, "a" * 32, name="dpgd")[1], "'dpgd'")

    def test_the_smallest_size(self, tmp_path):
        assert opening(tmp_path, replace(ANYTHING, smallest_size=8))[1].kind == "opened"
        answer = opening(tmp_path / "other", replace(ANYTHING, smallest_size=9))[1]
        assert refused(answer, "fewer records than its policy requires")
        assert "8" not in answer.fields["reason"]

    def test_its_size_is_not_reported(self, tmp_path):
        site = make_site(0, tmp_path, replace(ANYTHING, reported_size=6))
        assert describe(site, DIFF2).fields["size"] == 6
        assert open_run(site, DIFF2, sizes=(6, 12, 4)).kind == "opened"
        few, all_records = ask(site, gradient()), ask(opened(tmp_path / "whole", DIFF2), gradient())
        assert few.fields["count"] == 6
        assert not np.allclose(few.arrays["value"], all_records.arrays["value"])
        larger = make_site(0, tmp_path / "larger", replace(ANYTHING, reported_size=9))
        assert refused(describe(larger, DIFF2), "fewer")

    def test_with_poisson_batches_it_has_places_for_as_many_records_as_it_reports(self, tmp_path):
        """Whether it has that many must not show: 9 are reported by sites with 8 records and with 12."""
        agreement = agreement_of("dpsgd, poisson")
        for index in (0, 1):
            site = make_site(index, tmp_path, replace(ANYTHING, smallest_size=9, reported_size=9))
            site.approve(agreement)
            fields = tell(site, DESCRIBE, agreement=agreement.to_json()).fields
            assert (fields["size"], fields["exact"]) == (9, False)
            assert open_run(site, agreement, sizes=(9, 9, 9)).kind == "opened"


class TestLedger:
    def test_refusals_are_recorded_at_the_site(self, tmp_path):
        site = opened(tmp_path, DIFF2)
        answer = ask(site, gradient(radius=5.0))
        found = read_site_ledger(site.ledger.path)
        assert len(found.refusals) == 1
        assert found.refusals[0].reason in answer.fields["reason"]
        assert "'north'" in answer.fields["reason"]

    def test_a_line_cut_off_by_a_crash_was_never_answered(self, tmp_path):
        site = opened(tmp_path, DIFF2)
        ask(site, gradient())
        os.truncate(site.ledger.path, site.ledger.path.stat().st_size - 5)
        again = opened(tmp_path, DIFF2)
        assert again.ledger.answers(RUN) == []
        assert ask(again, gradient(params=NEXT)).kind == ANSWER

    def test_two_processes_of_a_site_share_it(self, tmp_path):
        """The process of an earlier job may still be there when the next one begins."""
        old, new = opened(tmp_path, DIFF2), opened(tmp_path, DIFF2)
        first = ask(old, gradient())
        assert refused(ask(new, gradient(params=NEXT)), "answered already")
        assert ask(new, gradient()).arrays["value"].tobytes() == first.arrays["value"].tobytes()
        assert ask(new, difference()).kind == ANSWER
        assert refused(ask(old, difference(radius=1e-3)), "answered already")
        assert len(answer_labels(old.ledger.path)) == 2
        assert len(read_site_ledger(old.ledger.path).refusals) == 2

    def test_the_line_is_written_before_the_answer_leaves(self, tmp_path, monkeypatch):
        site = opened(tmp_path, DIFF2)
        monkeypatch.setattr(site.ledger, "record", lambda line: 1 / 0)
        assert ask(site, gradient()).kind == "refusal"
        assert site._last == ("", b"")


def test_what_goes_wrong_with_its_records_stays_at_the_site(tmp_path):
    def load(agreement):
        raise ValueError("patient 4711 has no age")

    site = Site("north", load, ANYTHING, tmp_path / "north")
    answer = describe(site, DIFF2)
    assert refused(answer, "site.log")
    assert "4711" not in answer.fields["reason"]
    assert "4711" not in site.ledger.path.read_text()
    log = tmp_path / "north" / "site.log"
    assert "4711" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


def test_the_catalogue_is_what_the_tests_above_take_it_for():
    assert Budget(2.0, 1e-3) == PRIVATE
    assert (diff2_with(STEP).clip_gradient, diff2_with(STEP).clip_smoothness) == (C1, C2)
    assert len(NAMES) == len(SIZES)
