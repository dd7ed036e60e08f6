"""The estimators keep scikit-learn's conventions, as far as privacy lets them, and say what many fits cost."""

import pickle
import re
import subprocess
import sys
import warnings

import numpy as np
import pandas
import polars
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import diff2
from diff2 import CompositionWarning, InvalidArgument, PrivacyLeakError, PrivacyLeakWarning
from diff2.privacy.composition import exposure_epsilon
from diff2.sklearn import PrivateClassifier, PrivateRegressor
from diff2.tables.encode import encode
from diff2.tables.schema import Schema
from fitted import few_trees, table

pytestmark = pytest.mark.filterwarnings("error::diff2.errors.CompositionWarning")
FORBIDDEN = {
    PrivateClassifier: {},
    PrivateRegressor: {
        "check_supervised_y_no_nan": "a record whose target cannot be used gets the weight zero; an error would tell"
    },
}
MIXED = dict(
    bounds={"age": (0, 100), "income": (-1e4, 1e6)},
    categories={"sex": ["f", "m"], "region": [1, 2, 3]},
    flags=["smoker"],
)


@pytest.fixture(autouse=True)
def _short():
    with few_trees():
        yield


def some(seed, rows=200, columns=2):
    """Return inputs that no other test has, and two classes."""
    x = np.random.default_rng([7, seed]).random((rows, columns))
    return x, (x[:, 0] > 0.5).astype(int)


def checked(estimator, expected):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return check_estimator(estimator, expected_failed_checks=expected, on_skip=None, on_fail=None)


@pytest.mark.parametrize("kind", [PrivateClassifier, PrivateRegressor])
def test_the_conventions_are_kept(kind, monkeypatch):
    """Most checks fit tables that are smaller than the least that is allowed; here that limit is lifted."""
    monkeypatch.setitem(encode.__kwdefaults__, "least", 0)
    target = {"target_bounds": (-100, 100)} if kind is PrivateRegressor else {}
    found = checked(kind(bounds=(-10, 10), random_state=0, **target), FORBIDDEN[kind])
    assert [one["check_name"] for one in found if one["status"] == "failed"] == []
    assert {one["check_name"] for one in found if one["status"] == "xfail"} == set(FORBIDDEN[kind])
    assert len(found) > 45


def test_with_the_least_number_of_records_checks_fail_for_it_alone():
    found = checked(PrivateClassifier(bounds=(-10, 10), random_state=0), {})
    failed = {one["check_name"]: str(one["exception"]) for one in found if one["status"] == "failed"}
    assert [name for name, text in failed.items() if "fewer than 50 records" not in text] == []


SECRET = 0.271828182


@pytest.mark.parametrize("make", [np.array, list])
def test_errors_quote_no_record(make):
    """Those of scikit-learn's own checks did, for complex numbers and for one dimension."""
    x, y = np.full((60, 2), SECRET), np.full(60, SECRET)
    model = PrivateRegressor(bounds=(0, 1), target_bounds=(0, 1), random_state=0)
    for inputs, target in ((y, y), (SECRET, y), (x.astype(complex), y), (x, x), (x, y[:50]), (x[:, :0], y)):
        inputs, target = (make(one) if np.ndim(one) else one for one in (inputs, target))
        if make is list and np.iscomplexobj(inputs[0] if np.ndim(inputs) else 0):
            continue  # cells that are no numbers are missing
        with pytest.raises(ValueError) as caught:
            model.fit(inputs, target)
        assert str(SECRET)[:6] not in str(caught.value)
    model.fit(x, y)
    with pytest.raises(ValueError) as caught:
        model.predict(make(y))
    assert str(SECRET)[:6] not in str(caught.value)


@pytest.mark.parametrize("cell", [1 + 2j, b"\xff", [1, 2], "text", None, 10**400])
def test_no_cell_of_a_list_is_an_error(cell):
    """One refused the whole table, and the error showed it."""
    x, y = (one.tolist() for one in some(31, 60))
    x[0][0], y[1] = cell, 0 if isinstance(cell, list) else cell
    PrivateRegressor(bounds=(0, 1), target_bounds=(0, 1), random_state=0).fit(x, y)


def test_arguments_are_stored_unchanged_and_cloned():
    bounds, flags = [(0, 1)] * 2, ("x1",)
    model = PrivateRegressor(2.0, bounds=bounds, flags=flags, target_bounds=(0, 1), unit="record")
    assert model.bounds is bounds
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        model.predict([[0, 1]])
    with pytest.raises(NotFittedError):
        model.report()


