"""What cannot be done is refused with the reason, before anything is spent and before anything is written."""

import math
import warnings

import pytest
import torch

import diff2
from catalogue import CATALOGUE, GROUPS, LOCAL, NORMAL, PRIVATE, SERVER, STEP, diff2_with, run
from diff2 import (
    DPSGD,
    DPSRM,
    SRNSGD,
    Averaging,
    Budget,
    BudgetExceeded,
    BVRLocalSGD,
    Diff2,
    DPFedAvg,
    DPScaffold,
    InvalidArgument,
    RecursiveDiff2,
)

TIGHT = {"budget": Budget(0.1, 1e-5), "accounting": "paper"}
FEW = {"clients_per_round": 2}
DRAWN = {"unit": "client", "clients_per_round": 2, "client_order": "random"}
POISSON = DPSGD(7, 6, 2.0, routine=STEP, sampling="poisson")


def bvr(**changes):
    return diff2_with(BVRLocalSGD(**{**dict.fromkeys(("learning_rate", "local_clip_smoothness"), 0.05), **changes}))


# The clients have 8, 12 and 4 records. A message names what was wrong, and what to do.
REFUSED = {
    "b > n_p, local steps": (bvr(local_steps=3, batch_size=5), {}, "batch_size=5 is more than the 4 records.*lower it"),
    "b > n_p, fedavg": (DPFedAvg(7, 2, 5, 2.0, 0.1, SERVER), {}, "batch_size=5 is more than the 4"),
    "b > n_p, scaffold": (DPScaffold(7, 2, 9, 2.0, 0.1, SERVER), {}, "batch_size=9 is more than the 4"),
    "b > N, dpsgd": (DPSGD(7, 25, 2.0, STEP), {}, "batch_size=25 is more than the 24"),
    "b > N, poisson": (DPSGD(7, 25, 2.0, STEP, sampling="poisson"), {}, "batch_size=25 is more than the 24"),
    "b > N, dpsrm": (DPSRM(7, 25, 2.0, 0.5, 0.3, STEP), {}, "batch_size=25 is more than the 24"),
    "more batches than records": (SRNSGD(7, 5, 2, 2.0, 3.0, NORMAL), {}, "5 batches cannot be made of the 4 records"),
    "m > P": (diff2_with(), {"clients_per_round": 4}, "at most the number of clients, 3, got clients_per_round=4"),
    "m < 1": (diff2_with(), {"clients_per_round": 0}, "expected clients_per_round >= 1, got clients_per_round=0"),
    "m fractional": (diff2_with(), {"clients_per_round": 1.5}, "whole number"),
    "an order that does not exist": (diff2_with(), {"client_order": "rnd"}, "client_order.*'random'"),
    "clients at random for records": (
        diff2_with(),
        {**FEW, "client_order": "random"},
        "whole client only.*robin",
    ),
    "a unit that does not exist": (diff2_with(), {"unit": "person"}, "unit"),
    "clients as units weighed by records": (diff2_with(), {"unit": "client", "weighting": "records"}, "clients weigh"),
    "groups that are not said": (diff2_with(), {"unit": "group"}, "needs groups"),
    "groups and clients as units": (diff2_with(), {"unit": "client", "groups": GROUPS}, "leave one of them out"),
    "groups and some clients": (diff2_with(), {**FEW, "groups": GROUPS}, "cannot be combined"),
    "groups for two clients": (diff2_with(), {"groups": GROUPS[:2]}, "one array for each of the 3 clients"),
    "groups too short": (diff2_with(), {"groups": [[0], *GROUPS[1:]]}, r"groups\[0\] has shape \(1,\)"),
    "a record without a group": (
        diff2_with(),
        {"groups": [*GROUPS[:2], [0.0, 1.0, math.nan, 2.0]]},
        "groups hold records without a group",
    ),
    "SRN-SGD with steps of unknown length": (lambda: SRNSGD(7, 2, 2, 2.0, 3.0, STEP), {}, "NormalizedDescent"),
    "SRN-SGD with some clients": (CATALOGUE["srnsgd"], FEW, "clients_per_round cannot be combined"),
    "DP-SGD with some clients": (CATALOGUE["dpsgd, fixed"], FEW, "clients_per_round cannot be combined"),
    "DP-SRM with some clients": (CATALOGUE["dpsrm"], FEW, "clients_per_round cannot be combined"),
    "fedavg with local steps": (DPFedAvg(7, 2, 2, 2.0, 0.1, LOCAL), {}, "dpfedavg makes local steps"),
    "local steps inside an average, with fedavg": (
        DPScaffold(7, 2, 2, 2.0, 0.1, Averaging(LOCAL)),
        {},
        "dpscaffold makes local steps",
    ),
    "Poisson with local steps": (
        DPSGD(7, 6, 2.0, LOCAL, sampling="poisson"),
        {},
        "Poisson batches are priced for adding or removing",
    ),
    "Poisson by the paper": (POISSON, {"accounting": "paper"}, "accounting='paper' has no formula for Poisson"),
    "u_1 = u_2 = 2": (lambda: diff2_with(LOCAL, budget_split=(2.0, 2.0)), {}, r"1/u_1 \+ 1/u_2 < 1"),
    "u_2 = 1": (lambda: diff2_with(LOCAL, budget_split=(3.0, 1.0)), {}, r"\(u_1, u_2\) above 1"),
    "three parts of a budget": (lambda: diff2_with(LOCAL, budget_split=(3.0, 3.0, 3.0)), {}, "pair"),
    "a split in words": (lambda: diff2_with(budget_split="half"), {}, "expected budget_split to be a number"),
    "K = 0": (lambda: bvr(local_steps=0, batch_size=2), {}, "expected local_steps >= 1, got local_steps=0"),
    "K = 0, fedavg": (lambda: DPFedAvg(7, 0, 2, 2.0, 0.1, SERVER), {}, "expected local_steps >= 1"),
    "b = 0": (lambda: bvr(local_steps=2, batch_size=0), {}, "expected batch_size >= 1, got batch_size=0"),
    "b = 0, dpsgd": (lambda: DPSGD(7, 0, 2.0, STEP), {}, "expected batch_size >= 1"),
    "M = 0": (lambda: SRNSGD(7, 0, 2, 2.0, 3.0, NORMAL), {}, "expected batches >= 1"),
    "gain 0": (lambda: DPSRM(7, 6, 2.0, 0.5, 0.0, STEP), {}, "expected gain between 0 and 1"),
    "least gain 2": (lambda: RecursiveDiff2(7, 2.0, 3.0, STEP, least_gain=2.0), {}, "least_gain between 0 and 1"),
    "an unknown sampling": (lambda: DPSGD(7, 6, 2.0, STEP, sampling="uniform"), {}, "sampling"),
    "no radius, recursive": (RecursiveDiff2(7, math.inf, 3.0, STEP), {}, "clip_gradient to be finite"),
    "no radius, dpsgd": (DPSGD(7, 6, math.inf, STEP), {}, "clip_gradient to be finite"),
    "no radius, fedavg": (DPFedAvg(7, 2, 2, math.inf, 0.1, SERVER), {}, "clip_gradient to be finite"),
    "no radius of differences": (diff2_with(clip_smoothness=math.inf, cap=False), {}, "clip_smoothness to be finite"),
    "no radius of differences, dpsrm": (DPSRM(7, 6, 2.0, math.inf, 0.3, STEP), {}, "clip_difference to be finite"),
    "no radius of differences, srnsgd": (
        SRNSGD(7, 2, 2, 2.0, math.inf, NORMAL),
        {},
        "clip_smoothness to be finite",
    ),
    "no radius of local steps": (
        bvr(local_steps=2, batch_size=2, local_clip_smoothness=math.inf),
        {},
        "local_clip_smoothness to be finite",
    ),
}
UNITS = {
    f"{unit} with {name}": (CATALOGUE[name], options, f"unit='{unit}' needs an algorithm that asks all records")
    for name in ("dpsgd, fixed", "dpsrm", "srnsgd", "dpfedavg", "dpscaffold", "bvr", "recursive, bvr")
    for unit, options in (("client", {"unit": "client"}), ("group", {"groups": GROUPS}))
}
EXCEEDED = {
    "the paper's lemma on batches": (CATALOGUE["dpsgd, fixed"], TIGHT, "no noise level reaches this epsilon"),
    "the paper's lemma on local steps": (CATALOGUE["bvr"], TIGHT, "no noise level reaches this epsilon"),
    "the paper's lemma on clients": (diff2_with(), {**DRAWN, "accounting": "paper"}, "no noise level reaches"),
    "no noise at all": (diff2.GD(7, STEP), {}, "GD adds no noise"),
}


