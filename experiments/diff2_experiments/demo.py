"""The demo: doctor visits at six sites, learned with and without privacy.

Trains gradient descent without privacy (GD, the reference), DP-GD and DIFF2-GD on the RAND Health Insurance Experiment.
The private runs are private: nothing exact is computed while they run. A callback keeps the iterates they release, and
the curves are computed from those afterwards, which may be shown because these data are public.

The settings were found beforehand, see ``docs/demo.md`` and ``benchmarks/demo_settings.py``.
"""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from diff2._files import write_json
from diff2._progress import Show
from diff2.algorithms import DPGD, GD, Algorithm, Diff2
from diff2.cli.console import show_facts, show_guarantee, show_line, show_rows
from diff2.data.randhie import Pair, RandHie, load
from diff2.errors import InvalidArgument, PrivacyLeakWarning
from diff2.models.mlp import mlp
from diff2.privacy import Budget
from diff2.privacy.accounting import epsilon_of
from diff2.routines import GradientDescent
from diff2.training.build import train
from diff2.training.directory import LEDGER
from diff2.training.loop import RoundInfo, TrainState
from diff2.training.result import TrainResult

from .figures import Curve, draw_curves, require_matplotlib

HIDDEN, ACTIVATION, START_SEED = (5,), "tanh", 0  # a starting point holds nothing private, so it may be fixed
METHODS: dict[str, Algorithm] = {
    "GD": GD(rounds=1000, routine=GradientDescent(learning_rate=0.1)),
    "DP-GD": DPGD(rounds=400, clip_gradient=8.0, routine=GradientDescent(learning_rate=0.05)),
    "DIFF2-GD": Diff2(
        rounds=400, restart_interval=20, clip_gradient=8.0, clip_smoothness=5.0, budget_split=1.25,
        routine=GradientDescent(learning_rate=0.05),
    ),
}  # fmt: skip
YEARS = 5  # the most records one person has
POINTS = 80  # of a curve

MARKER = "diff2-demo.txt"
RUN_FILES = ("ledger.jsonl", "checkpoint.pt", "model.pt", "result.json", "history.csv")


