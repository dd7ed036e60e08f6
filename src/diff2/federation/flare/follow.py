"""Run a spec as FLARE jobs: wait for the sites, submit, report progress, and try a new job where one stops.

The run is kept in its directory. If a job stops because a process died or a site did not answer, a new job resumes the
run from its checkpoint. Refusals, and answers that cannot be right, are not retried.

A packaged job is submitted with an admin's kit. Its run is kept on the server, in its directory below the server's kit;
only its progress and outcome are read, by FLARE's admin commands.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ...errors import BudgetExceeded, Diff2Error, InvalidArgument
from .. import faults
from ..server import OUTCOME, PROGRESS
from ..server.job import JobSpec
from .job import read_job
from .launch import Kit

POLL, REMOTE_POLL, STATUS_POLL = 0.2, 1.0, 2.0  # seconds
MISSED = 3  # questions in a row that the server did not answer: it is gone
NOT_RETRIED = ("SiteRefused", "BadAnswer", "InvalidArgument", "CheckpointError", "LedgerError", "BudgetExceeded",
               "CannotWrite")  # fmt: skip

T = TypeVar("T")
Reader = Callable[[str], dict[str, Any] | None]  # from the name of a file in the run's directory to its fields
PAUSE = 5.0  # seconds before the next job


class Attempt(NamedTuple):
    """One job, as it is reported while it runs."""

    number: int  # from 1
    progress: dict[str, Any]  # the content of progress.json; with "stopped", why the job stopped


Report = Callable[[Attempt], None]


class JobStopped(faults.FederationError):
    """A job ended before its run was complete; a new job can resume it."""


def with_restarts(run: Callable[[int], None], restarts: int, report: Report, *, pause: float = 0.0) -> int:
    """Call ``run`` with the number of the job until the run is complete; return how many jobs it took."""
    for number in range(1, restarts + 2):
        try:
            run(number)
            return number
        except JobStopped as error:
            if number > restarts:
                raise JobStopped(
                    f"{error} That was job {number}, the last that restarts={restarts} allows; the same command "
                    "resumes the run from its checkpoint"
                ) from None
            report(Attempt(number, {"stopped": str(error)}))
            time.sleep(pause)
    raise JobStopped(f"expected restarts >= 0, got restarts={restarts}")


def follow(
    spec: JobSpec,
    number: int,
    read: Reader,
    ended: Callable[[], str],
    *,
    start_timeout: float,
    report: Report,
    poll: float = POLL,
) -> None:
    """Report progress until the run is complete; raise where the job stops.

    Args:
        read: returns progress or outcome of the run.
        ended: returns why the job is over, or "" while it runs.
    """
    earlier, last = read(OUTCOME), read(PROGRESS)  # of the job before this one
    heard, limit = time.monotonic(), start_timeout
    while True:
        why, progress = ended(), read(PROGRESS)
        outcome = read(OUTCOME)  # after asking whether the job is over: the outcome may be written last
        if progress is not None and progress != last:
            last, heard = progress, time.monotonic()
            limit = start_timeout + 2 * spec.timeout  # a round may ask several times, each with the whole timeout
            report(Attempt(number, progress))
        if outcome is not None and (outcome != earlier or why):
            if outcome.get("state") == "done":
                return
            raise error_of(outcome)
        if why:
            raise JobStopped(f"The job stopped: {why}.")
        if time.monotonic() - heard > limit:
            raise JobStopped(f"The job made no progress for {limit:g} s.")
        time.sleep(poll)


def error_of(outcome: dict[str, Any]) -> Diff2Error:
    """Return the error that ended a job; ``JobStopped`` where a new job may resume the run."""
    kind, message = str(outcome.get("error")), str(outcome.get("message"))
    if kind == "BudgetExceeded":
        return BudgetExceeded(message)
    if kind in NOT_RETRIED:
        error: Diff2Error = getattr(faults, kind, Diff2Error)(message)
        return error
    return JobStopped(message)


class Session:
    """An admin's connection to the server, once enough sites are connected. Use it in a ``with`` statement."""

    def __init__(self, kit: Kit, spec: JobSpec, timeout: float, failed: Callable[[], str] = lambda: ""):
        """Wait for the server and the sites at most ``timeout`` seconds; ``failed`` says why they cannot come."""
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        self._session: Any = None
        self._failed = failed
        deadline, present, last = time.monotonic() + timeout, set[str](), "no connection"
        while True:
            try:
                with contextlib.redirect_stdout(io.StringIO()):  # it prints its attempts
                    self._session = self._session or new_secure_session(kit.name, str(kit.path), timeout=5.0)
                present = {client.name for client in self._session.get_system_info().client_info} & set(spec.sites)
            except Exception as error:  # FLARE raises many kinds while the server does not listen yet
                last = f"{type(error).__name__}: {error}"
            if self._session is not None and len(present) >= spec.required_sites:
                return
            why = failed() or (f"not within {timeout:g} s" if time.monotonic() > deadline else "")
            if why:
                self.close()
                raise JobStopped(
                    f"{len(present)} of {len(spec.sites)} sites are connected, {spec.required_sites} are required: "
                    f"{why} ({', '.join(sorted(present)) or last})."
                )
            time.sleep(POLL)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._session is not None:
            _or(None, self._session.close)

    def run(
        self,
        job: Path,
        spec: JobSpec,
        number: int,
        *,
        start_timeout: float,
        report: Report,
        read: Reader | None = None,
    ) -> None:
        """Submit a job and follow it to its end; without ``read``, FLARE's admin commands read the run's files."""
        name, checked, missed = self._session.submit_job(str(job.resolve())), time.monotonic(), 0

        def ended() -> str:
            nonlocal checked, missed
            if time.monotonic() - checked < STATUS_POLL:
                return self._failed()
            status, checked = _or("", lambda: str(self._session.get_job_status(name))), time.monotonic()
            missed = 0 if status else missed + 1
            lost = "the server cannot be reached any more" if missed >= MISSED else ""
            return self._failed() or lost or (f"FLARE reports {status}" if status.startswith("FINISHED") else "")

        def cat(file: str) -> dict[str, Any] | None:
            path = (spec.directory / file).as_posix()
            try:
                fields = json.loads(_or("", lambda: str(self._session.cat_target("server", file=path))))
            except ValueError:
                return None
            return fields if isinstance(fields, dict) else None

        poll = REMOTE_POLL if read is None else POLL
        try:
            follow(spec, number, read or cat, ended, start_timeout=start_timeout, report=report, poll=poll)
        except JobStopped:
            if read is None:
                _or(None, lambda: self._session.abort_job(name))
            raise


@contextlib.contextmanager
def quiet_flare() -> Iterator[None]:
    """Silence FLARE's own messages while the server is not reachable."""
    log = logging.getLogger("nvflare")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)


def _or(default: T, ask: Callable[[], T]) -> T:
    """Return what the server answers, or a default while it cannot be reached."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return ask()
    except Exception:
        return default


def submit(
    job: Path,
    kit: Kit,
    *,
    restarts: int = 3,
    start_timeout: float = 120.0,
    report: Report = lambda attempt: None,
) -> int:
    """Have the server run a job; return how many FLARE jobs it took.

    Args:
        job: the folder that ``diff2 federate package`` wrote.
        kit: the admin's.
        restarts: how many further jobs may be tried.
        start_timeout: seconds within which enough sites must connect, and a job must start.
        report: called with the progress of the run.
    """
    if kit.role != "admin":
        raise InvalidArgument(f"{kit.path} is the kit of a {kit.role}; jobs are submitted with the admin's kit")
    spec = read_job(job)

    def run(number: int) -> None:
        with Session(kit, spec, start_timeout) as session:
            session.run(job, spec, number, start_timeout=start_timeout, report=report)

    with quiet_flare():
        return with_restarts(run, restarts, report, pause=PAUSE)