@pytest.mark.parametrize("case", [*REFUSED, *UNITS, *EXCEEDED])
def test_it_is_refused_before_anything_is_spent(case, tmp_path):
    algorithm, options, message = {**REFUSED, **UNITS, **EXCEEDED}[case]
    directory = tmp_path / "run"
    with pytest.raises(BudgetExceeded if case in EXCEEDED else InvalidArgument, match=message):
        run(algorithm() if callable(algorithm) else algorithm, **{"budget": PRIVATE, **options}, directory=directory)
    assert not directory.exists()


@pytest.mark.parametrize("case", [case for case in EXCEEDED if "lemma" in case])
def test_exact_accounting_reaches_what_the_papers_lemma_cannot(case):
    algorithm, options, _ = EXCEEDED[case]
    budget = options.get("budget", PRIVATE)
    options = {name: value for name, value in options.items() if name not in ("accounting", "budget")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", diff2.WeakDeltaWarning)
        assert diff2.plan(algorithm, budget, (8, 12, 4), **options).epsilon <= budget.epsilon


def test_a_plan_refuses_what_training_refuses():
    for algorithm, options, message in (*REFUSED.values(), *UNITS.values()):
        if callable(algorithm) or "groups" in options or options.get("unit") == "group":
            continue
        with pytest.raises(InvalidArgument, match=message):
            diff2.plan(algorithm, PRIVATE, (8, 12, 4), **options)


def test_infinite_radii_are_fine_where_nothing_is_private():
    algorithm = Diff2(3, 2, math.inf, math.inf, BVRLocalSGD(0.01, 2, 2, math.inf), cap=False)
    assert torch.isfinite(run(algorithm).params).all()


def test_a_pair_may_be_a_list_as_in_a_run_file():
    assert diff2_with(LOCAL, budget_split=[3.0, 4.0]) == diff2_with(LOCAL, budget_split=(3.0, 4.0))
    with pytest.raises(InvalidArgument, match=r"1/u_1 \+ 1/u_2 < 1"):
        diff2_with(LOCAL, budget_split=[2.0, 2.0])


def test_k_of_one_needs_no_batch():
    """BVRLocalSGD with one step asks for nothing itself, so whatever its batch is does not matter."""
    assert run(bvr(local_steps=1, batch_size=99), budget=PRIVATE, unit="client").epsilon <= PRIVATE.epsilon
