"""Tuning as in the paper's appendix: learning-rate search, grids, any joblib backend, and what is taken in the end."""

import json
import math
import os
import signal
import subprocess
import sys
import time
import warnings

import joblib
import pytest
from hypothesis import given
from hypothesis import strategies as st

import diff2
from commands import change, write_folder
from diff2 import Diff2Error, InvalidArgument, PrivacyLeakWarning
from diff2_experiments.files import find_file, read_tune_file
from diff2_experiments.grids import read_grids
from diff2_experiments.halving import best_points
from diff2_experiments.learning_rates import EarlyStopping, Halving, RateSearch
from diff2_experiments.reproduction import least, reproduce
from diff2_experiments.store import RunStore
from diff2_experiments.tuning import SharedStore, _joined

FILE = """
[data]
files = ["north.csv", "south.csv"]
target = "visits"
task = "regression"
holdout = 0.25
bounds = { age = [0, 100], visits = [0, 10] }
[model]
hidden = [3]
[algorithm]
rounds = 40
budget_split = 1.25
[routine]
name = "gradient_descent"
learning_rate = 1.0
[privacy]
epsilon = 60.0
delta = 1e-4
accounting = "paper"
[tune]
first_rate = 16.0
rates = 8
every = 4
patience = 2
[tune.gd]
[tune.dpgd.grid]
clip_gradient = [0.1, 0.3]
[tune.diff2.grid]
clip_gradient = [0.1, 0.3]
clip_smoothness = [3.0]
restart_interval = [4, 20]
[tune.diff2.reduced]
clip_gradient = [0.1]
clip_smoothness = [1.0, 3.0]
restart_interval = [4]
[tune.recursive]
algorithm = "recursive_diff2"
label = "recursive, Adam"
rate_search = false
clip_smoothness = 1.0
routine = { name = "adam", learning_rate = 0.1 }
[tune.recursive.grid]
clip_gradient = [0.3]
"routine.learning_rate" = [0.03, 0.01]
[published.epsilon_60]
train_loss = { gd = 0.1 }
"""

PROGRAM = """
import sys, warnings
from pathlib import Path
from diff2_experiments.reproduction import reproduce
from diff2_experiments.files import read_tune_file
warnings.simplefilter("ignore")
folder = Path(sys.argv[1])
reproduce(read_tune_file(folder / "run.toml"), folder / "out", seeds=2, grid="reduced")
"""


@pytest.fixture
def folder(tmp_path):
    """Two clients' tables and a file for tuning."""
    return write_folder(tmp_path, FILE, north=300, south=240)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """Return a reproduction under both accountings, all its runs, and its folder."""
    folder = write_folder(tmp_path_factory.mktemp("tuned"), FILE, north=300, south=240)
    return *reproduced(folder, accountings=["paper", "exact"]), folder


def reproduced(folder, out="out", **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        return reproduce(read_tune_file(folder / "run.toml"), folder / out, **{"seeds": 1, **options})


def without_time(runs):
    return {run["key"]: {name: value for name, value in run.items() if name != "seconds"} for run in runs}


def stored(folder):
    return RunStore(folder / "out").runs()


# The learning-rate search


def stops_after(losses, **rule):
    """Return how many losses are taken before the run is stopped; None if it is not."""
    stopping = EarlyStopping(RateSearch(**rule))
    return next((i + 1 for i, loss in enumerate(losses) if stopping(loss)), None)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([1.0, 0.9, 0.8], None),
        ([1.0, math.nan], 2),
        ([math.inf], 1),
        ([8e36, 8e36, 8e36], 1),  # it stands still because nothing can be computed any more
        ([1.0] + [1.06] * 5, 6),
        ([1.0] + [1.04] * 50, None),  # above the least, but not by five per cent
        ([1.0] + [1.06, 1.04] * 4 + [1.06], 10),  # a loss in between does not start the count again
        ([1.0] + [1.06] * 4 + [0.99] + [1.06] * 4, None),  # a new least does
    ],
)
def test_patience_of_the_appendix(losses, expected):
    assert stops_after(losses) == expected


