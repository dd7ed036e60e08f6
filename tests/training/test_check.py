"""``diff2.check``: layer by layer what a run would say of a model, without a record."""

import copy

import pytest
import torch
from torch import nn

import diff2
from diff2 import InvalidArgument, UnsupportedModel
from diff2.training.check import FROZEN, REFUSED, SLOWER


class Bare(nn.Module):
    """A layer with a rule, and one without inside of a module of one's own."""

    def __init__(self, inner=None):
        super().__init__()
        self.inner = nn.PReLU() if inner is None else inner
        self.out = nn.Linear(3, 2)

    def forward(self, x):
        return self.out(self.inner(x))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(7, 3), nn.Linear(5, 1)

    def forward(self, tokens, ages):
        return self.out(torch.cat([self.words(tokens).mean(1), ages], 1))


def frozen():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    return model


# model, arguments, engine of the whole, engines of the layers
GOOD = {
    "network": (
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)),
        dict(inputs=(3,)),
        "columns",
        ["columns"] * 2,
    ),
    "one layer": (nn.Linear(3, 2), dict(inputs=torch.rand(5, 3), loss="cross_entropy"), "columns", ["columns"]),
    "norm": (nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 1)), dict(inputs=(3,)), "ghost", ["ghost"] * 2),
    "no rule": (Bare(), dict(inputs=(3,)), "vmap", [SLOWER, "ghost"]),
    "frozen": (frozen(), dict(inputs=(3,)), "columns", [FROZEN, "columns"]),
    "eval": (nn.Sequential(nn.BatchNorm1d(3).eval(), nn.Linear(3, 1)), dict(inputs=(3,)), "vmap", [SLOWER, "ghost"]),
    "several inputs": (Two(), dict(inputs=(torch.zeros(1, 4).long(), torch.zeros(1, 2))), "ghost", ["ghost"] * 2),
    "by name": (
        Two(),
        dict(inputs={"ages": torch.zeros(1, 2), "tokens": torch.zeros(1, 4).long()}),
        "ghost",
        ["ghost"] * 2,
    ),
    "double": (nn.Linear(3, 1).double(), dict(inputs=torch.rand(2, 3)), "columns", ["columns"]),
    "your own loss needs": (
        nn.Linear(3, 1),
        dict(inputs=(3,), targets=torch.zeros(4, 1), loss=lambda outputs, targets: (outputs - targets).abs().sum(1)),
        "columns",
        ["columns"],
    ),
    "nothing tried": (nn.Sequential(nn.Linear(3, 1), nn.PReLU()), {}, None, ["ghost", SLOWER]),
}


@pytest.mark.parametrize(("model", "arguments", "engine", "layers"), GOOD.values(), ids=GOOD)
def test_each_layer_has_its_engine_and_the_whole_that_of_a_run(model, arguments, engine, layers):
    before, generator = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    found = diff2.check(model, **arguments)
    assert (found.engine, [one.engine for one in found.layers], found.ok) == (engine, layers, True)
    assert bool(found.notes) == (engine == "vmap")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(generator, torch.get_rng_state())
    assert f"the whole model: {engine or 'not tried'}" in str(found)
    assert sum(one.parameters for one in found.layers) == sum(p.numel() for p in model.parameters() if p.requires_grad)


class Mixing(nn.Linear):
    def forward(self, x):
        return super().forward(x) + x.mean()


class HalfBias(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.bias = nn.Parameter(self.bias.detach().half())


NORMS = nn.Sequential(nn.Linear(3, 48), nn.BatchNorm1d(48), nn.Linear(48, 3), nn.BatchNorm1d(3, affine=False))
REFUSALS = {
    "batch normalisation": (NORMS, (3,), [r"layer '1' .*write nn.GroupNorm\(16, 48\)", r"'3' .*nn.GroupNorm\(1, 3\)"]),
    "statistics": (
        nn.Sequential(nn.InstanceNorm1d(3, track_running_stats=True), nn.Flatten(), nn.Linear(6, 1)),
        (3, 2),
        ["track_running_stats=False"],
    ),
    "no size": (nn.Sequential(nn.LazyLinear(2)), (3,), ["no size yet"]),
    "two types": (HalfBias(3, 1), (3,), ["share one floating-point dtype"]),
    "mixing": (Mixing(3, 1), (3,), ["mixes records"]),
    "other inputs": (nn.Linear(3, 1), (4,), [r"cannot be applied to inputs of shape \(3, 4\)"]),
    "nothing to train": (nn.Linear(3, 1).requires_grad_(False), (3,), ["no trainable parameter"]),
}


@pytest.mark.parametrize(("model", "inputs", "problems"), REFUSALS.values(), ids=REFUSALS)
def test_all_problems_are_listed(model, inputs, problems):
    found = diff2.check(model, inputs)
    assert (found.ok, found.engine, len(found.problems)) == (False, None, len(problems))
    for text, pattern in zip(found.problems, problems, strict=True):
        with pytest.raises(InvalidArgument, match=pattern):
            raise InvalidArgument(text)
    assert "the whole model: refused" in str(found)


def test_what_is_proposed_is_accepted():
    model = copy.deepcopy(NORMS)
    for number, groups, width in ((1, 16, 48), (3, 1, 3)):
        model[number] = nn.GroupNorm(groups, width)
    assert diff2.check(model, (3,)).engine == "ghost"


def test_a_run_that_refuses_a_model_refers_to_it():
    x = torch.rand(9, 3)
    algorithm = diff2.DPGD(1, 1.0, diff2.GradientDescent(0.1))
    with pytest.raises(UnsupportedModel) as error:
        diff2.train(NORMS, "squared", (x, x), algorithm, diff2.Budget(1.0, 1e-5))
    assert "diff2.check(model, inputs)" in error.value.__notes__[0]
    with pytest.warns(diff2.GradientFallbackWarning, match=r"diff2.check\(model, inputs\)"):
        diff2.train(Bare(), "squared", (x, x[:, :2]), algorithm, diff2.Budget(1.0, 1e-5))


def test_bad_arguments_are_refused():
    with pytest.raises(InvalidArgument, match=r"torch\.nn\.Module"):
        diff2.check(lambda x: x)
    assert "needs targets=" in diff2.check(nn.Linear(3, 1), (3,), loss=lambda outputs, targets: outputs).problems[0]
    assert "did you mean 'squared'" in diff2.check(nn.Linear(3, 1), (3,), loss="sqared").problems[0]
    assert "cannot be turned into tensors" in diff2.check(nn.Linear(3, 1), "ab").problems[0]


def test_refused_layers_have_one_word():
    assert [one.engine for one in diff2.check(NORMS).layers] == ["ghost", REFUSED, "ghost", REFUSED]
