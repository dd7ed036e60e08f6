"""Private scaling: how far a record can move the release, how much noise it gets, and what the whole run costs."""

import math
from dataclasses import replace

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diff2 import DPGD, Budget, CheckpointError, InvalidArgument, Ledger, Population, mlp, plan, prepare
from diff2.data.loading import Pending, load_clients
from diff2.data.settings import TableSettings
from diff2.errors import LedgerError
from diff2.privacy import Mechanism, NoiseSource, gdp_mu
from diff2.routines import GradientDescent
from diff2.runfile.preview import preview
from diff2.runfile.reader import read_run_file
from diff2.runfile.run import load_model, scaled_encoding, train_run_file
from diff2.training import directory as directories
from diff2.training.directory import CHECKPOINT, LEDGER, RunDirectory
from diff2.training.loop import Training
from diff2.training.scaling import SQUARES, PrivateScaling, radius, standard_of, vector_sum
from stubs import in_memory_ledger, is_normal, untimed

STEP = GradientDescent(learning_rate=0.1)


def mean_of(clients, population):
    """Return the mean that would be released, of clients whose inputs are within [-1, 1], all columns."""
    return PrivateScaling(tuple(range(clients[0].shape[1])), 0.02).mean(clients, population)


@pytest.mark.parametrize(("factor", "is_right"), [(1.0, True), (1.01, False)])
def test_squares_cost_nothing_beside_the_values(factor, is_right):
    """The constant c is the largest for which no pair of values is further apart than the two ends of the range."""
    a, b = np.meshgrid(np.linspace(-1, 1, 401), np.linspace(-1, 1, 401))
    apart = np.sqrt((a - b) ** 2 + (factor * SQUARES) ** 2 * (a**2 - b**2) ** 2)
    assert (apart.max() <= 2) == is_right
    assert apart[0, -1] == 2


# Values at and around the ends of the range and where the bound is nearly met a second time (t = 3 - sqrt 5).
VALUES = st.sampled_from([-1.0, 1.0, 0.0, 1 - (3 - 5**0.5), -1 + (3 - 5**0.5), -1.5, 2.0, 0.3]) | st.floats(-3, 3)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), weighting=st.sampled_from(["clients", "records"]), columns=st.integers(1, 4))
def test_replacing_a_record_moves_the_mean_by_at_most_the_sensitivity(data, weighting, columns):
    rows = st.lists(st.lists(VALUES, min_size=columns, max_size=columns), min_size=1, max_size=4)
    clients = [np.array(data.draw(rows)) for _ in range(data.draw(st.integers(1, 3)))]
    population = Population(tuple(len(client) for client in clients), weighting)
    before = mean_of(clients, population)
    p = data.draw(st.integers(0, len(clients) - 1))
    clients[p] = clients[p].copy()
    clients[p][0] = data.draw(st.lists(VALUES, min_size=columns, max_size=columns))
    after = mean_of(clients, population)
    assert np.linalg.norm(after.value - before.value) <= before.release.sensitivity * (1 + before.rounding)
    assert after.release == before.release


@pytest.mark.parametrize(
    ("options", "rows", "weight"),
    [
        ({}, 1, 1 / 6),
        ({"weighting": "records"}, 1, 1 / 11),
        ({"unit": "client"}, 3, 1 / 2),
        ({"unit": "client", "clients_per_round": 1}, 3, 1 / 2),  # before the first round, all take part
    ],
)
def test_the_sensitivity_is_reached(options, rows, weight):
    clients, population = [np.full((3, 5), -1.0), np.zeros((8, 5))], Population((3, 8), **options)
    before = mean_of(clients, population)
    clients[0][:rows] = 1.0
    moved = np.linalg.norm(mean_of(clients, population).value - before.value)
    assert moved == pytest.approx(before.release.sensitivity, rel=1e-12)
    assert before.release.sensitivity == pytest.approx(2 * math.sqrt(5) * weight)
    assert before.release.clip == radius(5) == math.sqrt(5)
    assert before.release.label == (0, "scaling", 0)


