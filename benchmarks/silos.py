"""What a round costs at sites, and rounds to a loss: ``python -m benchmarks.silos [in-process] [real] [rounds]``.

``in-process`` and ``real`` (a server and one process a site on 127.0.0.1, with FLARE and TLS) train the same: made-up
records, 100 a site, eight inputs, networks of about 100 to 1,000,000 parameters. *Arithmetic* is the time of the site
that computes longest, as a share of the whole. ``rounds`` compares BVR-L-SGD with DIFF2-GD by exact losses, which is
*not private*, on the built-in data.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas
import torch
from rich.console import Console
from rich.table import Table

import diff2
from diff2 import BVRLocalSGD, Diff2, GradientDescent
from diff2._files import read_json
from diff2.cohorts.per_client import ClientSums
from diff2.data.loading import load_clients
from diff2.data.named import BuiltinSettings
from diff2.data.scaling import Encoding, Scaling
from diff2.federation.agreement import Agreement
from diff2.federation.flare.job import SITE_VARIABLE
from diff2.federation.flare.local import run_locally
from diff2.federation.server import PROGRESS
from diff2.federation.server.job import JobSpec, run_job
from diff2.federation.site.approval import approve
from diff2.federation.site.policy import read_site_file
from diff2.federation.site.site import site_from_file
from diff2.federation.wire.transport import InProcessTransport
from diff2.models.mlp import mlp
from diff2.runfile.reader import ModelSettings, PrivacySettings, RunSettings

console = Console(width=120)
INPUTS, RECORDS = 8, 100
MODELS = {100: (10,), 10_000: (1000,), 1_000_000: (1000, 990)}  # hidden layers for about so many parameters
SITES = (3, 10)
ENTRY = 'entry_point = "benchmarks.silos:timed_records"'
EVERY = 5  # rounds between two exact losses


class Cost(NamedTuple):
    """Of one round, which asks every site once; medians."""

    seconds: float
    bytes: float  # both ways, all sites together
    arithmetic: float  # seconds of the site that computes longest


def measured(kind: str, sites: int, parameters: int, rounds: int) -> Cost:
    """Train so many rounds and return what one costs."""
    names = tuple(f"site-{i}" for i in range(1, sites + 1))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "sites"
        agreement = _agreement(MODELS[parameters], rounds, names)
        for i, name in enumerate(names):
            _write_site(folder / name, i)
            approve(folder / name / "diff2-site", agreement)
        spec = JobSpec(agreement, Path(place) / "run", timeout=300.0)
        if kind == "real":
            run_locally(spec, folder, simulate=False, restarts=0, start_timeout=300.0)
        else:
            _in_process(spec, folder)
        progress = read_json(spec.directory / PROGRESS) or {}
        spent = max(_read_seconds(folder / name) for name in names)
        seconds = float(pandas.read_csv(spec.directory / "history.csv")["seconds"].median())
    moved = progress["bytes_sent"] + progress["bytes_received"]
    return Cost(seconds, moved / rounds, spent)


def timed_records() -> tuple[np.ndarray, np.ndarray]:
    """Entry point of a site: return its records; from now on, what it computes is timed and noted in its folder."""
    folder = Path(os.environ[SITE_VARIABLE]).parent
    _time_sums(lambda client: folder)
    with np.load(folder / "records.npz") as arrays:
        return arrays["inputs"], arrays["targets"]


def _time_sums(folder_of: Any) -> None:
    if hasattr(ClientSums, "untimed"):
        return
    ClientSums.untimed = ClientSums.answer  # type: ignore[attr-defined]

    def timed(method: Any) -> Any:
        def call(self: ClientSums, *arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            value = method(self, *arguments, **options)
            with open(folder_of(self._index) / "seconds", "a", encoding="utf-8") as file:
                file.write(f"{time.perf_counter() - start}\n")
            return value

        return call

    ClientSums.answer = timed(ClientSums.answer)  # type: ignore[method-assign]


def _in_process(spec: JobSpec, folder: Path) -> None:
    files = {}
    for name in spec.sites:
        path = folder / name / "site.toml"
        text = path.read_text(encoding="utf-8")
        text = text.replace('entry_point = "benchmarks.silos:timed_records"', 'file = "records.npz"')
        path.write_text(text, encoding="utf-8")
        files[name] = read_site_file(path)
    _time_sums(lambda index: _CURRENT[0] / f"site-{index + 1}")
    _CURRENT[:] = [folder]
    torch.set_num_threads(1)  # as the processes of "real" have on two cores
    run_job(spec, InProcessTransport({name: site_from_file(name, file).answer for name, file in files.items()}))


_CURRENT: list[Path] = []  # the folder of the sites that are being timed in this process


def _read_seconds(folder: Path) -> float:
    """Return the median: what the first rounds take to get going is not typical of a run."""
    return float(np.median([float(line) for line in (folder / "seconds").read_text(encoding="utf-8").split()]))


def _write_site(folder: Path, index: int) -> None:
    folder.mkdir(parents=True)
    generator = np.random.default_rng(index)
    inputs = generator.normal(size=(RECORDS, INPUTS))
    np.savez(folder / "records.npz", inputs=inputs, targets=np.tanh(inputs.sum(1, keepdims=True)))
    text = f"[data]\n{ENTRY}\n[policy]\nepsilon = 1.0\n"
    (folder / "site.toml").write_text(text, encoding="utf-8")


def _agreement(hidden: tuple[int, ...], rounds: int, sites: tuple[str, ...]) -> Agreement:
    return Agreement(
        Diff2(rounds, 5, 2.0, 3.0, routine=GradientDescent(0.05)),
        ModelSettings(hidden=hidden),
        PrivacySettings(1.0, 1e-5),
        RunSettings(),
        Encoding({f"x{i}": Scaling() for i in range(INPUTS)}, "y", Scaling(), None),
        sites,
    )


def paces(kinds: list[str], parameters: list[int], sites: list[int], rounds: int) -> None:
    """Print what a round costs."""
    table = Table("where", "sites", "parameters", "rounds a second", "bytes a round", "arithmetic", title="A round")
    for kind in kinds:
        for size in parameters:
            for count in sites:
                cost = measured(kind, count, size, rounds if size < 1_000_000 else max(2, rounds // 4))
                share = f"{100 * cost.arithmetic / cost.seconds:.0f} %"
                table.add_row(
                    kind, str(count), f"{size:,}", f"{1 / cost.seconds:.2g}", f"{cost.bytes:,.0f}", share
                )  # fmt: skip
                console.print(f"{kind}, {count} sites, {size:,} parameters: {cost}", style="dim")
    console.print(table)


def rounds_to_loss(levels: list[float], epsilons: list[float], seeds: list[int]) -> None:
    """Print rounds and questions to given losses: BVR-L-SGD against DIFF2-GD, at the same budget."""
    methods = _methods()
    table = Table(
        "epsilon", "method", *(f"to {level:g}" for level in levels), title="Rounds to an exact loss, median of 3"
    )
    for epsilon in epsilons:
        for name, algorithm in methods.items():
            reached = []
            for seed in seeds:
                losses = _losses(algorithm, epsilon, seed)
                reached.append([_first(losses, level) for level in levels])
            middle = np.median(np.array(reached, dtype=float), axis=0)
            console.print(f"{epsilon:g}, {name}: {reached}", style="dim")
            table.add_row(f"{epsilon:g}", name, *("-" if np.isinf(value) else f"{value:.0f}" for value in middle))
    console.print(table)


def _methods() -> dict[str, Diff2]:
    """Return both with the settings of experiments/compare/randhie.toml, and with neighbouring ones."""
    descent = Diff2(400, 20, 8.0, 5.0, budget_split=1.25, routine=GradientDescent(0.05))
    local = BVRLocalSGD(0.02, 4, 512, 5.0)
    return {
        "DIFF2-GD": descent,
        "DIFF2-GD, 200 rounds, step 0.1": replace(descent, rounds=200, routine=GradientDescent(0.1)),
        "DIFF2-BVR-L-SGD, K = 4": Diff2(200, 10, 8.0, 5.0, budget_split=2.0, routine=local),
        "DIFF2-BVR-L-SGD, K = 8": Diff2(200, 10, 8.0, 5.0, budget_split=2.0, routine=replace(local, local_steps=8)),
    }


def _losses(algorithm: Diff2, epsilon: float, seed: int) -> list[tuple[int, float]]:
    tables = load_clients(BuiltinSettings("randhie"))
    model = mlp(len(tables.encoding.inputs), tables.encoding.outputs, hidden=(5,), activation="tanh", seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", diff2.PrivacyLeakWarning)
        result = diff2.train(
            model, tables.encoding.loss, tables.clients, algorithm, diff2.Budget(epsilon, 1e-5), weighting="records",
            seed=seed, metrics_every=EVERY, progress=False,
        )  # fmt: skip
    return list(enumerate(result.history["train_loss"], start=1))


def _first(losses: list[tuple[int, float]], level: float) -> float:
    return next((float(round) for round, loss in losses if loss <= level), float("inf"))


def main() -> None:
    """Read the command line and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["in-process", "real", "rounds"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sites", type=int, nargs="*", default=list(SITES))
    parser.add_argument("--parameters", type=int, nargs="*", default=list(MODELS))
    parser.add_argument("--levels", type=float, nargs="*", default=[0.65, 0.60, 0.58])
    parser.add_argument("--epsilons", type=float, nargs="*", default=[3.0])
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    kinds = [kind for kind in options.what if kind != "rounds"]
    if kinds:
        paces(kinds, options.parameters, options.sites, options.rounds)
    if "rounds" in options.what:
        rounds_to_loss(options.levels, options.epsilons, options.seeds)


if __name__ == "__main__":
    main()
