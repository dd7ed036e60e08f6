"""Seeded runs must keep their bytes: the parameters of the final model, and every release in the ledger.

A change that is meant to leave results alone must leave ``bytes.json`` alone. From the root of the repository,

    python tests/test_bytes.py            says which cases changed, and
    python tests/test_bytes.py --write    stores what they give now as well.

Bytes depend on the processor and on the versions of some packages. They are stored with both, and the cases are skipped
elsewhere. The library is called in the functions from ``build`` to ``in_canonical_order``; all else is tables.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from importlib import metadata
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas
import pytest
import torch
from torch import nn

import diff2
from diff2 import (
    DPGD,
    DPSGD,
    DPSRM,
    GD,
    SRNSGD,
    Adam,
    Averaging,
    Budget,
    BVRLocalSGD,
    Diff2,
    DPFedAvg,
    DPScaffold,
    GradientDescent,
    Momentum,
    Nesterov,
    NormalizedDescent,
    RecursiveDiff2,
    TorchOptimizer,
)
from diff2.cohorts.clients import Client, as_groups
from diff2.data.scaling import Encoding, Scaling
from diff2.federation.agreement import Agreement
from diff2.federation.site.records import SiteRecords
from diff2.federation.site.site import Site
from diff2.privacy.trust import Trust
from diff2.runfile.reader import ModelSettings, PrivacySettings, RunSettings, read_run_file
from diff2.runfile.run import train_run_file
from federated import ANYTHING, NAMES, federated_run
from helpers import make_case

STORED = Path(__file__).with_name("bytes.json")
SIZES = (24, 36, 20)
SMALL = (9, 12, 7)
LARGE = (700, 530, 20)  # several tiles of the compiled engine
SEED = 11
PACKAGES = ("torch", "numpy", "scipy", "dp-accounting", "numba")
BUDGET = Budget(epsilon=2.0, delta=1e-3)
AMPLE = Budget(epsilon=30.0, delta=1e-3)  # few units need so much for steps that do not drown in the noise
NO_NOISE = Budget(epsilon=math.inf, delta=1e-3)


@dataclass(frozen=True)
class Case:
    """One run."""

    algorithm: Any  # of a run file: the text of its tables
    where: str = "here"  # "here", "sites": a federation in this process, "file": a run file
    model: str = "mlp"  # of ``MODELS`` below, or of ``helpers.MODELS``
    dtype: torch.dtype = torch.float64
    sizes: tuple[int, ...] = SIZES
    budget: Budget = BUDGET
    owners: bool = False
    trust: tuple[Any, ...] = ()  # who adds the noise, and how many are honest
    numba: bool = True
    engine: str | None = None  # that must be chosen
    options: Mapping[str, Any] = field(default_factory=dict)  # of the run


def build(case: Case, directory: Path) -> dict[str, str]:
    """Run a case; return the hashes of its model and of its releases."""
    with one_thread(), warnings.catch_warnings(), nullcontext() if case.numba else without_numba():
        warnings.simplefilter("ignore")
        result = {"here": run_here, "sites": run_at_sites, "file": run_a_file}[case.where](case, directory)
    assert case.engine in (None, result.engine)
    parameters = b"".join(parameter.detach().numpy().tobytes() for parameter in result.model.parameters())
    return {
        "model": hashlib.sha256(parameters).hexdigest(),
        "releases": hashlib.sha256(json.dumps(in_canonical_order(result.ledger)).encode()).hexdigest(),
    }


def run_here(case: Case, directory: Path) -> Any:
    model, loss, clients = make_problem(case)
    groups = {"groups": [owners_of(size) for size in case.sizes]} if case.owners else {}
    return diff2.train(
        model, loss, clients, case.algorithm, case.budget, seed=SEED, progress=False, **groups, **case.options
    )


def run_at_sites(case: Case, directory: Path) -> Any:
    options = dict(case.options)
    agreement = Agreement(
        case.algorithm,
        ModelSettings(hidden=(4,), seed=5),
        PrivacySettings(case.budget.epsilon, case.budget.delta, unit=options.pop("unit", "record")),
        RunSettings(dtype=str(case.dtype).removeprefix("torch."), seed=SEED, **options),
        Encoding({f"x{i}": Scaling() for i in range(3)}, "y", Scaling(), None),
        NAMES,
        "owner" if case.owners else None,
        trust=Trust(*case.trust),
    )
    records = {}
    for name, pair in zip(NAMES, make_problem(case)[2], strict=True):
        client = Client(*pair)
        owners = as_groups([owners_of(client.size)], [client])[0] if case.owners else None
        records[name] = SiteRecords(client, owners)
    sites = {
        name: Site(name, lambda _, name=name: records[name], ANYTHING, directory / "sites" / name) for name in NAMES
    }
    return federated_run(agreement, directory, sites)[0]


def run_a_file(case: Case, directory: Path) -> Any:
    for name, (inputs, _) in zip(NAMES, make_problem(case)[2], strict=True):
        table = inputs.numpy()
        columns = {"age": 40 + 9 * table[:, 0], "income": 50 * np.exp(table[:, 1] / 2), "smoker": table[:, 2] > 0}
        columns = {**columns, "smoker": columns["smoker"].astype(int), "visits": 3 + table.sum(1)}
        pandas.DataFrame(columns).to_csv(directory / f"{name}.csv", index=False)
    (directory / "run.toml").write_text(RUN_FILE + case.algorithm, encoding="utf-8")
    run = read_run_file(directory / "run.toml")
    return train_run_file(run, directory / "out", seed=SEED, progress=False).result


def without_numba() -> Any:
    return mock.patch("diff2.gradients.compiled._installed", return_value=False)


def in_canonical_order(ledger: Any) -> list[tuple[Any, ...]]:
    """Return what is hashed of each release: no names of fields, floats to the last bit."""
    return [
        (
            entry.round,
            entry.purpose,
            float(entry.multiplier).hex(),
            float(entry.sensitivity).hex(),
            float(entry.noise_std).hex(),
            float(entry.clip).hex(),
            entry.sampling,
            float(entry.rate).hex(),
        )
        for entry in ledger.releases
    ]


RUN_FILE = """
[data]
files = ["north.csv", "south.csv", "east.csv"]
target = "visits"
task = "regression"
bounds = { visits = [-4, 10], smoker = [-1, 1] }
holdout = 0.1
scale = "private"
scale_bounds = { age = [0, 120], income = [0, 200] }
[model]
hidden = [4]
[routine]
name = "gradient_descent"
learning_rate = 0.1
"""


def make_problem(case: Case) -> tuple[nn.Module, str, list[tuple[torch.Tensor, torch.Tensor]]]:
    """Return a model, the loss and the clients' records."""
    count, generator = sum(case.sizes), torch.Generator().manual_seed(3)
    if case.model in MODELS:
        model = MODELS[case.model]()
        inputs = torch.randn(count, 3, generator=generator, dtype=torch.float64)
        targets = inputs.sum(1, keepdim=True) + torch.randn(count, 1, generator=generator, dtype=torch.float64)
        if case.model == "classes":
            targets = torch.bucketize(targets[:, 0], torch.tensor([-1.0, 1.0], dtype=torch.float64))
    else:
        model, inputs, targets, _ = make_case(case.model, count=count)
    inputs, targets = (part.to(case.dtype) if part.is_floating_point() else part for part in (inputs, targets))
    loss = "squared" if targets.is_floating_point() else "cross_entropy"
    pairs = zip(inputs.split(case.sizes), targets.split(case.sizes), strict=True)
    return model.to(case.dtype), loss, [(x.clone(), y.clone()) for x, y in pairs]


