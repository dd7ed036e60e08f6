"""What a run leaves behind, and what its releases say of the model: how much of the gradient estimates is noise.

How many records are clipped is not released, so nothing is said of it. Neither is the loss: ``diff2.evaluate`` scores
models of ``fit``; for others, score on public records.
"""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from .._files import AnyPath, write_json
from .._vectors import Vector
from ..planning.plan import Plan
from ..privacy import Ledger
from .model_file import MODEL, write_model

MOSTLY = 0.9  # share of noise from which on a run is called mostly noise
NAMES = ("estimate_norm", "estimate_std")  # of the history, which are used
PARTS = 10  # of the rounds, of which the first and the last are shown


@dataclass(frozen=True)
class TrainResult:
    """A trained model, and everything needed to state what it cost. Nothing in it has seen a record."""

    model: nn.Module
    params: Vector  # of the model, as one vector
    history: dict[str, np.ndarray]  # by column, one entry per round: what was released, and timings
    ledger: Ledger
    plan: Plan
    engine: str  # how gradients were computed

    @property
    def guarantee(self) -> str:
        """One sentence a privacy officer can sign; ``ledger.guarantee()`` has the same as data."""
        return str(self.ledger.guarantee())

    @property
    def epsilon(self) -> float:
        """What the run cost, at the budget's delta: that of the whole plan, however many releases were made."""
        return self.ledger.epsilon()

    @property
    def health(self) -> list[str]:
        """Lines on how much of the gradient estimates is noise, from released values alone."""
        return health_of(self.history, self.params.numel())

    def summary(self) -> dict[str, Any]:
        """Return plain JSON values: guarantee, noise, time."""
        plan, history = self.plan, self.history
        return {
            "guarantee": self.ledger.guarantee().to_json(),
            "algorithm": self.ledger.header["algorithm"],
            "weighting": plan.population.weighting,
            "unit": plan.population.unit,
            "accounting": plan.accounting,
            **plan.sigmas,
            "rounds": len(history["round"]),
            "parameters": self.params.numel(),
            "engine": self.engine,
            "seconds": float(history["seconds"].sum()),
            "health": self.health,
        }

    def save(self, directory: AnyPath, more: Mapping[str, Any] | None = None) -> Path:
        """Write model.safetensors, result.json, history.csv; the ledger is there already if the run had this directory.

        Args:
            more: what else result.json should say.
        """
        target = Path(directory)
        target.mkdir(parents=True, exist_ok=True)
        write_model(target / MODEL, self.model, self.guarantee)
        write_json(target / "result.json", {**self.summary(), **(more or {})})
        with (target / "history.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.history)
            for row in zip(*(column.tolist() for column in self.history.values()), strict=True):
                writer.writerow("" if cell != cell else cell for cell in row)  # NaN: not measured in this round
        return target


def history_table(rows: list[dict[str, Any]], ledger: Ledger) -> dict[str, np.ndarray]:
    """Return the rounds by column, with what was released after each, which is no guarantee."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = {name: np.array([row.get(name, math.nan) for row in rows]) for name in names}
    if rows:
        names.insert(names.index("multiplier") + 1, "released_epsilon")
        table["released_epsilon"] = np.array(ledger.epsilon_path(table["round"].tolist()))
    return {name: table[name] for name in names}


def noise_share(history: Mapping[str, np.ndarray], dimension: int) -> float:
    """Return the share of noise in the squared lengths of the estimates, at most 1.

    It can be below what noise alone explains by chance; then all of it is noise.
    """
    released = float(np.square(history["estimate_norm"]).sum())
    noise = dimension * float(np.square(history["estimate_std"]).sum())
    return min(1.0, noise / released) if released > 0 else float(noise > 0)


def health_of(history: Mapping[str, np.ndarray], dimension: int) -> list[str]:
    """Return lines that say how much of the gradient estimates is noise, from released values alone."""
    if "estimate_std" not in history or not history["estimate_std"].any():
        return ["no noise was added to the gradient estimates"]
    size = max(1, len(history["estimate_std"]) // PARTS)
    parts = ({name: history[name][of] for name in NAMES} for of in (slice(None), slice(size), slice(-size, None)))
    whole, first, last = (noise_share(part, dimension) for part in parts)
    lines = [f"noise is {whole:.0%} of the gradient estimates: {first:.0%} in the first rounds, {last:.0%} in the last"]
    if first >= MOSTLY:
        lines.append(
            "from the first round on estimates are mostly noise: expect little of the model. More records, a larger "
            "epsilon, fewer rounds or a smaller model help; for a table, diff2 fit needs no settings"
        )
    return lines
