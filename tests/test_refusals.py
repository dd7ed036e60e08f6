"""What cannot be done is refused with the reason, before anything is spent and before anything is written."""

import math
import warnings

import pytest
import torch

import diff2
from catalogue import CATALOGUE, LOCAL, NORMAL, OWNERS, PRIVATE, SERVER, STEP, diff2_with, run
from diff2 import (
    DPGD,
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
    DriftDiff2,
    FusedDiff2,
    InvalidArgument,
    Population,
    RecursiveDiff2,
)
from diff2.questions.population import Batch

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
    "owners without groups": (diff2_with(), {"unit": "owner"}, "needs groups"),
    "groups and clients as units": (diff2_with(), {"unit": "client", "groups": OWNERS}, "leave one of them out"),
    "groups and some clients": (diff2_with(), {**FEW, "groups": OWNERS}, "cannot be combined"),
    "groups for two clients": (diff2_with(), {"groups": OWNERS[:2]}, "one array for each of the 3 clients"),
    "groups too short": (diff2_with(), {"groups": [[0], *OWNERS[1:]]}, r"groups\[0\] has shape \(1,\)"),
    "a record without an owner": (
        diff2_with(),
        {"groups": [*OWNERS[:2], [0.0, 1.0, math.nan, 2.0]]},
        r"groups\[2\] holds records without an owner",
    ),
    "SRN-SGD with steps of unknown length": (lambda: SRNSGD(7, 2, 2, 2.0, 3.0, STEP), {}, "NormalizedDescent"),
    "SRN-SGD with some clients": (CATALOGUE["srnsgd"], FEW, "clients_per_round cannot be combined"),
    "DP-SGD with some clients": (CATALOGUE["dpsgd, fixed"], FEW, "clients_per_round cannot be combined"),
    "DP-SRM with some clients": (CATALOGUE["dpsrm"], FEW, "clients_per_round cannot be combined"),
    "drift with some clients": (CATALOGUE["drift"], FEW, "DriftDiff2 needs all clients"),
    "drift with clients drawn": (CATALOGUE["drift"], DRAWN, "DriftDiff2 needs all clients"),
    "auto with some clients": (CATALOGUE["diff2, auto"], FEW, "budget_split='auto' needs all clients"),
    "auto with clients drawn": (CATALOGUE["diff2, auto"], DRAWN, "budget_split='auto' needs all clients"),
    "auto with local steps": (lambda: diff2_with(LOCAL, budget_split="auto"), {}, "budget_split='auto'"),
    "drift with local steps": (lambda: DriftDiff2(7, 3, 2.0, 3.0, LOCAL), {}, "DriftDiff2 chooses its releases"),
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
    "a split in words": (lambda: diff2_with(budget_split="half"), {}, "'auto', got 'half'"),
    "K = 0": (lambda: bvr(local_steps=0, batch_size=2), {}, "expected local_steps >= 1, got local_steps=0"),
    "K = 0, fedavg": (lambda: DPFedAvg(7, 0, 2, 2.0, 0.1, SERVER), {}, "expected local_steps >= 1"),
    "b = 0": (lambda: bvr(local_steps=2, batch_size=0), {}, "expected batch_size >= 1, got batch_size=0"),
    "b = 0, dpsgd": (lambda: DPSGD(7, 0, 2.0, STEP), {}, "expected batch_size >= 1"),
    "M = 0": (lambda: SRNSGD(7, 0, 2, 2.0, 3.0, NORMAL), {}, "expected batches >= 1"),
    "gain 0": (lambda: DPSRM(7, 6, 2.0, 0.5, 0.0, STEP), {}, "expected gain between 0 and 1"),
    "least gain 2": (lambda: RecursiveDiff2(7, 2.0, 3.0, STEP, least_gain=2.0), {}, "least_gain between 0 and 1"),
    "an unknown clipping": (lambda: FusedDiff2(7, 3, 2.0, 3.0, STEP, clipping="none"), {}, "clipping"),
    "an unknown noise schedule": (lambda: diff2_with(noise_schedule="late"), {}, "noise_schedule"),
    "an unknown sampling": (lambda: DPSGD(7, 6, 2.0, STEP, sampling="uniform"), {}, "sampling"),
    "no radius, recursive": (RecursiveDiff2(7, math.inf, 3.0, STEP), {}, "clip_gradient to be finite"),
    "no radius, fused": (FusedDiff2(7, 3, math.inf, 3.0, STEP), {}, "clip_gradient to be finite"),
    "no radius, drift": (DriftDiff2(7, 3, math.inf, 3.0, STEP), {}, "clip_gradient to be finite"),
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
    for unit, options in (("client", {"unit": "client"}), ("owner", {"groups": OWNERS}))
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
        if callable(algorithm) or "groups" in options or options.get("unit") == "owner":
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


@pytest.mark.parametrize(
    ("sizes", "message"), [((), "number of clients"), ((3, 0), r"client_sizes\[1\] >= 1"), ((3, 2.5), "whole number")]
)
def test_a_population_without_records_is_refused(sizes, message):
    with pytest.raises(InvalidArgument, match=message):
        Population(sizes)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5, math.nan])
def test_a_rate_that_is_no_probability_is_refused(rate):
    with pytest.raises(InvalidArgument, match="sampling rate above 0 and at most 1"):
        Population((5,), adjacency="add-or-remove-one").exposure(1, Batch(rate=rate))


def test_a_question_for_the_other_adjacency_is_refused():
    with pytest.raises(InvalidArgument, match="one adjacency"):
        Population((5,)).exposure(1, Batch(rate=0.5))
    with pytest.raises(InvalidArgument, match="one adjacency"):
        Population((5,), adjacency="add-or-remove-one").exposure(1)


def test_a_round_that_would_use_noise_twice_is_refused():
    """Two releases of one purpose and step would carry the same noise: their difference would carry none."""

    class Twice(DPGD):
        def estimate(self, state, round):
            for _ in range(2):
                mean = round.cohort.clipped_gradient(round.params, self.clip_gradient, round=round.number)
                round.release(mean, "gradient")

    training = run(Twice(2, 1.0, STEP), budget=PRIVATE, start=diff2.prepare)
    with pytest.raises(diff2.LedgerError, match="the same noise"):
        training.step(training.init())
    assert len(training.mechanism.ledger) == 1
