"""Any optimiser of PyTorch as a routine: the same bits as PyTorch, or refused at once."""

import copy
import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
from walks import ROUNDS, assert_same_path, estimates, path_of, start, stored, torch_path

from diff2.errors import InvalidArgument
from diff2.routines import SCHEDULES, TorchOptimizer, scheduled

TORCH_OPTIMIZERS = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.1}),
    ("Adam", {"lr": 0.1, "amsgrad": True, "maximize": True}),
    ("Adam", {"lr": 0.1, "foreach": True}),
    ("AdamW", {"lr": 0.1, "betas": (0.5, 0.9)}),
    ("RMSprop", {"lr": 0.1, "centered": True, "momentum": 0.5}),
    ("Adagrad", {"lr": 0.1, "initial_accumulator_value": 0.2, "lr_decay": 0.1}),
    ("NAdam", {"lr": 0.1}),
    ("RAdam", {"lr": 0.1}),
    ("Adamax", {}),
    ("Adadelta", None),
    ("Adafactor", {"lr": 0.1}),
    ("ASGD", {"lr": 0.1, "t0": 2}),
    ("Rprop", {"lr": 0.1}),
]


@pytest.mark.parametrize("as_class", [True, False])
@pytest.mark.parametrize(("name", "options"), TORCH_OPTIMIZERS)
def test_an_optimizer_of_torch_moves_as_if_it_were_used_directly(name, options, as_class):
    cls = getattr(torch.optim, name)
    routine = TorchOptimizer(cls if as_class else name, options)
    points, _ = path_of(routine, estimates(), between=stored)
    expected = torch_path(cls, estimates(), **(options or {}))
    assert all(torch.equal(a, b) for a, b in zip(points, expected, strict=True))
    assert routine.optimizer == name
    assert routine == TorchOptimizer(name, options)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("options", [{"lr": 0.2, "momentum": 0.9}, {"momentum": 0.9}])
def test_a_schedule_sets_the_learning_rate_of_an_optimizer_of_torch(schedule, options):
    points, _ = path_of(TorchOptimizer("SGD", options, schedule), estimates())
    rates = [scheduled(options.get("lr", 1e-3), schedule, r + 1, ROUNDS) for r in range(ROUNDS)]
    expected = torch_path(torch.optim.SGD, estimates(), rates, **options)
    assert all(torch.equal(a, b) for a, b in zip(points, expected, strict=True))


class Halving(torch.optim.SGD):
    """From another library: changes its own learning rate, and spoils the gradient."""

    def step(self, closure=None):
        super().step(closure)
        self.param_groups[0]["params"][0].grad.zero_()
        self.param_groups[0]["lr"] /= 2


class Forgetful(torch.optim.SGD):
    """Counts where no state_dict sees it."""

    count = 0

    def step(self, closure=None):
        self.count += 1
        self.param_groups[0]["params"][0].sub_(0.01 * self.count)


class Random(torch.optim.SGD):
    def step(self, closure=None):
        parameter = self.param_groups[0]["params"][0]
        parameter.sub_(torch.rand_like(parameter))


class WithoutRate(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})

    def step(self, closure=None):
        self.param_groups[0]["params"][0].sub_(0.25)


class Unstorable(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        self.state[self.param_groups[0]["params"][0]]["note"] = SimpleNamespace()


def test_an_optimizer_from_elsewhere_is_kept_by_name():
    routine = TorchOptimizer(Halving, {"lr": 0.2})
    assert routine.optimizer == f"{__name__}.Halving"
    assert dataclasses.replace(routine) == routine
    mine = estimates()
    points, _ = path_of(routine, mine, between=stored)
    assert all(torch.equal(one.value, other.value) for one, other in zip(mine, estimates(), strict=True))
    expected = torch_path(torch.optim.SGD, estimates(), [0.2 / 2**r for r in range(ROUNDS)], lr=0.2)
    assert_same_path(points, expected)
    assert_same_path(path_of(TorchOptimizer(WithoutRate), estimates(2))[0], [start() - 0.25, start() - 0.5])


def test_trying_an_optimizer_leaves_the_callers_random_numbers_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    TorchOptimizer("AdamW")
    assert torch.equal(torch.get_rng_state(), before)


def test_the_options_of_an_optimizer_cannot_change():
    options = {"lr": 0.1, "betas": [0.5, 0.9]}
    routine = TorchOptimizer("Adam", options)
    options["lr"] = 7.0
    assert routine.options == {"lr": 0.1, "betas": (0.5, 0.9)}
    with pytest.raises(TypeError):
        routine.options["lr"] = 7.0
    assert hash(routine) == hash(TorchOptimizer("Adam", {"betas": (0.5, 0.9), "lr": 0.1}))
    assert routine != TorchOptimizer("Adam", {"lr": 0.1})
    copied = copy.deepcopy(routine)
    assert copied == routine
    assert hash(copied) == hash(routine)


def local_class():
    class Local(torch.optim.SGD):
        pass

    return Local


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("LBFGS",), "needs a closure"),
        ((torch.optim.LBFGS, {"lr": 0.1}), "optimizer='LBFGS' .* choose another"),
        (("SparseAdam",), "cannot move one dense vector.*does not support dense"),
        ((torch.optim.Muon if hasattr(torch.optim, "Muon") else "SparseAdam",), "cannot move one dense vector"),
        (("AdamX",), "one of Adam, .*optimizer='AdamX'; did you mean 'Adam"),
        (("Optimizer",), "got optimizer='Optimizer'"),
        (("lr_scheduler",), "got optimizer='lr_scheduler'"),
        (("os.path",), "got optimizer='os.path'"),
        ((int,), "expected optimizer to be a class of torch.optim"),
        ((3,), "got optimizer=3"),
        ((local_class(),), "top level of a module"),
        (("SGD", {"learning_rate": 0.1}), "optimizer='SGD' with options={'learning_rate': 0.1}.*unexpected keyword"),
        (("SGD", {"lr": -1.0}), "Invalid learning rate"),
        (("SGD", {"lr": math.inf}), "not finite"),
        (("SGD", {"lr": torch.tensor(0.1)}), r"options\['lr'\] to be a number"),
        (("Adam", {"betas": [[0.9], 0.9]}), r"options\['betas'\]"),
        (("SGD", {3: 0.1}), r"options\[3\]"),
        (("SGD", 0.1), "expected options to be a mapping"),
        (("SGD", {"lr": 0.1}, "linear"), "schedule to be one of"),
        ((Forgetful,), "takes other steps"),
        ((Random,), "takes other steps"),
        ((Unstorable,), "cannot move"),
        ((WithoutRate, None, "cosine"), "no learning rate 'lr'"),
    ],
)
def test_an_optimizer_that_cannot_work_is_refused_at_once(arguments, message):
    with pytest.raises(InvalidArgument, match=message):
        TorchOptimizer(*arguments)
