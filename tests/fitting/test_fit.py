"""`fit` from a table to a model, and what its ledger proves."""

from __future__ import annotations

import json

import numpy as np
import pytest

import diff2
from diff2.errors import BudgetExceeded, LedgerError
from diff2.planning.filter import Filter
from diff2.planning.verify import verify
from diff2.tables.kinds import Category, Classes, Number, Regression
from diff2.tables.schema import Schema
from fitted import few_trees

RNG = np.random.default_rng(0)
SIZE = 3000
AGE, SEX = RNG.uniform(0, 100, SIZE), RNG.choice(["f", "m"], SIZE)
TABLE = {
    "age": AGE, "sex": SEX, "visits": 0.05 * AGE + (SEX == "f") + RNG.normal(0, 0.5, SIZE),
    "ill": np.where(AGE + RNG.normal(0, 10, SIZE) > 50, "yes", "no"), "site": RNG.choice(["a", "b"], SIZE),
    "person": RNG.integers(0, 500, SIZE),
}  # fmt: skip
COLUMNS = {"age": Number(0, 100), "sex": Category(("f", "m"))}
VISITS = Schema(COLUMNS, "visits", Regression(0, 10))
ILL = Schema(COLUMNS, "ill", Classes(("no", "yes")))


class TestModels:
    def test_a_regression_explains_what_there_is(self):
        model = diff2.fit(TABLE, VISITS, epsilon=3.0, seed=1)
        left = np.mean((model.predict(TABLE) - TABLE["visits"]) ** 2) / np.var(TABLE["visits"])
        assert left < 0.2

    def test_a_classification_finds_the_classes(self):
        model = diff2.fit(TABLE, ILL, epsilon=3.0, seed=1)
        assert np.mean(model.predict(TABLE) == TABLE["ill"]) > 0.85
        assert np.allclose(model.predict_proba(TABLE).sum(axis=1), 1)

    @pytest.mark.parametrize("schema", [VISITS, ILL], ids=["regression", "classification"])
    def test_it_costs_the_budget_and_says_that_a_seed_is_not_private(self, schema):
        model = diff2.fit(TABLE, schema, epsilon=0.5, delta=1e-6, seed=1)
        assert 0.4999 < model.epsilon <= 0.5
        assert model.ledger.released_epsilon() <= model.epsilon * (1 + 1e-9)
        assert not model.guarantee.private
        assert diff2.fit(TABLE, schema, epsilon=0.5).guarantee.private

    def test_equal_seeds_give_equal_models(self):
        one, other = (diff2.fit(TABLE, VISITS, epsilon=1.0, seed=3).predict(TABLE) for _ in range(2))
        assert (one == other).all()

    def test_delta_is_a_power_of_ten_below_a_tenth_of_one_record(self):
        assert diff2.fit(TABLE, ILL, epsilon=1.0, seed=1).guarantee.delta == 1e-5


class TestUnits:
    def test_people_are_fewer_than_their_records_so_each_weighs_more(self):
        schema = Schema(COLUMNS, "visits", Regression(0, 10), groups="person")
        model = diff2.fit(TABLE, schema, epsilon=1.0, unit="group", seed=1)
        assert model.guarantee.client_sizes == (len(np.unique(TABLE["person"])),)
        records = diff2.fit(TABLE, VISITS, epsilon=1.0, seed=1)
        ratio = model.ledger.releases[0].sensitivity / records.ledger.releases[0].sensitivity
        assert ratio == pytest.approx(SIZE / len(np.unique(TABLE["person"])))

    def test_clients_are_named_by_a_column(self):
        schema = Schema(COLUMNS, "visits", Regression(0, 10), clients="site")
        assert len(diff2.fit(TABLE, schema, epsilon=1.0, seed=1).guarantee.client_sizes) == 2


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit")
    with few_trees():
        diff2.fit(TABLE, VISITS, epsilon=1.0, seed=1, directory=folder)
    return folder / "ledger.jsonl"


class TestLedger:
    def test_it_verifies(self, ledger):
        found = verify(ledger)
        assert not found.unchecked
        assert {release.mechanism for release in found.ledger.releases} == {"gaussian", "exponential"}

    @pytest.mark.parametrize("field", ["multiplier", "noise_std", "sensitivity", "rounding", "round", "purpose"])
    def test_a_changed_field_is_an_error(self, ledger, tmp_path, field):
        lines = ledger.read_text().splitlines()
        for number in (1, len(lines) - 4):
            fields = json.loads(lines[number])
            fields[field] = "other" if field == "purpose" else fields[field] * 2 + 1
            path = tmp_path / f"{number}.jsonl"
            path.write_text("\n".join([*lines[:number], json.dumps(fields), *lines[number + 1 :], ""]))
            with pytest.raises(LedgerError, match=f"line {number + 1}"):
                verify(path)


class TestFilter:
    def test_what_is_beyond_the_budget_is_refused(self):
        found = Filter(diff2.Budget(1.0, 1e-5))
        found.spend(found.mu * 0.8, "gram")
        with pytest.raises(BudgetExceeded, match="descent"):
            found.spend(found.mu * 0.61, "descent")
        found.spend(found.mu * 0.6 * (1 - 1e-12), "descent")
        assert found.left == pytest.approx(0.0, abs=1e-9)

    def test_all_of_it_costs_the_budget(self):
        found = Filter(diff2.Budget(1.0, 1e-5))
        from diff2.privacy.composition import exposure_epsilon

        assert exposure_epsilon(found.planned()["exposure"], 1e-5) == pytest.approx(1.0, rel=1e-6)
        assert exposure_epsilon(found.planned()["exposure"], 1e-5) <= 1.0


@pytest.mark.filterwarnings("error::diff2.errors.CompositionWarning")
def test_a_second_fit_on_the_same_records_warns_before_it_spends(tmp_path):
    """Red when only the estimators of scikit-learn counted."""
    table = {"age": np.random.default_rng(77).uniform(0, 100, 60), "visits": np.linspace(0, 9, 60)}
    schema = Schema.from_arguments(["age"], bounds=[(0, 100)], target_bounds=(0, 10), target="visits")
    with few_trees():
        diff2.fit(table, schema, epsilon=1.0, delta=1e-5)
        diff2.fit(table, schema, epsilon=1.0, seed=0)  # not private, and not counted
        with pytest.raises(diff2.CompositionWarning, match=r"fit number 2 .* epsilon=1\.\d+ at delta=1e-05") as caught:
            diff2.fit({**table, "visits": table["visits"][::-1]}, schema, epsilon=1.0, delta=1e-5, directory=tmp_path)
    assert 1.3 < float(str(caught.value).split("epsilon=")[1].split()[0]) < 1.6
    assert (tmp_path / "ledger.jsonl").read_bytes().count(b"\n") == 1