@pytest.mark.parametrize(("factor", "is_right"), [(1.0, True), (0.95, False), (1.05, False)])
def test_noise_has_the_stated_scale(factor, is_right):
    generator, columns = np.random.default_rng(0), 10_000
    clients = [generator.uniform(-1, 1, (size, columns)) for size in (30, 20)]
    noise_plan = plan(DPGD(10, 1.0, STEP), Budget(1.0, 1e-3), (30, 20), opening_share=0.02)
    exact = mean_of(clients, noise_plan.population)
    mechanism = Mechanism(in_memory_ledger(), NoiseSource.from_seed(1))
    released = mechanism.release(exact, noise_plan.multipliers["scaling"])
    z = math.sqrt(1 / 0.02) / gdp_mu(1.0, 1e-3)
    assert released.release.multiplier == pytest.approx(z, rel=1e-9)
    scale = z * 2 * math.sqrt(columns) / (2 * 20)  # the smaller of two clients has the heavier records
    noise = released.value - exact.value
    assert is_normal(noise, scale * factor) == is_right


def test_without_noise_the_scaling_is_that_of_the_data():
    units = np.random.default_rng(0).uniform(-1, 0.4, (500, 3))
    found = standard_of(vector_sum(units) / 500, 0.0)
    np.testing.assert_allclose(found.mean, units.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.deviation, units.std(0), rtol=1e-9)
    scaled = PrivateScaling((0, 2), 0.02).apply(vector_sum(units[:, [0, 2]]) / 500, 0.0, torch.from_numpy(units))
    np.testing.assert_allclose(scaled.std(0, correction=0)[[0, 2]], 1, rtol=1e-9)
    np.testing.assert_array_equal(scaled[:, 1], units[:, 1])


@given(value=st.lists(st.floats(-5, 5), min_size=4, max_size=4), noise=st.floats(0, 10))
def test_whatever_the_noise_deviations_are_above_zero(value, noise):
    found = standard_of(np.array(value), noise)
    assert (found.deviation > 0).all()
    assert (found.deviation <= 1).all()
    assert (np.abs(found.mean) <= 1).all()


def test_constant_column_stays_small():
    units = np.column_stack([np.full(4000, 0.7), np.random.default_rng(0).uniform(-1, 1, 4000)])
    opening = PrivateScaling((0, 1), 0.02)
    targets = np.zeros((4000, 1))
    for seed in range(8):
        model, algorithm, budget = mlp(2, 1).double(), DPGD(10, 1.0, STEP), Budget(1.0, 1e-5)
        training = prepare(model, "squared", (units, targets), algorithm, budget, opening=opening, seed=seed)
        scaled = training.cohort.records.inputs
        assert scaled[:, 0].abs().max() < 1
        assert scaled[:, 1].std() == pytest.approx(1, abs=0.2)


RUN = """
[data]
files = ["north.csv", "south.csv"]
target = "visits"
task = "regression"
bounds = { visits = [0, 10], smoker = [-1, 1] }
holdout = 0.1
scale = "private"
scale_bounds = { age = [0, 120], income = [0, 200] }
[model]
hidden = [4]
[algorithm]
name = "diff2"
restart_interval = 3
clip_smoothness = 1.0
rounds = 10
clip_gradient = 1.0
[routine]
name = "gradient_descent"
learning_rate = 0.25
[privacy]
epsilon = 2.0
delta = 1e-4
[run]
dtype = "float64"
"""
DIFF2 = 'name = "diff2"\nrestart_interval = 3\nclip_smoothness = 1.0'


@pytest.fixture
def folder(tmp_path):
    for seed, name in enumerate(("north", "south")):
        generator = np.random.default_rng(seed)
        age, income = generator.integers(20, 60, 900), generator.gamma(4, 12, 900)
        smoker = generator.integers(0, 2, 900)
        table = {"age": age, "income": income, "smoker": smoker, "visits": age / 10 + smoker}
        pandas.DataFrame(table).to_csv(tmp_path / f"{name}.csv", index=False)
    write(tmp_path)
    return tmp_path


