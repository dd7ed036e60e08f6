"""One round of each way to do it, as a function without arguments, ready to be timed."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable

import torch
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader, TensorDataset

import diff2
from diff2.models.losses import resolve_loss

from .cases import Case

Round = Callable[[], object]


def plain(case: Case) -> Round:
    """The non-private gradient of the mean loss by autograd: what any training step costs."""
    model = copy.deepcopy(case.model)

    def one_round() -> None:
        model.zero_grad()
        case.mean_loss(model).backward()

    return one_round


def diff2_round(case: Case) -> Round:
    """A difference round of DIFF2-GD, from the estimator to the moved parameters, ledger included."""
    routine = diff2.GradientDescent(learning_rate=1e-3)
    # One restart, which is done here; all rounds that are timed are difference rounds.
    return _training_round(
        case,
        diff2.Diff2(rounds=100_000, restart_interval=100_000, clip_gradient=1.0, clip_smoothness=1.0, routine=routine),
    )


def dpgd_round(case: Case) -> Round:
    """A round of DP-GD."""
    routine = diff2.GradientDescent(learning_rate=1e-3)
    return _training_round(case, diff2.DPGD(rounds=100_000, clip_gradient=1.0, routine=routine))


def _training_round(case: Case, algorithm: diff2.Algorithm) -> Round:
    records = (case.inputs, case.targets)
    run = diff2.prepare(case.model, case.loss, records, algorithm, diff2.Budget(epsilon=3.0, delta=1e-7))
    state, _ = run.step(run.init())

    def one_round() -> None:
        nonlocal state
        state, _ = run.step(state)

    return one_round


def double_vmap(case: Case) -> Round:
    """The naive difference: every record's gradient written out, at both iterates."""
    model, loss = case.model, resolve_loss(case.loss)[1]
    names = [name for name, _ in model.named_parameters()]
    now = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    before = {name: value + 1e-3 * torch.randn_like(value) for name, value in now.items()}

    def loss_of_one(params: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss(functional_call(model, params, (x.unsqueeze(0),)), y.unsqueeze(0)).sum()

    per_record = vmap(grad(loss_of_one), in_dims=(None, 0, 0))

    def one_round() -> list[torch.Tensor]:
        new, old = (per_record(params, case.inputs, case.targets) for params in (now, before))
        differences = {name: new[name] - old[name] for name in names}
        norms = torch.sqrt(sum(value.flatten(1).square().sum(1) for value in differences.values()))
        weights = (1e-3 / norms).clamp(max=1) / len(norms)
        return [weights @ value.flatten(1) for value in differences.values()]

    return one_round


def opacus_round(mode: str) -> Callable[[Case], Round]:
    """A full-batch DP-SGD step of Opacus; ``mode`` is its ``grad_sample_mode``."""

    def build(case: Case) -> Round:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from opacus import PrivacyEngine
            from opacus.validators import ModuleValidator

            model, targets = ModuleValidator.fix(copy.deepcopy(case.model)), case.targets  # attention of its own
            if case.loss == "squared":
                # Its ghost mode multiplies losses of shape (n, 1) by weights of shape (n,), which makes n x n numbers.
                model, targets = torch.nn.Sequential(model, torch.nn.Flatten(0)), targets.flatten()
            optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
            loader = DataLoader(TensorDataset(case.inputs, targets), batch_size=len(case.inputs))
            criterion = torch.nn.MSELoss() if case.loss == "squared" else torch.nn.CrossEntropyLoss()
            made = PrivacyEngine().make_private(
                module=model,
                optimizer=optimiser,
                criterion=criterion,
                data_loader=loader,
                noise_multiplier=math.sqrt(2000),
                max_grad_norm=1.0,
                poisson_sampling=False,
                grad_sample_mode=mode,
            )
        private, optimiser = made[0], made[1]
        criterion = made[2] if mode == "ghost" else criterion

        def one_round() -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                optimiser.zero_grad()
                criterion(private(case.inputs), targets).backward()
                optimiser.step()

        return one_round

    return build


CONTESTANTS: dict[str, Callable[[Case], Round]] = {
    "plain autograd": plain,
    "DIFF2 difference round": diff2_round,
    "DP-GD round": dpgd_round,
    "double vmap": double_vmap,
    "Opacus per-sample": opacus_round("hooks"),
    "Opacus ghost": opacus_round("ghost"),
}
