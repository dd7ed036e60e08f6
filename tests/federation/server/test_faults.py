"""What goes wrong between server and sites stops the run cleanly, before anything of that question is released."""

import threading
import time
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

import diff2
from catalogue import PRIVATE, SIZES, run
from diff2._files import locked, read_json
from diff2.federation.faults import BadAnswer, SiteRefused, SitesMissing
from diff2.federation.server import OUTCOME, PROGRESS
from diff2.federation.server import job as jobs
from diff2.federation.server.job import JobSpec, read_job_spec, run_job
from diff2.federation.site.policy import Policy
from diff2.federation.wire.messages import Message, digest, read, write
from diff2.federation.wire.request import ANSWER, ASK
from diff2.federation.wire.transport import InProcessTransport
from diff2.runfile.run import load_model
from federated import (
    NAMES,
    agreement_of,
    answer_labels,
    approving,
    federated_run,
    in_process,
    lines,
    make_sites,
    quiet_prepare,
    same_result,
)

AGREEMENT = agreement_of("diff2")


@cache
def expected():
    return run("diff2", budget=PRIVATE, seed=1, by_client=True)


class Faulty:
    """A site that misbehaves in one round."""

    def __init__(self, site, fault, round=4):  # a restart: a gradient, clipped to 2
        self._site, self._fault, self._round = site, fault, round

    def approve(self, agreement):
        self._site.approve(agreement)

    def answer(self, payload):
        message = read(payload)
        if message.kind != ASK or message.fields["parts"][0]["round"] != self._round:
            return self._site.answer(payload)
        return self._fault(self._site, payload)


def changed(**changes):
    """A fault: the right answer with something changed."""

    def fault(site, payload):
        answer = read(site.answer(payload))
        fields = {**answer.fields, **{k: v for k, v in changes.items() if k in ("request", "count")}}
        value = changes.get("value", lambda value: value)(answer.arrays["value"])
        return write(Message(changes.get("kind", ANSWER), fields, {changes.get("name", "value"): value}))

    return fault


def with_one(value):
    return lambda vector: np.concatenate([vector[:-1], [value]])


GARBAGE = {
    "NaN": changed(value=with_one(np.nan)),
    "infinite": changed(value=with_one(np.inf)),
    "too long": changed(value=lambda vector: vector / np.linalg.norm(vector) * 1e3),
    "a little too long": changed(value=lambda vector: vector / np.linalg.norm(vector) * SIZES[1] * 2.0 * 1.001),
    "too few numbers": changed(value=lambda vector: vector[:-1]),
    "too many numbers": changed(value=lambda vector: np.append(vector, 0.0)),
    "a matrix": changed(value=lambda vector: vector.reshape(1, -1)),
    "single precision": changed(value=lambda vector: vector.astype(np.float32)),
    "another count": changed(count=SIZES[1] + 1),
    "no count": changed(count=None),
    "another question": changed(request=digest(b"another")),
    "another kind": changed(kind="opened"),
    "another name": changed(name="sum"),
    "no message": lambda site, payload: b"\x80\x04K\x01.",
    "nothing": lambda site, payload: b"",
}


def faulty(directory, fault, **options):
    sites = make_sites(directory / "sites")
    return {**sites, "south": Faulty(sites["south"], fault, **options)}


def released(directory):
    return [line["round"] for line in lines(directory / "server" / "ledger.jsonl") if line["kind"] == "release"]


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_stops_the_run_before_anything_is_released(name, tmp_path):
    with pytest.raises(BadAnswer, match="'south'"):
        federated_run(AGREEMENT, tmp_path, faulty(tmp_path, GARBAGE[name], round=1))
    assert released(tmp_path) == []


def test_a_vector_as_long_as_clipping_allows_is_taken(tmp_path):
    fault = changed(value=lambda vector: vector / np.linalg.norm(vector) * SIZES[1] * 2.0)
    result, _ = federated_run(AGREEMENT, tmp_path, faulty(tmp_path, fault))
    assert torch.isfinite(result.params).all()


