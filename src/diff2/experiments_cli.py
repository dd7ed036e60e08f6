"""``diff2 compare`` and ``diff2 reproduce``: experiments on public data. Neither is private."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import command, counting_bar, emit_json, ending
from .options import DataDir, Json, Quiet, RunToml, parse_epsilons, parse_names
from .reports import show_comparison

COMPARE_HELP = (
    "Train several algorithms on the same records, budgets and seeds; print a table and draw a figure.\n\n"
    "The run file's \\[algorithm] and \\[routine] are the base; a table \\[compare.NAME] changes it for one method. "
    "Runs that are in DIR already are not made again, so the same command goes on after Ctrl-C or a crash.\n\n"
    "A comparison is NOT private: it shows exact losses. Use public data."
)


def compare(
    run_file: RunToml,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where runs, tables and figures go.")],
    algorithms: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Methods; by default all \\[compare.NAME] tables.")
    ] = None,
    epsilon: Annotated[
        str | None, typer.Option(metavar="E,...", help="Budgets; by default the one of \\[privacy].")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0, 1, ... of noise and starting point.")] = 5,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time, one thread each.")] = 1,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train several algorithms on the same records, budgets and seeds; print a table and draw a figure."""
    budgets = None if epsilon is None else parse_epsilons(epsilon)
    again: list[object] = ["diff2", "compare", run_file]
    again += ["--algorithms", algorithms] if algorithms is not None else []
    again += ["--epsilon", epsilon] if epsilon is not None else []
    again += ["--seeds", seeds, "--out", out]
    local = [*(["--data-dir", data_dir] if data_dir is not None else []), *(["--jobs", jobs] if jobs > 1 else [])]
    with ending(f"what is finished is kept; go on with: {command(*again, *local)}"):
        from .experiments.comparison import compare as run_comparison
        from .experiments.scores import document, draw_figures, summaries, write_tables
        from .runfile import read_compare_file

        with counting_bar("comparing", show=False if quiet or as_json else None) as report:
            found = run_comparison(
                read_compare_file(run_file, data_dir), out, names=parse_names(algorithms), epsilons=budgets,
                seeds=seeds, jobs=jobs, report=report,
            )  # fmt: skip
        rows, figures = summaries(found), draw_figures(found)
        write_tables(found, rows, command(*again))
        if as_json:
            emit_json(document(found, rows, figures))
        elif not quiet:
            show_comparison(found, rows, figures)


REPRODUCE_HELP = (
    "Repeat the paper's experiment on a data set: tune every method as its appendix does, and take the best.\n\n"
    "Writes runs, tables, figures and report.html. Runs that are in DIR already are not made again, so the same "
    "command goes on after Ctrl-C or a crash, and several processes may share one DIR.\n\n"
    "Tuning is NOT private: it looks at exact losses. Use public data."
)


def reproduce(
    dataset: Annotated[
        str, typer.Option(metavar="NAME", help="An experiment: experiments/paper/NAME.toml, or a file.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where runs, tables, figures and report.html go.")],
    epsilon: Annotated[
        str | None, typer.Option(metavar="E,...", help="Budgets; by default the one of \\[privacy].")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0, 1, ... of noise and starting point.")] = 5,
    grid: Annotated[str, typer.Option(help="full, reduced, or halved: the full one, thinned out.")] = "full",
    accounting: Annotated[
        str | None, typer.Option(metavar="RULE,...", help="paper, exact, or both; by default that of \\[privacy].")
    ] = None,
    algorithms: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Methods; by default all \\[tune.NAME] tables.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Settings at the same time, one thread each.")] = 1,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    budgets = None if epsilon is None else parse_epsilons(epsilon)
    again: list[object] = ["diff2", "reproduce", "--dataset", dataset]
    for name, value in (("--epsilon", epsilon), ("--accounting", accounting), ("--algorithms", algorithms)):
        again += [name, value] if value is not None else []
    again += ["--seeds", seeds, "--grid", grid, "--out", out]
    local = [*(["--data-dir", data_dir] if data_dir is not None else []), *(["--jobs", jobs] if jobs > 1 else [])]
    with ending(f"what is finished is kept; go on with: {command(*again, *local)}"):
        from .experiments.reproduction import find_experiment
        from .experiments.reproduction import reproduce as run_reproduction
        from .experiments.reproduction_files import show, write_files
        from .runfile import read_tune_file

        file = read_tune_file(find_experiment(dataset), data_dir)
        with counting_bar("tuning", show=False if quiet or as_json else None) as report:
            found, runs = run_reproduction(
                file, out, names=parse_names(algorithms), epsilons=budgets, accountings=parse_names(accounting),
                seeds=seeds, grid=grid, jobs=jobs, command=command(*again), report=report,
            )  # fmt: skip
        rows, files = write_files(found, runs)
        if as_json:
            from .experiments.findings import document

            emit_json(document(found, rows, files))
        elif not quiet:
            show(found, rows, files)