def test_the_estimator_is_fit_with_a_table():
    """Same seed, same bytes."""
    x, y = some(1)
    model = PrivateClassifier(3.0, bounds=[(0, 1)] * 2, classes=[1, 0], random_state=5).fit(x, y)
    schema = Schema.from_arguments(["x0", "x1"], bounds=[(0, 1)] * 2, classes=[0, 1], target="target")
    other = diff2.fit({"x0": x[:, 0], "x1": x[:, 1], "target": y}, schema, epsilon=3.0, seed=5)
    np.testing.assert_array_equal(model.predict_proba(x), other.predict_proba({"x0": x[:, 0], "x1": x[:, 1]}))
    np.testing.assert_array_equal(model.predict(x), other.predict({"x0": x[:, 0], "x1": x[:, 1]}))
    assert model.classes_.tolist() == [0, 1]
    assert (model.n_features_in_, model.schema_, model.epsilon_) == (2, schema, other.epsilon)
    assert model.ledger_.releases == other.ledger.releases
    assert str(model.guarantee_).startswith("NOT PRIVATE")
    assert model.report() == other.report()
    assert not hasattr(model, "feature_names_in_")


@pytest.mark.parametrize("library", [pandas.DataFrame, polars.DataFrame])
def test_data_frames_of_mixed_columns(library):
    columns = {name: values for name, values in table(seed=11 + len(str(library))).items() if name != "born"}
    inputs = {name: columns[name] for name in ("age", "income", "sex", "smoker", "region")}
    if library is polars.DataFrame:
        inputs = {name: values.tolist() for name, values in inputs.items()}
    x, y = library(inputs), columns["classes"]
    model = PrivateClassifier(8.0, **MIXED, classes=["low", "middle", "high"]).fit(x, y)
    assert model.guarantee_.private
    assert model.feature_names_in_.tolist() == list(inputs)
    assert set(model.predict(x)) <= set(model.classes_)
    assert np.allclose(model.predict_proba(x).sum(axis=1), 1)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(x[list(inputs)[::-1]])


def test_columns_may_be_named_by_numbers():
    x, y = some(2)
    x[:, 1] = x[:, 1].round()
    model = PrivateClassifier(bounds={0: (0, 1)}, categories={1: [0, 1]}, classes=[0, 1]).fit(x, y)
    assert [column.kind for column in model.schema_.columns.values()] == ["number", "category"]
    frame = pandas.DataFrame(some(3)[0])
    assert list(PrivateClassifier(bounds=(0, 1), classes=[0, 1]).fit(frame, y).schema_.columns) == ["0", "1"]


def test_a_pipeline_and_pickles():
    x, y = some(4)
    steps = FunctionTransformer(np.log1p, feature_names_out="one-to-one").set_output(transform="pandas")
    model = make_pipeline(steps, PrivateRegressor(3.0, bounds=(0, 1), target_bounds=(0, 1)))
    frame = pandas.DataFrame(x, columns=["a", "b"])
    model.fit(frame, y)
    assert model[-1].feature_names_in_.tolist() == ["a", "b"]
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
    assert again[-1].epsilon_ == model[-1].epsilon_


def totals(caught):
    """Return (number of fits, epsilon of all of them) that warnings state."""
    texts = [str(one.message) for one in caught if one.category is CompositionWarning]
    found = [re.search(r"fit number (\d+) .* cost epsilon=([\d.]+) at delta", text, re.S) for text in texts]
    return [(int(one[1]), float(one[2])) for one in found]


def of_fits(ledger, times):
    """Return what this many fits like this one cost together."""
    return exposure_epsilon([ledger.header["planned"]["exposure"][0] * times], ledger.delta)


def test_cross_validation_warns_of_what_all_fits_cost():
    """Each record takes part in two of three fits."""
    x, y = some(5, rows=300)
    model = PrivateClassifier(1.0, delta=1e-6, bounds=(0, 1), classes=[0, 1])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cross_val_score(model, x, y, cv=KFold(3))
    epsilon = totals(caught)[-1][1]
    assert [number for number, _ in totals(caught)] == [2, 2]
    ledger = PrivateClassifier(1.0, delta=1e-6, bounds=(0, 1), classes=[0, 1]).fit(*some(6, rows=200)).ledger_
    assert epsilon == pytest.approx(of_fits(ledger, 2), abs=1e-4)
    assert 1.3 < epsilon < 2
    assert any(one.category is PrivacyLeakWarning and "exact score" in str(one.message) for one in caught)


