"""The command line: ``diff2 fit``, ``predict``, ``schema``, ``train``, ``plan``, ``account``, ``verify``, ``compare``.

Exit status: 0 done, 1 failed, 2 wrong usage, 3 the privacy budget would be exceeded, 130 interrupted; of ``verify``
also 4 private apart from named leaks, 5 not private. What a command needs is imported when it runs, so that ``--help``
answers at once.
"""

from collections.abc import Callable
from typing import Annotated

import typer

from .._version import __version__
from .checks import account, budget, keygen, report, sign, verify
from .data import data_app
from .doctor import doctor
from .experiments import compare, demo, reproduce
from .federate import federate_app
from .run import init, plan, run_schema, train
from .table import evaluate, fit, predict, schema
from .tutorial import tutorial

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