@given(st.lists(st.floats(0.01, 100), max_size=40), st.integers(1, 6), st.floats(1, 2))
def test_patience_counts_from_the_last_new_least(losses, patience, tolerance):
    stopped = stops_after(losses, patience=patience, tolerance=tolerance)
    for end in range(1, len(losses) + 1):
        newest = max(i for i in range(end) if losses[i] < min(losses[:i], default=math.inf))
        count = sum(loss > tolerance * losses[newest] for loss in losses[newest:end])
        if count >= patience:
            assert stopped == end
            return
    assert stopped is None


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"factor": 1.0}, "factor to be a number between 0 and 1, got 1.0"),
        ({"first_rate": math.inf}, "first_rate to be a number above 0"),
        ({"tolerance": 0.5}, "tolerance to be a number of at least 1"),
        ({"patience": 0}, "patience >= 1"),
        ({"rates": 0}, "rates >= 1"),
    ],
)
def test_searches_that_make_no_sense(rule, message):
    with pytest.raises(InvalidArgument, match=message):
        RateSearch(**rule)


def test_a_run_that_ends_after_so_many_looks():
    stopping = EarlyStopping(RateSearch(patience=2), looks=3)
    assert [stopping(loss) for loss in (1.0, 0.9, 0.8)] == [False, False, True]
    assert not stopping.stopped
    failing = EarlyStopping(RateSearch(patience=2), looks=3)
    assert [failing(loss) for loss in (1.0, 2.0, 2.0)] == [False, False, True]
    assert failing.stopped


# Grids


def test_the_paper_tries_105_settings():
    file = read_tune_file(find_file("paper", "california_housing"))
    grids = {grid.name: grid for grid in read_grids(file, None, "full")}
    assert file.search == RateSearch()
    assert (len(grids["dpgd"].points), len(grids["diff2"].points), len(grids["gd"].points)) == (5, 100, 1)
    point = grids["diff2"].points[7]
    assert point.settings == {"clip_gradient": 1.0, "clip_smoothness": 3.0, "restart_interval": 200}
    assert point.at(0.25) == diff2.Diff2(2000, 200, 1.0, 3.0, diff2.GradientDescent(0.25), budget_split=1.25)


@pytest.mark.parametrize(
    ("name", "inputs", "reading"),
    [
        ("california_housing", 8, {"totals": "average", "holdout_split": "scikit_learn"}),
        ("california_housing_own", 8, {"totals": "keep", "holdout_split": "own"}),
        ("gas_turbine", 9, {"holdout_split": "scikit_learn"}),
        ("gas_turbine_own", 9, {"holdout_split": "own"}),
        ("blog_feedback", 280, {"rows": "train", "holdout_split": "scikit_learn"}),
        ("blog_feedback_own", 280, {"rows": "train", "holdout_split": "own"}),
        ("covertype", 54, {"indicators": "scale"}),
        ("covertype_own", 54, {"indicators": "keep"}),
        ("kddcup99", 41, {"symbolic": "codes", "unscaled": ("protocol_type", "service", "flag")}),
        ("kddcup99_scaled", 41, {"symbolic": "codes", "unscaled": ()}),
        ("kddcup99_own", 118, {"symbolic": "one_hot"}),
    ],
)
def test_readings_of_the_paper(name, inputs, reading):
    file = read_tune_file(find_file("paper", name))
    assert file.data.inputs == inputs
    assert {key: getattr(file.data, key) for key in reading} == reading
    grids = {grid.name: grid for grid in read_grids(file, None, "full")}
    assert (len(grids["dpgd"].points), len(grids["diff2"].points), len(grids["gd"].points)) == (5, 100, 1)
    assert file.search == RateSearch()
    by = ("train_loss",) if name == "kddcup99" else Halving().by
    assert file.halving == Halving(each_seed=name in ("blog_feedback", "kddcup99"), by=by)


@pytest.mark.parametrize("name", ["blog_feedback", "covertype", "kddcup99"])
def test_our_own_methods_read_a_table_as_the_comparison_does_and_all_have_the_same_settings(name):
    paper, ours = (read_tune_file(find_file("paper", file)) for file in (name, f"{name}_ours"))
    assert (ours.data, ours.search, ours.privacy.accounting) == (paper.data, paper.search, "exact")
    grids = {grid.name: [point.settings for point in grid.points] for grid in read_grids(ours, None, "halved")}
    for estimator in ("dpgd", "diff2"):
        assert grids[estimator] == grids[f"{estimator}_cosine"] == grids[f"{estimator}_mean"]


