"""``diff2 federate``: the same training over sites that keep their records."""

from pathlib import Path
from typing import Annotated, Any

import typer

from .._numbers import epsilon_text
from .console import command, emit_json, ending, show_facts, show_guarantee, show_rows
from .deploy import job_reporter, register, require_flare
from .options import DataDir, Json, Quiet, RunToml, Seed, given, shown

federate_app = typer.Typer(
    name="federate",
    help="Fit or train over sites that keep their records, on NVIDIA FLARE.",
    no_args_is_help=True,
)

Out = Annotated[Path, typer.Option(metavar="DIR", help="Directory for model, ledger and result.")]
Sites = Annotated[
    Path | None,
    typer.Option(
        "--sites", metavar="DIR", help="Folder with NAME/site.toml for every site; default: the clients of \\[data]."
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the run in DIR.")]
Restarts = Annotated[
    int | None, typer.Option(min=0, help="New jobs to try if one stops; default: that of \\[federation], or 3.")
]


def _add_run_command(kind: str, summary: str) -> None:
    """Add a command that trains on this machine."""

    @federate_app.command(kind, help=summary, epilog=f"Example: diff2 federate {kind} run.toml --out runs/{kind}")
    def run(
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
        again = given({"sites": sites, "seed": seed, "data-dir": data_dir})
        with ending(f"resume with: {command('diff2', 'federate', kind, run_file, '--out', out, '--resume', *again)}"):
            require_flare()
            from .._files import read_json
            from ..federation.flare import local
            from ..federation.from_run_file import job_from_run_file
            from ..runfile.fit import read_federated
            from ..runfile.reader import FederationSettings
            from ..runfile.run import require_free

            file = read_federated(run_file, data_dir)
            require_free(out, resume)
            spec, folder = job_from_run_file(file, out, sites=sites, seed=seed)
            settings = file.federation or FederationSettings()
            with job_reporter(spec.agreement, show=shown(quiet or as_json)) as report:
                jobs = local.run_locally(
                    spec,
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


_add_run_command("simulate", "Fit or train over sites in FLARE's simulator on this machine.")
_add_run_command(
    "local", "Fit or train over sites on this machine: start a server and one process per site, run, stop them all."
)


@federate_app.command(epilog="Example: diff2 federate approve run.toml --site site.toml")
def approve(
    run_file: RunToml,
    site: Annotated[Path, typer.Option("--site", metavar="SITE.toml", help="The site file of this site.")],
    yes: Annotated[bool, typer.Option("--yes", help="Approve without asking.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only show the run and check the site's table.")] = False,
    seed: Seed = None,
) -> None:
    """Show what a run would do with this site's records, in plain words, and approve exactly that run."""
    with ending():
        import sys

        from ..errors import InvalidArgument
        from ..federation.from_run_file import agreement_of
        from ..federation.site.approval import approve as write_approval
        from ..federation.site.approval import review
        from ..federation.site.policy import read_site_file
        from ..runfile.fit import read_federated

        file, agreement = read_site_file(site), agreement_of(read_federated(run_file), seed)
        found = review(agreement, file)
        show_facts(f"the run {agreement.digest[:16]}", found.facts)
        show_facts("the records of this site", found.records)
        if found.problems:
            raise InvalidArgument("this site would refuse the run: " + "; ".join(found.problems))
        if check:
            return
        if not yes and not sys.stdin.isatty():
            raise InvalidArgument("there is no terminal to ask for approval; read the run, then add --yes")
        if not yes and not typer.confirm("Does this site take part in exactly this run?"):
            raise InvalidArgument("not approved")
        show_facts("approved", {"hash": agreement.digest, "file": str(write_approval(file.directory, agreement))})


@federate_app.command(epilog="Example: diff2 federate status runs/local")
def status(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a run.")], as_json: Json = False
) -> None:
    """Show the progress of a federated run: rounds, which sites answered, epsilon released so far, time left."""
    with ending():
        from .._files import read_json
        from ..errors import InvalidArgument
        from ..federation.server import OUTCOME, PROGRESS

        progress, outcome = read_json(directory / PROGRESS), read_json(directory / OUTCOME)
        if progress is None and outcome is None:
            raise InvalidArgument(f"no federated run in {directory}, or its first round is not complete yet")
        document = {**(progress or {}), "outcome": outcome or {"state": "running or killed"}}
        if as_json:
            emit_json(document)
        else:
            show_facts(str(directory), _facts(document))


@federate_app.command(epilog="Example: diff2 federate ledger sites/north/site.toml")
def ledger(
    site_file: Annotated[Path, typer.Argument(metavar="SITE.toml", help="The site file of a site.")],
    as_json: Json = False,
) -> None:
    """Show what a site has agreed to and answered, from its own ledger."""
    with ending():
        from ..errors import InvalidArgument
        from ..federation.site.ledger import read_site_ledger
        from ..federation.site.policy import read_site_file

        site = read_site_file(site_file)
        path = site.directory / "ledger.jsonl"
        if not path.exists():
            raise InvalidArgument(f"{path} does not exist: the site has not taken part in any run yet")
        found = read_site_ledger(path)
        rows: list[dict[str, Any]] = [
            {
                "run": run.run,
                **found.opened[run.run]._asdict(),
                "agreement": run.terms,
                "algorithm": run.algorithm,
                "epsilon": run.epsilon,
                "delta": run.delta,
                "charged": found.charged(run.run),
                "epsilon_against_server": found.epsilon_against_server(run.run),
                "answers": len(found.answers(run.run)),
                "complete": run.run in found.ended,
            }
            for run in found.runs.values()
        ]
        total = {"site": found.site, "epsilon": found.epsilon, "delta": found.delta, "allowed": site.policy.epsilon}
        if as_json:
            emit_json({**total, "runs": rows, "refusals": found.refusals})
            return
        table = [
            [row["run"][:12], row["time"][:16].replace("T", " "), row["submitter"] or row["caller"], row["algorithm"],
             epsilon_text(row["epsilon"] if row["charged"] else 0.0), f"{row['delta'] if row['charged'] else 0:g}",
             epsilon_text(row["epsilon_against_server"]), str(row["answers"]),
             "complete" if row["complete"] else "open"]
            for row in rows
        ]  # fmt: skip
        show_rows(
            f"site {found.site}",
            table,
            ["run", "opened (UTC)", "by", "algorithm", "epsilon", "delta", "server", "answers", "state"],
            width=120,
        )
        show_facts(
            "in total",
            {
                "epsilon": f"{epsilon_text(found.epsilon)} of {epsilon_text(site.policy.epsilon)}",
                "refusals": "; ".join(line.reason for line in found.refusals[-5:]) or "none",
            },
        )


register(federate_app)


def _facts(document: dict[str, Any]) -> dict[str, str]:
    outcome = document["outcome"]
    at = "round {}" if document.get("unit", "rounds") == "rounds" else "{} %"
    answered = ", ".join(f"{site} ({at.format(round)})" for site, round in document.get("sites", {}).items())
    spent = document.get("epsilon")
    return {
        "state": str(outcome.get("state")) + (f": {outcome['message']}" if "message" in outcome else ""),
        document.get("unit", "rounds"): f"{document.get('round', 0)} of {document.get('rounds', '?')}",
        "sites answered": answered or "-",
        "released so far": "-" if spent is None else f"epsilon {epsilon_text(float(spent))}, not a guarantee",
        "time left": f"{document.get('seconds_left', 0):.0f} s",
    }


def _show(out: Path, document: dict[str, Any], jobs: int) -> None:
    clients = document.get("clients", [])
    facts = {
        "sites": ", ".join(f"{client['name']} ({client['records']} records)" for client in clients),
        "rounds": str(document.get("rounds")),
        "seconds": f"{document.get('seconds', 0):.1f}",
        "jobs": str(jobs),
        "model": "at the sites; the server has not seen it",
    }
    fitted, model = (out / "preparation.json").exists(), out / "model.safetensors"
    if fitted:
        facts |= {"releases": facts.pop("rounds"), "model": str(out)}
        facts["predict"] = command("diff2", "predict", out, "new.csv", "--out", "predictions.csv")
    elif model.exists():
        facts["model"] = str(model)
    show_facts("fitted over sites" if fitted else "trained over sites", facts)
    show_guarantee(str(document.get("guarantee", {}).get("sentence", "")))
