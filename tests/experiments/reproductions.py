"""A reproduction made of formulas: what tuning hands to tables, figures and page, without any training."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import numpy as np

from diff2_experiments.reproduced import Reproduced, Tuned

METHODS = [("gd", "GD"), ("dpgd", "DP-GD"), ("diff2", "DIFF2-GD"), ("recursive_diff2", "DIFF2 recursive")]
GRIDS = {
    "gd": {},
    "dpgd": {"clip_gradient": [1, 3, 10]},
    "diff2": {"clip_gradient": [1, 3, 10], "clip_smoothness": [1, 3, 10, 30], "restart_interval": [6, 20, 60]},
    "recursive_diff2": {"clip_gradient": [1, 3, 10], "clip_smoothness": [1, 3, 10, 30]},
}
FLOORS = {"gd": 0.0, "dpgd": 0.01, "diff2": 0.006, "recursive_diff2": 0.004}
PUBLISHED = {
    "epsilon_3": {
        "train_loss": {"gd": 0.0179, "dpgd": 0.0237, "diff2": 0.0221},
        "test_loss": {"gd": 0.018, "dpgd": 0.030, "diff2": 0.025},
        "p_values": {"train_loss": 0.09, "squared_gradient_norm": 0.04, "test_loss": 0.02},
    }
}


def stored_run(method, accounting, budget, seed, settings, *, task="regression", rounds=2000, every=20):
    """Return a run whose curves fall towards a floor that its settings, budget and seed raise."""
    number = np.arange(every, rounds + 1, every)
    names = ["gd", "dpgd", "diff2", "recursive_diff2"]
    rng = np.random.default_rng([names.index(method) if method in names else 9, int(10 * (budget or 0)), seed])
    off = sum((math.log10(value) - 0.5) ** 2 for name, value in settings.items() if name != "learning_rate")
    noise = 0.0 if budget is None else (1.6 if accounting == "paper" else 1.0) * FLOORS.get(method, 0.005) * 3 / budget
    level = 0.018 + noise * (0.4 + 0.3 * off) + 0.0006 * rng.standard_normal()
    rough = 1 + 0.3 * bool(noise) * rng.standard_normal(len(number))
    shape = 0.3 / (1 + number / 30) ** 1.5
    train = level + shape + 0.05 * noise * np.abs(rough)
    run = {
        "key": f"{method}-{accounting}-{budget}-{seed}-{sorted(settings.items())}",
        "method": method,
        "settings": dict(settings),
        "algorithm": f"{method}({', '.join(f'{name}={value}' for name, value in settings.items())})",
        "budget": budget,
        "delta": 1e-5,
        "accounting": accounting,
        "seed": seed,
        "survived": True,
        "stopped_at": rounds,
        "rounds": number.tolist(),
        "train_loss": train.tolist(),
        "squared_gradient_norm": (shape**2 + (4e-6 + 0.04 * noise**1.2 * (0.3 + off)) * np.abs(rough)).tolist(),
        "test_loss": (1.1 * train + 0.0004 * rng.standard_normal()).tolist(),
        "epsilon": None if budget is None else budget * (0.78 if accounting == "paper" else 0.999999),
        "seconds": 4.2,
    }
    if task == "classification":
        run["train_accuracy"] = (0.76 - train).tolist()
        run["test_accuracy"] = (0.755 - 1.05 * train).tolist()
    return run


def all_runs(*, task="regression", seeds=5, epsilons=(3.0, 5.0), accountings=("paper", "exact"), methods=METHODS):
    """Return every run of the grid, each with the rate before it, at which the run did not survive."""
    runs = []
    for (method, _), seed, accounting, epsilon in product(methods, range(seeds), accountings, epsilons):
        if method == "gd" and (accounting, epsilon) != (accountings[0], epsilons[0]):
            continue
        grid, budget = GRIDS[method], None if method == "gd" else epsilon
        for values in product(*grid.values()):
            settings = dict(zip(grid, values, strict=True))
            early = stored_run(method, accounting, budget, seed, {**settings, "learning_rate": 1.0}, task=task)
            early |= {"survived": False, "stopped_at": 60}
            for name in ("rounds", "train_loss", "squared_gradient_norm", "test_loss"):
                early[name] = [*early[name][:2], 60 if name == "rounds" else None]
            runs.append(early)
            runs.append(stored_run(method, accounting, budget, seed, {**settings, "learning_rate": 0.5}, task=task))
    return runs


def tuned_of(runs, label):
    """Return the best of the runs of one method, accounting, budget and seed."""
    surviving = [run for run in runs if run["survived"]]
    first = runs[0]
    return Tuned(
        first["method"],
        label,
        first["accounting"],
        first["budget"],
        first["seed"],
        min(surviving, key=lambda run: min(run["train_loss"])),
        min(surviving, key=lambda run: min(run["squared_gradient_norm"])),
        len(runs),
        len(surviving),
    )


def reproduced(directory=Path("out"), *, runs=None, title="California Housing", published=PUBLISHED, **options):
    """Return a reproduction, with the best of these runs, by default of all."""
    runs = all_runs(**options) if runs is None else runs
    groups: dict = {}
    for run in runs:
        groups.setdefault((run["method"], run["accounting"], run["budget"], run["seed"]), []).append(run)
    methods = [pair for pair in options.get("methods", METHODS) if any(key[0] == pair[0] for key in groups)]
    private = [key for key in groups if key[2] is not None]
    found = [tuned_of(group, dict(methods)[key[0]]) for key, group in groups.items()]
    # A method without privacy is named again at every accounting and epsilon, as tuning does.
    again = [one for one in found if one.budget is None for _ in range(len({key[1:3] for key in private}) - 1)]
    return Reproduced(
        name="california",
        title=title,
        task=options.get("task", "regression"),
        delta=1e-5,
        grid="reduced",
        rounds=2000,
        seeds=len({key[3] for key in groups}),
        epsilons=sorted({key[2] for key in private}),
        accountings=list(dict.fromkeys(key[1] for key in private)),
        methods=methods,
        tuned=[*found, *again],
        leaks=("scaling of 8 columns by the data's own mean and deviation",),
        records=16_512,
        clients=10,
        held_out=4_128,
        directory=Path(directory),
        command="diff2 reproduce --dataset california --epsilon 3,5 --seeds 5 --out out",
        seconds=812.0,
        trained=len(runs),
        published=published,
    )
