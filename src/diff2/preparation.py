"""From what a user passes to a run that is ready: everything is checked before anything is spent."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import checkpoint as checkpoints
from ._types import Loss
from ._validate import at_least, one_of
from .checkpoint import Checkpoint
from .clients import Client, as_clients, as_owners, as_pair
from .cohort import LocalCohort
from .errors import CheckpointError, InvalidArgument, leak
from .estimators import Algorithm
from .gradients import Engine, build_engine
from .losses import check_targets, resolve_loss
from .metrics import ExactMetrics
from .plans import Plan, plan
from .privacy import Budget, Ledger, Mechanism, NoiseSource
from .result import TrainResult
from .routines import Averaging
from .training import Callback, Training, checkpoint_path, ledger_path

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
    )
    example = people[0] if owners is None else Client(*(part[:6].unsqueeze(1) for part in people[0]))
    engine, stochastic = build_engine(
        model, loss_function, *example, dtype=dtype, device=where, chunk_rows=chunk_rows, grouped=owners is not None
    )  # fmt: skip
    _check_all_targets(engine, loss_function, people)
    leaks = _declare_leaks(budget, metrics_every, holdout, leaks, strict)
    start = engine.flat.vector.clone()
    held = None if holdout is None else as_pair("holdout", holdout, loss_function, dtype=dtype, device=where)

    header = _header(noise_plan, engine, seed, leaks)
    # Where noise is chosen on the way, this bounds it, and is what the run costs.
    limit = noise_plan.mu if algorithm.adaptive and budget.private else None
    if limit is not None:
        header["filter_mu"] = limit
    settings = {
        **header,
        "loss": loss_name,
        "output": output,
        "model": repr(model),
        "start": hashlib.sha256(start.cpu().numpy().tobytes()).hexdigest(),
        "dtype": str(dtype),
        "inputs": [list(client.inputs.shape) for client in people],
        "targets": [list(client.targets.shape) for client in people],
        "seed": seed,
        "chunk_rows": engine.chunk_rows,
    }
    folder = None if directory is None else Path(directory)
    found = _find_checkpoint(folder, resume, settings)
    noise = _noise(seed, found)
    tag = b"" if folder is None else _tag(folder, noise, people, owners, found)
    ledger = _open_ledger(folder, header, found)
    cohort = LocalCohort(
        engine, people, noise_plan.population, source=noise, stochastic=stochastic, owners=owners
    )  # fmt: skip
    metrics = None
    if metrics_every is not None:
        metrics = ExactMetrics(engine.flat, loss_function, cohort, weighting, metrics_every, held)
    return Training(
        plan=noise_plan,
        cohort=cohort,
        mechanism=Mechanism(ledger, noise, limit=math.inf if limit is None else limit**2),
        engine=engine,
        start=start,
        output_round=algorithm.rounds if output == "last" else noise.integer(algorithm.rounds, "output"),
        output_step=0 if output == "last" else noise.integer(algorithm.routine.local_steps, "output step"),
        metrics=metrics,
        directory=folder,
        settings=settings,
        records_tag=tag,
        resumed=found,
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


def _declare_leaks(
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


def _header(noise_plan: Plan, engine: Engine, seed: int | None, leaks: tuple[str, ...]) -> dict[str, Any]:
    """Describe the run for the ledger, in plain JSON values."""
    algorithm, budget, population = noise_plan.algorithm, noise_plan.budget, noise_plan.population
    return {
        "library": "diff2",
        "adjacency": population.adjacency,
        "unit": population.unit,
        "client_sizes": list(population.sizes),
        "weighting": population.weighting,
        "clients_per_round": population.clients_per_round,
        "client_order": population.client_order,
        "accounting": noise_plan.accounting,
        "budget": {"epsilon": _plain(budget.epsilon), "delta": budget.delta},
        "algorithm": _described(algorithm),
        "dimension": len(engine.flat),
        "seeded": seed is not None,
        "leaks": list(leaks),
    }


def _described(settings: Any) -> dict[str, Any]:
    """Return the name and the fields of an algorithm or a routine, those inside it included, as JSON values."""
    return {"name": settings.name, **{field.name: _plain(getattr(settings, field.name)) for field in fields(settings)}}


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _described(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def _unit(unit: str, owners: list[torch.Tensor] | None) -> str:
    if owners is None and unit == "owner":
        raise InvalidArgument("unit='owner' needs groups=..., the owner of each record")
    if owners is not None and unit == "client":
        raise InvalidArgument("groups protect owners, unit='client' whole clients; leave one of them out")
    return unit if owners is None else "owner"


def _find_checkpoint(folder: Path | None, resume: bool, settings: dict[str, Any]) -> Checkpoint | None:
    if folder is None:
        if resume:
            raise InvalidArgument("resume=True needs the directory of the run to go on with; give directory=...")
        return None
    folder.mkdir(parents=True, exist_ok=True)
    path = checkpoint_path(folder)
    if not resume:
        for existing in (path, ledger_path(folder)):
            if existing.exists():
                raise CheckpointError(f"{existing} exists: resume that run (resume=True), or choose another directory")
        return None
    if not path.exists():
        # Killed before the first checkpoint: then nothing was released either. The ledger says whether that is so.
        _drop_unused_ledger(ledger_path(folder))
        return None
    found = checkpoints.load(path)
    checkpoints.require_same(path, settings, found.settings)
    return found


def _drop_unused_ledger(path: Path) -> None:
    """Remove a ledger that holds no release; refuse to go on with one that does, and has no checkpoint."""
    if not path.exists():
        return
    if path.read_bytes().count(b"\n") > 1:
        raise CheckpointError(
            f"{path} holds releases and has no checkpoint beside it, so the run cannot go on; its releases stay spent. "
            "Start a new run in another directory"
        )
    path.unlink()


def _noise(seed: int | None, found: Checkpoint | None) -> NoiseSource:
    if found is not None and not found.complete:
        return NoiseSource(found.key, private=found.private)
    return NoiseSource.from_system() if seed is None else NoiseSource.from_seed(seed)


def _tag(
    folder: Path,
    noise: NoiseSource,
    people: list[Client],
    owners: list[torch.Tensor] | None,
    found: Checkpoint | None,
) -> bytes:
    if found is not None and found.complete:
        return found.records_tag  # the key is gone, and nothing more will be released
    tag = checkpoints.records_tag(noise.key, [*people, *([owners] if owners else [])])
    if found is not None and tag != found.records_tag:
        raise CheckpointError(
            f"{checkpoint_path(folder)} belongs to a run on other records of the same shape; going on would use the "
            "same noise twice. Restore the records, or start a new run in another directory"
        )
    return tag


def _open_ledger(folder: Path | None, header: dict[str, Any], found: Checkpoint | None) -> Ledger:
    if folder is None:
        return Ledger(header)
    path = ledger_path(folder)
    if found is None:
        return Ledger(header, path)
    return Ledger.read(path) if found.complete else Ledger.resume(path)