def test_an_old_answer_is_not_taken_for_a_new_one(tmp_path):
    """A message that is delivered late, or twice, belongs to another question."""
    old = []

    class Late(Faulty):
        def answer(self, payload):
            answer = self._site.answer(payload)
            if read(payload).kind == ASK:
                old.append(answer)
            return old[-2] if len(old) > 3 else answer

    sites = make_sites(tmp_path / "sites")
    with pytest.raises(BadAnswer, match="another question"):
        federated_run(AGREEMENT, tmp_path, {**sites, "south": Late(sites["south"], None)})
    assert released(tmp_path) == [1, 2, 3]


def test_a_question_delivered_twice_changes_nothing(tmp_path):
    class Twice(Faulty):
        def answer(self, payload):
            first, second = self._site.answer(payload), self._site.answer(payload)
            assert first == second
            return first

    sites = {name: Twice(site, None) for name, site in make_sites(tmp_path / "sites").items()}
    result, _ = federated_run(AGREEMENT, tmp_path, sites)
    same_result(result, expected())
    for name in NAMES:
        assert len(answer_labels(tmp_path / "sites" / name / "ledger.jsonl")) == 7


class TestMissing:
    def test_a_site_that_never_answers_is_waited_for_no_longer_than_the_timeout(self, tmp_path):
        over, began = threading.Event(), []

        def silent(site, payload):
            began.append(time.monotonic())
            over.wait()

        with pytest.raises(SitesMissing, match=r"'south' within 1 s.*checkpoint"):
            federated_run(AGREEMENT, tmp_path, faulty(tmp_path, silent), timeout=1.0)
        assert 0.9 < time.monotonic() - began[0] < 5
        over.set()
        assert released(tmp_path) == [1, 2, 3]
        result, _ = federated_run(AGREEMENT, tmp_path, make_sites(tmp_path / "sites"), resume=True)
        same_result(result, expected())

    def test_a_site_that_fails_is_missing(self, tmp_path):
        def fault(site, payload):
            raise ConnectionError("gone")

        with pytest.raises(SitesMissing, match="ConnectionError: gone"):
            federated_run(AGREEMENT, tmp_path, faulty(tmp_path, fault))
        assert released(tmp_path) == [1, 2, 3]

    def test_the_mean_is_never_taken_over_fewer(self, tmp_path):
        """Not even where a site is left out of the transport between two questions."""
        transport = in_process(approving(make_sites(tmp_path / "sites"), AGREEMENT))
        training = quiet_prepare(AGREEMENT, transport, tmp_path / "server")
        del transport._sites["east"]
        with pytest.raises(SitesMissing, match="'east'"):
            training.run(progress=False)

    def test_a_run_does_not_begin_without_all_its_sites(self, tmp_path):
        sites = make_sites(tmp_path / "sites")
        two = InProcessTransport({name: sites[name].answer for name in NAMES[:2]})
        with pytest.raises(SitesMissing, match="'east' of the run's 3 sites are not connected"):
            quiet_prepare(AGREEMENT, two, tmp_path / "server")
        assert not (tmp_path / "server").exists()


class TestRefusals:
    def test_the_server_hears_why(self, tmp_path):
        sites = make_sites(tmp_path / "sites", Policy(epsilon=1.0, delta=1e-3))
        with pytest.raises(SiteRefused, match=r"site 'north': the run costs epsilon=2 .* allows epsilon=1"):
            federated_run(agreement_of("diff2", seed=None), tmp_path, sites)
        assert not (tmp_path / "server" / "ledger.jsonl").exists()

    def test_a_bad_description_is_refused(self, tmp_path):
        for fields in ({"site": "south", "size": 0}, {"site": "south", "size": "many"}, {"site": "x", "size": 3}):
            sites = make_sites(tmp_path / "sites")
            answer = write(Message("description", fields))
            sites["south"].answer = lambda payload, answer=answer: answer
            with pytest.raises(BadAnswer, match="'south' does not describe itself"):
                federated_run(AGREEMENT, tmp_path, sites)


