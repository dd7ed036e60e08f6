"""Under ``strict`` no error, warning or choice tells records of equal shapes apart; bad values get one fixed text."""

import warnings
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import diff2
from diff2 import Budget, Diff2, GradientDescent, InvalidArgument
from diff2.errors import unusable

ROUNDS = Diff2(rounds=3, restart_interval=2, clip_gradient=1.0, clip_smoothness=2.0, routine=GradientDescent(0.1))
SIZES, TABLE, CLASSES = (9, 5), 10, 3
WILD = [0.0, -0.0, 1.0, 41.0, 1e-45, 1e-38, 1e18, -1e30, 3.4e38]


class Tables(nn.Module):
    """Looks up one column in each of two tables of different sizes."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Embedding(TABLE, 4), nn.Embedding(2 * TABLE, 4)
        self.linear = nn.Linear(4, CLASSES)

    def forward(self, inputs):
        return self.linear(self.first(inputs[:, 0]) + self.second(inputs[:, 1]))


class Afraid(nn.Module):
    """Quotes an input that it cannot take."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, CLASSES)

    def forward(self, inputs):
        if inputs.max() > 40:
            raise ValueError(f"the input {inputs.max().item()} is too large")
        return self.linear(inputs)


MODELS = {
    "compiled": lambda: nn.Sequential(nn.Linear(3, 4), nn.Softplus(), nn.Linear(4, CLASSES)),
    "columns": lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, CLASSES)),
    "ghost": lambda: nn.Sequential(nn.LayerNorm(3), nn.Linear(3, CLASSES)),
    "loop": lambda: nn.Sequential(nn.Linear(3, CLASSES), nn.PReLU()),
}


def clients(values, targets=None, kind=torch.float32):
    """Records whose inputs are these values, repeated."""
    found = []
    for size in SIZES:
        numbers = torch.tensor((values * (3 * size))[: 3 * size], dtype=kind).reshape(size, 3)
        classes = torch.arange(size) % CLASSES if targets is None else torch.tensor((targets * size)[:size])
        found.append((numbers, classes))
    return found


def said(model, people, **options):
    """All that a run says: its warnings, its error or its engine, and what the history names."""
    chained = None  # to the error: it would be shown, or could be read
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = diff2.train(
                model, "cross_entropy", people, ROUNDS, Budget(1.0, 1e-5), strict=True, progress=False, **options
            )
            end = (result.engine, list(result.history), result.guarantee)
        except Exception as error:
            end, chained = (type(error).__name__, str(error)), error.__context__
    assert chained is None
    return end, sorted(str(warning.message) for warning in caught)


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=6, deadline=None)
@given(values=st.lists(st.sampled_from(WILD), min_size=1, max_size=9))
def test_wild_values_are_spoken_of_like_tame_ones(name, values):
    assert said(started(name), clients(values)) == said_of_tame_ones(name)


def started(name):
    torch.manual_seed(0)
    return MODELS[name]()


@cache
def said_of_tame_ones(name):
    return said(started(name), clients([0.5, -0.25]))


FIXED = str(unusable("clients"))
BAD = {
    "NaN": clients([0.5, float("nan")]),
    "infinite": clients([float("inf")]),
    "too large for the precision": clients([1e300], kind=torch.float64),
    "class too large": clients([0.5], targets=[0, 1, 41]),
    "class below zero": clients([0.5], targets=[-7]),
    "bad value at the second client only": [clients([0.5])[0], clients([float("nan")])[1]],
    "bad target": [(inputs, targets + 40) for inputs, targets in clients([0.5])],
}


@pytest.mark.parametrize("people", BAD.values(), ids=BAD)
def test_bad_values_are_refused_with_one_text(people):
    assert said(MODELS["columns"](), people)[0] == ("InvalidArgument", FIXED)


INDICES = {
    "too large": [41, 41, 41],
    "too large for the first table": [TABLE, 0, 0],
    "too large for the second table": [0, 2 * TABLE, 0],
    "below zero": [-1, 0, 0],
    "huge": [0, 2**40, 0],
}


@pytest.mark.filterwarnings("ignore::diff2.GradientFallbackWarning")
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("values", INDICES.values(), ids=INDICES)
def test_a_bad_index_is_refused_before_anything_is_spent_with_the_same_text(values, strict, tmp_path):
    people = clients(values, kind=torch.int64)
    with pytest.raises(InvalidArgument) as caught:
        diff2.train(
            Tables(), "cross_entropy", people, ROUNDS, Budget(1.0, 1e-5), strict=strict, directory=tmp_path / "run"
        )
    assert str(caught.value) == FIXED
    assert not (tmp_path / "run").exists()


def test_every_index_that_its_own_table_has_is_taken():
    end, _ = said(Tables(), clients([TABLE - 1, 2 * TABLE - 1, 0], kind=torch.int64))
    assert end[0] == "ghost", end


def test_a_model_that_fails_in_training_says_nothing_of_the_records():
    ends = {said(Afraid(), clients([value]), engine="loop")[0] for value in (41.0, 1e18)}
    assert len(ends) == 1
    assert "strict" in ends.pop()[1]
    with pytest.raises(ValueError, match="too large"):
        diff2.train(Afraid(), "cross_entropy", clients([41.0]), ROUNDS, Budget(1.0, 1e-5), engine="loop")


@pytest.mark.parametrize("bad", [["a", "b", "4711"], [[1.0], [2.0, 3.0], 4711.0]])
def test_inputs_that_are_no_numbers_are_not_quoted(bad):
    people = [(bad, torch.zeros(3, dtype=torch.int64))]
    kind, text = said(MODELS["columns"](), people)[0]
    assert kind == "InvalidArgument"
    assert "4711" not in text
    assert "array of numbers" in text


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_records_without_a_group_are_refused_with_one_text(bad):
    people = clients([0.5])
    groups = [torch.zeros(size) for size in SIZES]
    ends = set()
    for place in range(2):
        with_bad = [group.clone() for group in groups]
        with_bad[place][-1] = bad
        ends.add(said(MODELS["columns"](), people, groups=with_bad)[0])
    assert len(ends) == 1
