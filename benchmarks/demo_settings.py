"""Find the settings of the demo: the same search, with the same effort, for DP-GD and DIFF2-GD.

    python benchmarks/demo_settings.py [--settings 50] [--method DP-GD] [--shortlist]

A setting is judged by R^2 on people held out of the *training* part (never on the test part). This reads exact losses,
so the search itself is not private; the data are public.

Random settings meet with one seed of the noise, the twelve best of them with three, then all neighbours of the best in
the grid with three, and the five best of everything with nine. ``--shortlist`` runs nine other seeds of the settings
in ``SHORTLIST`` (winners of this search, and variations of them made by hand) and adds the squared gradient norm: the
demo takes the smallest one among those whose R^2 is within two standard errors of the best.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

import diff2
from diff2.data.randhie import Pair, RandHie, fifth_of, load
from diff2_experiments.demo import start_model

EPSILON, DELTA = 1.0, 1e-5
FIRST, SECOND, LAST = tuple(range(1, 2)), tuple(range(1, 4)), tuple(range(1, 10))  # seeds of the three stages
SEMIFINALISTS, FINALISTS = 12, 5
TIME = (8.0, 80.0)  # rounds x learning rate: less does not learn, more is noise alone
DIVERGED = -1.0

Setting = dict[str, float]
SHARED = {
    "rounds": (50, 100, 200, 400, 600),
    "clip_gradient": (2.0, 3.0, 5.0, 8.0, 12.0),
    "learning_rate": (0.03, 0.05, 0.1, 0.2, 0.3, 0.5),
}
GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "DP-GD": SHARED,
    "DIFF2-GD": {
        **SHARED,
        "restart_interval": (5, 10, 20, 50, 100, 200),
        "clip_smoothness": (1.0, 2.0, 3.0, 5.0, 8.0, 12.0),
        "budget_split": (1.1, 1.25, 1.5, 2.0, 3.0),
    },
}
# Both were found by hand before this search was written.
BY_HAND: dict[str, Setting] = {
    "DP-GD": {"rounds": 400, "clip_gradient": 8.0, "learning_rate": 0.05},
    "DIFF2-GD": {
        "rounds": 400, "clip_gradient": 8.0, "learning_rate": 0.05,
        "restart_interval": 100, "clip_smoothness": 8.0, "budget_split": 2.0,
    },
}  # fmt: skip

SHORTLIST: dict[str, list[tuple[float, ...]]] = {  # in the order of the grid's names
    "DP-GD": [
        (200, 5, 0.2), (200, 8, 0.2), (300, 8, 0.1), (400, 8, 0.05), (200, 5, 0.3), (400, 5, 0.1), (600, 8, 0.05),
    ],
    "DIFF2-GD": [
        (100, 3, 0.5, 5, 3, 1.25), (300, 5, 0.1, 20, 5, 1.25), (300, 8, 0.1, 20, 8, 1.25), (400, 8, 0.05, 20, 5, 1.25),
        (300, 8, 0.1, 10, 5, 1.25), (400, 8, 0.05, 10, 5, 1.25), (600, 8, 0.05, 20, 5, 1.25),
    ],
}  # fmt: skip
SHORTLIST_SEEDS = tuple(range(101, 110))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=int, default=50, help="random settings to begin with, a method")
    parser.add_argument("--method", choices=list(GRIDS), help="one method only")
    parser.add_argument("--shortlist", action="store_true", help="compare the shortlist instead of searching")
    options = parser.parse_args()
    torch.set_num_threads(1)
    clients, holdout = split(load())
    for method in [options.method] if options.method else list(GRIDS):
        if options.shortlist:
            compare(method, clients, holdout)
            continue
        began = time.monotonic()
        search = Search(method, clients, holdout)
        report(search, search.run(options.settings), time.monotonic() - began)


def split(data: RandHie) -> tuple[list[Pair], Pair]:
    """Return the clients without a fifth of the training people, and that fifth."""
    clients, held = [], []
    for (inputs, targets), people in zip(data.clients, data.people, strict=True):
        out = torch.from_numpy(fifth_of(people, salt="validation") == 0)
        clients.append((inputs[~out], targets[~out]))
        held.append((inputs[out], targets[out]))
    return clients, (torch.cat([inputs for inputs, _ in held]), torch.cat([targets for _, targets in held]))


@dataclass
class Search:
    """A search for one method."""

    method: str
    clients: list[Pair]
    holdout: Pair
    scores: dict[tuple[tuple[str, float], ...], dict[int, float]] = field(default_factory=dict)

    def run(self, settings: int) -> list[Setting]:
        """Return the finalists, the best first."""
        tried = [BY_HAND[self.method], *sample(GRIDS[self.method], settings)]
        second = self.best(tried, FIRST, SEMIFINALISTS)
        best = self.best(second, SECOND, 1)[0]
        near = [best, *neighbours(best, GRIDS[self.method])]
        third = self.best([*second, *(setting for setting in near if setting not in second)], SECOND, FINALISTS)
        return self.best(third, LAST, FINALISTS)

    def best(self, settings: list[Setting], seeds: tuple[int, ...], count: int) -> list[Setting]:
        return sorted(settings, key=lambda setting: -statistics.fmean(self.score(setting, seeds)))[:count]

    def score(self, setting: Setting, seeds: tuple[int, ...]) -> list[float]:
        """Return R^2 for each of the seeds; each run is made once."""
        known = self.scores.setdefault(tuple(setting.items()), {})
        for seed in seeds:
            if seed not in known:
                known[seed] = max(DIVERGED, one_run(self.method, setting, self.clients, self.holdout, seed)["r2"])
        return [known[seed] for seed in seeds]


def sample(grid: dict[str, tuple[float, ...]], count: int) -> list[Setting]:
    """Return random settings of the grid, all different."""
    chooser, found = random.Random(0), []
    for _ in range(100 * count):
        setting = {name: chooser.choice(values) for name, values in grid.items()}
        if TIME[0] <= setting["rounds"] * setting["learning_rate"] <= TIME[1] and setting not in found:
            found.append(setting)
        if len(found) == count:
            break
    return found


def neighbours(setting: Setting, grid: dict[str, tuple[float, ...]]) -> Iterator[Setting]:
    for name, values in grid.items():
        where = values.index(setting[name])
        for i in (where - 1, where + 1):
            if 0 <= i < len(values):
                yield {**setting, name: values[i]}


def one_run(
    method: str,
    setting: Setting,
    clients: list[Pair],
    holdout: Pair,
    seed: int,
) -> dict[str, float]:
    """Train once; return R^2 on the held-out records and the squared gradient norm on the others."""
    values = dict(setting)
    rounds = int(values.pop("rounds"))
    routine = diff2.GradientDescent(learning_rate=values.pop("learning_rate"))
    algorithm: diff2.Algorithm
    if method == "DP-GD":
        algorithm = diff2.DPGD(rounds, values["clip_gradient"], routine)
    else:
        algorithm = diff2.Diff2(rounds, int(values.pop("restart_interval")), routine=routine, **values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", diff2.WeakDeltaWarning)
        result = diff2.train(
            start_model(), "squared", clients, algorithm, diff2.Budget(EPSILON, DELTA),
            weighting="records", seed=seed, progress=False,
        )  # fmt: skip
    return scores(result.model, clients, holdout)


def scores(model: torch.nn.Module, clients: list[Pair], holdout: Pair) -> dict[str, float]:
    """Return R^2 on the held-out records, and the squared norm of the gradient on the others."""

    def loss(pair: Pair) -> torch.Tensor:
        return (model(pair[0]) - pair[1]).square().mean()

    both = torch.cat([inputs for inputs, _ in clients]), torch.cat([targets for _, targets in clients])
    gradient = torch.autograd.grad(loss(both), list(model.parameters()))
    with torch.no_grad():
        r2 = 1 - float(loss(holdout)) / float(holdout[1].var(correction=0))
    return {"r2": r2, "squared_gradient_norm": float(sum(part.square().sum() for part in gradient))}


def compare(method: str, clients: list[Pair], holdout: Pair) -> None:
    print(f"\n{method}: R^2, squared gradient norm, {', '.join(GRIDS[method])}")
    for values in SHORTLIST[method]:
        setting = dict(zip(GRIDS[method], values, strict=True))
        runs = [one_run(method, setting, clients, holdout, seed) for seed in SHORTLIST_SEEDS]
        columns = (_spread([run[name] for run in runs]) for name in ("r2", "squared_gradient_norm"))
        print(f"  {'  '.join(columns)}  {values}", flush=True)


def report(search: Search, finalists: list[Setting], seconds: float) -> None:
    made = sum(len(runs) for runs in search.scores.values())
    print(f"\n{search.method}: {made} runs of {len(search.scores)} settings in {seconds:.0f} s")
    for setting in finalists:
        text = ", ".join(f"{name}={value:g}" for name, value in setting.items())
        print(f"  R^2 {_spread(search.score(setting, LAST))}  {text}", flush=True)


def _spread(values: list[float]) -> str:
    return f"{statistics.fmean(values):.4f} +- {statistics.stdev(values):.4f}"


if __name__ == "__main__":
    main()
