r"""The scaling law: how the squared gradient norm falls with :math:`N \varepsilon`, for DP-GD and DIFF2-GD.

The paper's theorems say exponents of -1 and -4/3 for the mean over rounds of :math:`\lVert \nabla f(x_{r-1}) \rVert^2`,
for rounds, restart interval and learning rate as they prescribe. Here both follow that recipe (``theory.py``) at
several N and epsilon; and, as a second variant, the best of a few multiples of the prescribed R and T, chosen at
a seed of its own. Every run is a line of ``runs.jsonl``, so that an interrupted experiment can be resumed.

Everything measured is exact, so this is **not private**; it is for drawn problems and public data.

    python -m diff2_experiments.scaling_law robust_mean covertype --out scaled --data-dir DIR
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from diff2._fields import from_table
from diff2._validate import at_least
from diff2._version import __version__
from diff2.algorithms import DPGD
from diff2.errors import InvalidArgument, PrivacyLeakWarning, WeakDeltaWarning
from diff2.planning.plan import plan
from diff2.privacy import Budget
from diff2.privacy.leaks import leak
from diff2.questions import GRADIENT
from diff2.routines import GradientDescent
from diff2.runfile.reader import parse_tables
from diff2.training.build import prepare

from .gradient_norms import GradientNorms
from .scaling_problems import Problems
from .store import RunStore
from .synthetic import Bounds
from .theory import Schedule, diff2_schedule, dpgd_schedule
from .trials import Report, unreported

FORMAT = 1  # of a line of runs.jsonl; another number trains everything again
METHODS = ("dpgd", "diff2")
TUNING_SEED = 1000

Points = tuple[tuple[int, float], ...]
Row = dict[str, Any]  # a line of runs.jsonl


@dataclass(frozen=True)
class Tuned:
    """``[tuned]``: multiples of the prescribed R and T, of which the best at each point is taken."""

    points: Points
    rounds: tuple[float, ...] = (0.25, 0.5, 1.0)
    intervals: tuple[float, ...] = (0.5, 1.0, 2.0)
    seeds: int = 3


@dataclass(frozen=True)
class Experiment:
    """``[scaling]``: the problem, and the N and epsilon at which it is run.

    Args:
        problem: a drawn one (``"robust_mean"``, ``"sigmoid_regression"``), or ``"covertype_softmax"``, or
            ``"covertype"``, the paper's network: as many records of that table, drawn from all.
        points: pairs of N and epsilon.
        seeds: of the noise, and of the network's start.
        dimension: of a drawn problem.
        gradient, smoothness, gap: stand for G, L and the distance to the least value where they are not known; the
            first two are the clipping radii.
        tuned: the second variant.
    """

    problem: str
    points: Points
    seeds: int = 5
    clients: int = 10
    delta: float = 1e-5
    accounting: str = "exact"
    dimension: int | None = None
    gradient: float | None = None
    smoothness: float | None = None
    gap: float | None = None
    tuned: Tuned | None = None

    def __post_init__(self) -> None:
        self.problems(None)
        at_least("seeds", self.seeds, 1)
        at_least("clients", self.clients, 1)
        for records, epsilon in (*self.points, *(self.tuned.points if self.tuned else ())):
            Budget(epsilon, self.delta)
            if records % self.clients:
                raise InvalidArgument(f"{self.clients} clients cannot share {records} records equally")

    def problems(self, data_dir: Path | None) -> Problems:
        """Return the problem at each N."""
        given = [value for value in (self.gradient, self.smoothness, self.gap) if value is not None]
        return Problems(self.problem, self.dimension, Bounds._make(given) if len(given) == 3 else None, data_dir)


class Task(NamedTuple):
    """One run."""

    variant: str  # "theorem" or "tuned"
    method: str
    records: int
    epsilon: float
    rounds: float  # multiple of the prescribed R
    interval: float  # multiple of the prescribed T
    seed: int


def read_experiment(path: Path) -> Experiment:
    """Read and check ``[scaling]`` and ``[tuned]``."""

    def parse(content: Mapping[str, Any]) -> Experiment:
        tuned = from_table(Tuned, "tuned", content["tuned"]) if "tuned" in content else None
        return from_table(Experiment, "scaling", content.get("scaling", {}), tuned=tuned)

    return parse_tables(path, ("scaling", "tuned"), parse)


def scaling_law(
    experiment: Experiment,
    directory: Path,
    *,
    data_dir: Path | None = None,
    report: Report = unreported,
) -> list[Row]:
    """Return all runs of the experiment, training those that ``directory`` does not hold yet."""
    text = "A SCALING EXPERIMENT IS NOT PRIVATE: it measures exact gradients. Use public data."
    leak("LEAK-METRICS", text, strict=False)
    store, problems = RunStore(directory), experiment.problems(data_dir)

    def finish(tasks: Sequence[Task]) -> list[Row]:
        done, found = store.runs(), []
        report(0, len(tasks))
        for count, task in enumerate(tasks):
            key = _key(experiment, task)
            found.append(done[key] if key in done else store.add({"key": key, **_run(experiment, problems, task)}))
            report(count + 1, len(tasks))
        return [{**row, "variant": task.variant} for row, task in zip(found, tasks, strict=True)]

    # Small points first, so that an experiment that is cut short has some of everything.
    points = sorted(experiment.points, key=lambda point: point[0] * point[1])
    rows = finish([
        Task("theorem", method, *point, 1.0, 1.0, seed)
        for point in points for seed in range(experiment.seeds) for method in METHODS
    ])  # fmt: skip
    tuned = experiment.tuned
    if tuned is None:
        return rows
    for point in sorted(tuned.points, key=lambda point: point[0] * point[1]):
        for method in METHODS:
            intervals = tuned.intervals if method == "diff2" else (1.0,)
            pairs = [(rounds, interval) for rounds in tuned.rounds for interval in intervals]
            tried = finish([Task("tried", method, *point, *pair, TUNING_SEED) for pair in pairs])
            best = min(range(len(pairs)), key=lambda i: _or_infinite(tried[i]["mean"]))
            rows += tried + finish([Task("tuned", method, *point, *pairs[best], seed) for seed in range(tuned.seeds)])
    return rows


def _run(experiment: Experiment, problems: Problems, task: Task) -> Row:
    """Train one run and measure it."""
    problem = problems(task.records, task.seed)
    dimension = sum(parameter.numel() for parameter in problem.model.parameters())
    budget, mu = Budget(task.epsilon, experiment.delta), _mu(experiment, task)
    schedule = _schedule(problem.bounds, dimension, mu, task)
    shares = zip(
        problem.inputs.tensor_split(experiment.clients), problem.targets.tensor_split(experiment.clients), strict=True
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)  # said at the beginning
        warnings.simplefilter("ignore", WeakDeltaWarning)
        training = prepare(
            problem.model,
            problem.loss,
            list(shares),
            schedule.algorithm(problem.bounds),
            budget,
            seed=task.seed,
            accounting=experiment.accounting,
        )
    measures = GradientNorms(training, problem.bounds.gradient, task.seed)
    result = training.run(callbacks=[measures.after], progress=False)
    return {
        **{name: value for name, value in task._asdict().items() if name not in ("variant", "rounds", "interval")},
        "multiples": [task.rounds, task.interval],
        "mu": mu,
        "spent": result.epsilon,
        "dimension": dimension,
        **schedule._asdict(),
        "mean": measures.mean,
        "smallest": min(measures.norms.values()),
        "clipping": measures.clipping,
        "seconds": float(result.history["seconds"].sum()),
    }


def _mu(experiment: Experiment, task: Task) -> float:
    """Return the GDP parameter that the budget comes to."""
    single = DPGD(1, 1.0, GradientDescent(1.0))
    sizes = [task.records // experiment.clients] * experiment.clients
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakDeltaWarning)
        found = plan(single, Budget(task.epsilon, experiment.delta), sizes, accounting=experiment.accounting)
        return 1 / found.multipliers[GRADIENT]


def _schedule(bounds: Bounds, dimension: int, mu: float, task: Task) -> Schedule:
    if task.method == "dpgd":
        return dpgd_schedule(bounds, dimension, task.records, mu, rounds=task.rounds)
    return diff2_schedule(bounds, dimension, task.records, mu, rounds=task.rounds, interval=task.interval)


def _key(experiment: Experiment, task: Task) -> str:
    """Return a hash of everything that the outcome of a run depends on."""
    apart = ("points", "seeds", "tuned")
    settings: Mapping[str, Any] = {
        "format": FORMAT,
        "library": __version__,
        "experiment": {name: value for name, value in asdict(experiment).items() if name not in apart},
        "task": [value for name, value in task._asdict().items() if name != "variant"],
    }
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value


if __name__ == "__main__":
    from .scaling_report import main

    main()
