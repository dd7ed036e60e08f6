"""A site's ledger: what a run costs, who asked, lines that are safe before answers leave, and reading it."""

import builtins
import errno
import json
import math
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from commands import diff2_here
from diff2.federation.faults import Refusal
from diff2.federation.site import ledger as ledger_module
from diff2.federation.site.ledger import SiteBooks, read_site_ledger
from diff2.federation.site.policy import Policy, read_site_file
from diff2.federation.site.site import site_from_file
from diff2.federation.wire.messages import Message, read, write
from diff2.federation.wire.request import ANSWER, CLOSE, DESCRIBE
from diff2.federation.wire.transport import Caller
from federated import (
    RUN,
    agreement_of,
    ask,
    difference,
    gradient,
    lines,
    make_site,
    open_run,
    opened,
    refused,
    request,
    tell,
    write_sites,
)

PRIVATE = agreement_of("diff2", seed=None)  # costs epsilon 2 at delta 1e-3
POLICY = Policy(epsilon=6.0, delta=1e-2)
RUNS = [letter * 32 for letter in "abcdef"]


class TestCost:
    def test_runs_without_an_answer_cost_nothing(self, tmp_path):
        """Three opens used to spend a budget for three runs."""
        site = make_site(0, tmp_path, POLICY)
        for run in RUNS:
            assert open_run(site, PRIVATE, run).kind == "opened"
        assert (site.ledger.epsilon, site.ledger.delta) == (0.0, 0.0)
        assert ask(site, gradient(), run=RUNS[-1]).kind == ANSWER
        assert (site.ledger.epsilon, read_site_ledger(site.ledger.path).epsilon) == (2.0, 2.0)

    def test_a_run_costs_its_whole_plan_from_its_first_answer_on(self, tmp_path):
        site = make_site(0, tmp_path, POLICY)
        for spent, run in enumerate(RUNS[:3]):
            assert open_run(site, PRIVATE, run).kind == "opened"
            assert site.ledger.epsilon == 2.0 * spent
            assert ask(site, gradient(), run=run).kind == ANSWER
            assert ask(site, difference(), run=run).kind == ANSWER
            assert tell(site, CLOSE, run=run).kind == "closed"  # after two of its rounds: the price stays
        assert site.ledger.epsilon == 6.0
        assert refused(open_run(site, PRIVATE, RUNS[3]), "epsilon=8")
        assert refused(open_run(make_site(0, tmp_path, POLICY), PRIVATE, RUNS[3]), "epsilon=8")

    def test_a_refusal_states_no_epsilon_below_the_true_one(self):
        costly = replace(PRIVATE, privacy=replace(PRIVATE.privacy, epsilon=3.0000004))
        for policy in (Policy(epsilon=3.0, delta=1e-2), Policy(epsilon=9.0, delta=1e-2, max_epsilon_per_run=3.0)):
            with pytest.raises(Refusal, match=r"epsilon=3\.0001"):
                policy.check(costly)
        with pytest.raises(Refusal, match=r"epsilon=4\.0001"):
            Policy(epsilon=4.0, delta=1e-2).check_total(costly, 1.0, 0.0)

    def test_of_two_open_runs_the_one_that_is_answered_first_takes_what_is_left(self, tmp_path):
        """Both fit when they were opened, by two processes of the site; together they do not."""
        policy = Policy(epsilon=3.0, delta=1e-2)
        one, two = make_site(0, tmp_path, policy), make_site(0, tmp_path, policy)
        assert open_run(one, PRIVATE, RUNS[0]).kind == "opened"
        assert open_run(two, PRIVATE, RUNS[1]).kind == "opened"
        assert ask(two, gradient(), run=RUNS[1]).kind == ANSWER
        assert refused(ask(one, gradient(), run=RUNS[0]), "epsilon=4")
        assert one.ledger.epsilon == 2.0
        assert ask(two, difference(), run=RUNS[1]).kind == ANSWER  # a run that is paid for goes on

    def test_a_run_that_was_closed_without_an_answer_cost_nothing(self, tmp_path):
        site = make_site(0, tmp_path, POLICY)
        open_run(site, PRIVATE, RUNS[0])
        tell(site, CLOSE, run=RUNS[0])
        assert site.ledger.epsilon == 0.0
        assert refused(open_run(site, PRIVATE, RUNS[0]), "complete")

    def test_a_run_without_privacy_costs_everything(self, tmp_path):
        site = opened(tmp_path, agreement_of("diff2"))
        ask(site, gradient())
        assert site.ledger.epsilon == math.inf