def write(folder, *changes):
    """Write the run file, with pieces replaced that must be there."""
    text = RUN
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "run.toml").write_text(text, encoding="utf-8")


def train(folder, out="out", **options):
    return train_run_file(read_run_file(folder / "run.toml"), folder / out, **options)


@pytest.mark.parametrize("algorithm", [DIFF2, 'name = "dpgd"', 'name = "dpsgd"\nbatch_size = 400'])
def test_a_run_with_private_scaling_costs_its_budget(folder, algorithm):
    write(folder, (DIFF2, algorithm))
    run = train(folder)
    ledger = Ledger.read(folder / "out" / LEDGER)
    first = ledger.releases[0]
    assert (first.label, first.mechanism, first.dimension) == ((0, "scaling", 0), "gaussian", 4)
    assert [release.round for release in ledger.releases[1:]] == list(range(1, 11))
    assert 1.9999 <= ledger.epsilon() <= 2.0
    assert run.document["guarantee"]["private"]
    assert run.document["guarantee"]["leaks"] == ()
    assert list(run.result.history["round"]) == list(range(1, 11))


def test_diff2_plan_counts_the_scaling(folder):
    run = read_run_file(folder / "run.toml")
    found = preview([810, 810], run, {}).plan
    assert found.multipliers == plan(run.algorithm, run.privacy.budget, [810, 810], opening_share=0.02).multipliers


def test_predictions_use_the_scaling_that_was_released(folder):
    run = train(folder, seed=1)
    saved, tables = load_model(folder / "out"), load_clients(read_run_file(folder / "run.toml").data, pending=True)
    value = np.array(directories.load(folder / "out" / CHECKPOINT).opening)
    assert saved.encoding == scaled_encoding(tables, value, run.result.ledger.releases[0].noise_std)
    encoded = saved.encoding.encode_inputs(pandas.read_csv(folder / "north.csv"))
    standard = standard_of(value, run.result.ledger.releases[0].noise_std)
    inputs = tables.clients[0][0]  # of whom a tenth is held out
    trained_on = np.column_stack([(inputs[:, :2] - standard.mean) / standard.deviation, inputs[:, 2]])
    rows = {tuple(row) for row in np.round(encoded, 9)}
    assert {tuple(row) for row in np.round(trained_on, 9)} <= rows
    assert set(encoded[:, 2]) == {0.0, 1.0}  # has bounds, so it is not standardised
    np.testing.assert_allclose(encoded[:, :2].std(0), 1, atol=0.6)


class Killed(BaseException):
    pass


def killing(original, after=0):
    """Return a function that does as the original so many times, and then dies as if killed."""
    done = []

    def dying(*arguments, **options):
        if len(done) >= after:
            raise Killed
        done.append(True)
        return original(*arguments, **options)

    return dying


# Where a run is killed: (class, method, calls that are still made), and what is then on disk.
MOMENTS = {
    "before there is a ledger": ((Ledger, "__init__", 0), [CHECKPOINT]),
    "before the line": ((Ledger, "record", 0), [CHECKPOINT, LEDGER]),
    "after the line, before the noise": ((Mechanism, "_noised", 0), [CHECKPOINT, LEDGER]),
    "after the release, before a checkpoint of it": ((Training, "step", 0), [CHECKPOINT, LEDGER]),
    "at the first checkpoint of it": ((RunDirectory, "save", 1), [CHECKPOINT, LEDGER]),
    "after some rounds": ((Training, "step", 7), [CHECKPOINT, LEDGER]),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("seed", [5, None])
def test_no_value_is_on_disk_before_its_line_and_a_killed_run_releases_it_once(folder, monkeypatch, moment, seed):
    """Killed anywhere, the run goes on to the bytes of one that was not, with one line for the scaling."""
    monkeypatch.setattr("diff2.training.loop.CHECKPOINT_SECONDS", -1.0)
    (owner, name, after), left = MOMENTS[moment]
    save, order = RunDirectory.save, []

    def watched(self, *arguments, **options):
        lines = (self.path / LEDGER).read_text().count('"purpose": "scaling"') if (self.path / LEDGER).exists() else 0
        order.append((self.opening is not None, lines))
        save(self, *arguments, **options)

    monkeypatch.setattr(RunDirectory, "save", watched)
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, killing(getattr(owner, name), after))
        with pytest.raises(Killed):
            train(folder, seed=seed)
    out = folder / "out"
    assert sorted(path.name for path in out.iterdir()) == left
    kept = directories.load(out / CHECKPOINT).opening
    assert (kept is not None) == (moment == "after some rounds")
    resumed = train(folder, seed=seed, resume=True).result
    assert all(lines == 1 for opened, lines in order if opened)
    assert {opened for opened, _ in order} == {False, True}
    assert [release.round for release in Ledger.read(out / LEDGER).releases] == list(range(11))
    assert kept in (None, directories.load(out / CHECKPOINT).opening)
    assert resumed.epsilon <= 2.0
    if seed is not None:
        whole = train(folder, "whole", seed=seed).result
        assert torch.equal(resumed.params, whole.params)
        assert untimed(out / LEDGER) == untimed(folder / "whole" / LEDGER)


