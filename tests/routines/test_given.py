"""Optimisers of PyTorch as ``routine=...``: class, factory or instance are the routine as written out, or refused."""

from functools import partial

import pytest
import torch

from diff2 import DPGD, Averaging, GradientDescent, InvalidArgument, TorchOptimizer

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def weights():
    return [torch.zeros(3, requires_grad=True)]


def stepped():
    optimizer = SGD(weights())
    optimizer.param_groups[0]["params"][0].grad = torch.ones(3)
    optimizer.step()
    return optimizer


def with_scheduler():
    optimizer = SGD(weights())
    torch.optim.lr_scheduler.StepLR(optimizer, 3)
    return optimizer


def changed():
    optimizer = SGD(weights())
    optimizer.param_groups[0]["secret"] = 3
    return optimizer


WRITTEN = TorchOptimizer("SGD", {"lr": 0.1, "momentum": 0.9})
GIVEN = {
    "class": (torch.optim.Adagrad, TorchOptimizer("Adagrad")),
    "partial": (SGD, WRITTEN),
    "factory": (lambda parameters: SGD(parameters), WRITTEN),
    "instance": (SGD(weights()), WRITTEN),
    "instance with a state of its own": (
        torch.optim.Adagrad(weights(), initial_accumulator_value=0.5),
        TorchOptimizer("Adagrad", {"initial_accumulator_value": 0.5}),
    ),
    "groups that are alike": (SGD([{"params": weights()}, {"params": weights()}]), WRITTEN),
    "routine": (WRITTEN, WRITTEN),
}


@pytest.mark.parametrize(("given", "routine"), GIVEN.values(), ids=GIVEN)
def test_an_optimizer_is_the_routine_that_could_be_written_out(given, routine):
    assert DPGD(5, 1.0, given).routine == routine
    assert Averaging(given).routine == routine


BAD = {
    "class of a routine": (GradientDescent, r"such as GradientDescent\(learning_rate=0.1\)"),
    "number": (0.1, "got routine=0.1"),
    "nothing": (None, "got routine=None"),
    "another function": (len, "got routine=<built-in"),
    "a module": (torch.nn.Linear(2, 1), "expected routine"),
    "closure": (torch.optim.LBFGS, "needs a closure"),
    "sparse": (torch.optim.SparseAdam(weights()), "cannot move one dense vector"),
    "groups": (SGD([{"params": weights(), "lr": 0.3}, {"params": weights()}]), "groups have different options"),
    "stepped": (stepped(), "has taken steps"),
    "scheduler": (with_scheduler(), "schedule='cosine'"),
    "changed": (changed(), r"changed after it was made. Write routine=TorchOptimizer\(torch.optim.SGD"),
}


@pytest.mark.parametrize(("given", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_a_routine_is_refused_with_what_to_write(given, message):
    for build in (lambda: DPGD(5, 1.0, given), lambda: Averaging(given)):
        with pytest.raises(InvalidArgument, match=message):
            build()
