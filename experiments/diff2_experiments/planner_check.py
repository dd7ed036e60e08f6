r"""The planner against runs: the noise that ``diff2 plan`` predicts, and the error of the estimates that were made.

For every method of a comparison file, at two or more seeds, the table has root mean squares over the rounds of

* *plan*: the prediction of ``diff2 plan``, for the root mean square of ``step_norm`` in the run at *another* seed, as
  whoever plans a second run would know it;
* *ledger*: what the run itself knows of the noise in its estimate, from the scales of its releases;
* *noise* and *error*: what was measured, and the *share of clipping* in the squared error;

over all rounds, and over those after the first tenth, where steps are no longer those of the start.

The exact gradients that are needed leak, so this is for public data.

    python -m diff2_experiments.planner_check california_housing gas_turbine --out checked --data-dir DIR
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from diff2._progress import progress_bar
from diff2._validate import at_least
from diff2.algorithms import DPGD, Algorithm, Diff2
from diff2.cli.console import command, ending, show_rows
from diff2.data.loading import EncodedClients
from diff2.errors import InvalidArgument, WeakDeltaWarning
from diff2.planning.plan import plan
from diff2.planning.prediction import predict_noise
from diff2.runfile.preview import predictable
from diff2.runfile.reader import protection_of

from .estimate_errors import Errors, estimate_errors
from .files import CompareFile, find_file, load_public, read_compare_file
from .formatting import write_csv
from .methods import Method, choose_methods
from .store import Run, RunStore
from .trials import Report, Trial, digest_of, one_thread, prepare_trial, trial_key, unreported

FORMAT = 1  # of a line of runs.jsonl; another number trains everything again
PARTS = ("whole", "later")  # of a run: all rounds, those after the first tenth
AFTER = ", after the first tenth"
MEASURED = 500  # rounds of a run in which the exact gradient is computed

Row = dict[str, Any]


def planner_check(
    file: CompareFile,
    directory: Path,
    *,
    seeds: int = 2,
    measured: int = MEASURED,
    report: Report = unreported,
) -> list[Row]:
    """Return two rows for each method: its whole run, and the rounds after the first tenth.

    Runs that ``directory`` holds already are not made again.
    """
    at_least("seeds", seeds, 2)
    methods = choose_methods(file, None, [file.privacy.epsilon])
    tables = load_public(file, "A PLANNER CHECK")
    store, digest = RunStore(directory), digest_of(tables)
    known, rows, total = store.runs(), [], len(methods) * seeds
    report(0, total)
    for number, method in enumerate(methods):
        algorithm, found = _algorithm(file, method), []
        for seed in range(seeds):
            trial = Trial(algorithm, file.privacy.epsilon, seed, measured)
            key = trial_key(file.setup, digest, trial, planner_check=FORMAT)
            if key not in known:
                with one_thread():
                    training = prepare_trial(file.setup, tables, trial)
                    errors = estimate_errors(training, measured=measured, seed=seed)
                parts = {part: getattr(errors, part)._asdict() for part in PARTS}
                known[key] = store.add({"key": key, "dimension": len(training.engine.flat), **parts})
            found.append(known[key])
            report(number * seeds + seed + 1, total)
        rows += [_row(file, method, tables, part, found) for part in PARTS]
    return rows


def planned_error(file: CompareFile, algorithm: Algorithm, sizes: Sequence[int], length: float, d: int) -> float | None:
    """Return the mean squared noise that ``diff2 plan`` predicts, or None where it predicts nothing."""
    if isinstance(algorithm, DPGD):
        algorithm = Diff2(algorithm.rounds, 1, algorithm.clip_gradient, 1.0, algorithm.routine)  # the same
    if not isinstance(algorithm, Diff2):
        return None
    protection = protection_of(file.privacy, file.run, grouped=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakDeltaWarning)
        if not predictable(algorithm, plan(algorithm, file.privacy.budget, sizes, protection)):
            return None
        predicted = predict_noise(
            algorithm, file.privacy.budget, sizes, protection, step_length=length, dimension=d
        )  # fmt: skip
        return predicted.given.error


def _row(file: CompareFile, method: Method, tables: EncodedClients, part: str, runs: Sequence[Run]) -> Row:
    algorithm, sizes = _algorithm(file, method), [len(inputs) for inputs, _ in tables.clients]
    lengths = [run[part]["step_length"] for run in runs]
    others = [*lengths[1:], lengths[0]]  # each run is predicted from another
    planned = [
        None if length is None else planned_error(file, algorithm, sizes, length, run["dimension"])
        for run, length in zip(runs, others, strict=True)
    ]
    mean = {name: _mean([run[part][name] for run in runs]) for name in Errors._fields}
    predicted = math.nan if None in planned else _mean(planned)
    return {
        "table": file.path.stem,
        "method": method.label,
        "part": part,
        "rounds": algorithm.rounds,
        **{name: getattr(algorithm, name, None) for name in ("restart_interval", "clip_gradient", "clip_smoothness")},
        "learning_rate": getattr(algorithm.routine, "learning_rate", None),
        "step_length": _mean(lengths),
        "plan": math.sqrt(predicted),
        "ledger": math.sqrt(mean["known"]),
        "noise": math.sqrt(mean["noise"]),
        "error": math.sqrt(mean["total"]),
        "plan_ratio": math.sqrt(predicted / mean["noise"]) if mean["noise"] else math.nan,
        "ledger_ratio": math.sqrt(mean["known"] / mean["noise"]) if mean["noise"] else math.nan,
        "clipping_share": mean["clipping"] / mean["total"] if mean["total"] else math.nan,
        "gradient": math.sqrt(mean["gradient"]),
        "seeds": len(runs),
    }


def _algorithm(file: CompareFile, method: Method) -> Algorithm:
    if not method.private:
        raise InvalidArgument(f"{method.label} adds no noise, so there is nothing to predict; leave it out")
    return method.algorithms[file.privacy.epsilon]


def _mean(values: Sequence[float | None]) -> float:
    return math.nan if None in values else math.fsum(value or 0.0 for value in values) / len(values)


def check(
    files: Annotated[
        list[str], typer.Argument(metavar="NAME|FILE.toml...", help="california_housing, gas_turbine, or your own.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where runs and table go.")],
    seeds: Annotated[int, typer.Option(min=2, help="Seeds 0, 1, ... of noise and starting point.")] = 2,
    data_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Look there for tables.")] = None,
) -> None:
    """Compare the noise that diff2 plan predicts with the error of gradient estimates in real runs."""
    again = command("python", "-m", "diff2_experiments.planner_check", *files, "--out", out, "--seeds", seeds)
    with ending(f"finished runs are kept; resume with: {again}"):
        rows = []
        for file in [read_compare_file(find_file("planner", name), data_dir) for name in files]:
            with progress_bar(label=file.path.stem, unit="runs", show=None) as progress:
                rows += planner_check(file, out / file.path.stem, seeds=seeds, report=progress)
        write_csv(out / "planner-check.csv", rows, digits=6)
        _show(rows)


def _show(rows: Sequence[Row]) -> None:
    names = ["step_length", "plan", "ledger", "noise", "error", "plan_ratio", "ledger_ratio"]
    for table in dict.fromkeys(row["table"] for row in rows):
        show_rows(
            f"{table}: root mean squares over rounds; plan and ledger are predictions of the noise",
            [
                [
                    f"{row['method']}{AFTER if row['part'] == 'later' else ''}",
                    *("-" if math.isnan(row[name]) else f"{row[name]:.3g}" for name in names),
                    f"{100 * row['clipping_share']:.0f} %",
                ]
                for row in rows
                if row["table"] == table
            ],
            ["", "step", "plan", "ledger", "noise", "error", "plan / noise", "ledger / noise", "clipping"],
            width=150,
        )


if __name__ == "__main__":
    typer.run(check)
