"""Partitions: every record at exactly one client, sizes as asked for, and clients as different as asked for."""

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diff2 import InvalidArgument, PrivacyLeakError, PrivacyLeakWarning
from diff2.data.loading import load_clients
from diff2.data.named import DatasetSettings
from diff2.data.partition import Dirichlet, Equal, Sizes, quantile_groups, rounded_shares
from diff2.data.settings import TableSettings
from diff2.runfile.data_table import data_settings
from diff2.runfile.reader import TABLES, parse_tables

COUNTS = st.integers(1, 400)
CLIENTS = st.integers(1, 12)
ALPHAS = st.floats(1e-3, 1e6)


def sizes_of(parts):
    return [len(part) for part in parts]


def check(parts, count, clients):
    """Every record exactly once, in rising order inside a client."""
    assert len(parts) == clients
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(count))
    assert all((np.diff(part) > 0).all() for part in parts)


@given(count=COUNTS, clients=CLIENTS)
def test_equal_clients_differ_by_one_record_at_most(count, clients):
    if count < clients:
        with pytest.raises(InvalidArgument, match=f"clients={clients} is more than"):
            Equal(clients).parts(count)
        return
    parts = Equal(clients).parts(count)
    check(parts, count, clients)
    assert max(sizes_of(parts)) - min(sizes_of(parts)) <= 1
    assert all((part % clients == p).all() for p, part in enumerate(parts))


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=9), seed=st.integers(0, 5))
def test_sizes_in_records_are_met(sizes, seed):
    parts = Sizes(tuple(sizes), seed).parts(sum(sizes))
    check(parts, sum(sizes), len(sizes))
    assert sizes_of(parts) == sizes


@given(weights=st.lists(st.integers(1, 9), min_size=2, max_size=9), count=st.integers(90, 400))
def test_shares_are_met_to_a_record(weights, count):
    shares = tuple(weight / sum(weights) for weight in weights)
    parts = Sizes(shares).parts(count)
    check(parts, count, len(shares))
    for size, share in zip(sizes_of(parts), shares, strict=True):
        assert abs(size - share * count) < 1


def test_sizes_are_filled_at_random():
    first, second = (Sizes((0.5, 0.5), seed).parts(1000)[0] for seed in (0, 1))
    assert not np.array_equal(first, second)
    assert 200 < (first < 500).sum() < 300  # a sorted table does not stay sorted
    np.testing.assert_array_equal(first, Sizes((0.5, 0.5), 0).parts(1000)[0])


@settings(deadline=None)
@given(classes=st.integers(1, 6), clients=CLIENTS, alpha=ALPHAS, seed=st.integers(0, 50), data=st.data())
def test_dirichlet_gives_every_record_away_once(classes, clients, alpha, seed, data):
    labels = np.array(data.draw(st.lists(st.integers(0, classes - 1), min_size=clients, max_size=300)))
    partition = Dirichlet(clients, alpha, seed)
    try:
        parts = partition.parts(len(labels), labels)
    except InvalidArgument:  # a client without a record, in a hundred draws
        with pytest.raises(InvalidArgument, match="raise alpha, or lower smallest or clients"):
            partition.parts(len(labels), labels)
        return
    check(parts, len(labels), clients)
    assert min(sizes_of(parts)) >= 1


@given(clients=st.integers(1, 8), seed=st.integers(0, 20))
def test_large_alpha_is_nearly_equal(clients, seed):
    labels = np.repeat(np.arange(4), [400, 200, 100, 60])
    for part in Dirichlet(clients, 1e9, seed).parts(len(labels), labels):
        mixture = np.bincount(labels[part], minlength=4)
        assert np.abs(mixture - np.array([400, 200, 100, 60]) / clients).max() <= 1


def largest_share(alpha, seed):
    """Return the mean over classes of the share that the client with most of it has."""
    labels = np.repeat(np.arange(10), 500)
    parts = Dirichlet(10, alpha, seed).parts(len(labels), labels)
    table = np.stack([np.bincount(labels[part], minlength=10) for part in parts])
    return (table.max(0) / 500).mean()