def test_grids_of_a_file(folder):
    file = read_tune_file(folder / "run.toml")
    full = {grid.name: grid for grid in read_grids(file, None, "full")}
    assert [len(grid.points) for grid in full.values()] == [1, 2, 4, 2]
    assert [grid.private for grid in full.values()] == [False, True, True, True]
    assert [point.algorithm.routine for point in full["recursive"].points] == [diff2.Adam(0.03), diff2.Adam(0.01)]
    assert [len(grid.points) for grid in read_grids(file, None, "halved-full")] == [1, 2, 4, 2]
    for grid in ("reduced", "halved"):  # before it is thinned out; a method without a reduced grid keeps its full one
        assert [len(one.points) for one in read_grids(file, ["diff2", "dpgd"], grid)] == [2, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([("clip_gradient = [0.1, 0.3]\nclip_s", "clip_gradent = [0.1]\nclip_s")], "did you mean 'clip_gradient'"),
        ([("restart_interval = [4, 20]", "restart_interval = 4")], "expected a list of values, got 4"),
        ([('"routine.learning_rate"', '"rutine.learning_rate"')], "'routine.' and a field"),
        ([('algorithm = "recursive_diff2"\n', "")], "needs the key 'algorithm'"),
        ([("rate_search = false", "rate_search = 0")], "rate_search = true or false"),
        ([("patience = 2", "patience = 0")], r"\[tune\] expected patience >= 1"),
        ([("patience = 2", "patient = 2")], r"\[tune\] has no key 'patient'"),
        ([("clip_gradient = [0.3]\n", "clip_gradient = [-0.3]\n")], "clip_gradient"),
    ],
)
def test_mistakes_in_a_grid(folder, changes, message):
    change(folder, *changes)
    with pytest.raises(InvalidArgument, match=message):
        read_grids(read_tune_file(folder / "run.toml"), None, "full")


def test_the_rate_of_an_averaged_routine_is_that_of_the_one_inside(folder):
    inside = 'routine = { name = "averaging", routine = { name = "gradient_descent", learning_rate = 1.0 } }\n'
    change(folder, ("[tune.dpgd.grid]", f"[tune.dpgd]\n{inside}[tune.dpgd.grid]"))
    (grid,) = read_grids(read_tune_file(folder / "run.toml"), ["dpgd"], "full")
    assert grid.points[0].at(0.25).routine == diff2.Averaging(diff2.GradientDescent(0.25))


def test_unknown_method(folder):
    with pytest.raises(InvalidArgument, match=r"no table \[tune.dpdg\]; did you mean 'dpgd'"):
        reproduced(folder, names=["dpdg"])


# What is trained, and what is taken


def test_the_first_rate_that_survives_is_taken(tuned):
    found, runs, folder = tuned
    assert found.trained == len(runs) == len(stored(folder))
    candidates = {}
    for run in runs:
        rest = {name: value for name, value in run["settings"].items() if name != "learning_rate"}
        candidates.setdefault((run["method"], run["accounting"], json.dumps(rest)), []).append(run)
    assert len(candidates) == 1 + 2 * (2 + 4 + 2)  # GD once, whatever the accounting
    for (method, *_), tried in candidates.items():
        if method != "recursive":
            assert [run["settings"]["learning_rate"] for run in tried] == [16 * 0.5**i for i in range(len(tried))]
        assert [run["survived"] for run in tried] == [False] * (len(tried) - 1) + [True]
        assert tried[-1]["stopped_at"] == 40
    assert any(run["stopped_at"] < 40 for run in runs)
    assert any(len(tried) > 1 for tried in candidates.values())
    assert reproduced(folder, accountings=["paper", "exact"])[0].trained == 0


