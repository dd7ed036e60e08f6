"""The command line: ``diff2 fit``, ``predict``, ``schema``, ``train``, ``plan``, ``account``, ``verify``, ``compare``.

Exit status: 0 done, 1 failed, 2 wrong usage, 3 the privacy budget would be exceeded, 130 interrupted; of ``verify``
also 4 private apart from named leaks, 5 not private. What a command needs is imported when it runs, so that ``--help``
answers at once.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from .._version import __version__
from .budget import budget
from .console import command, emit_json, ending, show_warning
from .data import data_app
from .doctor import doctor
from .evaluate import evaluate
from .experiments import compare, demo, reproduce
from .federate import federate_app
from .fit import fit
from .init import init, run_schema
from .options import DataDir, Json, Quiet, RunToml, Seed, given, shown
from .predict import predict
from .report import report
from .reports import account_document, show_account, show_preview, show_rehearsal, show_run
from .schema import schema
from .sign import keygen, sign
from .tutorial import tutorial
from .verify import require_within_budget, verify

app = typer.Typer(
    name="diff2",
    help="Fit and train models on private records under differential privacy: one table, or sites that keep theirs.",
    epilog="Example: diff2 tutorial",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

TABLE, RUN, CHECK, PUBLIC = "A table", "A run file", "Checks and guarantees", "Public data"  # panels of --help
app.add_typer(data_app, rich_help_panel=PUBLIC)
app.add_typer(federate_app, rich_help_panel=RUN)


def main() -> None:
    """Entry point of the command ``diff2``."""
    app()


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"diff2 {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def train(
    run_file: RunToml,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where model, ledger and result go.")],
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in DIR after a crash.")] = False,
    seed: Seed = None,
    sign_with: Annotated[
        Path | None, typer.Option(metavar="PEM", help="Sign the ledger with this Ed25519 key.")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train the model that a run file describes, within its privacy budget."""
    again = given({"seed": seed, "sign-with": sign_with, "data-dir": data_dir})
    with ending(f"resume with: {command('diff2', 'train', run_file, '--out', out, '--resume', *again)}"):
        from ..runfile.reader import read_run_file
        from ..runfile.run import FILES, train_run_file

        progress = shown(quiet or as_json)
        described = read_run_file(run_file, data_dir)
        run = train_run_file(described, out, resume=resume, seed=seed, sign_with=sign_with, progress=progress)
        if as_json:
            files = {name: str(run.directory / name) for name in FILES}
            emit_json({**run.document, "directory": str(run.directory), "files": files})
        elif not quiet:
            show_run(run)


