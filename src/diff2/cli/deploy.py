"""``diff2 federate package``, ``join`` and ``submit``: across organisations, by FLARE's own provisioning and tools."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import command, emit_json, ending, show_facts
from .options import Json, Quiet, RunToml

if TYPE_CHECKING:
    from ..federation.flare.launch import Kit

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
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the package goes, one folder a party.")],
    server: Annotated[str, typer.Option(metavar="HOST", help="Name under which sites reach the server.")] = "localhost",
    admin: Annotated[str, typer.Option(metavar="EMAIL", help="Who submits jobs.")] = "admin@diff2.local",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the server for sites.")] = 8002,
    admin_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the server for the admin.")] = 8003,
    directory: Annotated[
        str, typer.Option(metavar="PATH", help="Where the run lives on the server, below its kit.")
    ] = "runs/run",
    provision: Annotated[bool, typer.Option("--provision", help="Make certificates and kits, by FLARE.")] = False,
    as_json: Json = False,
) -> None:
    """Write what a deployment needs: provisioning input, job, and one folder a party that says what to do."""
    with ending():
        _require_flare()
        from ..federation.flare.kits import Parties
        from ..federation.flare.package import check_directory, packable, write_package
        from ..runfile.reader import FederationSettings, read_run_file

        run = read_run_file(run_file, None)
        packable(run)
        check_directory(directory)
        sites = (run.federation or FederationSettings()).sites
        parties = Parties(sites, server, admin, port=port, admin_port=admin_port)
        folders = write_package(run, out, parties, directory=directory, with_kits=provision)
        if as_json:
            emit_json({name: str(folder) for name, folder in folders.items()})
        else:
            kits = "in every folder" if provision else f"nvflare provision -p {out / 'project.yml'}"
            facts = {"what goes to whom": str(out / "README.md"), "kits": kits, "sites": ", ".join(sites)}
            show_facts("packaged", facts)


def join(
    kit: KitFolder,
    site: Annotated[Path | None, typer.Option("--site", metavar="SITE.toml", help="The site file of a site.")] = None,
) -> None:
    """Start the kit of a site, with its site.toml, or of the server; it runs until it is stopped."""
    with ending():
        _require_flare()
        from ..errors import InvalidArgument
        from ..federation.flare.job import SITE_VARIABLE
        from ..federation.flare.kits import harden
        from ..federation.flare.launch import read_kit, start_command
        from ..federation.site.policy import read_site_file

        found = read_kit(kit)
        start = start_command(found)
        environment = dict(os.environ)
        if found.role == "site":
            if site is None:
                raise InvalidArgument(
                    f"the kit is that of the site {found.name!r}; say what it agrees to: --site SITE.toml"
                )
            read_site_file(site)
            environment[SITE_VARIABLE] = str(site.resolve())
        elif site is not None:
            raise InvalidArgument("--site is for the kit of a site; this is the server's, which has no records")
        harden(found.path, found.path)
        _until_stopped(found, start, environment)


def submit(
    job: JobFolder,
    kit: Annotated[Path, typer.Option("--kit", metavar="KIT", help="The startup kit of the admin.")],
    restarts: Annotated[int, typer.Option(min=0, help="New jobs to try where one stops.")] = 3,
    start_timeout: Annotated[float, typer.Option(help="Seconds until all must be there and under way.")] = 120.0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Submit a job, follow it, and go on with the run as a new job where it stops."""
    with ending(f"go on with: {command('diff2', 'federate', 'submit', job, '--kit', kit)}"):
        _require_flare()
        from ..federation.flare.launch import read_kit
        from ..federation.flare.submit import read_job
        from ..federation.flare.submit import submit as submit_job
        from .federate import progress_bar

        order = read_job(job)
        with progress_bar(order.agreement.algorithm.rounds, show=False if quiet or as_json else None) as report:
            jobs = submit_job(job, read_kit(kit), restarts=restarts, start_timeout=start_timeout, report=report)
        if as_json:
            emit_json({"jobs": jobs, "directory": str(order.directory)})
        elif not quiet:
            show_facts("trained at sites", {"jobs": str(jobs), "on the server, in its kit": str(order.directory)})


def _until_stopped(kit: Kit, start: list[str], environment: dict[str, str]) -> None:
    """Run FLARE's process in the foreground; whatever stops this command stops it."""
    from ..federation.flare.processes import end_with_parent

    process = subprocess.Popen(start, cwd=kit.path, env=environment, preexec_fn=end_with_parent)
    try:
        status = process.wait()
    except KeyboardInterrupt:
        status = 0
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    if status:
        raise typer.Exit(1)


def _require_flare() -> None:
    from ..errors import InvalidArgument

    try:
        import nvflare  # noqa: F401
    except ImportError as error:
        raise InvalidArgument(
            f"a federation needs NVIDIA FLARE ({error}); install it with: pip install 'diff2[federation]'"
        ) from None