def test_the_least_over_rounds_and_settings_is_taken(tuned):
    found, runs, _ = tuned
    assert [(one.method, one.accounting, one.budget) for one in found.tuned if one.method in ("gd", "dpgd")] == [
        ("gd", "paper", None), ("dpgd", "paper", 60.0), ("gd", "exact", None), ("dpgd", "exact", 60.0)
    ]  # fmt: skip
    for one in found.tuned:
        rivals = [
            run for run in runs
            if (run["method"], run["budget"], run["survived"]) == (one.method, one.budget, True)
            and (run["budget"] is None or run["accounting"] == one.accounting)
        ]  # fmt: skip
        for run, name in ((one.by_loss, "train_loss"), (one.by_gradient, "squared_gradient_norm")):
            assert min(run[name]) == min(min(rival[name]) for rival in rivals)
        assert one.settings == len({json.dumps(run["settings"]) for run in rivals})
    assert found.published == {"epsilon_60": {"train_loss": {"gd": 0.1}}}
    assert least({"x": [None, 2.0, 1.0]}, "x") == 1.0
    assert least({"x": [None]}, "x") == math.inf


def test_paper_accounting_is_noisier_than_exact(tuned):
    spent = {(run["accounting"], run["epsilon"]) for run in tuned[1] if run["method"] == "dpgd" and run["survived"]}
    assert [epsilon for rule, epsilon in spent if rule == "exact"] == pytest.approx([60.0], rel=1e-6)
    assert max(epsilon for rule, epsilon in spent if rule == "paper") < 55  # what the paper's noise costs in truth


def test_no_survivor_is_said(folder):
    change(folder, ("first_rate = 16.0\nrates = 8", "first_rate = 1e6\nrates = 2"))
    with pytest.raises(Diff2Error, match=r"no setting of dpgd survived.*smaller learning rates"):
        reproduced(folder, names=["dpgd"])
    assert len(stored(folder)) == 4  # they are kept all the same


# Halving

HALVING = """
[halving]
rounds = [8, 20]
keep = [3, 1]
"""


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"rounds": (200,)}, "a number to keep for each of rounds"),
        ({"rounds": (), "keep": ()}, "a number to keep for each of rounds"),
        ({"rounds": (600, 200)}, "expected rounds to rise"),
        ({"keep": (3, 3)}, "expected keep to fall"),
        ({"keep": (3, 0)}, "expected keep >= 1"),
        ({"by": ()}, "by to name at least one of train_loss"),
        ({"by": ("loss",)}, "expected by to be one of"),
    ],
)
def test_halvings_that_make_no_sense(rule, message):
    with pytest.raises(InvalidArgument, match=message):
        Halving(**rule)


def test_the_best_by_each_criterion_go_on():
    def run(loss, norm):
        return {"train_loss": [9.0, loss], "squared_gradient_norm": [norm, None]}

    points = list("abcdef")
    reached = [run(3.0, 1.0), run(1.0, 6.0), None, run(2.0, 5.0), run(4.0, 2.0), run(1.5, 4.0)]
    both = Halving().by
    assert best_points(points, reached, 1, both) == ["a", "b"]
    assert best_points(points, reached, 2, both) == ["a", "b", "e", "f"]
    assert best_points(points, reached, 9, both) == ["a", "b", "d", "e", "f"]
    assert best_points(points, reached, 2, ["train_loss"]) == ["b", "f"]
    assert "the best 1 by train loss and as many by gradient norm go on, with the first seed" in str(Halving())
    assert "the best 1 by train loss go on, with the first seed" in str(Halving(by=("train_loss",)))


