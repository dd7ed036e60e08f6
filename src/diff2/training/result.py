"""What a run leaves behind."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .._files import write_json
from .._types import Vector
from ..planning.plan import Plan
from ..privacy import Ledger
from .health import health_of

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class TrainResult:
    """A trained model, and everything needed to say what it cost. Nothing in it has seen a record."""

    model: nn.Module
    params: Vector  # of the model, as one vector
    history: pandas.DataFrame  # one row per round: what was released, and timings
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
            "sigma_1": plan.sigma_1,
            "sigma_2": plan.sigma_2,
            "sigma_3": plan.sigma_3,
            "rounds": len(history),
            "parameters": self.params.numel(),
            "engine": self.engine,
            "seconds": float(history["seconds"].sum()),
            "health": self.health,
        }

    def save(self, directory: str | os.PathLike[str], more: Mapping[str, Any] | None = None) -> Path:
        """Write model.pt, result.json and history.csv; the ledger is there already if the run had this directory.

        Args:
            more: what else result.json should say.
        """
        target = Path(directory)
        target.mkdir(parents=True, exist_ok=True)
        torch.save(self.model.state_dict(), target / "model.pt")
        write_json(target / "result.json", {**self.summary(), **(more or {})})
        self.history.to_csv(target / "history.csv", index=False)
        return target


def model_digest(model: nn.Module | Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of all that a model holds, trained or not: names, shapes, types and values, by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted((model.state_dict() if isinstance(model, nn.Module) else model).items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def history_table(rows: list[dict[str, Any]], ledger: Ledger) -> pandas.DataFrame:
    """Return the rounds as a table, with what was released after each, which is no guarantee."""
    import pandas

    table = pandas.DataFrame(rows)
    if len(table):
        path = ledger.epsilon_path(list(table["round"]))
        table.insert(table.columns.get_loc("multiplier") + 1, "released_epsilon", path)
    return table