class TestResuming:
    def test_other_sites_are_refused(self, tmp_path):
        federated_run(AGREEMENT, tmp_path)
        transport = in_process(make_sites(tmp_path / "sites"))
        with pytest.raises(diff2.CheckpointError, match="has the sites"):
            quiet_prepare(AGREEMENT, transport, tmp_path / "server", NAMES[:2], resume=True)
        with pytest.raises(diff2.CheckpointError, match="resume it"):
            quiet_prepare(AGREEMENT, transport, tmp_path / "server")

    def test_other_records_at_a_site_are_refused(self, tmp_path):
        with pytest.raises(BadAnswer):
            federated_run(AGREEMENT, tmp_path, faulty(tmp_path, GARBAGE["NaN"]))
        sites = make_sites(tmp_path / "sites")
        records = sites["east"]._holdings.records(AGREEMENT)
        records.client.inputs[0] += 1
        sites["east"]._holdings.load = lambda agreement: records
        with pytest.raises(SiteRefused, match="other records"):
            federated_run(AGREEMENT, tmp_path, sites, resume=True)

    def test_a_site_that_forgot_the_run_is_noticed_by_the_server(self, tmp_path):
        """Its ledger was lost, so it takes a new key, whatever its records are now: the server sees that."""
        private = agreement_of("diff2", seed=None)
        with pytest.raises(BadAnswer):
            federated_run(private, tmp_path, faulty(tmp_path, GARBAGE["NaN"]))
        (tmp_path / "sites" / "east" / "ledger.jsonl").unlink()
        with pytest.raises(diff2.CheckpointError, match="other records"):
            federated_run(private, tmp_path, make_sites(tmp_path / "sites"), resume=True)


@pytest.mark.filterwarnings("ignore::diff2.PrivacyLeakWarning")
class TestJobs:
    def run_job(self, directory, sites=None, names=NAMES, **changes):
        spec = JobSpec(replace(AGREEMENT, **changes), directory / "server", timeout=5.0)
        assert read_job_spec(spec.to_text()) == spec
        sites = approving(sites or make_sites(directory / "sites"), spec.agreement)
        return run_job(spec, in_process({name: sites[name] for name in names}))

    def test_it_leaves_progress_outcome_and_model(self, tmp_path):
        result = self.run_job(tmp_path)
        same_result(result, expected())
        assert read_json(tmp_path / "server" / OUTCOME)["state"] == "done"
        progress = read_json(tmp_path / "server" / PROGRESS)
        assert (progress["round"], progress["rounds"]) == (7, 7)
        assert progress["sites"] == dict.fromkeys(NAMES, 7)
        assert progress["epsilon"] == result.epsilon
        assert progress["bytes_received"] == 7 * 3 * 8 * result.params.numel()
        saved = load_model(tmp_path / "server").model
        assert torch.equal(torch.nn.utils.parameters_to_vector(saved.parameters()), result.params)

    def test_a_run_that_is_complete_is_not_run_again(self, tmp_path):
        first = self.run_job(tmp_path)
        same_result(self.run_job(tmp_path), first)

    def test_two_jobs_do_not_work_on_one_run(self, tmp_path, monkeypatch):
        monkeypatch.setattr(jobs, "PATIENCE", 0.3)
        with (
            locked(tmp_path / "server" / "lock", "a run", patience=0),
            pytest.raises(diff2.errors.Diff2Error, match="another"),
        ):
            self.run_job(tmp_path)
        assert not (tmp_path / "server" / "ledger.jsonl").exists()
        self.run_job(tmp_path)

    def test_why_it_stopped_is_written_down(self, tmp_path):
        sites = faulty(tmp_path, GARBAGE["too long"])
        with pytest.raises(BadAnswer):
            self.run_job(tmp_path, sites)
        outcome = read_json(tmp_path / "server" / OUTCOME)
        assert (outcome["state"], outcome["error"]) == ("stopped", "BadAnswer")
        assert "'south'" in outcome["message"]

    def test_too_few_sites(self, tmp_path):
        with pytest.raises(SitesMissing, match="2 of 3 sites are connected, at least 3 are required; missing: 'east'"):
            run_job(JobSpec(AGREEMENT, tmp_path / "server"), InProcessTransport(dict.fromkeys(NAMES[:2], None)))

    def test_a_run_that_began_with_enough_sites_keeps_to_those(self, tmp_path):
        result = self.run_job(tmp_path, names=NAMES[:2], minimum_sites=2)
        assert result.plan.client_sizes == SIZES[:2]
        assert result.ledger.header["client_sizes"] == list(SIZES[:2])
        first, second = result.ledger.releases[:2]
        assert first.sensitivity == 2 * 2.0 / (2 * 8)  # 2 C / (m n_min), of the two sites that are there
        assert second.round == 2
        again = self.run_job(tmp_path, minimum_sites=2)  # the third is there now, and is not part of it
        same_result(again, result)
