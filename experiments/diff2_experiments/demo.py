"""The demo: doctor visits at six sites, and how much of the accuracy survives privacy.

``fit`` is run on the RAND Health Insurance Experiment at several epsilons, beside DP-GD and DIFF2-GD on a small network
and what is reached without privacy. The model at the epsilon that was asked for is kept, with its ledger. Scores are
exact, on people held out: they may be shown because these data are public.

The settings called *tuned* were found beforehand by looking at exact losses, see ``docs/demo.md`` and
``benchmarks/demo_settings.py``.
"""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from diff2._files import write_json
from diff2._progress import Show, progress_bar
from diff2.algorithms import DPGD, GD, Algorithm, Diff2
from diff2.cli.console import command, show_facts, show_guarantee, show_line, show_rows
from diff2.data.randhie import INDICATOR, PERSON, RANGES, TARGET, RandHie, fifth_of, load, read_table
from diff2.errors import CompositionWarning, InvalidArgument, PrivacyLeakWarning
from diff2.fitting import FittedModel, fit
from diff2.fitting.saving import FILES
from diff2.models.mlp import mlp
from diff2.privacy import Budget
from diff2.routines import GradientDescent
from diff2.tables.schema import Schema
from diff2.training.build import train

from .demo_figure import draw
from .figures import require_matplotlib

VISITS = "log_visits"  # log(1 + visits)
IMPUTED = ("physlm", "black")  # indicators that the study has imputed in part, by numbers between 0 and 1
EPSILONS = (0.5, 1.0, 3.0, 8.0)  # of the figure
DELTA = 1e-5

FIT, NETWORK, BOOSTING = "fit", "network*", "boosting*"  # * not private
# With the settings of the README: on private records nobody can look for better ones without paying for it.
PLAIN: dict[str, Algorithm] = {
    "DP-GD": DPGD(rounds=200, clip_gradient=1.0, routine=GradientDescent(learning_rate=0.1)),
    "DIFF2-GD": Diff2(
        rounds=200, restart_interval=20, clip_gradient=1.0, clip_smoothness=1.0,
        routine=GradientDescent(learning_rate=0.1),
    ),
}  # fmt: skip
TUNED: dict[str, Algorithm] = {
    "DP-GD, tuned": DPGD(rounds=400, clip_gradient=8.0, routine=GradientDescent(learning_rate=0.05)),
    "DIFF2-GD, tuned": Diff2(
        rounds=400, restart_interval=20, clip_gradient=8.0, clip_smoothness=5.0, budget_split=1.25,
        routine=GradientDescent(learning_rate=0.05),
    ),
}  # fmt: skip
REFERENCE = GD(rounds=1000, routine=GradientDescent(learning_rate=0.1))

MARKER = "diff2-demo.txt"
MODEL, TRAIN, NEW, SCHEMA = "model", "people.csv", "new_people.csv", "people.schema.toml"


@dataclass(frozen=True)
class Data:
    """The table for ``fit``, raw; the same records as tensors for networks; and what is publicly known."""

    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray]
    tensors: RandHie
    schema: Schema

    @classmethod
    def load(cls) -> Data:
        table = read_table()
        columns = {name: table[name].numbers() for name in (*RANGES, "site")}
        columns[PERSON] = table[PERSON].numbers().astype(np.int64)
        columns[VISITS] = np.log1p(table[TARGET].numbers())
        held_out = fifth_of(columns[PERSON]) == 0
        flags = [name for name, bounds in RANGES.items() if bounds == INDICATOR and name not in IMPUTED]
        bounds = {name: (0.0, 1.0) if one == INDICATOR else one for name, one in RANGES.items() if name not in flags}
        schema = Schema.from_arguments(
            list(RANGES), bounds=bounds, flags=flags, target_bounds=(0, 5), target=VISITS, clients="site"
        )
        train, test = ({name: one[rows] for name, one in columns.items()} for rows in (~held_out, held_out))
        return cls(train, test, load(), schema)

    @property
    def records(self) -> int:
        """The number of records to train on."""
        return len(self.train[VISITS])

    def r2(self, predicted: np.ndarray) -> float:
        """Return the share of the variance that predictions for the held-out people explain, exactly."""
        target = self.test[VISITS]
        return float(1 - np.mean((target - predicted) ** 2) / target.var())

    def fitted(
        self, epsilon: float, seed: int | None, directory: Path | None = None, *, people: bool = False
    ) -> FittedModel:
        """Return the model of ``fit``; ``people`` protects all years of a person as one."""
        schema, unit = (replace(self.schema, groups=PERSON), "group") if people else (self.schema, "record")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CompositionWarning)  # the notes say it
            return fit(self.train, schema, epsilon=epsilon, delta=DELTA, unit=unit, seed=seed, directory=directory)

    def trained(self, algorithm: Algorithm, epsilon: float, seed: int | None) -> float:
        """Return R^2 of a network."""
        tuned = algorithm in TUNED.values() or algorithm == REFERENCE
        model = start_model() if tuned else mlp(len(self.tensors.features), 1, seed=seed or 0)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="LEAK-NO-NOISE", category=PrivacyLeakWarning)  # the name says it
            result = train(
                model, "squared", self.tensors.clients, algorithm, Budget(epsilon, DELTA), weighting="records",
                seed=seed, progress=False,
            )  # fmt: skip
        inputs, targets = self.tensors.test
        with torch.no_grad():
            loss = (result.model(inputs) - targets).square().mean()
        return float(1 - loss / targets.var(correction=0))

    def boosted(self) -> float:
        """Return R^2 of gradient boosting, without privacy."""
        from sklearn.ensemble import HistGradientBoostingRegressor

        train, test = (np.stack([part[name] for name in RANGES], axis=1) for part in (self.train, self.test))
        model = HistGradientBoostingRegressor(random_state=0).fit(train, self.train[VISITS])
        return self.r2(model.predict(test))


