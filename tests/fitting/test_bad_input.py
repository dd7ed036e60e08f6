"""What bad input gets, at the door: refused before anything is spent, all at once, without a value; or a usable model.

What would tell of records (a target that never changes, cells that cannot be read) is not refused.
"""

import numpy as np
import pandas
import pytest

import diff2
from commands import diff2_here
from diff2.tables.kinds import Category, Classes, Counts, Number, Regression
from diff2.tables.schema import Schema
from fitted import few_trees

ROWS = 120
RNG = np.random.default_rng(5)
AGE, SEX = RNG.uniform(0, 100, ROWS), RNG.choice(["f", "m"], ROWS)
COLUMNS = {"age": Number(0, 100), "sex": Category(("f", "m"))}
VISITS = Schema(COLUMNS, "visits", Regression(0, 10))
ILL = Schema(COLUMNS, "ill", Classes(("no", "yes")))
TABLE = {"age": AGE, "sex": SEX, "visits": AGE / 10, "ill": np.where(AGE > 50, "yes", "no")}


def fit(table, schema=VISITS, tmp_path=None, **options):
    with few_trees():
        return diff2.fit(table, schema, **{"epsilon": 2.0, "seed": 0, "directory": tmp_path, **options})


def refused(tmp_path, message, table=TABLE, schema=VISITS, **options):
    """A fit is refused, and nothing is spent, not even begun."""
    with pytest.raises(diff2.InvalidArgument, match=message) as caught:
        fit(table, schema, tmp_path / "model", **options)
    assert not (tmp_path / "model" / "ledger.jsonl").exists()
    return str(caught.value)


# refused


def test_columns_the_table_lacks_are_named_at_once_and_so_are_names_that_are_there_twice(tmp_path):
    frame = pandas.DataFrame(TABLE)
    text = refused(tmp_path, "column 'age' is missing", frame[["visits"]])
    assert "column 'sex' is missing" in text
    refused(tmp_path, "column 'visits' is there twice", frame[["age", "sex", "visits", "visits"]])


def test_fewer_than_50_records(tmp_path):
    refused(tmp_path, "fewer than 50 records", {name: values[:49] for name, values in TABLE.items()})
    fit({name: values[:50] for name, values in TABLE.items()})


def test_more_columns_than_records(tmp_path):
    wide = {f"x{j}": np.zeros(60) for j in range(61)} | {"y": np.zeros(60)}
    schema = Schema({f"x{j}": Number(0, 1) for j in range(61)}, "y", Regression(0, 1))
    refused(tmp_path, "more columns than records", wide, schema)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 0.0}, "epsilon > 0"),
        ({"epsilon": -1.0}, "epsilon > 0"),
        ({"epsilon": float("nan")}, "epsilon > 0"),
        ({"epsilon": float("inf")}, "finite epsilon"),
        ({"epsilon": "1"}, "epsilon to be a number"),
        ({"delta": 0.0}, "0 < delta < 1"),
        ({"delta": 1.0}, "0 < delta < 1"),
        ({"delta": "none"}, "0 < delta < 1"),
        ({"unit": "person"}, "unit"),
        ({"unit": "group"}, "name groups in the schema"),
        ({"weighting": "rows"}, "weighting"),
        ({"seed": -1}, "seed"),
    ],
)
def test_arguments_out_of_range(tmp_path, options, message):
    refused(tmp_path, message, **options)


@pytest.mark.parametrize("target", [Classes(("yes",)), Regression(3, 3), Regression(0, float("inf")), Counts(0)])
def test_a_target_that_is_constant_or_unbounded_by_its_description(target):
    with pytest.raises(diff2.InvalidArgument, match="target 'y'"):
        Schema(COLUMNS, "y", target)


def written(tmp_path, text):
    (tmp_path / "s.toml").write_text(VISITS.to_toml(), "utf-8")
    (tmp_path / "people.csv").write_bytes(text)
    words = ["fit", tmp_path / "people.csv", "--schema", tmp_path / "s.toml", "--out", tmp_path / "model"]
    result = diff2_here(*words, "--epsilon", 1)
    assert result.exit_code == 1
    assert not (tmp_path / "model").exists()
    return " ".join(result.stderr.split())


LINES = "\n".join(["age;sex;visits", *(f"{a:.2f};{s};{a / 10:.2f}" for a, s in zip(AGE, SEX, strict=True))])


def test_a_wrong_delimiter_is_recognised(tmp_path):
    assert "';'" in written(tmp_path, LINES.encode())


def test_a_wrong_encoding_is_recognised(tmp_path):
    text = written(tmp_path, LINES.replace(";f;", ";é;").replace(";", ",").encode("latin-1"))
    assert "encoding" in text
    assert "é" not in text  # no value of a record


# warned of