def test_small_alpha_concentrates():
    for seed in range(3):
        shares = [largest_share(alpha, seed) for alpha in (0.05, 0.5, 5.0, 500.0)]
        assert shares == sorted(shares, reverse=True)
        assert shares[0] > 0.6
        assert shares[-1] < 0.12


def test_proportions_have_the_distribution_that_alpha_names():
    """A share of Dirichlet(a, ..., a) has mean 1/P and variance (P-1) / (P^2 (P a + 1))."""
    labels = np.repeat(np.arange(400), 200)
    for alpha, is_right in ((0.5, True), (0.35, False), (0.7, False)):
        parts = Dirichlet(4, 0.5, 3).parts(len(labels), labels)
        shares = np.stack([np.bincount(labels[part], minlength=400) / 200 for part in parts])
        expected = 3 / (16 * (4 * alpha + 1))
        assert abs(shares.mean() - 0.25) < 1e-12
        assert (abs(shares.var() / expected - 1) < 0.08) == is_right


def test_smallest_client():
    labels = np.repeat(np.arange(3), 40)
    assert min(sizes_of(Dirichlet(6, 0.5, 0, smallest=8).parts(120, labels))) >= 8
    with pytest.raises(InvalidArgument, match="in 100 draws a client had fewer than smallest=19 records with alpha"):
        Dirichlet(6, 0.1, 0, smallest=19).parts(120, labels)
    with pytest.raises(InvalidArgument, match="clients=6 with smallest=21 records each is more than"):
        Dirichlet(6, 0.1, 0, smallest=21).parts(120, labels)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=200), st.integers(1, 12))
def test_quantile_groups_follow_the_order_of_the_values(values, groups):
    found = quantile_groups(np.array(values), groups)
    order = np.argsort(values, kind="stable")
    assert (np.diff(found[order]) >= 0).all()
    assert found.min() == 0
    assert found.max() < groups
    assert len({(value, group) for value, group in zip(values, found, strict=True)}) == len(set(values))


def test_quantile_groups_of_different_values_are_even():
    assert np.bincount(quantile_groups(np.random.default_rng(0).normal(size=1000), 10)).tolist() == [100] * 10


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(0, 500))
def test_rounded_shares_add_up(weights, count):
    shares = [weight / sum(weights) for weight in weights]
    numbers = rounded_shares(shares, count)
    assert sum(numbers) == count
    assert all(abs(number - share * count) < 1 for number, share in zip(numbers, shares, strict=True))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Equal(0), "expected clients >= 1"),
        (lambda: Sizes(()), "at least one client"),
        (lambda: Sizes((0.5, 0.6)), r"add up to 1.1"),
        (lambda: Sizes((0.5, -0.5)), r"sizes\[1\] > 0"),
        (lambda: Sizes((3, 4)).parts(8), "add up to 7, not to the 8 there are"),
        (lambda: Sizes((0.999, 0.001)).parts(10), "without a record"),
        (lambda: Dirichlet(3, 0.0), "expected alpha > 0"),
        (lambda: Dirichlet(3, float("inf")), "expected alpha to be finite"),
        (lambda: Dirichlet(3, 1.0, smallest=0), "expected smallest >= 1"),
    ],
)
def test_what_makes_no_sense(make, message):
    with pytest.raises(InvalidArgument, match=message):
        make()


@pytest.fixture
def table(tmp_path):
    generator = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {"age": np.arange(300), "kind": generator.integers(0, 3, 300), "owner": np.arange(300) // 3}
    )
    frame.to_csv(tmp_path / "all.csv", index=False)
    return str(tmp_path / "all.csv")


def settings_for(table, **changes):
    fields = {"target": "kind", "task": "classification", "classes": (0, 1, 2), "drop": ("owner",), **changes}
    return TableSettings(file=table, **fields)


