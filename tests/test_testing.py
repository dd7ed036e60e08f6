"""The contract that ``diff2.testing`` ships: our own algorithms and routines keep it, and broken ones are caught."""

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest

import diff2
from diff2 import testing
from diff2.cohorts import pooled

STEP, SERVER = diff2.GradientDescent(0.05), diff2.GradientDescent(1.0)
LOCAL = diff2.BVRLocalSGD(learning_rate=0.05, local_steps=3, batch_size=4, local_clip_smoothness=3.0)
KEPT = {
    "dpgd": diff2.DPGD(6, 2.0, STEP),
    "diff2": diff2.Diff2(6, 3, 2.0, 3.0, STEP),
    "diff2, bvr": diff2.Diff2(5, 3, 2.0, 3.0, LOCAL),
    "recursive_diff2": diff2.RecursiveDiff2(6, 2.0, 3.0, STEP),
    "dpsgd": diff2.DPSGD(4, 6, 2.0, STEP),
    "dpsgd, poisson": diff2.DPSGD(4, 12, 2.0, STEP, sampling="poisson"),
    "dpsrm": diff2.DPSRM(5, 6, 2.0, 0.5, 0.3, diff2.NormalizedDescent(0.05, 0.02)),
    "srnsgd": diff2.SRNSGD(6, 2, 2, 2.0, 3.0, diff2.NormalizedDescent(0.05)),
    "dpfedavg": diff2.DPFedAvg(4, 2, 4, 2.0, 0.05, SERVER),
    "dpscaffold": diff2.DPScaffold(4, 2, 4, 2.0, 0.05, SERVER),
}


@pytest.mark.parametrize("name", KEPT)
def test_our_algorithms_keep_the_contract(name):
    testing.check_algorithm(KEPT[name])


def test_the_skeleton_of_the_documentation_keeps_the_contract(monkeypatch):
    page = (Path(__file__).parents[1] / "docs" / "extending.md").read_text(encoding="utf-8")
    written = ModuleType("smoothed")
    monkeypatch.setitem(sys.modules, "smoothed", written)  # where dataclasses look up names
    exec(page.partition("```python\n")[2].partition("```")[0], written.__dict__)
    monkeypatch.setattr(diff2.ALGORITHMS, "_known", dict(diff2.ALGORITHMS._known))
    diff2.ALGORITHMS.register(written.Smoothed)
    testing.check_algorithm(written.Smoothed(5, 2.0, STEP))


def test_every_private_algorithm_of_ours_is_checked():
    ours = {name for name, kind in diff2.ALGORITHMS.items() if kind.__module__.startswith("diff2.")}
    assert {algorithm.name for algorithm in KEPT.values()} == ours - {"gd"}


@pytest.mark.parametrize("routine", [diff2.Adam(0.05), diff2.Averaging(diff2.Nesterov(0.02)), LOCAL], ids=str)
def test_our_routines_keep_the_contract(routine):
    testing.check_routine(routine)


def test_a_sensitivity_that_is_too_small_is_caught(monkeypatch):
    true = pooled.bounded

    def understated(*arguments):
        mean = true(*arguments)
        release = mean.release._replace(sensitivity=0.4 * mean.release.sensitivity)
        return type(mean)(mean.value, release, mean.rounding, mean.adjacency)

    monkeypatch.setattr(pooled, "bounded", understated)
    with testing._quiet():
        with pytest.raises(AssertionError, match=r"one record moves the mean by .*, stated is"):
            testing.is_moved_by_one_record_no_further_than_stated(KEPT["dpgd"])
        with pytest.raises(AssertionError, match=r"sensitivity .* planned"):
            testing.releases_what_it_declares(KEPT["dpgd"])


@dataclass(frozen=True)
class Forgetful(diff2.DPGD):
    """Counts its rounds outside of its state: a run that is resumed, with new settings, begins to count again."""

    name: ClassVar[str] = "forgetful"

    def estimate(self, state, round):
        estimate, state = super().estimate(state, round)
        object.__setattr__(self, "rounds_seen", getattr(self, "rounds_seen", 0) + 1)
        return diff2.Estimate(estimate.value * self.rounds_seen, estimate.variance), state


def test_what_is_kept_outside_of_the_state_is_caught():
    with testing._quiet(), pytest.raises(AssertionError, match="the parameters are other ones after it was killed"):
        testing.resumes_to_the_same_bytes(Forgetful(4, 2.0, STEP))


def test_an_algorithm_that_no_site_knows_is_named():
    with pytest.raises(AssertionError, match=r"'forgetful' is not registered.*ALGORITHMS\.register"):
        testing.gives_the_same_bytes_at_sites(Forgetful(4, 2.0, STEP))