@pytest.mark.parametrize(("rule", "deciding"), [("", {0}), ("each_seed = true\n", {0, 1})])
def test_halved_runs_are_those_of_the_full_grid(folder, rule, deciding):
    before, _, after = (folder / "run.toml").read_text().partition("[tune.diff2.reduced]")
    (folder / "run.toml").write_text(f"{before}{after[after.index('[tune') :]}{HALVING}{rule}")
    names = ["gd", "dpgd", "diff2"]
    _, full = reproduced(folder, "full", names=names, seeds=2)
    found, runs = reproduced(folder, names=names, seeds=2, grid="halved")
    whole, thinned = without_time(full), without_time(runs)
    assert thinned.items() <= whole.items()
    assert {run["seed"] for run in runs} == {0, 1}
    kept = {tuned.method: tuned.settings for tuned in found.tuned}
    assert kept["gd"] == 1
    assert 1 <= kept["dpgd"] <= 2
    assert 1 <= kept["diff2"] <= 2 < 8  # one by each criterion
    assert found.rule.startswith(
        "Of the settings tried, after 8 rounds the best 3, after 20 rounds the best 1 by train loss"
    )
    assert found.trained == len(stored(folder))
    short = {key: run for key, run in stored(folder).items() if "@" in key}
    assert {run["stopped_at"] for run in short.values()} == {8, 20}
    assert all(run["survived"] for run in short.values())
    assert {run["seed"] for run in short.values()} == deciding
    for key, run in short.items():  # the beginning of the run that would have been
        one = whole.get(key.split("@")[0])
        if one is not None:
            assert run["train_loss"] == one["train_loss"][: len(run["train_loss"])]
    assert reproduced(folder, names=names, seeds=2, grid="halved")[0].trained == 0
    _, later = reproduced(folder, "later", names=names, seeds=1, first_seed=1, grid="halved")
    assert {run["seed"] for run in later} == {1}
    assert without_time(later).items() <= whole.items()


# Workers


def test_a_worker_elsewhere_sends_its_runs_home(folder, monkeypatch):
    monkeypatch.setattr("diff2_experiments.tuning._joined", lambda shared: None)
    found, runs = reproduced(folder, names=["dpgd"])
    assert found.trained == len(runs) == len(stored(folder)) > 0


def test_a_worker_knows_whether_it_shares_the_disk(tmp_path):
    (tmp_path / "store-id").write_text("abc")
    assert _joined(SharedStore(tmp_path, "abc")) is not None
    assert _joined(SharedStore(tmp_path, "other")) is None
    assert _joined(SharedStore(tmp_path / "nowhere", "abc")) is None


def test_processes_give_the_same_runs(folder):
    _, alone = reproduced(folder, "alone", names=["dpgd"])
    _, spread = reproduced(folder, "spread", names=["dpgd"], jobs=2)
    assert without_time(alone) == without_time(spread)


@pytest.mark.slow
def test_dask_workers_give_the_same_runs(folder):
    distributed = pytest.importorskip("distributed", reason="install dask[distributed] to spread over machines")
    _, alone = reproduced(folder, "alone", grid="reduced")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None,
            local_directory=str(folder / "dask"),
        ) as cluster,
        distributed.Client(cluster),
        joblib.parallel_config(backend="dask"),
    ):  # fmt: skip
        _, spread = reproduced(folder, "spread", grid="reduced", jobs=-1)
    assert without_time(alone) == without_time(spread)


def test_resumes_after_a_kill(folder, monkeypatch):
    """A run that was cut off by the end of its process is made again, and all others are kept."""
    add, kept = RunStore.add, []

    def killed(store, run):
        kept.append(add(store, run))
        if len(kept) == 3:
            raise KeyboardInterrupt
        return kept[-1]

    monkeypatch.setattr(RunStore, "add", killed)
    with pytest.raises(KeyboardInterrupt):
        reproduced(folder, names=["gd", "dpgd"])
    monkeypatch.undo()
    before = stored(folder)
    assert len(before) == 3
    found, runs = reproduced(folder, names=["gd", "dpgd"])
    assert 0 < found.trained == len(runs) - 3
    _, whole = reproduced(folder, "other", names=["gd", "dpgd"])
    assert without_time(stored(folder).values()) == without_time(whole)
    assert {key: stored(folder)[key] for key in before} == before


@pytest.mark.slow
def test_two_processes_share_the_work_and_one_is_killed(folder):
    change(folder, ("rounds = 40", "rounds = 120"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder)], env=environment) for _ in range(2)]
    deadline = time.monotonic() + 120
    while len(stored(folder)) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    processes[0].send_signal(signal.SIGKILL)
    assert [process.wait(timeout=240) for process in processes] == [-signal.SIGKILL, 0]
    lines = (folder / "out" / "runs.jsonl").read_text().splitlines()
    assert len({json.loads(line)["key"] for line in lines}) == len(lines)
    assert reproduced(folder, seeds=2, grid="reduced")[0].trained == 0
    _, whole = reproduced(folder, "other", seeds=2, grid="reduced")
    assert without_time(stored(folder).values()) == without_time(whole)