@dataclass(frozen=True)
class DemoReport:
    """What the demo found, and where it put it."""

    rows: list[dict[str, Any]]  # one per method: method, test_loss, r2, squared_gradient_norm, epsilon, seconds
    guarantee: str  # of the DIFF2-GD run
    figure: Path
    ledger: Path  # of the DIFF2-GD run
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; an infinite epsilon is the text "inf"."""
        rows = [{**row, "epsilon": _plain(row["epsilon"])} for row in self.rows]
        return {**dataclasses.asdict(self), "rows": rows, "figure": str(self.figure), "ledger": str(self.ledger)}


def run_demo(
    out: Path,
    *,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    seed: int | None = None,
    progress: Show = None,
    rounds: int | None = None,
) -> DemoReport:
    """Train the three methods, and write a table, a figure, models and ledgers under ``out``.

    Args:
        out: a new or empty directory, or one of an earlier demo, whose files are then replaced.
        epsilon, delta: budget of each of the two private runs; the settings were found for 1 and 1e-5.
        seed: None takes the noise from the operating system. A seed makes the demo repeatable and *not private*.
        progress: show bars; by default where standard error is a terminal.
        rounds: at most this many rounds per method, for a quick look.
    """
    out, budget = Path(out), Budget(epsilon=epsilon, delta=delta)
    require_matplotlib()
    data = load()
    _claim(out)
    judge = Judge(data.clients, data.test)
    rows, curves, results = [], [], {}
    for method, algorithm in METHODS.items():
        if rounds is not None:
            algorithm = dataclasses.replace(algorithm, rounds=min(rounds, algorithm.rounds))  # type: ignore[type-var]
        began = time.perf_counter()
        result, iterates = _train(data, algorithm, budget, out / algorithm.name, seed, progress)
        seconds = time.perf_counter() - began
        results[method] = result
        curves.append(judge.curve(method, iterates))
        scores = judge.scores(result.params)
        rows.append({"method": method, **scores, "epsilon": result.epsilon, "seconds": seconds})
    private = results["DIFF2-GD"]
    figure = draw_curves(
        curves,
        out / "demo.png",
        title="Doctor visits at six sites: what privacy costs",
        subtitle=f"DP-GD and DIFF2-GD: ({epsilon:g}, {delta:g})-differential privacy, GD: none. "
        f"{sum(len(inputs) for inputs, _ in data.clients):,} training records."
        + ("" if seed is None else " NOT PRIVATE: the noise is seeded."),
    )
    notes = _notes(private, budget, seed, shortened=rounds is not None)
    report = DemoReport(rows, private.guarantee, figure, out / private.plan.algorithm.name / LEDGER, notes)
    write_json(out / "demo.json", report.to_json())
    return report


def show(report: DemoReport) -> None:
    """Print the methods side by side, the guarantee, and where figure and ledger are."""
    header = ["method", "test_loss", "r2", "squared_gradient_norm", "epsilon", "seconds"]
    rows = [[_cell(row.get(name)) for name in header] for row in report.rows]
    titles = ["method", "test loss", "R^2", "squared gradient norm", "epsilon", "seconds"]
    show_rows("doctor visits at six sites", rows, titles)
    show_guarantee(report.guarantee)
    for note in report.notes:
        show_line(f"- {note}", wrap=True)
    show_facts("files", {"figure": str(report.figure), "ledger": str(report.ledger)})


class Judge:
    """Exact scores of released iterates. They would leak if the data were not public."""

    def __init__(self, clients: Sequence[Pair], test: Pair):
        self._train = (torch.cat([inputs for inputs, _ in clients]), torch.cat([targets for _, targets in clients]))
        self._test = test
        self._model = start_model(test[0].shape[1])

    def scores(self, params: torch.Tensor) -> dict[str, float]:
        """Return test loss, R^2 on the test part, and the squared norm of the gradient of the training loss."""
        nn.utils.vector_to_parameters(params.detach().clone(), self._model.parameters())
        with torch.no_grad():
            test_loss = float(self._loss(self._test))
        gradient = torch.autograd.grad(self._loss(self._train), list(self._model.parameters()))
        return {
            "test_loss": test_loss,
            "r2": 1 - test_loss / float(self._test[1].var(correction=0)),
            "squared_gradient_norm": float(sum(part.square().sum() for part in gradient)),
        }

    def curve(self, label: str, iterates: dict[int, torch.Tensor]) -> Curve:
        scores = [self.scores(params) for params in iterates.values()]
        losses, gradients = ([score[name] for score in scores] for name in ("test_loss", "squared_gradient_norm"))
        return Curve(label, list(iterates), losses, gradients)

    def _loss(self, pair: Pair) -> torch.Tensor:
        inputs, targets = pair
        return (self._model(inputs) - targets).square().mean()


def start_model(inputs: int) -> nn.Module:
    """Return the network every method starts from."""
    return mlp(inputs, 1, hidden=HIDDEN, activation=ACTIVATION, seed=START_SEED)


def _train(
    data: RandHie, algorithm: Algorithm, budget: Budget, folder: Path, seed: int | None, progress: Show
) -> tuple[TrainResult, dict[int, torch.Tensor]]:
    """Run one method; return what it leaves, and some of the iterates it released, by round."""
    kept, iterates = set(_spread(algorithm.rounds)), {}

    def keep(state: TrainState, info: RoundInfo) -> None:
        if state.round in kept:
            iterates[state.round] = state.params.clone()

    if isinstance(algorithm, GD):
        budget = Budget(epsilon=math.inf, delta=budget.delta)
    with warnings.catch_warnings():
        if isinstance(algorithm, GD):  # the reference is meant to be without privacy, and the notes say so
            warnings.filterwarnings("ignore", message="epsilon=inf", category=PrivacyLeakWarning)
        result = train(
            start_model(len(data.features)), "squared", data.clients, algorithm, budget,
            weighting="records", seed=seed, callbacks=[keep], progress=progress, directory=folder,
        )  # fmt: skip
    result.save(folder)
    return result, iterates


def _spread(rounds: int) -> list[int]:
    """Return rounds from 1 to the last, evenly spread on a logarithmic axis."""
    steps = (round(rounds ** (i / (POINTS - 1))) for i in range(POINTS))
    return sorted({*steps, rounds})


def _claim(out: Path) -> None:
    """Make ``out`` ours: new, empty, or marked by an earlier demo. Only files the demo writes are ever removed."""
    if out.exists() and not out.is_dir():
        raise InvalidArgument(f"expected out to be a directory, got the file {out}; choose another name")
    if out.is_dir() and any(out.iterdir()) and not (out / MARKER).is_file():
        raise InvalidArgument(f"{out} holds files that are not the demo's; choose a new or an empty directory")
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).write_text(
        "Written by `diff2 demo`, which replaces its own files here when it is run again.\n", "utf-8"
    )
    for algorithm in METHODS.values():
        for name in RUN_FILES:
            (out / algorithm.name / name).unlink(missing_ok=True)


def _notes(private: TrainResult, budget: Budget, seed: int | None, *, shortened: bool) -> list[str]:
    """Say what the numbers mean, and what they do not."""
    together = epsilon_of((multiplier / YEARS for multiplier in private.history["multiplier"]), budget.delta)
    notes = [
        "GD is the reference: no clipping, no noise, not private.",
        "Test loss, R^2 and gradient norm are exact values of the records, computed from the released iterates after "
        "training. Showing them is fine only because these data are public; for private data it would leak.",
        f"One record is a person-year. A person with {YEARS} years is protected {YEARS}-fold less: epsilon {YEARS} "
        f"times as large with a larger delta, or {together:.3g} at delta {budget.delta:g}. To protect people, make one "
        f"record of each person, or divide epsilon by {YEARS}; docs/demo.md shows how.",
        "DP-GD and DIFF2-GD spend their budgets separately, and so does each repetition: whoever sees several models "
        "of the same records must add them up.",
        "The settings were tuned on exact losses of these public data, at epsilon 1; on private data such tuning costs "
        "privacy.",
    ]
    if shortened:
        notes.insert(0, "Shortened for a quick look: the numbers are not those of the demo.")
    if seed is not None:
        notes.insert(0, f"NOT PRIVATE: the noise came from seed={seed}, which can be guessed. Leave the seed out.")
    return notes


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else "inf"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    return "-" if value is None else str(value)