class TestLines:
    CALLER = Caller("server", "job 7", "ada@example.org")

    def told(self, site, message):
        return read(site.answer(write(message), self.CALLER))

    def test_every_line_says_when_who_and_in_which_job(self, tmp_path):
        site = make_site(0, tmp_path, POLICY)
        site.approve(PRIVATE)
        fields = {"agreement": PRIVATE.to_json(), "run": RUN, "sites": ["north", "south", "east"], "sizes": [8, 12, 4]}
        began = datetime.now(UTC)
        assert self.told(site, Message("open", {**fields, "engine": PRIVATE.build_engine()[0].name})).kind == "opened"
        assert self.told(site, request(gradient()).message()).kind == ANSWER
        assert self.told(site, request(gradient(radius=9.0)).message()).kind == "refusal"
        assert self.told(site, Message(CLOSE, {"run": RUN})).kind == "closed"
        found = lines(site.ledger.path)
        assert [line["kind"] for line in found] == ["site", "run", "answer", "refusal", "end"]
        for line in found:
            time = datetime.fromisoformat(line["time"])
            assert time.utcoffset() == timedelta(0)
            assert began - timedelta(seconds=60) < time < datetime.now(UTC) + timedelta(seconds=1)
        for line in found[1:]:
            assert (line["caller"], line["job"], line["submitter"]) == self.CALLER

    def test_the_whole_agreement_is_in_the_line_of_its_run_once(self, tmp_path):
        site = opened(tmp_path, PRIVATE)
        ask(site, gradient())
        opened(tmp_path, PRIVATE)  # resumed
        runs = [line for line in lines(site.ledger.path) if line["kind"] == "run"]
        assert [line["terms"] for line in runs] == [PRIVATE.to_json()]
        assert read_site_ledger(site.ledger.path).runs[RUN].terms == PRIVATE.to_json()

    def test_the_line_is_on_the_disk_before_the_answer_leaves(self, tmp_path, monkeypatch):
        site, synced = opened(tmp_path, PRIVATE), []
        sync = os.fsync

        def watch(descriptor):
            sync(descriptor)
            synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

        monkeypatch.setattr(os, "fsync", watch)
        ask(site, gradient())
        assert str(site.ledger.path) in synced


class TestReading:
    def test_an_auditor_who_may_not_write_can_read_it(self, tmp_path, monkeypatch):
        site = opened(tmp_path, PRIVATE)
        ask(site, gradient())
        with open(site.ledger.path, "ab") as file:
            file.write(b'{"kind": "answ')  # another process is writing
        before = site.ledger.path.read_bytes()
        (tmp_path / "north" / "lock").unlink()
        refuse_writing(monkeypatch)
        found = read_site_ledger(site.ledger.path)
        assert (len(found.answers(RUN)), found.epsilon) == (1, 2.0)
        monkeypatch.undo()
        assert site.ledger.path.read_bytes() == before
        assert not (tmp_path / "north" / "lock").exists()

    def test_the_command_needs_no_more_either(self, tmp_path, monkeypatch):
        folder = write_sites(tmp_path / "sites") / "north"
        site = site_from_file("north", read_site_file(folder / "site.toml"))
        open_run(site, PRIVATE)
        tell(site, "records")
        refuse_writing(monkeypatch)
        found = json.loads(diff2_here("federate", "ledger", folder / "site.toml", "--json").stdout)
        assert found["epsilon"] == 0.0
        assert found["runs"][0]["agreement"] == PRIVATE.to_json()
        assert found["refusals"][0]["stamp"]["time"].startswith("20")
        table = diff2_here("federate", "ledger", folder / "site.toml", terminal_width="160").stdout
        assert "opened (UTC)" in table

    @pytest.mark.parametrize("length", [10, 300])
    def test_a_round_reads_what_was_written_since_and_no_more(self, tmp_path, monkeypatch, length):
        """Two jobs at once used to read the whole file for every answer."""
        one, two = make_site(0, tmp_path), make_site(0, tmp_path)
        open_run(one, PRIVATE, RUNS[0])
        open_run(two, PRIVATE, RUNS[1])
        tell(one, "records")
        text = json.dumps(lines(one.ledger.path)[-1])
        with open(one.ledger.path, "a", encoding="utf-8") as file:
            file.writelines(text + "\n" for _ in range(length))
        tell(one, "records")
        tell(two, "records")
        parsed, take = [], SiteBooks._take
        monkeypatch.setattr(SiteBooks, "_take", lambda books, *line: parsed.append(line) or take(books, *line))
        for site, run in ((one, RUNS[0]), (two, RUNS[1])) * 3:
            tell(site, DESCRIBE, agreement=PRIVATE.to_json())
            ask(site, gradient(), run=run)
        assert len(parsed) == 5  # the last refusal; two answers, taken by the process that gave it and by the other
        monkeypatch.undo()
        assert len(read_site_ledger(one.ledger.path).refusals) == length + 3

    def test_a_ledger_that_was_replaced_is_read_again(self, tmp_path):
        site = opened(tmp_path, PRIVATE)
        ask(site, gradient())
        path = site.ledger.path
        copy = path.with_name("copy")
        copy.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
        os.replace(copy, path)
        assert refused(tell(site, "records"), "")
        assert site.ledger.answers(RUN) == []


