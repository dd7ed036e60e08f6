"""A federation on this machine: in FLARE's simulator, or with a server and one process a site on 127.0.0.1.

The run lives in its directory. Where a job stops, because a process died or a site did not answer, it is taken up again
as a new job, from the checkpoint, up to ``restarts`` times; refusals and answers that cannot be are not tried again.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._files import read_json, write_json
from ...errors import BudgetExceeded, Diff2Error
from .. import faults
from ..server.order import OUTCOME, PROGRESS, Order
from .job import CLASSES, SITE_VARIABLE, write_job
from .kits import ADMIN, Kits, provision_here
from .launch import read_kit, start_command
from .processes import Processes

POLL = 0.2
LASTING = ("SiteRefused", "BadAnswer", "InvalidArgument", "CheckpointError", "LedgerError", "BudgetExceeded")
WORKSPACE = "flare"  # in the directory of the run


@dataclass(frozen=True)
class Attempt:
    """One job, as it is reported while it runs."""

    number: int  # from 1
    progress: dict[str, Any]  # what progress.json says


Report = Callable[[Attempt], None]


class JobStopped(faults.FederationError):
    """A job ended without its run being complete."""


def run_here(
    order: Order,
    sites: Path,
    *,
    simulate: bool,
    restarts: int = 3,
    start_timeout: float = 120.0,
    report: Report = lambda attempt: None,
    started: Callable[[Processes], None] = lambda processes: None,
) -> int:
    """Carry out an order on this machine; return how many jobs it took.

    Args:
        sites: the folder with NAME/site.toml for every site.
        simulate: FLARE's simulator instead of real processes.
        restarts: how many further jobs may be tried.
        start_timeout: seconds within which a job must be under way.
        report: told how far the run is.
        started: given the processes of every job, once they are there.
    """
    attempt = _simulated if simulate else _real
    for number in range(1, restarts + 2):
        try:
            (order.directory / OUTCOME).unlink(missing_ok=True)
            workspace = _fresh(order.directory / WORKSPACE)
            attempt(order, sites, workspace, number, start_timeout, report, started)
            return number
        except JobStopped as error:
            if number == restarts + 1:
                raise JobStopped(
                    f"{error} That was job {number}, the last that restarts={restarts} allows; the run is in its "
                    "checkpoint, and the same command goes on with it"
                ) from None
            report(Attempt(number, {**(read_json(order.directory / PROGRESS) or {}), "stopped": str(error)}))
    raise JobStopped("no job was tried")


def _simulated(
    order: Order,
    sites: Path,
    workspace: Path,
    number: int,
    start_timeout: float,
    report: Report,
    started: Callable[[Processes], None],
) -> None:
    job = write_job(workspace / "job", "run", [order], start_timeout=start_timeout)
    simulation = workspace / "simulation"  # the simulator empties it first, but for "local"
    (simulation / "local").mkdir(parents=True)
    write_json(simulation / "local" / "resources.json", {"format_version": 2, "class_allow_list": list(CLASSES)})
    command = simulator_command(job, simulation, order.sites)
    with Processes() as processes:
        environment = _environment(sites, len(order.sites))
        processes.start("simulator", command, log=workspace / "simulator.log", environment=environment)
        started(processes)
        watch = _Watch(order, number, start_timeout, report)
        while not watch.done():
            if "simulator" in processes.ended():
                watch.final("the simulator ended")
            time.sleep(POLL)


def simulator_command(job: Path, workspace: Path, sites: Sequence[str]) -> list[str]:
    """Return the command that runs a job in FLARE's simulator."""
    module = "nvflare.private.fed.app.simulator.simulator"
    where = ["-w", str(workspace), "-c", ",".join(sites), "-t", str(len(sites))]
    return [sys.executable, "-m", module, str(job), *where]


def _real(
    order: Order,
    sites: Path,
    workspace: Path,
    number: int,
    start_timeout: float,
    report: Report,
    started: Callable[[Processes], None],
) -> None:
    kits = provision_here(workspace, order.sites)
    job = write_job(workspace / "job", "run", [order], start_timeout=start_timeout)
    with quiet_flare(), Processes() as processes:
        _start_all(processes, kits, sites)
        started(processes)
        watch = _Watch(order, number, start_timeout, report)
        session = _connected(kits, order, processes, watch)
        try:
            name = session.submit_job(str(job))
            checked = time.monotonic()
            while not watch.done():
                gone = processes.ended()
                if gone:
                    watch.final(f"{', '.join(gone)} ended")
                if time.monotonic() - checked > 2:
                    status, checked = _status(session, name), time.monotonic()
                    if status.startswith("FINISHED"):
                        watch.final(f"FLARE ended the job: {status}")
                time.sleep(POLL)
        finally:
            session.close()