def test_dealing_by_the_target_leaks_and_says_so(table):
    settings = settings_for(table, partition=Dirichlet(4, 0.3), holdout=0.2)
    with pytest.warns(PrivacyLeakWarning, match="dealing of records to clients by 'kind'"):
        tables = load_clients(settings)
    assert tables.leaks == ("dealing of records to clients by 'kind'",)
    assert tables.names == [f"part {p} of 4" for p in (1, 2, 3, 4)]
    ages = np.concatenate([*(inputs[:, 0] for inputs, _ in tables.clients), tables.holdout[0][:, 0]])
    np.testing.assert_array_equal(np.sort(ages), np.arange(300))
    with pytest.raises(PrivacyLeakError):
        load_clients(settings, strict=True)


def test_regression_is_dealt_by_quantiles(table):
    settings = settings_for(
        table, target="age", task="regression", classes=None, partition=Dirichlet(3, 0.02, 1, quantiles=5)
    )
    with pytest.warns(PrivacyLeakWarning, match="by 'age'"):
        tables = load_clients(settings)
    for _, targets in tables.clients:
        counts = np.bincount((targets[:, 0] // 60).astype(int), minlength=5)  # five quantiles of 60 records
        assert ((counts < 12) | (counts > 48)).all()


def test_owners_stay_together_where_sizes_are_given(table):
    tables = load_clients(settings_for(table, partition=Sizes((0.7, 0.3)), drop=(), group_column="owner"))
    assert [len(inputs) for inputs, _ in tables.clients] == [210, 90]
    assert not set(tables.groups[0]) & set(tables.groups[1])


def test_owners_cannot_be_dealt_by_their_records_targets(table):
    with pytest.raises(InvalidArgument, match="'dirichlet' splits records by their target, group_column='owner'"):
        load_clients(settings_for(table, partition=Dirichlet(3, 1.0), drop=(), group_column="owner"))


@pytest.mark.parametrize("change", [{"clients": 3}, {"client_column": "owner"}])
def test_two_ways_at_once(table, change):
    with pytest.raises(InvalidArgument, match="partition splits the records of one file"):
        settings_for(table, partition=Equal(2), drop=(), **change)


def test_columns_of_public_tables_tell_clients_apart():
    settings = DatasetSettings("kddcup99", client_column="protocol_type")
    assert settings.inputs == 118 - 3
    with pytest.raises(InvalidArgument, match="did you mean 'protocol_type'"):
        DatasetSettings("kddcup99", client_column="protocol")
    with pytest.raises(InvalidArgument, match="not a column of covertype that could separate clients"):
        DatasetSettings("covertype", client_column="Cover_Type")


RUN = """
[data]
dataset = "covertype"
partition = {partition}
[privacy]
epsilon = 3.0
delta = 1e-6
"""


def written(tmp_path, partition):
    (tmp_path / "run.toml").write_text(RUN.format(partition=partition), encoding="utf-8")
    return parse_tables(tmp_path / "run.toml", TABLES, lambda content: data_settings(content["data"], []))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{ name = "equal", clients = 10 }', Equal(10)),
        ('{ name = "sizes", sizes = [0.5, 0.25, 0.25], seed = 3 }', Sizes((0.5, 0.25, 0.25), 3)),
        ('{ name = "dirichlet", clients = 5, alpha = 1, smallest = 50 }', Dirichlet(5, 1.0, smallest=50)),
    ],
)
def test_partitions_in_run_files(tmp_path, text, expected):
    assert written(tmp_path, text).partition == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{ name = "dirichle", clients = 5 }', "did you mean 'dirichlet'"),
        ('{ name = "dirichlet", clients = 5 }', "needs the key 'alpha'"),
        ('{ name = "sizes", sizes = [0.5, 0.25] }', "add up to 0.75"),
        ("{ clients = 3 }", "needs the key 'name'"),
        ('"equal"', r"expected partition = \{ ... \}, a table, got 'equal'"),
    ],
)
def test_partitions_in_run_files_that_are_wrong(tmp_path, text, message):
    with pytest.raises(InvalidArgument, match=message):
        written(tmp_path, text)
