"""A federation on this machine: in FLARE's simulator, or with a server and one process per site on 127.0.0.1."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..._files import read_json, write_json
from ..server import OUTCOME
from ..server.job import JobSpec
from .follow import Report, Session, follow, quiet_flare, with_restarts
from .job import CLASSES, SITE_VARIABLE, write_job
from .launch import read_kit, start_command
from .processes import Processes
from .provisioning import Kits, provision_locally

SIMULATOR = "simulator"
WORKSPACE = "flare"  # in the directory of the run


def run_locally(
    spec: JobSpec,
    sites: Path,
    *,
    simulate: bool,
    restarts: int = 3,
    start_timeout: float = 120.0,
    report: Report = lambda attempt: None,
    started: Callable[[Processes], None] = lambda processes: None,
) -> int:
    """Run a job on this machine; return how many FLARE jobs it took.

    Args:
        sites: the folder with NAME/site.toml for every site.
        simulate: use FLARE's simulator instead of real processes.
        restarts: how many further jobs may be tried.
        start_timeout: seconds within which a job must start.
        report: called with the progress of the run.
        started: called with the processes of every job, once they are started.
    """
    options: dict[str, Any] = {"start_timeout": start_timeout, "report": report}

    def read(name: str) -> dict[str, Any] | None:
        return read_json(spec.directory / name)

    def run(number: int) -> None:
        (spec.directory / OUTCOME).unlink(missing_ok=True)
        workspace = _new_folder(spec.directory / WORKSPACE)
        job = write_job(workspace / "job", [spec], start_timeout=start_timeout)
        with quiet_flare(), Processes() as processes:
            if simulate:
                start_simulator(processes, job, workspace, spec.sites, sites)
                started(processes)
                follow(spec, number, read, ended=lambda: _failed(processes, spec), **options)
                return
            kits = provision_locally(workspace, spec.sites)
            _start_all(processes, kits, sites)
            started(processes)
            with Session(read_kit(kits.admin), spec, start_timeout, lambda: _failed(processes, spec)) as session:
                session.run(job, spec, number, read=read, **options)

    return with_restarts(run, restarts, report)


def start_simulator(processes: Processes, job: Path, workspace: Path, names: Sequence[str], sites: Path) -> None:
    """Start FLARE's simulator on a job."""
    simulation = workspace / "simulation"  # the simulator empties it first, except for "local"
    (simulation / "local").mkdir(parents=True)
    write_json(simulation / "local" / "resources.json", {"format_version": 2, "class_allow_list": list(CLASSES)})
    command = [sys.executable, "-m", "nvflare.private.fed.app.simulator.simulator", str(job)]
    command += ["-w", str(simulation), "-c", ",".join(names), "-t", str(len(names))]
    environment = {SITE_VARIABLE: str(sites.resolve()), **_threads(len(names))}
    processes.start(SIMULATOR, command, log=workspace / "simulator.log", environment=environment)


def _start_all(processes: Processes, kits: Kits, sites: Path) -> None:
    threads = _threads(len(kits.sites))
    for name, kit in {"server": kits.server, **kits.sites}.items():
        site = {} if name == "server" else {SITE_VARIABLE: str((sites / name / "site.toml").resolve())}
        environment = {**site, **threads}
        processes.start(name, start_command(read_kit(kit)), log=kit / "console.log", environment=environment)


def _failed(processes: Processes, spec: JobSpec) -> str:
    """Return which processes have ended, if the run cannot do without them."""
    gone = processes.ended()
    left = len([name for name in spec.sites if name not in gone])
    return f"ended: {', '.join(gone)}" if "server" in gone or SIMULATOR in gone or left < spec.required_sites else ""


def _threads(sites: int) -> dict[str, str]:
    """Divide the cores among the sites: if each used all of them, PyTorch's default, they would block each other."""
    if "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // sites))}


def _new_folder(folder: Path) -> Path:
    """Return a new folder for a job; those of earlier jobs stay, with their logs."""
    number = 1
    while (folder / f"job-{number}").exists():
        number += 1
    path = folder / f"job-{number}"
    path.mkdir(parents=True)
    return path.resolve()
