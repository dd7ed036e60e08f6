"""From what a user passes to a run that is ready: everything is checked before anything is spent."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .._types import Loss
from .._validate import at_least, one_of
from ..algorithms import Algorithm
from ..cohorts.clients import Client, as_clients, as_owners, as_pair
from ..cohorts.per_client import ClientwiseCohort
from ..cohorts.pooled import LocalCohort
from ..errors import InvalidArgument, leak
from ..gradients import Engine, build_engine
from ..models.losses import check_targets, resolve_loss
from ..planning.plan import Opening, Plan, plan
from ..privacy import Budget, NoiseSource
from ..privacy.composition import FULL
from ..questions.round import SCALING
from ..routines import Averaging
from . import directory as checkpoints
from .assembly import assemble
from .loop import Callback, Training
from .metrics import ExactMetrics
from .result import TrainResult

OUTPUTS = ("last", "uniform")


def train(
    model: nn.Module,
    loss: str | Loss,
    clients: Any,
    algorithm: Algorithm,
    budget: Budget,
    *,
    seed: int | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    **options: Any,
) -> TrainResult:
    """Train a copy of ``model`` on the clients' records, within the budget.

    Args:
        model: starts from the parameters it has; is not changed.
        loss: ``"squared"``, ``"cross_entropy"``, or a callable (outputs, targets) -> one loss a record.
        clients: a list of (inputs, targets) pairs, one a client; a single pair is one client.
        algorithm: ``Diff2`` or another algorithm with its settings.
        budget: what the whole run may cost.
        seed: None takes the noise from the operating system. A seed makes the run repeatable and *not private*.
        callbacks: called after each round with (state, info); returning True ends the run.
        progress: show a bar; by default where standard error is a terminal.
        options: see :func:`prepare`.

    >>> import torch
    >>> from diff2 import Budget, DPGD, GradientDescent, train
    >>> inputs = torch.linspace(-1, 1, 1000).reshape(-1, 1)
    >>> result = train(torch.nn.Linear(1, 1), "squared", (inputs, 3 * inputs),
    ...                DPGD(rounds=50, clip_gradient=4.0, routine=GradientDescent(learning_rate=0.5)),
    ...                Budget(epsilon=1.0, delta=1e-5), seed=0)
    >>> abs(result.model.weight.item() - 3) < 0.5, round(result.epsilon, 6), len(result.history)
    (True, 1.0, 50)
    """
    run = prepare(model, loss, clients, algorithm, budget, seed=seed, **options)
    return run.run(callbacks=callbacks, progress=progress)


def prepare(
    model: nn.Module,
    loss: str | Loss,
    clients: Any,
    algorithm: Algorithm,
    budget: Budget,
    *,
    seed: int | None = None,
    output: str = "last",
    weighting: str = "clients",
    accounting: str = "exact",
    unit: str = "record",
    groups: Any = None,
    clients_per_round: int | None = None,
    client_order: str = "round_robin",
    dtype: torch.dtype | None = None,
    device: str | torch.device | None = None,
    directory: str | os.PathLike[str] | None = None,
    resume: bool = False,
    metrics_every: int | None = None,
    holdout: Any = None,
    leaks: Sequence[str] = (),
    strict: bool = False,
    chunk_rows: int | None = None,
    by_client: bool = False,
    opening: Opening | None = None,
) -> Training:
    """Check everything, build the run, and spend nothing yet.

    Args:
        output: ``"last"`` returns x_R; ``"uniform"`` one of x_0, ..., x_{R-1} at random, as in the paper's theorems.
        weighting, accounting, clients_per_round, client_order: as in :func:`diff2.plan`.
        unit: ``"record"``, or ``"client"`` to protect all records of a client together.
        groups: for each client an array with the owner of each record (numbers or texts): the records of one owner are
            protected together.
        dtype, device: by default those of the model.
        directory: keeps ledger.jsonl and checkpoint.pt; without it both are in memory only.
        resume: go on with the run in ``directory``, or start it if there is none.
        metrics_every: compute exact losses and gradient norms every so many rounds. They leak; a warning says so.
        holdout: an (inputs, targets) pair whose exact loss is computed as well.
        leaks: what else the caller knows to have left without noise (for example: scaling by the data's own range).
        strict: refuse leaks instead of warning.
        chunk_rows: records per pass through the engine; changes speed, not results.
        by_client: ask every client by itself, as sites of a federation are asked: the same bytes as theirs under one
            seed, the same up to rounding as otherwise, and slower where clients are small.
        opening: a release that the records were scaled by, made before this; part of the run and its budget.
    """
    one_of("output", output, OUTPUTS)
    if output == "uniform" and isinstance(getattr(algorithm, "routine", None), Averaging):
        raise InvalidArgument("output='uniform' draws one iterate, Averaging takes their mean; leave one of them out")
    loss_name, loss_function = resolve_loss(loss)
    if not isinstance(model, nn.Module):
        raise InvalidArgument(f"expected model to be a torch.nn.Module, got {type(model).__name__}")
    dtype, where = _placement(model, dtype, device)
    people = as_clients(clients, loss_function, dtype=dtype, device=where)
    owners = None if groups is None else as_owners(groups, people)
    noise_plan = plan(
        algorithm,
        budget,
        [client.size for client in people],
        weighting=weighting,
        accounting=accounting,
        unit=_unit(unit, owners),
        clients_per_round=clients_per_round,
        client_order=client_order,
        opening_share=None if opening is None else opening.share,
    )
    _check_opening(noise_plan, opening)
    example = people[0] if owners is None else Client(*(part[:6].unsqueeze(1) for part in people[0]))
    engine, stochastic = build_engine(
        model, loss_function, *example, dtype=dtype, device=where, chunk_rows=chunk_rows, grouped=owners is not None
    )  # fmt: skip
    _check_all_targets(engine, loss_function, people)
    leaks = declare_leaks(budget, metrics_every, holdout, leaks, strict)
    held = None if holdout is None else as_pair("holdout", holdout, loss_function, dtype=dtype, device=where)

    def cohort(noise: NoiseSource) -> LocalCohort | ClientwiseCohort:
        kind = ClientwiseCohort if by_client else LocalCohort
        return kind(engine, people, noise_plan.population, source=noise, stochastic=stochastic, owners=owners)

    def metrics(asked: LocalCohort | ClientwiseCohort) -> ExactMetrics | None:
        if metrics_every is None:
            return None
        return ExactMetrics(engine, loss_function, asked, weighting, metrics_every, held)

    return assemble(
        noise_plan,
        engine,
        cohort=cohort,
        records_tag=lambda noise: checkpoints.records_tag(noise.key, [*people, *([owners] if owners else [])]),
        metrics=metrics,
        settings={
            "loss": loss_name,
            "model": repr(model),
            "inputs": [list(client.inputs.shape) for client in people],
            "targets": [list(client.targets.shape) for client in people],
            "by_client": by_client,
        },
        seed=seed,
        output=output,
        directory=directory,
        resume=resume,
        leaks=leaks,
        opening=opening,
    )


def _check_opening(noise_plan: Plan, opening: Opening | None) -> None:
    """Refuse a release before the first round that is not the one which the plan has paid for."""
    if opening is None:
        return
    expected = (0, SCALING, noise_plan.multipliers[SCALING], FULL, None)
    entry = opening.entry
    if (entry.round, entry.purpose, entry.multiplier, entry.sampling, entry.members) != expected:
        raise InvalidArgument(
            f"the release before the first round, {entry}, is not the one that was planned: expected round, purpose, "
            f"multiplier, sampling and members {expected}; plan and release with the same settings"
        )


def _placement(
    model: nn.Module, dtype: torch.dtype | None, device: str | torch.device | None
) -> tuple[torch.dtype, torch.device]:
    first = next((parameter for parameter in model.parameters() if parameter.dtype.is_floating_point), None)
    mine = torch.get_default_dtype() if first is None else first.dtype
    dtype = mine if dtype is None else dtype
    if dtype not in (torch.float32, torch.float64):
        raise InvalidArgument(f"expected dtype torch.float32 or torch.float64, got {dtype}; convert the model")
    if device is None:
        device = torch.device("cpu") if first is None else first.device
    return dtype, torch.device(device)


def _check_all_targets(engine: Engine, loss: Loss, people: list[Client]) -> None:
    with torch.no_grad(), torch.random.fork_rng(devices=[]):  # dropout must not advance the caller's generator
        shape = engine.flat.module(people[0].inputs[:1]).shape
    for client in people:
        check_targets(loss, client.targets, shape)


def declare_leaks(
    budget: Budget, metrics_every: int | None, holdout: Any, leaks: Sequence[str], strict: bool
) -> tuple[str, ...]:
    """Warn of everything that will leave without noise; return it for the guarantee."""
    named = list(leaks)
    if not budget.private:
        leak("epsilon=inf: no noise is added, so the model is not private.", strict=strict, stacklevel=4)
    if metrics_every is not None:
        at_least("metrics_every", metrics_every, 1)
        named.append("exact training metrics" + ("" if holdout is None else " and exact held-out metrics"))
    elif holdout is not None:
        raise InvalidArgument("holdout is given without metrics_every; say how often to compute its exact loss")
    if budget.private:
        for name in named:
            leak(f"{name}: values that depend on the records leave without noise.", strict=strict, stacklevel=4)
    return tuple(named)


def _unit(unit: str, owners: list[torch.Tensor] | None) -> str:
    if owners is None and unit == "owner":
        raise InvalidArgument("unit='owner' needs groups=..., the owner of each record")
    if owners is not None and unit == "client":
        raise InvalidArgument("groups protect owners, unit='client' whole clients; leave one of them out")
    return unit if owners is None else "owner"
