r"""Whether ``restart_interval="auto"`` keeps its promise: never worse than DP-GD by more than 3 %.

That is for the mean over the seeds, in the loss and in the squared gradient norm.

At every size and learning rate of ``which_algorithm``, with a constant step, the rule is asked. Where it chooses an
interval above 1, DP-GD with the same rate, DIFF2 with that interval and early restarts, as the rule has it, and DIFF2
with that interval alone are run with the same seeds, and compared.

    python -m diff2_experiments.which_rule STORE [quadratic california_housing covertype] --table which-rule.csv

Everything measured is exact, so this is **not private**; it is for public tables.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from diff2.algorithms import Diff2
from diff2.errors import NoGainWarning, WeakEpsilonWarning
from diff2.planning import plan
from diff2.privacy import Budget
from diff2.routines import GradientDescent

from .store import Run, RunStore
from .which_algorithm import COMMON_RATES, RATES, Task, finish
from .which_problems import CLIENTS, DELTA, PROBLEMS, Problem

SIZES = (1e3, 1e4, 3e4, 1e5, 3e5, 1e6)  # N mu
MEASURES = {"loss": "train_loss", "norm": "squared_gradient_norm"}
FIELDS = (
    "problem", "size", "rate", "interval", "loss", "worst_loss", "norm", "norm_low", "norm_high",
    "loss_without", "norm_without", "seeds",
)  # fmt: skip
DRAWS = 4000


def chosen_interval(problem: Problem, size: float, rate: float) -> int:
    """Return what ``restart_interval="auto"`` chooses."""
    algorithm = Diff2(problem.rounds, "auto", problem.clip_gradient, problem.clip_smoothness, GradientDescent(rate))
    budget, sizes = Budget(problem.epsilon(size), DELTA), [problem.records // CLIENTS] * CLIENTS
    with warnings.catch_warnings():
        for category in (NoGainWarning, WeakEpsilonWarning):
            warnings.simplefilter("ignore", category)
        return plan(algorithm, budget, sizes, dimension=problem.dimension).algorithm.restart_interval  # type: ignore[attr-defined]


def contests(
    problem: str,
    sizes: Sequence[float],
    seeds: Sequence[int],
    rates: Sequence[float] = (),
    intervals: Sequence[int] = (),
) -> Iterator[tuple[Task, ...]]:
    """Yield DP-GD, DIFF2 as the rule has it, and DIFF2 without early restarts, wherever the rule takes DIFF2.

    With ``intervals`` at these, whatever the rule says.
    """
    for size in sizes:
        for rate in rates or RATES.get(problem, COMMON_RATES):
            for T in intervals or [chosen_interval(PROBLEMS[problem], size, rate)]:
                for seed in seeds if T > 1 else ():
                    methods = (("dpgd", 1), ("diff2_early", T), ("diff2", T))
                    yield tuple(Task(problem, method, "constant", size, rate, one, seed) for method, one in methods)


def compared(runs: Sequence[Sequence[Run]]) -> list[dict[str, Any]]:
    """Return a row for each setting: ratios of the means over the seeds, DIFF2's to DP-GD's.

    Beside them stand the worst loss of a seed, a 95 % interval of the norm over the seeds, and the ratios without early
    restarts. A setting with which DP-GD itself diverges is left out.
    """
    settings: dict[tuple[Any, ...], list[Sequence[Run]]] = {}
    for contest in runs:
        settings.setdefault(tuple(contest[1][name] for name in FIELDS[:4]), []).append(contest)
    rows = []
    for place, some in settings.items():
        if any(one["train_loss"] is None for one, _, _ in some):
            continue
        values = {name: _values(some, measure) for name, measure in MEASURES.items()}
        ratios = {name: measured.mean(0)[1:] / measured.mean(0)[0] for name, measured in values.items()}
        low, high = _interval(values["norm"])
        rows.append({
            **dict(zip(FIELDS, place, strict=False)),
            "loss": ratios["loss"][0], "worst_loss": (values["loss"][:, 1] / values["loss"][:, 0]).max(),
            "norm": ratios["norm"][0], "norm_low": low, "norm_high": high,
            "loss_without": ratios["loss"][1], "norm_without": ratios["norm"][1], "seeds": len(some),
        })  # fmt: skip
    return rows


def _values(contests: Sequence[Sequence[Run]], measure: str) -> np.ndarray:
    """Return a row for each seed; a run that diverged has an infinite value."""
    return np.array([[np.inf if run[measure] is None else run[measure] for run in contest] for contest in contests])


def _interval(values: np.ndarray) -> tuple[float, float]:
    """Return the middle 95 % of the ratio of means, over seeds that are drawn with replacement."""
    drawn = values[np.random.default_rng(0).integers(0, len(values), (DRAWS, len(values)))].mean(1)
    low, high = np.quantile(drawn[:, 1] / drawn[:, 0], [0.025, 0.975], method="nearest")
    return low, high


def main(
    store: Annotated[Path, typer.Argument(help="Where runs go; that of which_algorithm may be shared.")],
    problems: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(PROBLEMS)}; all by default.")] = None,
    table: Annotated[Path, typer.Option(help="Where the ratios go.")] = Path("which-rule.csv"),
    sizes: Annotated[str, typer.Option(help="N mu, separated by commas.")] = ",".join(map(str, SIZES)),
    rates: Annotated[str, typer.Option(help="Separated by commas; those of which_algorithm by default.")] = "",
    intervals: Annotated[str, typer.Option(help="To compare instead of the one that the rule chooses.")] = "",
    seeds: Annotated[int, typer.Option(min=1)] = 30,
    first_seed: Annotated[int, typer.Option(min=0, help="The rule was chosen with seeds below 100.")] = 100,
    jobs: Annotated[int, typer.Option(min=1)] = 1,
    data_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Look there for tables.")] = None,
) -> None:
    """Run DIFF2 with the interval of the rule beside DP-GD, and print how they compare."""
    places = (
        [float(size) for size in sizes.split(",")],
        range(first_seed, first_seed + seeds),
        [float(rate) for rate in rates.split(",") if rate],
        [int(interval) for interval in intervals.split(",") if interval],
    )
    wanted = [contest for name in problems or PROBLEMS for contest in contests(name, *places)]
    tasks = [task for contest in wanted for task in contest]
    runs = {run["key"]: run for run in finish(tasks, RunStore(store), jobs, data_dir)}
    rows = compared([[runs[task.key] for task in contest] for contest in wanted])
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(
            {name: f"{one:.6g}" if isinstance(one, float) else one for name, one in row.items()} for row in rows
        )
    for row in rows:
        print(*(f"{value:.4g}" if isinstance(value, float) else value for value in row.values()))
    loss, norm = (max((row[name] for row in rows), default=0) for name in MEASURES)
    print(f"{len(rows)} settings; largest ratio of mean losses {loss:.4f}, of mean squared gradient norms {norm:.4f}")


if __name__ == "__main__":
    typer.run(main)