def test_a_complete_run_is_found_with_its_scaling(folder):
    whole, again = train(folder), train(folder, resume=True)
    assert torch.equal(whole.result.params, again.result.params)
    assert whole.document["encoding"] == again.document["encoding"]


BOUNDS, PRIVATE = "smoker = [-1, 1] }", "age = [0, 120], income = [0, 200] }"
OTHER = {
    "other ranges": [("[0, 200]", "[0, 210]")],
    "another share": [('scale = "private"', 'scale = "private"\nscale_share = 0.03')],
    "public bounds": [
        (f'scale = "private"\nscale_bounds = {{ {PRIVATE}\n', ""),
        (BOUNDS, f"smoker = [-1, 1], {PRIVATE}"),
    ],
    "fewer columns": [(PRIVATE, "age = [0, 120] }"), (BOUNDS, "smoker = [-1, 1], income = [0, 200] }")],
}


@pytest.mark.parametrize("name", OTHER)
def test_another_scaling_than_the_one_in_the_ledger_is_refused(folder, monkeypatch, name):
    with monkeypatch.context() as patched:
        patched.setattr(Training, "step", killing(Training.step, 3))
        with pytest.raises(Killed):
            train(folder)
    write(folder, *OTHER[name])
    before = (folder / "out" / LEDGER).read_bytes()
    with pytest.raises((CheckpointError, LedgerError), match=r"another run|other records|the run was changed"):
        train(folder, resume=True)
    assert (folder / "out" / LEDGER).read_bytes() == before


def test_the_same_noise_is_not_added_to_another_column(folder, monkeypatch):
    """As many columns, of the same encoded records: only their numbers differ, and the line would be the same."""
    only = {"age": "age = [0, 120] }", "income": "income = [0, 200] }"}

    def choose(private, public):
        write(folder, (PRIVATE, only[private]), (BOUNDS, "smoker = [-1, 1], " + only[public]))

    choose("age", "income")
    with monkeypatch.context() as patched:
        patched.setattr(Training, "step", killing(Training.step, 3))
        with pytest.raises(Killed):
            train(folder)
    choose("income", "age")
    with pytest.raises(CheckpointError, match="another run"):
        train(folder, resume=True)


def test_comparisons_say_that_they_cannot(folder):
    with pytest.raises(InvalidArgument, match="it is for 'diff2 train'; here, give bounds"):
        load_clients(read_run_file(folder / "run.toml").data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale_bounds": None}, "needs scale_bounds"),
        ({"scale_bounds": 0.0}, "expected scale_bounds > 0"),
        ({"scale_bounds": {"age": (1.0, 0.0)}}, "expected scale_bounds of 'age' to be finite, low < high"),
        ({"scale": "data"}, "scale_bounds goes with scale = 'private'"),
        ({"scale_share": 1.5}, "expected scale_share between 0 and 1"),
        ({"group_column": "owner"}, "scale='private' protects|not .* several records"),
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
