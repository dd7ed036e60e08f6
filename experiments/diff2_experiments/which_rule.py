r"""Whether ``restart_interval="auto"`` keeps its promise: never worse than DP-GD by more than 3 %.

That is for the mean over the seeds, in the loss and in the squared gradient norm.

At every size and learning rate of ``which_algorithm``, with a constant step, the rule is asked. Where it chooses an
interval above 1, DIFF2 with it and DP-GD with the same rate are run with the same seeds, and compared.

    python -m diff2_experiments.which_rule STORE [quadratic california_housing covertype] --table which-rule.csv

Everything measured is exact, so this is **not private**; it is for public tables.
"""

from __future__ import annotations

import csv
import statistics
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

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
FIELDS = ("problem", "size", "rate", "interval", "loss", "worst_loss", "squared_gradient_norm", "seeds")


def chosen_interval(problem: Problem, size: float, rate: float) -> int:
    """Return what ``restart_interval="auto"`` chooses."""
    algorithm = Diff2(problem.rounds, "auto", problem.clip_gradient, problem.clip_smoothness, GradientDescent(rate))
    budget, sizes = Budget(problem.epsilon(size), DELTA), [problem.records // CLIENTS] * CLIENTS
    with warnings.catch_warnings():
        for category in (NoGainWarning, WeakEpsilonWarning):
            warnings.simplefilter("ignore", category)
        return plan(algorithm, budget, sizes, dimension=problem.dimension).algorithm.restart_interval  # type: ignore[attr-defined]


def pairs(problem: str, sizes: Sequence[float], seeds: Sequence[int]) -> Iterator[tuple[Task, Task]]:
    """Yield DP-GD and DIFF2 wherever the rule takes DIFF2, for each seed."""
    for size in sizes:
        for rate in RATES.get(problem, COMMON_RATES):
            interval = chosen_interval(PROBLEMS[problem], size, rate)
            for seed in seeds if interval > 1 else ():
                yield (
                    Task(problem, "dpgd", "constant", size, rate, 1, seed),
                    Task(problem, "diff2", "constant", size, rate, interval, seed),
                )


def compared(runs: Sequence[tuple[Run, Run]]) -> list[dict[str, Any]]:
    """Return a row for each setting: ratios of the means over the seeds, DIFF2's to DP-GD's, and the worst of a seed.

    A setting with which DP-GD itself diverges is left out.
    """
    settings: dict[tuple[Any, ...], list[tuple[Run, Run]]] = {}
    for one, other in runs:
        settings.setdefault(tuple(other[name] for name in FIELDS[:4]), []).append((one, other))
    rows = []
    for place, some in settings.items():
        if any(one["train_loss"] is None for one, _ in some):
            continue
        ratios = [_ratio([pair], "train_loss") for pair in some]
        rows.append({
            **dict(zip(FIELDS, place, strict=False)), "loss": _ratio(some, "train_loss"), "worst_loss": max(ratios),
            "squared_gradient_norm": _ratio(some, "squared_gradient_norm"), "seeds": len(some),
        })  # fmt: skip
    return rows


def _ratio(pairs: Sequence[tuple[Run, Run]], measure: str) -> float:
    if any(other[measure] is None for _, other in pairs):
        return float("inf")
    return statistics.fmean(other[measure] for _, other in pairs) / statistics.fmean(one[measure] for one, _ in pairs)


def main(
    store: Annotated[Path, typer.Argument(help="Where runs go; that of which_algorithm may be shared.")],
    problems: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(PROBLEMS)}; all by default.")] = None,
    table: Annotated[Path, typer.Option(help="Where the ratios go.")] = Path("which-rule.csv"),
    sizes: Annotated[str, typer.Option(help="N mu, separated by commas.")] = ",".join(map(str, SIZES)),
    seeds: Annotated[int, typer.Option(min=1)] = 10,
    first_seed: Annotated[int, typer.Option(min=0, help="The rule was chosen with seeds below 20.")] = 20,
    jobs: Annotated[int, typer.Option(min=1)] = 1,
    data_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Look there for tables.")] = None,
) -> None:
    """Run DIFF2 with the interval of the rule beside DP-GD, and print how they compare."""
    numbers = [float(size) for size in sizes.split(",")]
    chosen = range(first_seed, first_seed + seeds)
    wanted = [pair for name in problems or PROBLEMS for pair in pairs(name, numbers, chosen)]
    runs = {
        run["key"]: run for run in finish([task for pair in wanted for task in pair], RunStore(store), jobs, data_dir)
    }
    rows = compared([(runs[one.key], runs[other.key]) for one, other in wanted])
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print(*(f"{value:.4g}" if isinstance(value, float) else value for value in row.values()))
    loss, norm = (max((row[name] for row in rows), default=0) for name in ("loss", "squared_gradient_norm"))
    print(f"{len(rows)} settings; largest ratio of mean losses {loss:.4f}, of mean squared gradient norms {norm:.4f}")


if __name__ == "__main__":
    typer.run(main)
