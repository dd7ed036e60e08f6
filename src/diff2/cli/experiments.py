"""``diff2 compare``, ``reproduce`` and ``demo``: experiments on public data, which stand beside the library."""

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from .._progress import progress_bar
from ..errors import Diff2Error
from .console import command, emit_json, ending
from .options import DataDir, Json, Quiet, Seed, given, parse_epsilons, parse_names, shown

PACKAGES = ("diff2_experiments", "joblib", "matplotlib", "torch")

Epsilons = Annotated[str | None, typer.Option(metavar="E,...", help="Budgets; default: that of \\[privacy].")]
Seeds = Annotated[int, typer.Option(min=1, help="How many seeds of noise and starting point: 0, 1, ...")]


def compare(
    file: Annotated[str, typer.Argument(metavar="NAME|FILE.toml", help="randhie, california, gas, or your own file.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where runs, tables and figures go.")],
    algorithms: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Methods; by default all \\[compare.NAME] tables.")
    ] = None,
    epsilon: Epsilons = None,
    seeds: Seeds = 5,
    jobs: Annotated[int, typer.Option(min=1, help="Parallel runs, one thread each.")] = 1,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    r"""Train several algorithms on the same records, budgets and seeds; print a table and draw a figure.

    The file's \[algorithm] and \[routine] are the base; a table \[compare.NAME] changes it for one method. Runs
    already in DIR are not repeated, so the same command resumes after Ctrl-C or a crash.

    A comparison is NOT private: it shows exact losses. Use public data.
    """
    budgets = None if epsilon is None else parse_epsilons(epsilon)
    again = ["diff2", "compare", file, *given({"algorithms": algorithms, "epsilon": epsilon}), "--seeds", seeds]
    again += ["--out", out]
    with ending(_resume(again, data_dir, jobs)):
        _require_packages()
        from diff2_experiments.comparison import compare as run_comparison
        from diff2_experiments.comparison_report import document, draw_figures, show, summaries, write_tables
        from diff2_experiments.files import find_file, read_compare_file

        with progress_bar(label="comparing", unit="runs", show=shown(quiet or as_json)) as report:
            found = run_comparison(
                read_compare_file(find_file("compare", file), data_dir), out, names=parse_names(algorithms),
                epsilons=budgets, seeds=seeds, jobs=jobs, report=report,
            )  # fmt: skip
        rows, figures = summaries(found), draw_figures(found)
        write_tables(found, rows, command(*again))
        if as_json:
            emit_json(document(found, rows, figures))
        elif not quiet:
            show(found, rows, figures)


def reproduce(
    dataset: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE.toml",
            help="california_housing, gas_turbine, blog_feedback, covertype, kddcup99, or your own file.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where runs, tables, figures and report.html go.")],
    epsilon: Epsilons = None,
    seeds: Seeds = 5,
    first_seed: Annotated[int, typer.Option(min=0, help="The least of the seeds; others than 0 are fresh ones.")] = 0,
    grid: Annotated[str, typer.Option(help="full, reduced, halved (reduced, then halving), halved-full.")] = "full",
    accounting: Annotated[
        str | None, typer.Option(metavar="RULE,...", help="paper, exact, or both; default: that of \\[privacy].")
    ] = None,
    algorithms: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Methods; by default all \\[tune.NAME] tables.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Settings tried in parallel, one thread each.")] = 1,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Repeat the paper's experiment on a data set: tune every method as in its appendix, and report the best.

    Writes runs, tables, figures and report.html. Runs already in DIR are not repeated, so the same command resumes
    after Ctrl-C or a crash, and several processes may share one DIR.

    Tuning is NOT private: it uses exact losses. Use public data.
    """
    budgets = None if epsilon is None else parse_epsilons(epsilon)
    options = {"epsilon": epsilon, "accounting": accounting, "algorithms": algorithms, "first-seed": first_seed or None}
    words = given(options)
    again = ["diff2", "reproduce", "--dataset", dataset, *words, "--seeds", seeds, "--grid", grid, "--out", out]
    with ending(_resume(again, data_dir, jobs)):
        _require_packages()
        from diff2_experiments.files import find_file, read_tune_file
        from diff2_experiments.findings import document
        from diff2_experiments.reproduction import reproduce as run_reproduction
        from diff2_experiments.reproduction_report import show, write_files

        file = read_tune_file(find_file("paper", dataset), data_dir)
        with progress_bar(label="tuning", unit="runs", show=shown(quiet or as_json)) as report:
            found, runs = run_reproduction(
                file, out, names=parse_names(algorithms), epsilons=budgets, accountings=parse_names(accounting),
                seeds=seeds, first_seed=first_seed, grid=grid, jobs=jobs, command=command(*again), report=report,
            )  # fmt: skip
        rows, files = write_files(found, runs)
        if as_json:
            emit_json(document(found, rows, files))
        elif not quiet:
            show(found, rows, files)


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where model, figure and tables go.")],
    epsilon: Annotated[float, typer.Option(help="Budget of the model that is saved.")] = 1.0,
    seed: Seed = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit a model to built-in data, doctor visits at six sites, and show what privacy costs in accuracy."""
    with ending():
        _require_packages("demo", "diff2_experiments", "matplotlib", "sklearn", "torch")
        from diff2_experiments.demo import run_demo, show

        report = run_demo(out, epsilon=epsilon, seed=seed, progress=shown(quiet or as_json))
        if as_json:
            emit_json(report.to_json())
        elif not quiet:
            show(report)


def _require_packages(extra: str = "experiments", *names: str) -> None:
    missing = [name for name in names or PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise Diff2Error(f"this command needs {', '.join(missing)}; install with: pip install 'diff2[{extra}]'")


def _resume(words: list[object], data_dir: Path | None, jobs: int) -> str:
    """Return what to do after an interruption; where data are and how many jobs concern this machine alone."""
    local = given({"data-dir": data_dir, "jobs": jobs if jobs > 1 else None})
    return f"finished runs are kept; resume with: {command(*words, *local)}"
