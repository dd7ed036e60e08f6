"""The best of several candidates: its price, the number of repetitions, and what the ledger says."""

import json
import math
import sys
import warnings
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats

import diff2
from diff2.planning.filter import Filter
from diff2.planning.project import set_limit, standing
from diff2.planning.verify import verify
from diff2.privacy import Budget, NoiseSource
from diff2.privacy.accounting import gdp_epsilon
from diff2.privacy.lines import chained
from diff2.privacy.repeated import repeated_epsilon, repeated_mu, repetitions
from diff2.tables.kinds import DATA, Number, Regression
from diff2.tables.schema import Schema
from fitted import few_trees

ROWS = 1500
RNG = np.random.default_rng(3)
X, Z = RNG.uniform(0, 1, ROWS), RNG.uniform(0, 1, ROWS)
TABLE = {"x": X, "z": Z, "y": 4 * X}
CANDIDATES = {name: Schema({name: Number(0, 1)}, "y", Regression(0, 4)) for name in ("x", "z")}


def by_hand(mu, mean, delta):
    """Theorem 2 of Papernot and Steinke with eta = 1, over a grid of both orders, converted to epsilon and delta."""
    orders = np.exp(np.linspace(math.log(1.01), math.log(3000), 4000))
    inner = 2 * (1 - 1 / orders) * orders * mu**2 / 2 + 2 * math.log(mean) / orders
    divergence = orders * mu**2 / 2 + inner.min() + math.log(mean) / (orders - 1)
    return (divergence + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)).min()


@pytest.mark.parametrize("mean", [2, 4, 10, 30])
@pytest.mark.parametrize("mu", [0.05, 0.2, 0.6])
def test_the_price_is_that_of_the_theorem(mu, mean):
    for delta in (1e-5, 1e-7):
        found = repeated_epsilon(mu, mean, delta)
        assert found == pytest.approx(by_hand(mu, mean, delta), rel=0.002)
        assert found > gdp_epsilon(mu, delta)  # more than one fit


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_one_fit_gets_what_the_whole_budget_leaves(epsilon):
    mu = repeated_mu(epsilon, 1e-6, 6)
    assert repeated_epsilon(mu, 6, 1e-6) <= epsilon < repeated_epsilon(mu * 1.001, 6, 1e-6)


@pytest.mark.parametrize(("mean", "is_right"), [(4, True), (5, False)])
def test_the_number_of_repetitions_is_geometric(mean, is_right):
    found = Counter(min(repetitions(NoiseSource.from_seed(seed), 4), 15) for seed in range(4000))
    chances = [(1 - 1 / mean) ** (k - 1) / mean for k in range(1, 15)]
    chances.append(1 - sum(chances))
    counts = [found[k] for k in range(1, 16)]
    assert (scipy.stats.chisquare(counts, 4000 * np.array(chances)).pvalue > 0.01) == is_right


def test_the_better_candidate_is_chosen_and_the_ledger_states_the_total(tmp_path):
    with few_trees():
        name, model = diff2.select(TABLE, CANDIDATES, epsilon=6.0, delta=1e-5, repetitions=8, directory=tmp_path)
    assert model.schema == CANDIDATES[name]
    ledger = verify(tmp_path / "ledger.jsonl").ledger
    mu = Filter(Budget(6.0, 1e-5), 8).mu
    assert ledger.epsilon() == pytest.approx(by_hand(mu, 8, 1e-5), rel=0.01)
    assert 5.99 < ledger.epsilon() <= 6.0
    assert ledger.epsilon(1e-7) == repeated_epsilon(mu, 8, 1e-7) > 6
    assert ledger.released_epsilon() < 4  # of the one that is published
    assert "have to stay secret" in str(ledger.guarantee())
    assert ledger.guarantee().private
    again = diff2.FittedModel.load(tmp_path)
    np.testing.assert_array_equal(again.predict(TABLE), model.predict(TABLE))
    assert "epsilon 6 at delta 1e-05" in model.report()


def test_the_time_in_the_ledger_is_not_that_of_the_repetition(monkeypatch):
    """It told how many repetitions came before the best one, and that number has to stay secret."""
    times = iter(f"2031-01-01T00:00:{second:02}+00:00" for second in range(60))
    monkeypatch.setattr(
        "diff2.fitting.opening.datetime",
        SimpleNamespace(now=lambda zone: SimpleNamespace(isoformat=lambda **_: next(times))),
    )
    with few_trees():
        _, model = diff2.select(TABLE, CANDIDATES, epsilon=6.0, delta=1e-5, repetitions=8, seed=1)
    assert model.ledger.header["time"] == "2031-01-01T00:00:00+00:00"
    assert next(times) == "2031-01-01T00:00:02+00:00"  # one for each candidate, however many repetitions there were


