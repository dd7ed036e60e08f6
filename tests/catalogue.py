"""The table of all algorithms, with the routines that make a difference: what every contract is held against.

Small on purpose: 24 records at three clients, seven rounds. Runs that are priced numerically share their settings, so
that each is calibrated once in a test process.
"""

import math
import warnings
from functools import cache

import torch

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

HIDDEN = 4
SIZES = (8, 12, 4)
ROUNDS = 7
NO_NOISE = Budget(epsilon=math.inf, delta=1e-5)
PRIVATE = Budget(epsilon=2.0, delta=1e-3)
STEP = GradientDescent(learning_rate=0.05)
LOCAL = BVRLocalSGD(learning_rate=0.05, local_steps=3, batch_size=2, local_clip_smoothness=3.0)
NORMAL = NormalizedDescent(learning_rate=0.05)
SERVER = GradientDescent(learning_rate=1.0)


def diff2_with(routine=STEP, **changes):
    settings = {"rounds": ROUNDS, "restart_interval": 3, "clip_gradient": 2.0, "clip_smoothness": 3.0}
    return Diff2(**{**settings, **changes}, routine=routine)


CATALOGUE = {
    "dpgd": DPGD(ROUNDS, 2.0, routine=STEP),
    "diff2": diff2_with(),
    "diff2, T = R": diff2_with(restart_interval=ROUNDS),
    "diff2, T > R": diff2_with(restart_interval=99),
    "diff2, one round": diff2_with(rounds=1),
    "diff2, early restarts": diff2_with(restart_interval=6, early_restarts=True),
    "diff2, u = 2": diff2_with(budget_split=2.0),
    "diff2, momentum": diff2_with(Momentum(0.02)),
    "diff2, nesterov": diff2_with(Nesterov(0.02)),
    "diff2, adam": diff2_with(Adam(0.05)),
    "diff2, averaging": diff2_with(Averaging(Momentum(0.02), start=0.3)),
    "diff2, torch": diff2_with(TorchOptimizer("AdamW", {"lr": 0.02, "weight_decay": 0.1}, schedule="cosine")),
    "bvr": diff2_with(LOCAL),
    "bvr, K = 1": diff2_with(BVRLocalSGD(0.05, 1, 2, 3.0)),
    "bvr, u = (3, 3)": diff2_with(LOCAL, budget_split=(3.0, 3.0)),
    "bvr, averaging": diff2_with(Averaging(LOCAL, start=0.2)),
    "recursive": RecursiveDiff2(ROUNDS, 2.0, 3.0, routine=STEP),
    "recursive, bvr": RecursiveDiff2(ROUNDS, 2.0, 3.0, routine=LOCAL),
    "dpsgd, fixed": DPSGD(ROUNDS, 6, 2.0, routine=STEP),
    "dpsgd, poisson": DPSGD(ROUNDS, 6, 2.0, routine=STEP, sampling="poisson"),
    "dpsrm": DPSRM(ROUNDS, 6, 2.0, 0.5, 0.3, routine=NormalizedDescent(0.05, max_step_norm=0.1)),
    "srnsgd": SRNSGD(ROUNDS, 2, 2, 2.0, 3.0, routine=NORMAL),
    "srnsgd, 4 batches": SRNSGD(ROUNDS + 4, 4, 2, 2.0, 3.0, routine=NormalizedDescent(0.05, schedule="inverse_root")),
    "dpfedavg": DPFedAvg(ROUNDS, 2, 2, 2.0, 0.05, routine=SERVER),
    "dpscaffold": DPScaffold(ROUNDS, 2, 2, 2.0, 0.05, routine=SERVER),
}
# The same algorithms where other units are protected, or some clients take part in a round: options of a run.
GROUPS = [[0, 0, 1, 1, 2, 2, 3, 3], list("aaabbbcccddd"), [0, 1, 1, 2]]
OPTIONS = {
    "diff2, groups": {"groups": GROUPS},
    "recursive, client": {"unit": "client"},
    "diff2, 2 of 3 clients": {"clients_per_round": 2},
    "recursive, 2 of 3 clients": {"clients_per_round": 2, "weighting": "records"},
    "bvr, 2 of 3 clients": {"clients_per_round": 2},
    "dpscaffold, 2 of 3 clients": {"clients_per_round": 2},
    "diff2, client, 2 of 3 in turn": {"clients_per_round": 2, "unit": "client"},
    "recursive, client, 2 of 3 drawn": {"clients_per_round": 2, "unit": "client", "client_order": "random"},
}
CATALOGUE |= {name: CATALOGUE[name.split(",")[0]] for name in OPTIONS}

SAMPLED = {  # priced numerically, to the safe side
    name for name in CATALOGUE if name.startswith(("bvr", "dps", "dpf")) or name.endswith((", bvr", "drawn"))
} - {"bvr, K = 1"}
NOT_PRIVATE = {"gd": GD(ROUNDS, routine=STEP)}


def plan_options(name):
    """The options of a run as ``diff2.plan`` takes them."""
    options = dict(OPTIONS.get(name, {}))
    return {**options, "unit": "group"} if options.pop("groups", None) else options


def make_clients(sizes=SIZES, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    clients = []
    for size in sizes:
        x = torch.randn(size, 3, generator=generator, dtype=torch.float64)
        y = x.sum(1, keepdim=True) + torch.randn(size, 1, generator=generator, dtype=torch.float64)
        clients.append((x.to(dtype), y.to(dtype)))
    return clients


def make_model(dtype=torch.float64):
    return diff2.mlp(3, 1, hidden=[HIDDEN], seed=5).to(dtype)


def run(algorithm, sizes=SIZES, budget=NO_NOISE, dtype=torch.float64, start=diff2.train, **options):
    """Train an algorithm, or the one of this name, quietly; ``start=diff2.prepare`` stops before the first round."""
    if isinstance(algorithm, str):
        algorithm, options = CATALOGUE[algorithm], {**OPTIONS.get(algorithm, {}), **options}
    options.setdefault("seed", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", diff2.PrivacyLeakWarning)
        warnings.simplefilter("ignore", diff2.WeakDeltaWarning)
        return start(make_model(dtype), "squared", make_clients(sizes, dtype=dtype), algorithm, budget, **options)


@cache
def result_of(name, seed=1):
    """A private run of the table; its result is not changed by anybody."""
    return run(name, budget=PRIVATE, seed=seed)


def start_vector():
    return torch.nn.utils.parameters_to_vector(make_model().parameters()).detach()