def refuse_writing(monkeypatch):
    """No file can be opened for writing, as in a folder of somebody else's."""
    opening, by_system = builtins.open, os.open

    def read_only(path, mode="r", *arguments, **named):
        if set(mode) & set("wax+"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return opening(path, mode, *arguments, **named)

    def system_read_only(path, flags, *arguments, **named):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise PermissionError(errno.EACCES, "Permission denied")
        return by_system(path, flags, *arguments, **named)

    monkeypatch.setattr(builtins, "open", read_only)
    monkeypatch.setattr(os, "open", system_read_only)


FULL = OSError(errno.ENOSPC, "No space left on device")


def full_disk(monkeypatch):
    """Every write stores half of what it is given, and then the disk is full."""
    write_some = os.write

    def half(descriptor, data):
        write_some(descriptor, bytes(data)[: len(data) // 2])
        raise FULL

    def fail(*_):
        raise FULL

    monkeypatch.setattr(os, "write", half)
    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr("diff2.federation.site.records.write_whole", fail)
    opening = builtins.open

    def no_logs(path, mode="r", *arguments, **named):
        return fail() if "site.log" in str(path) else opening(path, mode, *arguments, **named)

    monkeypatch.setattr(builtins, "open", no_logs)


class TestFullDisk:
    @pytest.mark.parametrize("fails", ["write", "fsync"])
    def test_it_is_reported_as_what_it_is_and_nothing_leaves(self, tmp_path, monkeypatch, fails):
        site = opened(tmp_path, PRIVATE)
        before = site.ledger.path.read_bytes()
        full_disk(monkeypatch)
        if fails == "fsync":
            monkeypatch.setattr(os, "write", lambda descriptor, data: len(data))
        payload = write(request(gradient()).message())
        answer = read(site.answer(payload))
        assert refused(answer, "an error at the site: it cannot write its ledger")
        assert "No space left on device" in answer.fields["reason"]
        assert answer.arrays == {}
        monkeypatch.undo()
        assert site.ledger.path.read_bytes() == before
        assert site.ledger.epsilon == 0.0
        assert read(site.answer(payload)).kind == ANSWER
        assert len(read_site_ledger(site.ledger.path).answers(RUN)) == 1

    def test_whatever_is_asked_it_answers(self, tmp_path, monkeypatch):
        site = opened(tmp_path, PRIVATE)
        full_disk(monkeypatch)
        for payload in (b"", b"x", write(Message("records", {"run": RUN})), write(Message(CLOSE, {"run": RUN}))):
            assert refused(read(site.answer(payload)), "cannot write its ledger")
        assert refused(open_run(site, PRIVATE, RUNS[0]), "cannot write its ledger")

    def test_a_lock_that_cannot_be_had_is_an_answer_too(self, tmp_path, monkeypatch):
        site = opened(tmp_path, PRIVATE)

        def fail(*_, **__):
            raise FULL

        monkeypatch.setattr(ledger_module, "locked", fail)
        assert refused(ask(site, gradient()), "cannot write its ledger")

    def test_a_damaged_ledger_is_an_answer_too_and_its_path_is_not_told(self, tmp_path):
        site = opened(tmp_path, PRIVATE)
        with open(site.ledger.path, "a", encoding="utf-8") as file:
            file.write("nonsense\n")
        answer = ask(site, gradient())
        assert refused(answer, "its ledger cannot be read")
        assert str(tmp_path) not in answer.fields["reason"]