@pytest.mark.parametrize("epsilon", [10.0, 10.5])
def test_an_epsilon_above_10_is_warned_of_through_every_door(tmp_path, epsilon):
    """Red before: epsilon=1000 was taken without a word."""
    import warnings

    from diff2.sklearn import PrivateRegressor

    pair = np.zeros((ROWS, 1), np.float32), np.zeros((ROWS, 1), np.float32)
    import torch

    tensors = tuple(torch.from_numpy(part) for part in pair)
    algorithm = diff2.DPGD(1, 1.0, diff2.GradientDescent(0.1))
    doors = {
        "fit": lambda: fit(TABLE, epsilon=epsilon),
        "scikit-learn": lambda: PrivateRegressor(epsilon, bounds=(0, 100), target_bounds=(0, 10), random_state=0).fit(
            AGE[:, None], AGE / 10
        ),
        "train": lambda: diff2.train(
            diff2.mlp(1, 1), "squared", tensors, algorithm, diff2.Budget(epsilon, 1e-3), seed=0, progress=False
        ),
        "plan": lambda: diff2.plan(algorithm, diff2.Budget(epsilon, 1e-3), [ROWS]),
    }
    for name, door in doors.items():
        with warnings.catch_warnings(record=True) as caught, few_trees():
            warnings.simplefilter("always")
            door()
        weak = [one for one in caught if one.category is diff2.WeakEpsilonWarning]
        assert len(weak) == (epsilon > 10), name
    (tmp_path / "s.toml").write_text(VISITS.to_toml(), "utf-8")
    pandas.DataFrame(TABLE).to_csv(tmp_path / "people.csv")
    words = ["fit", tmp_path / "people.csv", "--schema", tmp_path / "s.toml", "--seed", 0, "--out", tmp_path / "model"]
    with few_trees():
        result = diff2_here(*words, "--epsilon", epsilon)
    assert ("says little" in result.stderr) == (epsilon > 10)
    assert "says little" not in diff2_here("verify", tmp_path / "model").stderr


def test_a_thousand_categories_are_warned_of_and_ten_thousand_refused(tmp_path):
    """Red before: ten thousand made a Gram matrix of 10,400 x 10,400, and did not end within minutes."""
    values = tuple(f"c{j}" for j in range(10_000))
    table = {**TABLE, "code": RNG.choice(values, ROWS)}
    schema = {n: Schema({"code": Category(values[:n])}, "visits", Regression(0, 10)) for n in (1_100, 10_000)}
    text = refused(tmp_path, "10,002 inputs", table, schema[10_000])
    assert "column 'code' has 10,000 categories" in text
    with pytest.warns(UserWarning, match=r"column 'code' has 1,100 categories"):
        model = fit(table, schema[1_100])
    assert np.isfinite(model.predict(table)).all()


# not refused, for that would tell of records


@pytest.mark.parametrize(
    "change",
    [
        {"visits": np.full(ROWS, 3.0)},
        {"visits": np.full(ROWS, np.nan)},
        {"age": np.full(ROWS, np.nan)},
        {"age": np.full(ROWS, np.inf)},
        {"age": np.where(AGE > 50, 1e300, -1e300)},
        {"visits": np.where(AGE > 50, 1e300, np.inf)},
        {"sex": np.full(ROWS, None)},
        {"sex": np.full(ROWS, "?")},
    ],
    ids=["constant target", "no target", "missing column", "inf", "1e300", "target of 1e300", "no category", "others"],
)
def test_values_are_never_refused(change):
    model = fit({**TABLE, **change})
    found = model.predict(TABLE)
    assert ((found >= 0) & (found <= 10)).all()
    assert model.epsilon <= 2


def test_a_constant_target_is_called_worthless():
    """Red before: the model undid the noise of the released mean, and was said to explain 1.00 of the variance."""
    table = {"age": RNG.uniform(0, 100, 5000), "sex": RNG.choice(["f", "m"], 5000), "visits": np.full(5000, 3.0)}
    model = fit(table, epsilon=8.0)
    assert np.abs(model.predict(table) - 3).max() < 0.5
    assert model.health.score.low <= 0


@pytest.mark.parametrize("only", ["yes", "no", "perhaps"])
def test_one_class_only(only):
    table = {**TABLE, "ill": np.full(ROWS, only)}
    model = fit(table, ILL, epsilon=8.0)
    assert np.isfinite(model.predict_proba(table)).all()
    if only != "perhaps":
        assert (model.predict(table) == only).mean() > 0.9


# at predict


def test_new_categories_and_odd_cells_are_predicted_for_and_missing_columns_named():
    model = fit(TABLE)
    odd = {"age": [np.nan, np.inf, 1e300, "many"], "sex": ["d", "", None, 7]}
    assert ((model.predict(odd) >= 0) & (model.predict(odd) <= 10)).all()
    with pytest.raises(diff2.InvalidArgument, match="column 'sex' is missing"):
        model.predict({"age": [3.0]})


# counts in scikit-learn


def test_counts_through_scikit_learn():
    """Red before: there was no way to say that the target counts."""
    from diff2.sklearn import PrivateRegressor

    rng = np.random.default_rng(1)
    x = rng.uniform(0, 1, (3000, 1))
    y = rng.poisson(np.exp(2 * x[:, 0]))
    model = PrivateRegressor(8.0, bounds=(0, 1), max_count=40, random_state=0).fit(x, y)
    assert isinstance(model.schema_.target, Counts)
    assert (model.predict(x) > 0).all()
    assert np.corrcoef(model.predict(x), np.exp(2 * x[:, 0]))[0, 1] > 0.8
    with pytest.raises(diff2.InvalidArgument, match="two of classes, target_bounds and max_count"):
        PrivateRegressor(max_count=40, target_bounds=(0, 5)).fit(x, y)