@contextlib.contextmanager
def quiet_flare() -> Iterator[None]:
    """Keep FLARE's own messages about a server that is not there yet, or not any more, to itself."""
    log = logging.getLogger("nvflare")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)


def _start_all(processes: Processes, kits: Kits, sites: Path) -> None:
    threads = _threads(len(kits.sites))
    processes.start(
        "server", start_command(read_kit(kits.server)), log=kits.server / "console.log", environment=threads
    )
    for name, kit in kits.sites.items():
        place = _environment(sites / name / "site.toml", len(kits.sites))
        processes.start(name, start_command(read_kit(kit)), log=kit / "console.log", environment=place)


def _connected(kits: Kits, order: Order, processes: Processes, watch: _Watch) -> Any:
    """Return a session with the server, once enough sites are there."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    session, least = None, order.minimum_sites or len(order.sites)
    while True:
        present: list[str] = []
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # it tells of its attempts
                session = session or new_secure_session(ADMIN, str(kits.admin), timeout=5.0)
            present = [client.name for client in session.get_system_info().client_info]
        except Exception as error:  # FLARE raises whatever comes; the server may not listen yet
            watch.last = f"{type(error).__name__}: {error}"
        if session is not None and len(present) >= least:
            return session
        gone = processes.ended()
        if "server" in gone or len(order.sites) - sum(name != "server" for name in gone) < least or watch.too_late():
            if session is not None:
                session.close()
            raise JobStopped(
                f"{len(present)} of {len(order.sites)} sites were there in time"
                + (f"; ended: {', '.join(gone)}." if gone else f" ({watch.last}).")
            )
        time.sleep(POLL)


def _status(session: Any, name: str) -> str:
    try:
        return str(session.get_job_status(name))
    except Exception as error:  # the server may be gone, which the process will tell
        return f"unknown ({type(error).__name__})"


class _Watch:
    """Reads progress and outcome of a job, and knows when it is over or too late."""

    def __init__(self, order: Order, number: int, start_timeout: float, report: Report):
        self._order = order
        self._number = number
        self._report = report
        self._started = start_timeout
        self._heard = time.monotonic()
        self._last: dict[str, Any] | None = read_json(order.directory / PROGRESS)
        self._limit = start_timeout
        self.last = "no connection"

    def too_late(self) -> bool:
        return time.monotonic() - self._heard > self._limit

    def done(self) -> bool:
        """Report progress; return whether the run is complete; raise where the job has stopped."""
        outcome = read_json(self._order.directory / OUTCOME)
        if outcome is not None:
            if outcome["state"] == "done":
                self._report(Attempt(self._number, read_json(self._order.directory / PROGRESS) or {}))
                return True
            raise stopped(outcome)
        progress = read_json(self._order.directory / PROGRESS)
        if progress is not None and progress != self._last:
            self._last, self._heard = progress, time.monotonic()
            # A round may ask several times; each time a site has the whole timeout.
            self._limit = self._started + 2 * self._order.timeout
            self._report(Attempt(self._number, progress))
        if self.too_late():
            raise JobStopped(f"Nothing was heard of the job for {self._limit:g} s.")
        return False

    def final(self, why: str) -> None:
        """Look once more, for the outcome may have been written last; otherwise the job has stopped."""
        if not self.done():
            raise JobStopped(f"The job stopped: {why}.")


def stopped(outcome: dict[str, Any]) -> Diff2Error:
    """Return the error that ended a job; ``JobStopped`` where a new job may go on."""
    kind, message = str(outcome.get("error")), str(outcome.get("message"))
    if kind == "BudgetExceeded":
        return BudgetExceeded(message)
    if kind in LASTING:
        error: Diff2Error = getattr(faults, kind, Diff2Error)(message)
        return error
    return JobStopped(message)


def _environment(site: Path, sites: int) -> dict[str, str]:
    return {SITE_VARIABLE: str(site.resolve()), **_threads(sites)}


def _threads(sites: int) -> dict[str, str]:
    """Deal the cores out to the sites: with all of them to each, as PyTorch does, they wait for each other."""
    if "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // sites))}


def _fresh(folder: Path) -> Path:
    """Return a new folder for a job; those of earlier jobs stay, with their logs."""
    number = 1
    while (folder / f"job-{number}").exists():
        number += 1
    path = folder / f"job-{number}"
    path.mkdir(parents=True)
    return path.resolve()
