"""``diff2 federate package``, ``join`` and ``submit``: federations across organisations."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .._numbers import epsilon_text
from .._progress import Show, progress_bar
from .console import command, emit_json, ending, show_facts
from .options import Json, Quiet, RunToml, shown

if TYPE_CHECKING:
    from ..federation.agreement import AnyAgreement
    from ..federation.flare.follow import Attempt

KitFolder = Annotated[Path, typer.Argument(metavar="KIT", help="The startup kit of a server or a site.")]
JobFolder = Annotated[Path, typer.Argument(metavar="JOB", help="The job folder of a package.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog="Example: diff2 federate package run.toml --out package --server fl.example.org --provision")(
        package
    )
    app.command(epilog="Example: diff2 federate join kit --site site.toml")(join)
    app.command(epilog="Example: diff2 federate submit job/run --kit kit")(submit)


def package(
    run_file: RunToml,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory for the package, with one folder per party.")],
    server: Annotated[str, typer.Option(metavar="HOST", help="The server's host name, for sites.")] = "localhost",
    admin: Annotated[str, typer.Option(metavar="EMAIL", help="The admin, who submits jobs.")] = "admin@diff2.local",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The server's port for sites.")] = 8002,
    admin_port: Annotated[int, typer.Option(min=1, max=65535, help="The server's port for the admin.")] = 8003,
    directory: Annotated[
        str, typer.Option(metavar="PATH", help="Directory of the run, below the server's kit.")
    ] = "runs/run",
    provision: Annotated[bool, typer.Option("--provision", help="Make all keys, certificates and kits here.")] = False,
    requests: Annotated[
        Path | None, typer.Option("--requests", metavar="DIR", help="Sign the requests of all parties, in this folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write what a deployment needs: provisioning input, job, and one folder per party with instructions."""
    with ending():
        require_flare()
        from ..federation.flare.package import check_directory, packageable, write_package
        from ..federation.flare.provisioning import Parties
        from ..runfile.fit import read_federated
        from ..runfile.reader import FederationSettings

        run = read_federated(run_file, None)
        packageable(run)
        check_directory(directory)
        sites = (run.federation or FederationSettings()).sites
        parties = Parties(sites, server, admin, port=port, admin_port=admin_port)
        folders = write_package(run, out, parties, directory=directory, with_kits=provision, requests=requests)
        if as_json:
            emit_json({name: str(folder) for name, folder in folders.items()})
        else:
            kits = "in every folder" if provision else "made by each party, as its README.md says"
            facts = {"what goes to whom": str(out / "README.md"), "kits": kits, "sites": ", ".join(sites)}
            show_facts("packaged", facts)


def join(
    kit: KitFolder,
    site: Annotated[Path | None, typer.Option("--site", metavar="SITE.toml", help="The site file of a site.")] = None,
) -> None:
    """Start the kit of the server, or of a site with its site.toml; it runs until it is stopped."""
    with ending():
        require_flare()
        from ..errors import InvalidArgument
        from ..federation.flare.job import SITE_VARIABLE
        from ..federation.flare.launch import read_kit, start_command
        from ..federation.flare.processes import run_in_foreground
        from ..federation.flare.provisioning import harden
        from ..federation.site.policy import read_site_file

        found = read_kit(kit)
        start = start_command(found)
        environment = {}
        if found.role == "site":
            if site is None:
                raise InvalidArgument(
                    f"this is the kit of the site {found.name!r}; give its site file: --site SITE.toml"
                )
            read_site_file(site)
            environment[SITE_VARIABLE] = str(site.resolve())
        elif site is not None:
            raise InvalidArgument("--site is for the kit of a site; this is the server's, which has no records")
        harden(found.path, found.path)
        if run_in_foreground(start, folder=found.path, environment=environment):
            raise typer.Exit(1)


def submit(
    job: JobFolder,
    kit: Annotated[Path, typer.Option("--kit", metavar="KIT", help="The startup kit of the admin.")],
    restarts: Annotated[int, typer.Option(min=0, help="New jobs to try if one stops.")] = 3,
    start_timeout: Annotated[float, typer.Option(help="Seconds for sites to connect and the job to start.")] = 120.0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Submit a job, follow it, and resume the run with a new job if it stops."""
    with ending(f"resume with: {command('diff2', 'federate', 'submit', job, '--kit', kit)}"):
        require_flare()
        from ..federation.flare.follow import submit as submit_job
        from ..federation.flare.job import read_job
        from ..federation.flare.launch import read_kit

        spec = read_job(job)
        with job_reporter(spec.agreement, show=shown(quiet or as_json)) as report:
            jobs = submit_job(job, read_kit(kit), restarts=restarts, start_timeout=start_timeout, report=report)
        if as_json:
            emit_json({"jobs": jobs, "directory": str(spec.directory)})
        elif not quiet:
            show_facts("trained over sites", {"jobs": str(jobs), "on the server, in its kit": str(spec.directory)})


@contextmanager
def job_reporter(agreement: AnyAgreement, *, show: Show) -> Iterator[Callable[[Attempt], None]]:
    """Yield a reporter: a bar with rounds, or of a fit the budget, and sites, and a line where a job stops."""
    fit = agreement.method == "fit"
    total, unit = (100, "% of the budget") if fit else (agreement.rounds, "rounds")
    with progress_bar(total, show=show, label="federated fit" if fit else "federated run", unit=unit) as bar:

        def report(attempt: Attempt) -> None:
            progress = attempt.progress
            if "stopped" in progress:
                print(f"job {attempt.number} stopped: {progress['stopped']} Trying again.", file=sys.stderr)
                return
            done, sites = progress.get("round", 0), progress.get("sites", {})
            answered = sum(round >= done for round in sites.values())
            spent = progress.get("epsilon")
            note = "" if spent is None else f"epsilon {epsilon_text(float(spent))} so far, "
            bar(done, note=f"{note}{answered}/{len(sites)} sites, job {attempt.number}")

        yield report


def require_flare() -> None:
    """Refuse a command that needs NVIDIA FLARE where it is not installed."""
    from ..errors import InvalidArgument

    try:
        from ..federation.flare import job  # noqa: F401
    except ImportError as error:
        raise InvalidArgument(
            f"a federation needs NVIDIA FLARE ({error}); install it with: pip install 'diff2[federation]'"
        ) from None
