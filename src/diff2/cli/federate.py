"""``diff2 federate``: the same training over sites that keep their records."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._numbers import epsilon_text
from .console import command, emit_json, ending, show_facts, show_guarantee, show_rows
from .deploy import register
from .options import DataDir, Json, Quiet, RunToml, Seed

if TYPE_CHECKING:
    from ..federation.flare.local import Attempt

federate_app = typer.Typer(
    name="federate",
    help="Train over sites that keep their records, on NVIDIA FLARE.",
    no_args_is_help=True,
)

Out = Annotated[Path, typer.Option(metavar="DIR", help="Where model, ledger and result go.")]
Sites = Annotated[
    Path | None,
    typer.Option(
        "--sites", metavar="DIR", help="Folder with NAME/site.toml for every site; without it, clients of \\[data]."
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in DIR.")]
Restarts = Annotated[
    int | None, typer.Option(min=0, help="New jobs to try where one stops; default: as \\[federation] says, or 3.")
]


@federate_app.command(epilog="Example: diff2 federate simulate run.toml --out runs/simulated")
def simulate(
    run_file: RunToml,
    out: Out,
    sites: Sites = None,
    resume: Resume = False,
    seed: Seed = None,
    restarts: Restarts = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train over sites in FLARE's simulator on this machine."""
    _here("simulate", run_file, out, sites, resume, seed, restarts, data_dir, as_json, quiet)


