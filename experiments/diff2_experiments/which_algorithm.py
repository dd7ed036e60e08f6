r"""Which algorithm, when: losses and gradient norms of DP-GD, DIFF2, DP-SGD and Adam, against :math:`N \mu`.

At every size each method is run with every learning rate of a fixed list, at a seed of its own; the rate with the least
loss, and the one with the least squared gradient norm, are then run with fresh seeds. Both are means over the last
tenth of the rounds: what one gets, not the best look. DIFF2 is run at several restart intervals, and so the rule that
chooses one (``diff2.algorithms.interval``) is checked against all of them.

Everything measured is exact, so this is **not private**; it is for public tables.

    python -m diff2_experiments.which_algorithm --out which [quadratic california_housing covertype]
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from diff2.algorithms import DPGD, DPSGD, Algorithm, Diff2
from diff2.privacy.leaks import leak
from diff2.routines import Adam, BVRLocalSGD, GradientDescent, Routine

from .store import Run, RunStore
from .trials import in_parallel, one_thread
from .which_problems import CLIENTS, PROBLEMS, Problem

SIZES = (1e3, 3e3, 1e4, 3e4, 1e5, 3e5, 1e6)  # N mu
SAMPLED_UP_TO = 3e4  # where batches are drawn, records cannot stand for more of them
SCHEDULES = ("constant", "cosine")
RATES = {"quadratic": (1.0, 0.5, 0.25, 0.125, 0.0625)}
COMMON_RATES = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125)
ADAM_RATES = (0.1, 0.03, 0.01, 0.003)
INTERVALS = {
    "diff2": (3, 6, 20, 60, 200),
    "diff2_early": (6, 20, 60, 200),
    "bvr": (3, 6, 20, 60),
    "diff2_adam": (6, 20),
}
METHODS = ("dpgd", "diff2", "diff2_early", "adam", "diff2_adam", "dpsgd", "bvr")
MEASURES = ("train_loss", "squared_gradient_norm")
TUNING_SEED = 1000
LOOKS = 100
LOCAL_STEPS = 8


class Task(NamedTuple):
    """One run."""

    problem: str
    method: str
    schedule: str
    size: float
    rate: float
    interval: int
    seed: int

    @property
    def key(self) -> str:
        return "|".join(map(str, self))


def algorithm_of(task: Task, problem: Problem) -> Algorithm:
    """Return the algorithm of a task, with its settings."""
    rounds, radius = problem.rounds, problem.clip_gradient
    routine: Routine = GradientDescent(task.rate, schedule=task.schedule)
    if task.method.endswith("adam"):
        routine = Adam(task.rate, schedule=task.schedule, max_step_norm=0.05 if task.method == "diff2_adam" else None)
    if task.method == "dpsgd":
        return DPSGD(rounds, problem.records // 8, radius, routine)
    if task.method == "bvr":
        local = BVRLocalSGD(
            task.rate, LOCAL_STEPS, problem.records // CLIENTS // 8, problem.clip_smoothness, schedule=task.schedule
        )
        return Diff2(rounds // LOCAL_STEPS, task.interval, radius, problem.clip_smoothness, local)
    if task.method.startswith("diff2"):
        early = task.method == "diff2_early"
        return Diff2(rounds, task.interval, radius, problem.clip_smoothness, routine, early_restarts=early)
    return DPGD(rounds, radius, routine)


def grid(problem: str, method: str, sizes: Sequence[float]) -> Iterator[Task]:
    """Yield the runs among which settings are chosen."""
    rates = ADAM_RATES if method.endswith("adam") else RATES.get(problem, COMMON_RATES)
    sampled = method in ("dpsgd", "bvr")
    if problem == "quadratic" and sampled:
        return  # there are no records to draw
    for size in sizes:
        if sampled and size > SAMPLED_UP_TO:
            continue
        for schedule in SCHEDULES:
            for rate in rates:
                for interval in INTERVALS.get(method, (1,)):
                    yield Task(problem, method, schedule, size, rate, interval, TUNING_SEED)


def chosen(runs: Sequence[Run], measure: str) -> list[Run]:
    """Return the best run of each problem, method, schedule and size, of those that did not diverge."""
    best: dict[tuple[Any, ...], Run] = {}
    for run in runs:
        place = (run["problem"], run["method"], run["schedule"], run["size"])
        # Records whose gradients are not finite count as zero: a gradient of zero is one of a run that diverged.
        sound = run["train_loss"] is not None and run["squared_gradient_norm"]
        if sound and (place not in best or run[measure] < best[place][measure]):
            best[place] = run
    return list(best.values())


def run_task(task: Task, data_dir: Path | None) -> Run:
    """Train one run, measure it at a hundred looks, and keep the means over the last ten."""
    problem = PROBLEMS[task.problem]
    algorithm = algorithm_of(task, problem)
    every = max(1, algorithm.rounds // LOOKS)
    with one_thread():
        training = problem.prepared(algorithm, task.size, task.seed, every, data_dir)
        result = training.run(progress=False)
    history = result.history
    looks = history["round"] % every == 0
    means = {name: float(np.mean(history[name][looks][-LOOKS // 10 :])) for name in MEASURES}
    found = {name: value if math.isfinite(value) and value < 1e6 else None for name, value in means.items()}
    smallest = float(np.nanmin(history["squared_gradient_norm"]))
    return {
        "key": task.key, **task._asdict(), **found, "smallest_squared_gradient_norm": smallest,
        "communication": algorithm.rounds, "dimension": len(training.engine.flat),
        "seconds": float(history["seconds"].sum()),
    }  # fmt: skip


def which_algorithm(
    problems: Sequence[str], directory: Path, *, methods: Sequence[str] = METHODS, sizes: Sequence[float] = SIZES,
    seeds: int = 5, jobs: int = 1, data_dir: Path | None = None,
) -> list[Run]:  # fmt: skip
    """Run what the directory does not hold yet, and return all runs."""
    text = "A COMPARISON OF ALGORITHMS IS NOT PRIVATE: it measures exact gradients. Use public data."
    leak("LEAK-METRICS", text, strict=False)
    store = RunStore(directory)
    grids = [task for size in sizes for p in problems for m in methods for task in grid(p, m, [size])]
    tried = finish(grids, store, jobs, data_dir)
    best = [run for measure in MEASURES for run in chosen(tried, measure)]
    fresh = [Task._make([*(run[name] for name in Task._fields[:-1]), seed]) for seed in range(seeds) for run in best]
    return tried + finish(fresh, store, jobs, data_dir)


def finish(tasks: Sequence[Task], store: RunStore, jobs: int = 1, data_dir: Path | None = None) -> list[Run]:
    """Run what the store does not hold yet; return the runs of all tasks."""
    known = store.runs()
    missing = [task for task in dict.fromkeys(tasks) if task.key not in known]
    for run in in_parallel(run_task, [(task, data_dir) for task in missing], jobs):
        print(store.add(run)["key"], flush=True)
    known = store.runs()
    return [known[task.key] for task in dict.fromkeys(tasks)]


def main(
    problems: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(PROBLEMS)}; all by default.")] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where runs go; finished ones are kept.")] = Path("which"),
    methods: Annotated[str, typer.Option(help="Separated by commas.")] = ",".join(METHODS),
    sizes: Annotated[str, typer.Option(help="N mu, separated by commas.")] = ",".join(map(str, SIZES)),
    seeds: Annotated[int, typer.Option(min=1, help="Fresh seeds for the settings that were chosen.")] = 5,
    jobs: Annotated[int, typer.Option(min=1)] = 1,
    data_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Look there for tables.")] = None,
) -> None:
    """Run algorithms over sizes N mu, and store what they reach."""
    which_algorithm(
        problems or list(PROBLEMS), out, methods=methods.split(","), sizes=[float(size) for size in sizes.split(",")],
        seeds=seeds, jobs=jobs, data_dir=data_dir,
    )  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