class Scaled(nn.Module):
    """A parameter that does not broadcast over records, so that there is no rule; ``look`` stops vmap as well."""

    def __init__(self, look: bool):
        super().__init__()
        self.inner, self.scale, self.look = diff2.mlp(3, 1, hidden=[4], seed=5), nn.Parameter(torch.ones(1)), look

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = self.inner(inputs) * self.scale.norm()
        return outputs if not self.look or outputs.sum().item() < math.inf else -outputs


def with_dropout() -> nn.Module:
    inner = diff2.mlp(3, 1, hidden=[4], seed=5)
    return nn.Sequential(inner[0], inner[1], nn.Dropout(0.25), inner[2])


MODELS = {
    "mlp": lambda: diff2.mlp(3, 1, hidden=[4], seed=5),
    "deep": lambda: diff2.mlp(3, 1, hidden=[5, 4], activation="tanh", seed=5),
    "classes": lambda: diff2.mlp(3, 3, hidden=[4], seed=5),
    "vmap": lambda: Scaled(look=False),
    "loop": lambda: Scaled(look=True),
    "dropout": with_dropout,
}


def owners_of(size: int) -> list[int]:
    """Return owners with one, two or three records each, not side by side."""
    return [(7 * row) % (size // 2) for row in range(size)]


def diff2_with(routine: Any, **changes: Any) -> Diff2:
    return Diff2(
        **{"rounds": 8, "restart_interval": 3, "clip_gradient": 2.0, "clip_smoothness": 3.0, **changes}, routine=routine
    )


STEP = GradientDescent(learning_rate=0.05)
LOCAL = BVRLocalSGD(learning_rate=0.05, local_steps=3, batch_size=4, local_clip_smoothness=3.0)
SERVER = GradientDescent(learning_rate=1.0)

ALGORITHMS = {
    "dpgd": DPGD(rounds=8, clip_gradient=2.0, routine=STEP),
    "diff2": diff2_with(STEP),
    "diff2, no cap": diff2_with(STEP, cap=False, clip_smoothness=40.0),
    "recursive": RecursiveDiff2(rounds=8, clip_gradient=2.0, clip_smoothness=3.0, routine=STEP),
    "bvr": diff2_with(LOCAL),
    "dpsgd, fixed": DPSGD(rounds=8, batch_size=12, clip_gradient=2.0, routine=STEP),
    "dpsgd, poisson": DPSGD(rounds=8, batch_size=12, clip_gradient=2.0, routine=STEP, sampling="poisson"),
    "dpsrm": DPSRM(
        rounds=8, batch_size=12, clip_gradient=2.0, clip_difference=0.5, gain=0.3,
        routine=NormalizedDescent(0.05, max_step_norm=0.02),
    ),
    "srnsgd": SRNSGD(
        rounds=9, batches=2, restart_epochs=2, clip_gradient=2.0, clip_smoothness=3.0, routine=NormalizedDescent(0.05)
    ),
    "dpfedavg": DPFedAvg(
        rounds=6, local_steps=2, batch_size=4, clip_gradient=2.0, local_learning_rate=0.05, routine=SERVER
    ),
    "dpscaffold": DPScaffold(
        rounds=6, local_steps=2, batch_size=4, clip_gradient=2.0, local_learning_rate=0.05, routine=SERVER
    ),
}  # fmt: skip
ROUTINES = {
    "cosine": GradientDescent(0.05, schedule="cosine"),
    "inverse root": GradientDescent(0.05, schedule="inverse_root"),
    "momentum": Momentum(0.02),
    "momentum, cosine": Momentum(0.02, momentum=0.5, schedule="cosine"),
    "nesterov": Nesterov(0.02),
    "nesterov, inverse root": Nesterov(0.02, momentum=0.5, schedule="inverse_root"),
    "adam": Adam(0.05),
    "adam, longest": Adam(0.05, max_step_norm=0.1, schedule="cosine"),
    "adam, plain": Adam(0.05, correct_noise=False, floor=1e-8),
    "averaging": Averaging(Momentum(0.02), start=0.3),
    "averaging, decay": Averaging(STEP, start=0.0, decay=0.7),
    "normalized": NormalizedDescent(0.05),
    "normalized, longest": NormalizedDescent(0.05, max_step_norm=0.02, schedule="inverse_root"),
    "torch, adamw": TorchOptimizer("AdamW", {"lr": 0.02, "weight_decay": 0.1}, schedule="cosine"),
    "torch, rmsprop": TorchOptimizer("RMSprop", {"lr": 0.01}),
    "bvr, one step": BVRLocalSGD(0.05, 1, 4, 3.0),
    "bvr, averaging, cosine": Averaging(replace(LOCAL, schedule="cosine"), start=0.2),
}
FULL = ("dpgd", "diff2", "recursive")  # that ask all records in every round
SINGLE = torch.float32


def make_cases() -> dict[str, Case]:
    cases = {}
    for name, algorithm in ALGORITHMS.items():
        here = Case(algorithm, engine="columns")
        cases |= {
            name: here,
            f"{name}, records": replace(here, options={"weighting": "records"}),
            f"{name}, float32": replace(here, dtype=SINGLE, engine="compiled"),
            f"{name}, by client": replace(here, options={"by_client": True}),
            f"{name}, sites": Case(algorithm, "sites"),
        }
    for name in ("dpgd", "diff2", "recursive", "bvr", "dpsgd, fixed", "dpsrm", "srnsgd", "dpfedavg", "dpscaffold"):
        cases[f"{name}, sites' noise"] = Case(ALGORITHMS[name], "sites", trust=("sites",))
    cases["diff2, sites' noise, 2 honest, records"] = Case(
        ALGORITHMS["diff2"], "sites", trust=("sites", 2), options={"weighting": "records"}
    )
    for name, routine in ROUTINES.items():
        cases[f"diff2, {name}"] = Case(diff2_with(routine))
        cases[f"diff2, {name}, float32"] = Case(diff2_with(routine), dtype=SINGLE)
    return cases | settings_cases() | unit_cases() | engine_cases() | file_cases()


def settings_cases() -> dict[str, Case]:
    """Settings of algorithms and runs that stand for themselves."""
    gd = GD(rounds=8, routine=STEP)
    return {
        "gd": Case(gd, budget=NO_NOISE),
        "gd, float32, records": Case(gd, budget=NO_NOISE, dtype=SINGLE, options={"weighting": "records"}),
        "diff2, capped": Case(diff2_with(STEP, clip_smoothness=40.0)),
        "diff2, no noise": Case(ALGORITHMS["diff2"], budget=NO_NOISE),
        "diff2, T = 1": Case(diff2_with(STEP, restart_interval=1)),
        "diff2, T > R": Case(diff2_with(STEP, restart_interval=99)),
        "diff2, u = 2": Case(diff2_with(STEP, budget_split=2.0)),
        "bvr, u = (3, 3)": Case(diff2_with(LOCAL, budget_split=(3.0, 3.0))),
        "recursive, bvr": Case(replace(ALGORITHMS["recursive"], routine=LOCAL)),
        "recursive, least gain": Case(replace(ALGORITHMS["recursive"], least_gain=0.5)),
        "srnsgd, 4 batches": Case(
            replace(ALGORITHMS["srnsgd"], batches=4, routine=NormalizedDescent(0.05, schedule="inverse_root"))
        ),
        "diff2, paper's accounting": Case(ALGORITHMS["diff2"], options={"accounting": "paper"}),
        "bvr, paper's accounting": Case(ALGORITHMS["bvr"], budget=AMPLE, options={"accounting": "paper"}),
        "diff2, uniform output": Case(ALGORITHMS["diff2"], options={"output": "uniform"}),
        "bvr, uniform output": Case(ALGORITHMS["bvr"], options={"output": "uniform"}),
        "diff2, metrics": Case(ALGORITHMS["diff2"], options={"metrics_every": 2}),
    }


def unit_cases() -> dict[str, Case]:
    """Owners and clients as units, and rounds in which some clients take part."""
    cases = {"gd, owners": Case(GD(rounds=8, routine=STEP), budget=NO_NOISE, owners=True)}
    two = {"clients_per_round": 2}
    drawn = {"unit": "client", "clients_per_round": 2, "client_order": "random"}
    for name in FULL:
        owners = Case(ALGORITHMS[name], owners=True, engine="ghost")
        client = Case(ALGORITHMS[name], budget=AMPLE, options={"unit": "client"})
        cases |= {
            f"{name}, owners": owners,
            f"{name}, owners, records, float32": replace(owners, dtype=SINGLE, options={"weighting": "records"}),
            f"{name}, owners, by client": replace(owners, options={"by_client": True}),
            f"{name}, client": client,
            f"{name}, client, float32": replace(client, dtype=SINGLE),
            f"{name}, client, by client": replace(client, options={"unit": "client", "by_client": True}),
            f"{name}, client, 2 of 3": replace(client, options={"unit": "client", **two}),
            f"{name}, client, 2 of 3 drawn": replace(client, options=drawn),
            f"{name}, client, 2 of 3 drawn, by client": replace(client, options={**drawn, "by_client": True}),
        }
    for name in ("diff2", "recursive"):
        owners = Case(ALGORITHMS[name], "sites", owners=True)
        client = Case(ALGORITHMS[name], "sites", budget=AMPLE, options={"unit": "client"})
        cases |= {
            f"{name}, owners, sites": owners,
            f"{name}, owners, sites' noise": replace(owners, trust=("sites",)),
            f"{name}, client, sites": client,
            f"{name}, client, sites' noise": replace(client, trust=("sites",)),
            f"{name}, client, 2 of 3, sites": replace(client, options={"unit": "client", **two}),
            f"{name}, client, 2 of 3 drawn, sites": replace(client, options=drawn),
        }
    for name in (*FULL, "bvr", "dpfedavg", "dpscaffold"):
        some = Case(ALGORITHMS[name], options=two)
        cases |= {
            f"{name}, 2 of 3": some,
            f"{name}, 2 of 3, records": replace(some, options={**two, "weighting": "records"}),
            f"{name}, 2 of 3, by client": replace(some, options={**two, "by_client": True}),
        }
    for name in ("diff2", "bvr", "dpscaffold"):
        some = Case(ALGORITHMS[name], "sites", options=two)
        cases[f"{name}, 2 of 3, sites"] = some
        cases[f"{name}, 2 of 3, sites' noise"] = replace(some, trust=("sites",))
    return cases


def engine_cases() -> dict[str, Case]:
    """Every engine: in both precisions, in one pass and in several, for records, batches and owners.

    Without noise, whose grid would hide the rounding of an engine.
    """
    chosen = {
        "vmap": "vmap", "loop": "loop", "dropout": "ghost", "deep": "columns", "conv1d, stride and padding": "ghost",
        "conv2d": "ghost", "group norm": "ghost", "sequence, long": "ghost", "sequence, wide": "ghost",
        "embedding": "ghost", "transformer": "ghost",
    }  # fmt: skip
    cases = {}
    for model, engine in chosen.items():
        case = Case(ALGORITHMS["diff2"], model=model, sizes=SMALL, budget=NO_NOISE, engine=engine)
        cases[f"{model}: {engine}"] = case
        cases[f"{model}: {engine}, float32"] = replace(case, dtype=SINGLE)
    for model in ("vmap", "loop", "dropout", "deep", "conv2d"):
        case = Case(ALGORITHMS["recursive"], model=model, sizes=SMALL, budget=NO_NOISE)
        cases[f"{model}: recursive, in parts"] = replace(case, options={"chunk_rows": 5})
        cases[f"{model}: dpsrm"] = replace(case, algorithm=ALGORITHMS["dpsrm"])
        cases[f"{model}: owners"] = replace(case, owners=True)
        cases[f"{model}: by client"] = replace(case, options={"by_client": True})
    for model in ("mlp", "classes"):
        for numba, dtype in ((True, SINGLE), (False, SINGLE), (True, torch.float64)):
            engine = "compiled" if numba and dtype == SINGLE else "columns"
            kind = engine if dtype == SINGLE else f"{engine}, float64"
            case = Case(ALGORITHMS["diff2"], model=model, dtype=dtype, budget=NO_NOISE, numba=numba, engine=engine)
            cases |= {
                f"{model}: {kind}": case,
                f"{model}: {kind}, in parts": replace(case, options={"chunk_rows": 5}),
                f"{model}: {kind}, recursive": replace(case, algorithm=ALGORITHMS["recursive"]),
                f"{model}: {kind}, dpsrm": replace(case, algorithm=ALGORITHMS["dpsrm"]),
                f"{model}: {kind}, large": replace(case, sizes=LARGE),
                f"{model}: {kind}, client": replace(case, options={"unit": "client"}),
                f"{model}: {kind}, by client": replace(case, options={"by_client": True}),
            }
    for numba in (True, False):
        case = Case(ALGORITHMS["diff2"], "sites", dtype=SINGLE, numba=numba)
        cases[f"mlp: {'compiled' if numba else 'columns'}, sites"] = case
    return cases


def file_cases() -> dict[str, Case]:
    """Run files with private scaling: its release is the first of the ledger."""
    diff2_table = """
[algorithm]
name = "diff2"
rounds = 8
restart_interval = 3
clip_gradient = 1.0
clip_smoothness = 1.0
"""
    dpsgd_table = """
[algorithm]
name = "dpsgd"
rounds = 8
batch_size = 12
clip_gradient = 1.0
"""
    privacy = "[privacy]\nepsilon = 2.0\ndelta = 1e-3\n"
    tables = {
        "private scaling": diff2_table + privacy,
        "private scaling, records, float64": diff2_table + privacy + '[run]\nweighting = "records"\ndtype = "float64"',
        "private scaling, client, 2 of 3": diff2_table + privacy + 'unit = "client"\n[run]\nclients_per_round = 2',
        "private scaling, by client": diff2_table + privacy + "[federation]",
        "private scaling, dpsgd": dpsgd_table + privacy,
    }
    return {name: Case(text, "file") for name, text in tables.items()}


CASES = make_cases()


def cases_for_every_pair() -> set[str]:
    """Return cases in which all pairs of settings occur that occur at all; the others are slow."""
    kept, seen = set(), set()
    for name, case in CASES.items():
        fields = {"large": case.sizes == LARGE, **vars(case), **case.options}
        for unpaired in ("sizes", "budget", "engine", "options"):  # which follow from the others
            del fields[unpaired]
        pairs = set(combinations(sorted(f"{field} {value}" for field, value in fields.items()), 2))
        if pairs - seen:
            kept.add(name)
        seen |= pairs
    return kept


PAIRS = cases_for_every_pair()


@contextmanager
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def machine() -> dict[str, str]:
    """Return what bytes depend on besides the code."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    fields = dict(map(str.strip, line.split(":", 1)) for line in reversed(lines) if ":" in line)
    processor = {key: fields.get(key, "unknown") for key in ("model name", "cpu family", "model")}
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "missing"
    return {**processor, "instructions": torch.backends.cpu.get_cpu_capability(), **versions}


def read_stored() -> dict[str, Any]:
    return json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {"machine": {}, "cases": {}}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in PAIRS)) for n in CASES])
def test_bytes_are_those_stored(name, tmp_path):
    stored, here = read_stored(), machine()
    if stored["machine"] != here:
        other = {key: (stored["machine"].get(key), value) for key, value in here.items()}
        changed = [f"{key} {was!r}, here {now!r}" for key, (was, now) in other.items() if was != now]
        pytest.skip(f"bytes.json was written on another machine: {'; '.join(changed)}")
    assert build(CASES[name], tmp_path) == stored["cases"][name]


def test_every_stored_case_is_run():
    assert list(read_stored()["cases"]) == list(CASES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="store what the cases give now")
    write, stored, found = parser.parse_args().write, read_stored(), {}
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as directory:
            found[name] = build(case, Path(directory))
    if stored["machine"] not in ({}, machine()):
        print(f"stored on another machine: {stored['machine']}, here {machine()}")
    for name in {**stored["cases"], **found}:
        old, new = stored["cases"].get(name), found.get(name)
        if old is None or new is None:
            print(f"{'removed' if new is None else 'new'}: {name}")
        elif old != new:
            print(f"changed: {name} ({', '.join(part for part in new if new[part] != old.get(part))})")
    print(f"{len(found)} cases, {sum(stored['cases'].get(name) == new for name, new in found.items())} as stored")
    if write:
        STORED.write_text(json.dumps({"machine": machine(), "cases": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