def test_a_candidate_that_was_read_off_the_data_is_a_leak_whoever_wins():
    """Its bounds decide how well it does, hence whether the other wins: the guarantee of that one did not say so."""
    known = {**CANDIDATES, "z": Schema({"z": Number(0.001, 0.999, source=DATA)}, "y", Regression(0, 4))}
    with few_trees(), pytest.warns(diff2.PrivacyLeakWarning, match="column 'z'"):
        name, model = diff2.select(TABLE, known, epsilon=6.0, delta=1e-5, repetitions=30)
    assert name == "x"
    assert not model.guarantee.private
    assert "column 'z'" in str(model.guarantee)


def test_a_project_counts_it_and_keeps_its_limit(tmp_path, monkeypatch):
    """It was fitted and saved whatever the limit was, and found in the books only afterwards."""
    set_limit(tmp_path, Budget(4.0, 1e-5))
    with few_trees():
        diff2.select(TABLE, CANDIDATES, epsilon=3.0, delta=1e-5, directory=tmp_path / "first")
        spent = standing(tmp_path).epsilon
        assert spent == pytest.approx(3.0, rel=1e-3)
        assert len(standing(tmp_path).runs) == 1
        monkeypatch.setattr(sys.modules["diff2.fitting.select"], "fitted", None)  # it is not even tried
        with pytest.raises(diff2.BudgetExceeded, match="Nothing was released"):
            diff2.select(TABLE, CANDIDATES, epsilon=3.0, delta=1e-5, directory=tmp_path / "second")
    assert not (tmp_path / "second").exists()
    (tmp_path / "first" / "ledger.jsonl").unlink()
    assert standing(tmp_path).epsilon == pytest.approx(spent, rel=1e-3)


def test_among_many_repetitions_the_one_that_explains_wins():
    with few_trees():
        names = [diff2.select(TABLE, CANDIDATES, epsilon=8.0, repetitions=12, seed=seed).name for seed in range(5)]
    assert names.count("x") >= 4


def test_nothing_but_the_best_is_told(tmp_path):
    """Neither how many fits there were, nor what they released, nor their warnings."""
    unknown = {**CANDIDATES, "missing": Schema({"none": Number()}, "y", Regression(0, 4))}
    with few_trees(), warnings.catch_warnings():
        warnings.simplefilter("error")
        _, model = diff2.select({**TABLE, "none": np.full(ROWS, np.nan)}, unknown, epsilon=6.0, directory=tmp_path)
    assert [release.round for release in model.ledger.releases] == list(range(1, len(model.ledger) + 1))
    algorithm = json.loads((tmp_path / "ledger.jsonl").read_text().splitlines()[0])["algorithm"]
    assert algorithm == {"name": "select", "task": "regression", "candidates": [*unknown], "repetitions": 6}


@pytest.mark.parametrize(("field", "value"), [("repetitions", 4), ("repetitions", None), ("name", "fit")])
def test_a_ledger_that_says_less_than_it_cost_is_refused(tmp_path, field, value):
    with few_trees():
        diff2.select(TABLE, CANDIDATES, epsilon=6.0, repetitions=8, seed=1, directory=tmp_path)
    path = tmp_path / "ledger.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["algorithm"][field] = value
    chain, texts = "", []
    for line in lines:
        del line["chain"]
        text, chain = chained(line, chain)
        texts.append(text + "\n")
    path.write_text("".join(texts))
    with pytest.raises(diff2.LedgerError, match="planned is not what follows"):
        verify(path)


@pytest.mark.parametrize(
    ("candidates", "options", "message"),
    [
        ({}, {}, "one target"),
        ({**CANDIDATES, "w": Schema({"x": Number(0, 1)}, "y", Regression(0, 5))}, {}, "one target"),
        (CANDIDATES, {"repetitions": 0}, "repetitions >= 1"),
        (CANDIDATES, {"epsilon": math.inf}, "finite epsilon"),
        ({"w": Schema({"w": Number(0, 1)}, "y", Regression(0, 4))}, {}, "column 'w' is missing"),
    ],
)
def test_what_is_refused_before_anything_is_spent(candidates, options, message):
    with pytest.raises(diff2.InvalidArgument, match=message):
        diff2.select(TABLE, candidates, **{"epsilon": 1.0, **options})