@dataclass(frozen=True)
class DemoReport:
    """What the demo found, and where it put it."""

    rows: list[dict[str, Any]]  # method, epsilon, r2, share: of what boosting explains
    epsilon: float
    guarantee: str  # of the model
    health: str
    model: Path
    figure: Path
    commands: list[str]  # to predict with the model, to verify it, to fit it again
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "model": str(self.model), "figure": str(self.figure)}


def run_demo(
    out: Path,
    *,
    epsilon: float = 1.0,
    seed: int | None = None,
    progress: Show = None,
    epsilons: Sequence[float] = EPSILONS,
) -> DemoReport:
    """Fit and train, and write a model, a figure and the tables under ``out``.

    Args:
        out: a new or empty directory, or one of an earlier demo, whose files are then replaced.
        epsilon: of the model that is kept.
        seed: None takes the noise from the operating system. A seed makes the demo repeatable and *not private*.
        progress: show a bar; by default where standard error is a terminal.
        epsilons: of the figure, beside that of the model.
    """
    out = Path(out)
    require_matplotlib()
    Budget(epsilon, DELTA)
    data = Data.load()
    _claim(out)
    _write(out / TRAIN, data.train)
    _write(out / NEW, {name: one for name, one in data.test.items() if name != VISITS})
    (out / SCHEMA).write_text(data.schema.to_toml(), "utf-8")
    whole = data.boosted()
    rows: list[dict[str, Any]] = []

    def add(method: str, at: float | None, r2: float) -> None:
        rows.append({"method": method, "epsilon": at, "r2": r2, "share": r2 / whole})

    budgets, networks = sorted({epsilon, *epsilons}), {**PLAIN, **TUNED}
    with progress_bar(len(budgets) * (1 + len(networks)) + 1, show=progress, label="demo", unit="models") as report:
        model = data.fitted(epsilon, seed, out / MODEL)
        model.save(out / MODEL)
        for at in budgets:
            add(FIT, at, data.r2((model if at == epsilon else data.fitted(at, seed)).predict(data.test)))
            report(len(rows))
        for name, algorithm in networks.items():
            for at in budgets:
                add(name, at, data.trained(algorithm, at, seed))
                report(len(rows))
        add(NETWORK, None, data.trained(REFERENCE, math.inf, seed))
        add(BOOSTING, None, whole)
    subtitle = f"{data.records:,} records of six sites, scored on people held out; one run each."
    figure = draw(rows, out / "demo.png", subtitle + ("" if seed is None else " NOT PRIVATE: the noise is seeded."))
    commands = [
        command("diff2", "predict", out / MODEL, out / NEW, "--out", out / "predictions.csv"),
        command("diff2", "verify", out / MODEL),
        command(
            "diff2", "fit", out / TRAIN, "--schema", out / SCHEMA, "--epsilon", f"{epsilon:g}", "--out", out / "mine"
        ),
    ]
    found = DemoReport(
        rows, epsilon, str(model.guarantee), str(model.health), out / MODEL, figure, commands, _notes(seed)
    )
    write_json(out / "demo.json", found.to_json())
    return found


def show(report: DemoReport) -> None:
    """Print the methods side by side, the guarantee, where the model is and how to predict with it."""
    budgets = sorted({row["epsilon"] for row in report.rows if row["epsilon"] is not None})
    table = []
    for method in dict.fromkeys(row["method"] for row in report.rows):
        ours = [row for row in report.rows if row["method"] == method]
        found = {row["epsilon"]: f"{row['r2']:.3f} ({row['share']:.0%})" for row in ours}
        table.append([method, *(found.get(at, found.get(None, "-")) for at in budgets)])
    header = ["* not private", *(f"epsilon {at:g}" for at in budgets)]
    show_rows("doctor visits at six sites: R^2 on people held out", table, header)
    show_guarantee(report.guarantee)
    show_line(f"what the model says of itself, from releases alone: {report.health}", wrap=True)
    for note in report.notes:
        show_line(f"- {note}", wrap=True)
    show_facts("yours", {"figure": str(report.figure), "model": str(report.model)})
    for words in report.commands:
        show_line(f"  {words}")


def _write(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([columns, *zip(*(one.tolist() for one in columns.values()), strict=True)])


def start_model() -> nn.Module:
    """Return the network that settings were tuned for; a starting point holds nothing private, so it may be fixed."""
    return mlp(25, 1, hidden=(5,), activation="tanh", seed=0)


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
    for name in FILES:
        (out / MODEL / name).unlink(missing_ok=True)


def _notes(seed: int | None) -> list[str]:
    """Say what the numbers mean, and what they do not."""
    notes = [
        "In brackets: the share of what gradient boosting explains without privacy. Scores are exact, which is fine "
        "only because these data are public; what the model says of itself is private.",
        "fit has nothing to tune. DP-GD and DIFF2-GD have plain settings (200 rounds, rate 0.1, radius 1); *tuned* "
        "ones were found by looking at exact losses of these very records, with age groups made by hand: that costs "
        "privacy, and is not counted.",
        "One record is a person-year, and a person has up to five: all five together are protected five-fold less. "
        "diff2 fit ... --groups zper protects people.",
        "Each of these models has a budget of its own: whoever sees several must add them up.",
    ]
    if seed is not None:
        notes.insert(0, f"NOT PRIVATE: the noise came from seed={seed}, which can be guessed. Leave the seed out.")
    return notes
