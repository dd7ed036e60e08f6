"""What a reproduction of the paper's experiments hands to those who show it: runs, the best of them, and their setting.

Everything in here is exact (losses and gradients of the records themselves) or chosen by exact numbers. None of it is
private, and whatever shows it says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

# One stored run: "key", "method", "settings" (those that are tuned), "algorithm", "budget" (epsilon; None without
# privacy), "delta", "accounting", "seed", "survived", "stopped_at", "rounds" (those evaluated), a list of as many
# values for each metric ("train_loss", "squared_gradient_norm", "test_loss" and, of classes, "train_accuracy" and
# "test_accuracy"; None where not finite), "epsilon" (spent, by the ledger; None without privacy), "seconds".
Run = dict[str, Any]


class Tuned(NamedTuple):
    """The best runs of one method, accounting, budget and seed, after all its settings were tried."""

    method: str
    label: str
    accounting: str  # "paper" or "exact"
    budget: float | None  # epsilon; None without privacy
    seed: int
    by_loss: Run  # least train loss, over rounds and settings: for losses and accuracies
    by_gradient: Run  # least squared gradient norm, over rounds and settings: for the gradient norm
    tried: int  # runs trained in tuning
    settings: int  # points of the grid


@dataclass(frozen=True)
class Reproduced:
    """A reproduction of one data set."""

    name: str  # of the data set
    title: str
    task: str  # "regression" or "classification"
    delta: float
    grid: str  # "full", "reduced", "halved" or "halved-full"
    rounds: int
    seeds: int
    epsilons: Sequence[float]
    accountings: Sequence[str]
    methods: Sequence[tuple[str, str]]  # name and label
    tuned: Sequence[Tuned]
    leaks: tuple[str, ...]  # what of the records left without noise, besides the metrics
    records: int  # trained on
    clients: int
    held_out: int  # records
    directory: Path
    command: str
    seconds: float  # by the clock on the wall
    trained: int  # runs that were not in the store before
    rule: str = ""  # by which settings of the grid were left out on the way
    published: Mapping[str, Any] = field(default_factory=dict)  # "epsilon_3": {"train_loss": {"gd": ...}, ...}