def test_a_grid_search_warns_of_what_all_fits_cost():
    """Two candidates, each fitted without each third of the records, and once more: five fits for each record."""
    x, y = some(7, rows=300)
    grid = {"weighting": ["records", "clients"]}
    model = PrivateClassifier(1.0, delta=1e-6, bounds=(0, 1), classes=[0, 1])
    search = GridSearchCV(model, grid, cv=KFold(3))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        search.fit(x, y)
    fits, epsilon = totals(caught)[-1]
    assert fits == 5
    assert epsilon == pytest.approx(of_fits(search.best_estimator_.ledger_, 5), abs=1e-4)


def test_fits_on_other_records_do_not_warn():
    model = PrivateClassifier(bounds=(0, 1), classes=[0, 1])
    for seed in (8, 9):
        model.fit(*some(seed))
    with pytest.warns(CompositionWarning, match="fit number 2 in this process"):
        model.fit(*some(8))
    x, y = some(10)
    with pytest.warns(CompositionWarning, match="fit number 2"):  # one record in common
        model.fit(np.concatenate([x, some(9)[0][:1]]), [*y, 1])


def test_a_group_takes_part_as_soon_as_one_of_its_records_does():
    """Each record is in two of three fits, each group of two records in all of them."""
    x, y = some(20, rows=300)
    groups, model = np.arange(300) % 150, PrivateClassifier(1.0, delta=1e-6, bounds=(0, 1), classes=[0, 1])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for kept, _ in KFold(3, shuffle=True, random_state=0).split(x):
            model.fit(x[kept], y[kept], groups=groups[kept])
    fits, epsilon = totals(caught)[-1]
    assert fits == 3
    assert epsilon == pytest.approx(of_fits(model.ledger_, 3), abs=1e-4)


def test_groups_are_protected_as_one():
    x, y = some(12)
    groups, model = 1000 + np.arange(200) // 2, PrivateClassifier(bounds=(0, 1), classes=[0, 1])
    assert clone(model).fit(x, y, groups=groups).guarantee_.unit == "group"
    with pytest.raises(InvalidArgument, match="unit='group'"):
        clone(model).set_params(unit="record").fit(x, y, groups=groups)
    with pytest.raises(InvalidArgument, match="needs the column"):
        clone(model).set_params(unit="group").fit(x, y)
    with pytest.raises(InvalidArgument, match="unit="):
        clone(model).set_params(unit="person").fit(x, y)
    found = clone(model).set_params(unit="client").fit(some(13)[0], y, clients=np.arange(200) % 100)
    assert (found.guarantee_.unit, len(found.guarantee_.client_sizes)) == ("client", 100)


def test_classes_that_are_read_off_the_data_leak():
    x, y = some(14)
    with pytest.warns(PrivacyLeakWarning, match="read off the data"):
        model = PrivateClassifier(bounds=(0, 1)).fit(x, y)
    assert str(model.guarantee_).startswith("NOT PRIVATE AS A WHOLE")
    with pytest.raises(PrivacyLeakError):
        PrivateClassifier(bounds=(0, 1), strict=True).fit(x, y)
    assert PrivateClassifier(bounds=(0, 1), strict=True).fit(some(15)[0], y > 0).guarantee_.private


def test_an_exact_score_leaks():
    x, y = some(16)
    model = PrivateRegressor(bounds=(0, 1), target_bounds=(0, 1), random_state=0).fit(x, y)
    with pytest.warns(PrivacyLeakWarning, match="exact score"):
        model.score(x, y)
    with pytest.raises(PrivacyLeakError):
        model.set_params(strict=True).score(x, y)


def test_a_generator_makes_it_repeatable_and_not_private():
    x, y = some(17)
    model = PrivateClassifier(bounds=(0, 1), classes=[0, 1], random_state=np.random.RandomState(0)).fit(x, y)
    assert not model.guarantee_.private


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"bounds": [(0, 1)]}, "1 pairs for 2 columns"),
        ({"bounds": {"x7": (0, 1)}}, "is not a column"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 2.0}, "delta"),
        ({"classes": [1]}, "fewer than 2 different values"),
    ],
)
def test_wrong_arguments_are_named_before_anything_is_spent(arguments, text):
    x, y = some(18)
    with pytest.raises(InvalidArgument, match=text):
        PrivateClassifier(**{"bounds": (0, 1), "classes": [0, 1], **arguments}).fit(x, y)


def test_a_scaler_before_it_works_too():
    x, y = some(19)
    make_pipeline(StandardScaler(), PrivateClassifier(bounds=(-3, 3), classes=[0, 1])).fit(x, y).predict(x)


def test_without_scikit_learn_one_line_says_what_to_install():
    code = "import sys; sys.modules['sklearn'] = None; import diff2.sklearn"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stderr.splitlines()[-1] == (
        "ImportError: diff2.sklearn needs scikit-learn; install it: pip install 'diff2[sklearn]'"
    )
