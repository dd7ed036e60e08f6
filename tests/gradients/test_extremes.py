"""No scale of inputs, weights or radius lets a record exceed its radius: subnormal, huge, and one times the other."""

import math
from functools import cache

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from diff2.errors import InvalidArgument
from diff2.gradients import Records
from diff2.models.losses import cross_entropy, squared
from diff2.questions import Question, Smoothness
from diff2.questions.question import LEAST_RADIUS
from helpers import (
    ENGINES,
    Case,
    FlatModule,
    MeanOfWords,
    Tied,
    WrittenNorm,
    difference,
    gradient,
    make_engine,
    start_of,
    step_from,
)

ALLOWED = 1 + 1e-5
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # of vmap with attention


def positions(frozen=True):
    """Linear layer, rows normalised: the larger the inputs, the smaller the errors. Only the product of both counts."""
    norm = nn.LayerNorm(30, elementwise_affine=not frozen)
    return nn.Sequential(nn.Linear(20, 30, bias=not frozen), norm, nn.Flatten(), nn.Linear(60, 1, bias=False)), (2, 20)


def by_hand(norm):
    """The same with a scale, positions, and a norm of one's own or PyTorch's."""
    return nn.Sequential(Placed(), norm, nn.Flatten(), nn.Linear(60, 1, bias=False)), (2, 20)


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.mix = nn.Linear(20, 30), nn.MultiheadAttention(30, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(30), nn.Linear(30, 1, bias=False)

    def forward(self, x):
        x = self.first(x)
        return self.head(self.norm(x + self.mix(x, x, x, need_weights=False)[0]).mean(1))


class Placed(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.places = nn.Parameter(torch.randn(20, 30)), nn.Parameter(torch.randn(1, 2, 30))

    def forward(self, x):
        return x @ self.weight + self.places


MODELS = {
    "bare parameters": lambda: by_hand(WrittenNorm(30)),
    "attention": lambda: (Mixed(), (3, 20)),
    "rms norm": lambda: by_hand(nn.RMSNorm(30)),
    "positions": positions,
    "positions, all trained": lambda: positions(frozen=False),
    "many positions": lambda: (
        nn.Sequential(nn.Linear(20, 30), nn.LayerNorm(30), nn.Flatten(), nn.Linear(210, 1, bias=False)), (7, 20)
    ),
    "conv": lambda: (
        nn.Sequential(
            nn.Conv1d(4, 40, 3, stride=7), nn.GroupNorm(1, 40), nn.Flatten(), nn.Linear(80, 1, bias=False)
        ),
        (4, 11),
    ),
    "rows": lambda: (nn.Sequential(nn.Linear(20, 30), nn.LayerNorm(30), nn.Linear(30, 2, bias=False)), (20,)),
    "wide rows": lambda: (
        nn.Sequential(nn.Linear(50, 40, bias=False), nn.LayerNorm(40), nn.Linear(40, 35), nn.Linear(35, 1)), (50,)
    ),
    "mlp": lambda: (nn.Sequential(nn.Linear(8, 10), nn.Tanh(), nn.Linear(10, 6), nn.ReLU(), nn.Linear(6, 2)), (8,)),
    "compiled": lambda: (nn.Sequential(nn.Linear(8, 10), nn.Softplus(), nn.Linear(10, 1)), (8,)),
    "words": lambda: (MeanOfWords(), None),
    "tied": lambda: (Tied(), None),
}  # fmt: skip


def case_of(name, inputs, head, first=1.0, freeze=True):
    """Return two records of a model whose inputs, first and last weights have these sizes."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model, shape = MODELS[name]()
        with torch.no_grad():
            layers = [layer for layer in model.modules() if hasattr(layer, "weight") and layer.weight is not None]
            layers[0].weight.mul_(first)
            layers[-1].weight.mul_(head)
        if freeze:  # else its own gradient outweighs the others
            layers[-1].requires_grad_(False)
        if shape is None:
            return Case(model, torch.randint(0, 7, (2, 6)), torch.tensor([0, 2]), cross_entropy)
        x = torch.randn(2, *shape, dtype=torch.float64) * inputs
        width = model(x.float()).shape[1]
        return Case(model, x.float(), torch.randn(2, width), squared)


def longest(engine, case, radius, distance, records=None):
    """Return the length of the longest vector that a record adds, in units of the radius."""
    previous = start_of(case.model)
    params, longest = step_from(previous, distance), 0.0
    for record in case.one_by_one() if records is None else records:
        values = gradient(engine, params, record, radius), difference(engine, params, previous, record, radius)
        longest = max(longest, *(float(value.norm()) for value in values))
    return longest / radius


@cache
def usual_engine(kind, name, freeze):
    usual = case_of(name, 1.0, 1.0, 1.0, freeze)
    return make_engine(kind, usual.model, usual.loss, usual.records)


def engine_for(kind, name, case, freeze=True):
    """Return an engine that was chosen at usual sizes, as it is on made-up records."""
    engine = usual_engine(kind, name, freeze)
    for module in (engine.flat.module, engine._own.module):
        module.load_state_dict(case.model.state_dict(), strict=False)
    return engine


def kinds_for(case):
    flat, rows = FlatModule(case.model), case.inputs.dim() == 2
    return [
        kind.name
        for kind in ENGINES.values()
        if kind.unsuited(flat, case.loss) is None and (rows or kind.name not in ("columns", "compiled"))
    ]


sizes = st.floats(-38, 38).map(lambda power: 10.0**power)


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=3, deadline=None)  # and the four below
@given(inputs=sizes, head=sizes, first=sizes, radius=st.floats(-15, 8), distance=st.floats(-6, 1))
@example(inputs=1e18, head=1e-5, first=1.0, radius=-10.0, distance=-1.0)
@example(inputs=1e15, head=1e-7, first=1.0, radius=-10.0, distance=-1.0)
@example(inputs=1.0, head=1e-5, first=1e18, radius=-7.0, distance=-1.0)
@example(inputs=1e-30, head=1e-30, first=1e20, radius=-15.0, distance=0.0)
def test_a_record_of_any_scale_is_no_longer_than_the_radius(name, inputs, head, first, radius, distance):
    for freeze in (True, False):
        case = case_of(name, inputs, head, first, freeze)
        for kind in kinds_for(case):
            engine = engine_for(kind, name, case, freeze)
            assert longest(engine, case, 10.0**radius, 10.0**distance) <= ALLOWED, kind


@settings(max_examples=25, deadline=None)
@given(inputs=sizes, head=sizes, radius=st.floats(-15, 8), rows=st.integers(1, 5))
@example(inputs=1e18, head=1e-5, radius=-10.0, rows=3)
def test_an_owner_of_several_rows_of_any_scale_is_no_longer_than_the_radius(inputs, head, radius, rows):
    case = case_of("rows", inputs, head)
    groups = [Records.of(*(part[i].expand(1, rows, *part.shape[1:]).clone() for part in case[1:3])) for i in (0, 1)]
    engine = make_engine("ghost", case.model, case.loss, groups[0], grouped=True)
    assert longest(engine, case, 10.0**radius, 0.1, groups) <= ALLOWED


@pytest.fixture
def flushed():
    """Subnormal numbers are taken for zero, as many programs have it for speed."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot")
    yield
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("flushed")
@pytest.mark.parametrize("small", [3e-19, 1e-19, 1e-20, 1e-21])
@pytest.mark.parametrize("big", [1e15, 1e18])
def test_products_of_positions_that_underflow_are_paid_for(big, small):
    """Without what squares may lose, a record was 156 times as long as its radius."""
    torch.manual_seed(0)
    head = nn.Linear(60, 1, bias=False).requires_grad_(False)
    head.weight.data.mul_(small * 8)
    model = nn.Sequential(nn.Linear(20, 30, bias=False), nn.Flatten(), head)
    records = Records.of(torch.randn(3, 2, 20) * big, torch.zeros(3, 1))
    engine = make_engine("ghost", model, lambda outputs, targets: outputs.sum(1), records)
    for radius in (1e-3, 1e-9, 1e-15):
        record = Records(*(part[:1] for part in records))
        assert float(gradient(engine, start_of(model), record, radius).norm()) <= radius * ALLOWED


@pytest.mark.parametrize("name", ["positions", "conv", "rows"])
def test_a_record_of_usual_scale_is_not_shortened_more_than_needed(name):
    case = case_of(name, 1e4, 1e-2)
    for kind in kinds_for(case):
        engine = make_engine(kind, case.model, case.loss, case.records)
        assert longest(engine, case, 1e-6, 1e-3) >= 1 - 1e-4


# The radius itself


@pytest.mark.parametrize("radius", [1e-27, LEAST_RADIUS / 2, 5e-324, math.nan, -1.0])
def test_a_radius_so_small_that_factors_would_lose_their_precision_is_refused(radius):
    with pytest.raises(InvalidArgument, match=r"expected a clipping radius of zero or at least 8\.9e-16"):
        Question.gradient(radius)


def test_the_radius_of_a_difference_never_falls_below_the_least_and_the_sensitivity_follows():
    rule, start = Smoothness(3.0), torch.zeros(2, dtype=torch.float64)
    assert rule.radius(start + 1e-20, start) == LEAST_RADIUS
    assert rule.radius(start, start) == 0
    asked = Question.difference(rule).at(1, start + 1e-20, start)
    assert asked.radius == LEAST_RADIUS


@pytest.mark.parametrize("kind", ["compiled", "columns", "ghost", "vmap"])
def test_the_least_radius_is_kept_in_single_precision(kind):
    """At 1e-27 factors were subnormal, and a record moved the sum by 1.98 times its sensitivity."""
    if kind == "compiled":
        pytest.importorskip("diff2.gradients.kernels")
    for inputs in (1e-6, 1.0, 1e9, 1e18):
        case = case_of("compiled", inputs, 1.0, freeze=False)
        engine = make_engine(kind, case.model, case.loss, case.records)
        assert longest(engine, case, LEAST_RADIUS, 0.1) <= ALLOWED
