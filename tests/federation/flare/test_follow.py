"""Following a job from afar: a server that is gone is noticed at once, not when the time for progress is over."""

import pytest

from diff2.federation.flare import follow
from diff2.federation.flare.follow import JobStopped, Session
from diff2.federation.server.job import JobSpec
from federated import agreement_of


class Lost:
    """A server that answers a few questions, and is then gone."""

    def __init__(self, answers):
        self.left = answers

    def submit_job(self, job):
        return "job 1"

    def get_job_status(self, job):
        self.left -= 1
        if self.left < 0:
            raise ConnectionError("refused")
        return "RUNNING"

    def cat_target(self, *_, **__):
        raise ConnectionError("refused")

    def abort_job(self, job):
        raise ConnectionError("refused")


def test_a_server_that_is_gone_is_noticed(tmp_path, monkeypatch):
    for name in ("POLL", "REMOTE_POLL", "STATUS_POLL"):
        monkeypatch.setattr(follow, name, 0.0)
    session = Session.__new__(Session)
    session._session, session._failed = Lost(5), lambda: ""
    with pytest.raises(JobStopped, match="the server cannot be reached any more"):
        session.run(
            tmp_path, JobSpec(agreement_of("diff2"), tmp_path), 1, start_timeout=2.0, report=lambda attempt: None
        )


def test_one_question_that_is_not_answered_stops_nothing(tmp_path, monkeypatch):
    for name in ("POLL", "REMOTE_POLL", "STATUS_POLL"):
        monkeypatch.setattr(follow, name, 0.0)
    server = Lost(0)
    answers = iter(
        ["RUNNING", ConnectionError(), ConnectionError(), "RUNNING", ConnectionError(), "FINISHED:COMPLETED"]
    )

    def status(job):
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    server.get_job_status = status
    session = Session.__new__(Session)
    session._session, session._failed = server, lambda: ""
    with pytest.raises(JobStopped, match="FLARE reports FINISHED:COMPLETED"):
        session.run(
            tmp_path, JobSpec(agreement_of("diff2"), tmp_path), 1, start_timeout=2.0, report=lambda attempt: None
        )
