"""Submit a packaged job with an admin's kit, follow it, and take the run up again as a new job where it stops.

The run lives on the server, in its directory below the server's kit; what it writes there for everyone (progress and
outcome) is read by FLARE's admin commands. Nothing else of it comes here.
"""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ...errors import Diff2Error, InvalidArgument
from ..server.order import OUTCOME, PROGRESS, Order, read_order
from .launch import Kit
from .local import Attempt, JobStopped, Report, quiet_flare, stopped

POLL = 1.0
PAUSE = 5.0  # seconds before a job is tried again
T = TypeVar("T")


def submit(
    job: Path,
    kit: Kit,
    *,
    restarts: int = 3,
    start_timeout: float = 120.0,
    report: Report = lambda attempt: None,
) -> int:
    """Have the server carry out a job; return how many jobs it took.

    Args:
        job: the folder that ``diff2 federate package`` wrote.
        kit: the admin's.
        restarts: how many further jobs may be tried.
        start_timeout: seconds within which enough sites must be there, and a job be under way.
        report: told how far the run is.
    """
    if kit.role != "admin":
        raise InvalidArgument(f"{kit.path} is the kit of a {kit.role}; jobs are submitted with the admin's")
    order = read_job(job)
    with quiet_flare():
        for number in range(1, restarts + 2):
            try:
                _one(job, kit, order, number, start_timeout, report)
                return number
            except JobStopped as error:
                if number == restarts + 1:
                    raise JobStopped(
                        f"{error} That was job {number}, the last that restarts={restarts} allows; the run is in its "
                        "checkpoint on the server, and the same command goes on with it"
                    ) from None
                report(Attempt(number, {"stopped": str(error)}))
                time.sleep(PAUSE)
    raise JobStopped("no job was tried")


def read_job(job: Path) -> Order:
    """Return the order in the folder of a job."""
    path = job / "app" / "config" / "config_fed_server.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        orders = fields["components"][0]["args"]["orders"]
        return read_order(orders[0])
    except FileNotFoundError:
        raise InvalidArgument(f"{job} is no job of ours: {path} does not exist") from None
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise InvalidArgument(f"{path} is damaged ({error!r})") from None


def _one(job: Path, kit: Kit, order: Order, number: int, start_timeout: float, report: Report) -> None:
    """Submit the job once and follow it to its end."""
    session = _connected(kit, order, start_timeout)
    try:
        before = _read(session, order, PROGRESS)
        name = session.submit_job(str(job.resolve()))
        heard, limit, last = time.monotonic(), start_timeout, before
        while True:
            status = _told(lambda: str(session.get_job_status(name)), "")
            progress = _read(session, order, PROGRESS)
            if progress is not None and progress != last:
                last, heard, limit = progress, time.monotonic(), start_timeout + 2 * order.timeout
                report(Attempt(number, progress))
            if status.startswith("FINISHED"):
                return _finished(session, order, status)
            if time.monotonic() - heard > limit:
                _told(lambda: session.abort_job(name), None)
                raise JobStopped(f"Nothing was heard of the job for {limit:g} s; it was aborted.")
            time.sleep(POLL)
    finally:
        _told(session.close, None)


def _finished(session: Any, order: Order, status: str) -> None:
    outcome = _read(session, order, OUTCOME) or {}
    if status == "FINISHED:COMPLETED" and outcome.get("state") == "done":
        return
    if outcome.get("state") == "stopped":
        raise stopped(outcome)
    raise JobStopped(f"FLARE ended the job: {status}; the server's {order.directory / OUTCOME} may say why.")


def _connected(kit: Kit, order: Order, patience: float) -> Any:
    """Return a session with the server, once enough sites are there."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    session, present, last = None, [], "no connection"
    least, deadline = order.minimum_sites or len(order.sites), time.monotonic() + patience
    while time.monotonic() < deadline:
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # it tells of its attempts
                session = session or new_secure_session(kit.name, str(kit.path), timeout=5.0)
            present = [client.name for client in session.get_system_info().client_info]
        except Exception as error:  # FLARE raises whatever comes; the server may not listen yet
            last = f"{type(error).__name__}: {error}"
        if session is not None and len(set(present) & set(order.sites)) >= least:
            return session
        time.sleep(POLL)
    if session is not None:
        _told(session.close, None)
    here = ", ".join(present) or f"none ({last})"
    raise JobStopped(f"Fewer than {least} sites were there within {patience:g} s; present: {here}.")


def _read(session: Any, order: Order, name: str) -> dict[str, Any] | None:
    """Return a small file of the run on the server, or None where it is not there yet."""
    text = _told(lambda: str(session.cat_target("server", file=(order.directory / name).as_posix())), "")
    try:
        fields = json.loads(text)
        return fields if isinstance(fields, dict) else None
    except ValueError:
        return None


def _told(ask: Callable[[], T], otherwise: T) -> T:
    """Return what the server says; it may be gone for the moment, which the time limit takes care of."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return ask()
    except Diff2Error:
        raise
    except Exception:
        return otherwise