@federate_app.command(epilog="Example: diff2 federate local run.toml --out runs/local")
def local(
    run_file: RunToml,
    out: Out,
    sites: Sites = None,
    resume: Resume = False,
    seed: Seed = None,
    restarts: Restarts = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train over sites with a server and one process a site on 127.0.0.1: started, run, and stopped."""
    _here("local", run_file, out, sites, resume, seed, restarts, data_dir, as_json, quiet)


@federate_app.command(epilog="Example: diff2 federate status runs/local")
def status(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a run.")], as_json: Json = False
) -> None:
    """Say how far a run at sites is: rounds, which sites answered, epsilon spent, time left."""
    with ending():
        from .._files import read_json
        from ..errors import InvalidArgument
        from ..federation.server.order import OUTCOME, PROGRESS

        progress, outcome = read_json(directory / PROGRESS), read_json(directory / OUTCOME)
        if progress is None and outcome is None:
            raise InvalidArgument(f"no run at sites in {directory}, or its first round is not over yet")
        document = {**(progress or {}), "outcome": outcome or {"state": "running, or killed"}}
        if as_json:
            emit_json(document)
        else:
            show_facts(str(directory), _facts(document))


@federate_app.command(epilog="Example: diff2 federate ledger sites/north/site.toml")
def ledger(
    site_file: Annotated[Path, typer.Argument(metavar="SITE.toml", help="The site file of a site.")],
    as_json: Json = False,
) -> None:
    """Show what a site has agreed to and answered, from its own ledger and nothing else."""
    with ending():
        from ..errors import InvalidArgument
        from ..federation.site.ledger import read_site_ledger
        from ..federation.site.policy import read_site_file

        site = read_site_file(site_file)
        path = site.directory / "ledger.jsonl"
        if not path.exists():
            raise InvalidArgument(f"{path} does not exist: the site has taken part in nothing yet")
        found = read_site_ledger(path)
        rows: list[dict[str, Any]] = [
            {
                "run": run.run,
                "algorithm": run.algorithm,
                "epsilon": run.epsilon,
                "delta": run.delta,
                "epsilon_against_server": found.epsilon_against_server(run.run),
                "answers": found.count(run.run),
                "complete": run.run in found.ended,
            }
            for run in found.runs.values()
        ]
        total = {"site": found.site, "epsilon": found.epsilon, "delta": found.delta, "allowed": site.policy.epsilon}
        if as_json:
            emit_json({**total, "runs": rows, "refusals": found.refusals})
            return
        table = [
            [row["run"][:12], row["algorithm"], epsilon_text(row["epsilon"]), f"{row['delta']:g}",
             epsilon_text(row["epsilon_against_server"]), str(row["answers"]), "complete" if row["complete"] else "open"]
            for row in rows
        ]  # fmt: skip
        show_rows(
            f"site {found.site}",
            table,
            ["run", "algorithm", "epsilon", "delta", "server", "answers", "state"],
            width=100,
        )
        show_facts(
            "in total",
            {
                "epsilon": f"{epsilon_text(found.epsilon)} of {epsilon_text(site.policy.epsilon)}",
                "refusals": "; ".join(found.refusals[-5:]) or "none",
            },
        )


register(federate_app)


def _here(
    kind: str,
    run_file: Path,
    out: Path,
    sites: Path | None,
    resume: bool,
    seed: int | None,
    restarts: int | None,
    data_dir: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    again: list[object] = ["--sites", sites] if sites is not None else []
    again += ["--seed", seed] if seed is not None else []
    advice = f"go on with: {command('diff2', 'federate', kind, run_file, '--out', out, '--resume', *again)}"
    with ending(advice):
        from .._files import read_json
        from ..federation.from_run_file import order_of
        from ..runfile.reader import FederationSettings, read_run_file
        from ..runfile.run import require_free

        run = read_run_file(run_file, data_dir)
        require_free(out, resume)
        run_here = _engine()
        order, folder = order_of(run, out, sites=sites, seed=seed)
        settings = run.federation or FederationSettings()
        with progress_bar(order.agreement.algorithm.rounds, show=False if quiet or as_json else None) as report:
            jobs = run_here(
                order,
                folder,
                simulate=kind == "simulate",
                restarts=settings.restarts if restarts is None else restarts,
                start_timeout=settings.start_timeout,
                report=report,
            )
        document = read_json(out / "result.json") or {}
        if as_json:
            emit_json({**document, "directory": str(out), "jobs": jobs})
        elif not quiet:
            _show(out, document, jobs)


def _engine() -> Callable[..., int]:
    """Return what carries out orders on this machine; FLARE is an extra."""
    from ..errors import InvalidArgument

    try:
        from ..federation.flare.local import run_here
    except ImportError as error:
        raise InvalidArgument(
            f"a federation needs NVIDIA FLARE ({error}); install it with: pip install 'diff2[federation]'"
        ) from None
    return run_here


@contextmanager
def progress_bar(rounds: int, *, show: bool | None) -> Iterator[Callable[[Attempt], None]]:
    """Yield a reporter: a bar with rounds, epsilon, sites and the time left, and a line where a job stops."""

    def stopped(attempt: Attempt) -> None:
        if "stopped" in attempt.progress:
            print(f"job {attempt.number} stopped: {attempt.progress['stopped']} Trying again.", file=sys.stderr)

    if not (sys.stderr.isatty() if show is None else show):
        yield stopped
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("[bold]job {task.fields[job]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds  epsilon {task.fields[epsilon]}  {task.fields[sites]}  {task.fields[left]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=rounds, job=1, epsilon="-", sites="starting", left="")

        def report(attempt: Attempt) -> None:
            stopped(attempt)
            done, heard = attempt.progress.get("round", 0), attempt.progress.get("sites", {})
            here = sum(round >= done for round in heard.values())
            left = attempt.progress.get("seconds_left")
            bar.update(
                task,
                completed=done,
                job=attempt.number,
                epsilon=_epsilon(attempt.progress.get("epsilon")),
                sites=f"{here}/{len(heard)} sites" if heard else "starting",
                left="" if left is None else f"{left:.0f} s left",
            )

        yield report


def _facts(document: dict[str, Any]) -> dict[str, str]:
    outcome = document["outcome"]
    heard = ", ".join(f"{site} (round {round})" for site, round in document.get("sites", {}).items())
    return {
        "state": str(outcome.get("state")) + (f": {outcome['message']}" if "message" in outcome else ""),
        "rounds": f"{document.get('round', 0)} of {document.get('rounds', '?')}",
        "sites answered": heard or "-",
        "epsilon spent": _epsilon(document.get("epsilon")),
        "time left": f"{document.get('seconds_left', 0):.0f} s",
    }


def _show(out: Path, document: dict[str, Any], jobs: int) -> None:
    clients = document.get("clients", [])
    facts = {
        "sites": ", ".join(f"{client['name']} ({client['records']} records)" for client in clients),
        "rounds": str(document.get("rounds")),
        "seconds": f"{document.get('seconds', 0):.1f}",
        "jobs": str(jobs),
        "model": str(out / "model.pt") if (out / "model.pt").exists() else "at the sites; the server has not seen it",
    }
    show_facts("trained at sites", facts)
    show_guarantee(str(document.get("guarantee", {}).get("sentence", "")))


def _epsilon(value: Any) -> str:
    return "-" if value is None else epsilon_text(float(value))