def plan(
    run_file: Annotated[Path | None, typer.Argument(metavar="RUN.toml", help="Take settings from a run file.")] = None,
    sizes: Annotated[
        str | None, typer.Option(metavar="N,N,...", help="Records of each client: 1651x10 or 1651,1200.")
    ] = None,
    schema_file: Annotated[
        Path | None, typer.Option("--schema", metavar="SCHEMA.toml", help="Plan a fit to a table of this schema.")
    ] = None,
    records: Annotated[
        int | None, typer.Option(help="For a fit: number of records, or of the units protected.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Budget; inf for no noise.")] = None,
    delta: Annotated[float | None, typer.Option(help="Budget; well below 1 / records.")] = None,
    rounds: Annotated[int | None, typer.Option(help="R, the number of rounds.")] = None,
    restart_interval: Annotated[
        str | None, typer.Option(help="T; 1, the default, is DP-GD. 'auto' chooses it; it needs --dimension.")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Needed by --restart-interval auto.")] = None,
    clip_gradient: Annotated[float | None, typer.Option(help="C_1, radius of a gradient; default 1.")] = None,
    clip_smoothness: Annotated[
        float | None, typer.Option(help="C_2, radius of a difference per step length; default 1.")
    ] = None,
    budget_split: Annotated[float | None, typer.Option(help="u: gradients get the share 1/u; default 1.25.")] = None,
    accounting: Annotated[str | None, typer.Option(help="exact (default) or paper.")] = None,
    weighting: Annotated[str | None, typer.Option(help="clients (default) or records.")] = None,
    unit: Annotated[str | None, typer.Option(help="What is protected: record (default), group or client.")] = None,
    clients_per_round: Annotated[
        int | None, typer.Option(help="Clients that take part in a round; default all.")
    ] = None,
    dimension: Annotated[int | None, typer.Option(min=1, help="Number of parameters of the model.")] = None,
    step_length: Annotated[
        float | None, typer.Option(help="Typical distance between iterates: step_norm in an earlier history.csv.")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show how much noise a budget needs and what to expect, before anything is spent.

    For a fit: give --schema, --records and --epsilon.

    For training: options override the run file. Without --sizes, the records of its tables are counted; no other value
    is used. With --step-length, the noise in the gradient estimate of DP-GD and of DIFF2 is predicted, and a better
    restart interval T and budget split are suggested. Without it, this is done for several values of rho, the clipping
    radius of a difference over that of a gradient.
    """
    if schema_file is not None:
        if records is None or epsilon is None:
            raise typer.BadParameter("with --schema give --records and --epsilon")
        with ending():
            from ..fitting.rehearsal import rehearse
            from ..tables.schema import Schema

            rehearsal = rehearse(
                Schema.read(schema_file), records, epsilon=epsilon, delta="auto" if delta is None else delta
            )
            emit_json(rehearsal.to_json()) if as_json else show_rehearsal(rehearsal)
        return
    counts = None if sizes is None else parse_sizes(sizes)
    if run_file is None and None in (epsilon, delta, rounds, counts):
        raise typer.BadParameter(
            "give a RUN.toml, or all of --epsilon, --delta, --rounds and --sizes, or, for a fit, --schema, --records "
            "and --epsilon"
        )
    options = {
        "epsilon": epsilon,
        "delta": delta,
        "rounds": rounds,
        "restart_interval": parse_interval(restart_interval),
        "learning_rate": learning_rate,
        "clip_gradient": clip_gradient,
        "clip_smoothness": clip_smoothness,
        "budget_split": budget_split,
        "accounting": accounting,
        "weighting": weighting,
        "unit": unit,
        "clients_per_round": clients_per_round,
    }
    with ending():
        from ..runfile.preview import preview, sizes_of
        from ..runfile.reader import read_run_file

        run = None if run_file is None else read_run_file(run_file, data_dir)
        if run is not None and counts is None:
            counts = sizes_of(run)
        found = preview(counts or [], run, options, step_length=step_length, dimension=dimension)
        if as_json:
            emit_json(found.to_json())
        else:
            show_preview(found)


def account(
    ledger_file: Annotated[Path, typer.Argument(metavar="LEDGER", help="A ledger.jsonl, or the directory of a run.")],
    delta: Annotated[
        float | None, typer.Option(help="State epsilon at this delta; default: that of the run's budget.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Recompute what a run cost from its ledger alone; an edited ledger is refused."""
    with ending():
        from ..planning.verify import verify as verify_ledger
        from ..privacy.budget import Budget

        path = ledger_file / "ledger.jsonl" if ledger_file.is_dir() else ledger_file
        found = verify_ledger(path)
        ledger = found.ledger
        at = ledger.delta if delta is None else Budget(1.0, delta).delta
        for what in found.unchecked:
            show_warning(f"not checked: {what}")
        if as_json:
            emit_json(account_document(ledger, at))
        else:
            show_account(ledger, path, at)
        require_within_budget(ledger, path)


def parse_sizes(text: str) -> list[int]:
    """Return client sizes from ``"1651x10"``, ``"1651,1200"`` or a mixture.

    >>> parse_sizes("100x3,250")
    [100, 100, 100, 250]
    """
    sizes: list[int] = []
    for part in text.split(","):
        size, _, times = part.strip().partition("x")
        if not size.isdecimal() or (times and not times.isdecimal()) or part.strip().endswith("x"):
            raise typer.BadParameter(f"expected sizes like 1651x10 or 1651,1200, got {text!r}", param_hint="--sizes")
        sizes += [int(size)] * int(times or 1)
    return sizes


def parse_interval(text: str | None) -> int | str | None:
    """Return a restart interval from ``"20"`` or ``"auto"``.

    >>> parse_interval("20"), parse_interval("auto")
    (20, 'auto')
    """
    if text is None or text == "auto":
        return text
    if not text.isdecimal():
        raise typer.BadParameter(f"expected a whole number or auto, got {text!r}", param_hint="--restart-interval")
    return int(text)


def _add(panel: str, run: Callable[..., None], example: str) -> None:
    """Add a command to a panel of ``--help``; the paragraphs of its docstring are its help."""
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in (run.__doc__ or "").split("\n\n"))
    app.command(help=text, epilog=f"Example: {example}", rich_help_panel=panel)(run)


_add(TABLE, tutorial, "diff2 tutorial")
_add(TABLE, schema, "diff2 schema people.csv --target visits > people.schema.toml")
_add(TABLE, fit, "diff2 fit people.csv --schema people.schema.toml --epsilon 1 --out model")
_add(TABLE, predict, "diff2 predict model new.csv --out predictions.csv")
_add(TABLE, evaluate, "diff2 evaluate model held_out.csv --epsilon 0.2")
_add(RUN, init, "diff2 init north.csv south.csv --target visits > run.toml")
_add(RUN, run_schema, "diff2 run-schema > run.schema.json")
_add(RUN, train, "diff2 train run.toml --out runs/first")
_add(
    RUN,
    plan,
    "diff2 plan --schema people.schema.toml --records 16512 --epsilon 1, or "
    "diff2 plan --epsilon 3 --delta 1e-5 --rounds 2000 --restart-interval 20 --sizes 1651x10",
)
_add(CHECK, account, "diff2 account runs/first/ledger.jsonl --delta 1e-6")
_add(CHECK, verify, "diff2 verify runs/first --public key.pub.pem")
_add(CHECK, report, "diff2 report runs/first --out report.html --card")
_add(CHECK, budget, "diff2 budget runs --epsilon 3 --delta 1e-6")
_add(CHECK, keygen, "diff2 keygen key.pem")
_add(CHECK, sign, "diff2 sign runs/first --key key.pem")
_add(PUBLIC, demo, "diff2 demo --out diff2-demo")
_add(PUBLIC, compare, "diff2 compare randhie --algorithms dpgd,diff2 --seeds 3 --out compared")
_add(
    PUBLIC,
    reproduce,
    "diff2 reproduce --dataset california_housing --grid reduced --seeds 1 --data-dir data --out found",
)
_add(CHECK, doctor, "diff2 doctor")
