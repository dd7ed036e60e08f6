"""``diff2 init``, ``run-schema``, ``train`` and ``plan``: run files, from a draft to a trained model."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from .console import command, emit_json, ending
from .options import DataDir, Json, Quiet, RunToml, Seed, given, shown
from .reports import show_preview, show_rehearsal, show_run


def init(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="CSV, CSV.gz or Parquet; one per client.")],
    target: Annotated[str, typer.Option(metavar="COLUMN", help="The column to predict.")],
    task: Annotated[str, typer.Option(help="regression or classification.")] = "regression",
    epsilon: Annotated[float, typer.Option(help="The budget.")] = 1.0,
    delta: Annotated[float, typer.Option(help="The budget; well below 1 / records.")] = 1e-5,
) -> None:
    """Print a commented run file for tables with the same columns, one per client.

    Only the names of the columns are read. Bounds are left to you: write what everybody knows.
    """
    with ending():
        from ..privacy import Budget
        from ..runfile.drafting import draft_run_file

        Budget(epsilon, delta)
        sys.stdout.write(draft_run_file(files, target, task, epsilon=epsilon, delta=delta))


def run_schema() -> None:
    """Print the JSON Schema of run files, for completion and checks in editors."""
    with ending():
        from ..runfile.json_schema import run_file_schema

        emit_json(run_file_schema())


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
