"""Private scaling: how far a record can move the release, how much noise it gets, and what the whole run costs."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from diff2 import Budget, InvalidArgument, Ledger, mlp, plan, prepare
from diff2.algorithms import DPGD, DPSGD, Diff2, DriftDiff2
from diff2.data import EncodedClients, Encoding, Pending, Scaling, TableSettings, load_clients
from diff2.data.moments import SQUARES, radius, standard_of, vector_sum
from diff2.errors import CheckpointError
from diff2.privacy import NoiseSource, gdp_mu
from diff2.questions.population import Population
from diff2.routines import GradientDescent
from diff2.runfile.preview import forecast
from diff2.runfile.reader import read_compare_file, read_run_file
from diff2.runfile.run import load_model, train_run_file
from diff2.runfile.scaling import FILE, bounded_mean, released, scale_privately
from diff2.training.loop import Training

STEP = GradientDescent(learning_rate=0.1)
BUDGET = Budget(1.0, 1e-5)


def tables_of(*arrays, share=0.02):
    """Return clients whose inputs are within [-1, 1] and await scaling, all columns."""
    columns = arrays[0].shape[1]
    encoding = Encoding({f"x{j}": Scaling() for j in range(columns)}, "y", Scaling(), None)
    pairs = [(array, np.zeros((len(array), 1))) for array in arrays]
    names = [str(p) for p in range(len(arrays))]
    return EncodedClients(pairs, names, encoding, (), pending=Pending(tuple(range(columns)), share))


@pytest.mark.parametrize(("factor", "is_right"), [(1.0, True), (1.01, False)])
def test_squares_cost_nothing_beside_the_values(factor, is_right):
    """The constant c is the largest for which no pair of values is further apart than the two ends of the range."""
    a, b = np.meshgrid(np.linspace(-1, 1, 801), np.linspace(-1, 1, 801))
    apart = np.sqrt((a - b) ** 2 + (factor * SQUARES) ** 2 * (a**2 - b**2) ** 2)
    assert (apart.max() <= 2) == is_right
    assert apart[0, -1] == 2


# Values at and around the ends of the range and where the bound is nearly met a second time (t = 3 - sqrt 5).
VALUES = st.sampled_from([-1.0, 1.0, 0.0, 1 - (3 - 5**0.5), -1 + (3 - 5**0.5), -1.5, 2.0, 0.3]) | st.floats(-3, 3)


@given(data=st.data(), weighting=st.sampled_from(["clients", "records"]), columns=st.integers(1, 4))
def test_replacing_a_record_moves_the_mean_by_at_most_the_sensitivity(data, weighting, columns):
    rows = st.lists(st.lists(VALUES, min_size=columns, max_size=columns), min_size=1, max_size=4)
    clients = [np.array(data.draw(rows)) for _ in range(data.draw(st.integers(1, 3)))]
    population = Population(tuple(len(client) for client in clients), weighting)
    before = bounded_mean(tables_of(*clients), population)
    p = data.draw(st.integers(0, len(clients) - 1))
    clients[p] = clients[p].copy()
    clients[p][0] = data.draw(st.lists(VALUES, min_size=columns, max_size=columns))
    after = bounded_mean(tables_of(*clients), population)
    moved = float((after.value - before.value).norm())
    assert moved <= before.sensitivity * (1 + before.rounding)
    assert after.sensitivity == before.sensitivity


@pytest.mark.parametrize("weighting", ["clients", "records"])
def test_the_sensitivity_is_reached(weighting):
    clients = [np.full((3, 5), -1.0), np.zeros((8, 5))]
    population = Population((3, 8), weighting)
    before = bounded_mean(tables_of(*clients), population)
    clients[0][0] = 1.0
    moved = float((bounded_mean(tables_of(*clients), population).value - before.value).norm())
    assert moved == pytest.approx(before.sensitivity, rel=1e-12)
    assert before.sensitivity == pytest.approx(2 * math.sqrt(5) * {"clients": 1 / 6, "records": 1 / 11}[weighting])


def test_the_sensitivity_of_a_whole_client_is_reached():
    clients = [np.full((3, 5), -1.0), np.zeros((8, 5))]
    population = Population((3, 8), unit="client")
    before = bounded_mean(tables_of(*clients), population)
    clients[0][:] = 1.0
    moved = float((bounded_mean(tables_of(*clients), population).value - before.value).norm())
    assert moved == pytest.approx(before.sensitivity, rel=1e-12)


@pytest.mark.parametrize(("factor", "is_right"), [(1.0, True), (0.95, False), (1.05, False)])
def test_noise_has_the_stated_scale(factor, is_right):
    generator = np.random.default_rng(0)
    tables = tables_of(generator.uniform(-1, 1, (30, 15000)), generator.uniform(-1, 1, (20, 15000)))
    noise_plan = plan(DPGD(10, 1.0, STEP), Budget(1.0, 1e-3), (30, 20), opening_share=0.02)
    value, entry = released(tables, noise_plan, NoiseSource.from_seed(1))
    exact = bounded_mean(tables, noise_plan.population)
    z = math.sqrt(1 / 0.02) / gdp_mu(1.0, 1e-3)
    assert entry.multiplier == pytest.approx(z, rel=1e-9)
    scale = z * 2 * math.sqrt(15000) / (2 * 20)  # the smaller of two clients has the heavier records
    noise = value - exact.value.numpy()
    assert (scipy.stats.kstest(noise, scipy.stats.norm(scale=scale * factor).cdf).pvalue > 0.01) == is_right


ALGORITHMS = {
    "dpgd": DPGD(50, 1.0, STEP),
    "diff2": Diff2(50, 10, 1.0, 1.0, STEP),
    "diff2 auto": Diff2(50, 10, 1.0, 1.0, STEP, budget_split="auto"),
    "drift": DriftDiff2(50, 10, 1.0, 1.0, STEP),
    "dpsgd": DPSGD(50, 40, 1.0, STEP),
}


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("share", [0.02, 0.3])
def test_the_plan_costs_the_budget_with_the_scaling_in_it(name, share):
    found = plan(ALGORITHMS[name], BUDGET, [300, 200], opening_share=share)
    assert 0.9999 * BUDGET.epsilon <= found.epsilon <= BUDGET.epsilon
    assert (found.releases[0].round, found.releases[0].purpose) == (0, "scaling")
    assert len(found.releases) == 51
    spent = found.multipliers["scaling"] ** -2
    if name != "dpsgd":  # whose other releases are not full ones
        assert spent / found.mu**2 == pytest.approx(share, rel=1e-6)
        assert found.allowance == pytest.approx((1 - share) * found.mu**2, rel=1e-6)
    without = plan(ALGORITHMS[name], BUDGET, [300, 200])
    for purpose, multiplier in without.multipliers.items():
        assert found.multipliers[purpose] > multiplier


def test_paper_accounting_stays_within_the_budget():
    found = plan(ALGORITHMS["diff2"], BUDGET, [300, 200], opening_share=0.02, accounting="paper")
    assert found.epsilon <= BUDGET.epsilon


@pytest.mark.parametrize(
    ("algorithm", "options", "message"),
    [
        (DPSGD(5, 4, 1.0, STEP, sampling="poisson"), {}, "priced for replacing a record"),
        (DPGD(5, 1.0, STEP), {"unit": "owner"}, "owners of several records are not bounded"),
        (DPGD(5, 1.0, STEP), {"opening_share": 1.0}, "opening_share between 0 and 1"),
    ],
)
def test_plans_that_cannot_be_priced(algorithm, options, message):
    with pytest.raises(InvalidArgument, match=message):
        plan(algorithm, Budget(1.0, 1e-3), [30], **{"opening_share": 0.1, **options})


def test_without_noise_the_scaling_is_that_of_the_data():
    generator = np.random.default_rng(0)
    units = generator.uniform(-1, 0.4, (500, 3))
    found = standard_of(vector_sum(units) / 500, 0.0)
    np.testing.assert_allclose(found.mean, units.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.deviation, units.std(0), rtol=1e-9)


@given(value=st.lists(st.floats(-5, 5), min_size=4, max_size=4), noise=st.floats(0, 10))
def test_whatever_the_noise_deviations_are_above_zero(value, noise):
    found = standard_of(np.array(value), noise)
    assert (found.deviation > 0).all()
    assert (found.deviation <= 1).all()
    assert (np.abs(found.mean) <= 1).all()


def test_constant_column_stays_small():
    tables = tables_of(np.column_stack([np.full(4000, 0.7), np.random.default_rng(0).uniform(-1, 1, 4000)]))
    noise_plan = plan(DPGD(10, 1.0, STEP), BUDGET, [4000], opening_share=0.02)
    for seed in range(20):
        scaled, _ = scale_privately(tables, noise_plan, seed=seed)
        assert np.abs(scaled.clients[0][0][:, 0]).max() < 1
        assert scaled.clients[0][0][:, 1].std() == pytest.approx(1, abs=0.2)


RUN = """
[data]
files = ["north.csv", "south.csv"]
target = "visits"
task = "regression"
bounds = {{ visits = [0, 10], smoker = [-1, 1] }}
holdout = 0.1
scale = "private"
scale_bounds = {{ age = [0, 120], income = [0, 200] }}
[model]
hidden = [4]
[algorithm]
{algorithm}
rounds = 30
clip_gradient = 1.0
[routine]
name = "gradient_descent"
learning_rate = 0.25
[privacy]
epsilon = 2.0
delta = 1e-4
"""
DIFF2 = 'name = "diff2"\nrestart_interval = 10\nclip_smoothness = 1.0'


@pytest.fixture
def folder(tmp_path):
    for seed, name in enumerate(("north", "south")):
        generator = np.random.default_rng(seed)
        age, income = generator.integers(20, 60, 900), generator.gamma(4, 12, 900)
        smoker = generator.integers(0, 2, 900)
        table = {"age": age, "income": income, "smoker": smoker, "visits": age / 10 + smoker}
        pandas.DataFrame(table).to_csv(tmp_path / f"{name}.csv", index=False)
    (tmp_path / "run.toml").write_text(RUN.format(algorithm=DIFF2), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    "algorithm",
    [
        DIFF2,
        DIFF2 + '\nbudget_split = "auto"',
        'name = "dpgd"',
        'name = "drift_diff2"\nrestart_interval = 10\nclip_smoothness = 1.0',
        'name = "dpsgd"\nbatch_size = 400',
    ],
)
def test_a_run_with_private_scaling_costs_its_budget(folder, algorithm):
    (folder / "run.toml").write_text(RUN.format(algorithm=algorithm), encoding="utf-8")
    run = train_run_file(read_run_file(folder / "run.toml"), folder / "out")
    ledger = Ledger.read(folder / "out" / "ledger.jsonl")
    first = ledger.entries[0]
    assert (first.round, first.purpose, first.mechanism, first.dimension) == (0, "scaling", "gaussian", 4)
    assert [entry.round for entry in ledger.entries[1:]] == list(range(1, 31))
    assert ledger.epsilon() <= 2.0
    assert ledger.epsilon() >= (1.9999 if "auto" not in algorithm else 1.9)
    assert run.document["guarantee"]["private"]
    assert run.document["guarantee"]["leaks"] == ()
    assert list(run.result.history["round"]) == list(range(1, 31))


def test_diff2_plan_counts_the_scaling(folder):
    run = read_run_file(folder / "run.toml")
    found = forecast([810, 810], run, {}).plan
    assert found.multipliers == plan(run.algorithm, run.privacy.budget, [810, 810], opening_share=0.02).multipliers


def test_predictions_use_the_scaling_that_was_released(folder):
    run = read_run_file(folder / "run.toml")
    train_run_file(run, folder / "out", seed=1)
    saved = load_model(folder / "out")
    tables = load_clients(run.data, pending=True)
    noise_plan = plan(run.algorithm, run.privacy.budget, [810, 810], opening_share=0.02)
    scaled, opening = scale_privately(tables, noise_plan, seed=1)
    assert opening.entry == Ledger.read(folder / "out" / "ledger.jsonl").entries[0]
    assert saved.encoding == scaled.encoding
    frame = pandas.read_csv(folder / "north.csv")
    encoded = saved.encoding.encode_inputs(frame)
    rows = {tuple(row) for row in np.round(encoded, 9)}
    assert {tuple(row) for row in np.round(scaled.clients[0][0], 9)} <= rows
    assert set(encoded[:, 2]) == {0.0, 1.0}  # has bounds, so it is not standardised
    np.testing.assert_allclose(encoded[:, :2].std(0), 1, atol=0.6)


class Killed(Exception):
    pass


def interrupted(monkeypatch, run, out, after, **options):
    """Run until so many rounds are done, then die as if killed."""
    step, done = Training.step, []

    def dying(self, state):
        if len(done) >= after:
            raise Killed
        done.append(state.round)
        return step(self, state)

    with monkeypatch.context() as patched:
        patched.setattr(Training, "step", dying)
        with pytest.raises(Killed):
            train_run_file(run, out, **options)


@pytest.mark.parametrize("after", [0, 7])
def test_a_killed_run_releases_the_scaling_once(folder, monkeypatch, after):
    run = read_run_file(folder / "run.toml")
    interrupted(monkeypatch, run, folder / "out", after)
    kept = (folder / "out" / FILE).read_text()
    resumed = train_run_file(run, folder / "out", resume=True)
    assert (folder / "out" / FILE).read_text() == kept
    entries = Ledger.read(folder / "out" / "ledger.jsonl").entries
    assert [entry.purpose for entry in entries].count("scaling") == 1
    assert resumed.result.epsilon <= 2.0


def test_a_killed_run_goes_on_to_the_same_bytes(folder, monkeypatch):
    run = read_run_file(folder / "run.toml")
    whole = train_run_file(run, folder / "whole", seed=5)
    interrupted(monkeypatch, run, folder / "out", 11, seed=5)
    resumed = train_run_file(run, folder / "out", seed=5, resume=True)
    assert resumed.result.params.tolist() == whole.result.params.tolist()
    assert (folder / "out" / "ledger.jsonl").read_text() == (folder / "whole" / "ledger.jsonl").read_text()


@pytest.mark.parametrize("lost", [["checkpoint.pt"], ["checkpoint.pt", "ledger.jsonl"]])
def test_killed_before_the_first_checkpoint(folder, monkeypatch, lost):
    run = read_run_file(folder / "run.toml")
    interrupted(monkeypatch, run, folder / "out", 0)
    for name in lost:
        (folder / "out" / name).unlink()
    train_run_file(run, folder / "out", resume=True)
    entries = Ledger.read(folder / "out" / "ledger.jsonl").entries
    assert [entry.round for entry in entries] == list(range(31))


def test_another_scaling_than_the_one_in_the_ledger_is_refused(folder, monkeypatch):
    run = read_run_file(folder / "run.toml")
    interrupted(monkeypatch, run, folder / "out", 3)
    (folder / "out" / FILE).unlink()
    with pytest.raises(CheckpointError, match="belongs to a run on other records"):
        train_run_file(run, folder / "out", resume=True)


def test_scaling_of_another_run_is_refused(folder, monkeypatch):
    run = read_run_file(folder / "run.toml")
    interrupted(monkeypatch, run, folder / "out", 3)
    path = folder / "out" / FILE
    content = json.loads(path.read_text())
    content["release"]["multiplier"] *= 2
    path.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="released by a run with other settings"):
        train_run_file(run, folder / "out", resume=True)
    path.write_text("{")
    with pytest.raises(CheckpointError, match="is damaged"):
        train_run_file(run, folder / "out", resume=True)


def test_release_that_was_not_planned_is_refused():
    tables = tables_of(np.random.default_rng(0).uniform(-1, 1, (50, 3)))
    noise_plan = plan(DPGD(10, 1.0, STEP), Budget(1.0, 1e-3), [50], opening_share=0.02)
    scaled, opening = scale_privately(tables, noise_plan, seed=0)
    for change in ({"multiplier": opening.entry.multiplier * 2}, {"round": 1}, {"purpose": "gradient"}):
        wrong = opening._replace(entry=opening.entry._replace(**change))
        with pytest.raises(InvalidArgument, match="is not the one that was planned"):
            prepare(mlp(3, 1), "squared", scaled.clients, DPGD(10, 1.0, STEP), Budget(1.0, 1e-3), opening=wrong)


def test_comparisons_say_that_they_cannot(folder):
    file = read_compare_file(folder / "run.toml")
    with pytest.raises(InvalidArgument, match="it is for 'diff2 train'; here, give bounds"):
        load_clients(file.data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale_bounds": None}, "needs scale_bounds"),
        ({"scale_bounds": 0.0}, "expected scale_bounds > 0"),
        ({"scale_bounds": {"age": (1.0, 0.0)}}, "expected scale_bounds of 'age' to be finite, low < high"),
        ({"scale": "data"}, "scale_bounds goes with scale = 'private'"),
        ({"scale_share": 1.5}, "expected scale_share between 0 and 1"),
        ({"group_column": "owner"}, "not owners of several records"),
    ],
)
def test_settings_that_make_no_sense(change, message):
    fields = {"target": "visits", "task": "regression", "file": "x.csv", "scale": "private", "scale_bounds": 9.0}
    with pytest.raises(InvalidArgument, match=message):
        TableSettings(**{**fields, **change})


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ({"age": (0.0, 100.0)}, "needs the range of 'income'"),
        ({"age": (0.0, 100.0), "incom": (0.0, 9.0)}, "scale_bounds name 'incom'.*did you mean 'income'"),
    ],
)
def test_every_column_needs_a_range(folder, ranges, message):
    settings = read_run_file(folder / "run.toml").data
    with pytest.raises(InvalidArgument, match=message):
        load_clients(replace(settings, scale_bounds=ranges), pending=True)


def test_one_range_for_all_columns(folder):
    settings = replace(read_run_file(folder / "run.toml").data, scale_bounds=50.0)
    tables = load_clients(settings, pending=True)
    assert tables.pending == Pending((0, 1), 0.02)
    assert np.abs(tables.clients[0][0][:, :2]).max() == 1  # clipped to [-50, 50]
    assert radius(2) == math.sqrt(2)
