"""Submit a packaged job with an admin's kit, follow it, and resume the run with a new job where it stops.

The run is kept on the server, in its directory below the server's kit. Only its progress and outcome are read, by
FLARE's admin commands.
"""

from pathlib import Path

from ...errors import InvalidArgument
from .follow import Report, Session, quiet_flare, with_restarts
from .job import read_job
from .launch import Kit

PAUSE = 5.0  # seconds before the next job


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
