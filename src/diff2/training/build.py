"""From what a user passes to a run that is ready: everything is checked before anything is spent."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from .._files import plain
from .._progress import Show
from .._types import Loss
from .._validate import at_least, one_of
from .._version import __version__
from ..algorithms import Algorithm
from ..cohorts import Client, LocalCohort, PerClientCohort
from ..cohorts.clients import as_clients, as_groups, as_pair
from ..cohorts.slots import EXACT_SIZES, slots_of
from ..errors import InvalidArgument, unusable
from ..gradients import Engine, Shapes, build_engine
from ..gradients.probe import indices_fit, made_up_inputs
from ..leaks import code_of, leak
from ..models.losses import check_targets, resolve_loss
from ..planning import Plan, plan
from ..planning.header import described
from ..planning.plan import protected
from ..planning.verify import check_against
from ..privacy import BoundedMean, Budget, Mechanism
from ..privacy.release import ADD_OR_REMOVE_ONE
from ..privacy.signing import Signer
from ..questions import SCALING, Cohort, Population, Protection
from ..routines import Averaging
from . import OUTPUTS
from .directory import LEDGER, RunDirectory
from .loop import Callback, Training
from .metrics import ExactMetrics
from .result import TrainResult, model_digest


@dataclass(frozen=True)
class Compute:
    """How gradients are computed. It changes speed and the last bits, not what is protected.

    Args:
        engine: ``"auto"``; ``"portable"``, the same whatever is installed; or an engine of docs/gradients.md by name.
        dtype, device: by default those of the model.
        chunk_rows: records per pass through the engine.
        example: a few *public or made-up* (inputs, targets) to try the model on, where it cannot take random ones.
        by_client: ask every client by itself, as sites of a federation are asked: the same bytes as theirs under one
            seed, the same up to rounding as otherwise, and slower where clients are small.
    """

    engine: str = "auto"
    dtype: torch.dtype | None = None
    device: str | torch.device | None = None
    chunk_rows: int | None = None
    example: tuple[torch.Tensor, torch.Tensor] | None = None
    by_client: bool = False


class Opening(Protocol):
    """One release about all records before the first round, and what it does to them."""

    @property
    def share(self) -> float:
        """The share of the budget's mu^2 that it may cost."""
        ...

    def mean(self, clients: Sequence[Any], population: Population) -> BoundedMean:
        """Return what is to be released."""
        ...

    def apply(self, value: np.ndarray, noise_std: float, inputs: Any) -> Any:
        """Return inputs as they are after the release."""
        ...


def train(
    model: nn.Module,
    loss: str | Loss,
    clients: Any,
    algorithm: Algorithm,
    budget: Budget,
    *,
    seed: int | None = None,
    callbacks: Sequence[Callback] = (),
    progress: Show = None,
    **options: Any,
) -> TrainResult:
    """Train a copy of ``model`` on the clients' records, within the budget.

    Args:
        model: starts from the parameters it has; is not changed.
        loss: ``"squared"``, ``"cross_entropy"``, or a callable (outputs, targets) -> one loss per record.
        clients: a list of (inputs, targets) pairs, one per client; a single pair is one client.
        algorithm: ``Diff2`` or another algorithm with its settings.
        budget: what the whole run may cost.
        seed: None takes the noise from the operating system. A seed makes the run repeatable and *not private*.
        callbacks: called after each round with (state, info); returning True ends the run.
        progress: show a bar; by default where standard error is a terminal; ``"lines"``: lines where it is none.
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
    protection: Protection | None = None,
    compute: Compute | None = None,
    groups: Any = None,
    public_sizes: int | Sequence[int] | None = None,
    seed: int | None = None,
    output: str = "last",
    directory: str | os.PathLike[str] | None = None,
    resume: bool = False,
    metrics_every: int | None = None,
    holdout: Any = None,
    leaks: Sequence[str] = (),
    strict: bool = False,
    opening: Opening | None = None,
    columns: Mapping[str, Any] | None = None,
    run_file: str | None = None,
    sign_with: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Training:
    """Check everything and build the run. Nothing is spent yet, except by an ``opening``.

    Args:
        protection: what is protected, and how that is counted.
        compute: how gradients are computed.
        groups: for each client an array with the group of each record (numbers or texts, say of a person): the records
            of one group are protected together.
        public_sizes: with Poisson batches, which protect whether a record is there at all, a public number of records
            that each client has at most: one number, or one for each. Without it the exact numbers leak.
        output: ``"last"`` returns x_R; ``"uniform"`` one of x_0, ..., x_{R-1} at random, as in the paper's theorems.
        directory: keeps ledger.jsonl and checkpoint.pt; without it both are in memory only.
        resume: take up the run in ``directory``, or start it if there is none.
        metrics_every: compute exact losses and gradient norms every this many rounds. They leak; a warning says so.
        holdout: an (inputs, targets) pair whose exact loss is computed as well.
        leaks: what else the caller knows to have left without noise (for example: scaling by the data's own range).
        strict: refuse leaks instead of warning.
        opening: a release about all records that is made now, before the first round, out of the same budget.
        columns: what each column means and where its bounds come from, in plain values, for the ledger.
        run_file: the text of the file that describes the run, for the ledger.
        sign_with: a PEM file with an Ed25519 key, to sign the ledger in ``directory`` with when the run is complete.
        settings: fields of :class:`diff2.Protection` and :class:`diff2.Compute` by name, such as ``unit="client"``.
    """
    check_output(output, algorithm)
    signer = None if sign_with is None else Signer(sign_with)
    protection, compute = _split(protection, compute, settings)
    loss_name, loss_function = resolve_loss(loss)
    if not isinstance(model, nn.Module):
        raise InvalidArgument(f"expected model to be a torch.nn.Module, got {type(model).__name__}")
    untouched = copy.deepcopy(model)
    dtype, device = _placement(model, compute)
    people = as_clients(clients, loss_function, dtype=dtype, device=device)
    numbers = None if groups is None else as_groups(groups, people)
    adjacency = getattr(algorithm, "adjacency", None)  # what is no algorithm is refused below
    noise_plan = plan(
        algorithm, budget, slots_of(public_sizes, people, adjacency), _grouped(protection, numbers is not None),
        opening_share=None if opening is None else opening.share,
    )  # fmt: skip
    engine, stochastic = build_engine(
        model, loss_function, Shapes.of(*people[0]), dtype=dtype, device=device, chunk_rows=compute.chunk_rows,
        grouped=numbers is not None, engine=compute.engine, example=compute.example,
    )  # fmt: skip
    _check_values(engine, loss_function, people, compute.example)
    if adjacency == ADD_OR_REMOVE_ONE and public_sizes is None:
        leaks = (*leaks, EXACT_SIZES)
    named_leaks = declare_leaks(budget, metrics_every, holdout, leaks, strict)
    run = RunDirectory(
        directory,
        header=header(
            noise_plan,
            engine,
            seed,
            named_leaks,
            columns=columns,
            run_file=run_file,
            signed_by=None if signer is None else signer.public,
        ),
        signer=signer,
        settings={
            "loss": loss_name,
            "model": repr(model),
            "inputs": [list(client.inputs.shape) for client in people],
            "targets": [list(client.targets.shape) for client in people],
            "by_client": compute.by_client,
            "opening": opening,
            **same_bytes(engine, output),
        },
        seed=seed,
        resume=resume,
    )
    mechanism = Mechanism(run.open_ledger([*people, *([numbers] if numbers else [])]), run.noise)
    if opening is not None:
        people, holdout = _opened(opening, people, holdout, noise_plan, run, mechanism)
    kind = PerClientCohort if compute.by_client else LocalCohort
    cohort = kind(engine, people, noise_plan.population, source=run.noise, stochastic=stochastic, groups=numbers)
    held = None if holdout is None else as_pair("holdout", holdout, loss_function, dtype=dtype, device=device)
    metrics = None
    if metrics_every is not None:
        metrics = ExactMetrics(engine, loss_function, cohort, protection.weighting, metrics_every, held)
    return assembled(noise_plan, untouched, engine, run, cohort, mechanism, output, metrics, strict=strict)


def assembled(
    noise_plan: Plan,
    untouched: nn.Module,
    engine: Engine,
    run: RunDirectory,
    cohort: Cohort,
    mechanism: Mechanism,
    output: str,
    metrics: ExactMetrics | None = None,
    *,
    strict: bool = False,
) -> Training:
    """Return the run; with ``output="uniform"``, draw which iterate it will return."""
    if run.path is not None and run.resumed is not None:
        check_against(noise_plan, mechanism.ledger, run.path / LEDGER)
    algorithm, last = noise_plan.algorithm, output == "last"
    return Training(
        plan=noise_plan,
        untouched=untouched,
        cohort=cohort,
        mechanism=mechanism,
        engine=engine,
        directory=run,
        start=engine.flat.vector.clone(),
        output_round=algorithm.rounds if last else run.noise.integer(algorithm.rounds, "output"),
        output_step=0 if last else run.noise.integer(algorithm.routine.local_steps, "output step"),
        metrics=metrics,
        strict=strict,
    )


def header(
    noise_plan: Plan,
    engine: Engine,
    seed: int | None,
    leaks: Sequence[str],
    trust: Mapping[str, Any] | None = None,
    *,
    columns: Mapping[str, Any] | None = None,
    run_file: str | None = None,
    signed_by: str | None = None,
) -> dict[str, Any]:
    """Describe the run for the ledger.

    Args:
        trust: who adds the noise, where that is not whoever runs this.
        columns: what each column means, and where its bounds come from.
        run_file: the text of the run file.
        signed_by: the public key of whoever will sign the ledger.
    """
    file = None if run_file is None else {"text": run_file, "sha256": hashlib.sha256(run_file.encode()).hexdigest()}
    return {
        "library": "diff2",
        "version": __version__,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        **described(noise_plan, trust),
        "dimension": len(engine.flat),
        "engine": engine.name,
        "seeded": seed is not None,
        "leaks": list(leaks),
        "columns": plain(columns),
        "run_file": file,
        "signed_by": signed_by,
    }


def same_bytes(engine: Engine, output: str) -> dict[str, Any]:
    """Return what must be the same for a resumed run to give the bytes of one that was never interrupted."""
    return {
        "output": output,
        "start": model_digest(engine.flat.module),
        "dtype": str(engine.flat.dtype),
        "chunk_rows": engine.chunk_rows,
    }


def check_output(output: str, algorithm: Algorithm) -> None:
    """Refuse an output that the routine cannot give."""
    one_of("output", output, OUTPUTS)
    if output == "uniform" and isinstance(getattr(algorithm, "routine", None), Averaging):
        raise InvalidArgument("output='uniform' draws one iterate, Averaging takes their mean; leave one of them out")


def declare_leaks(
    budget: Budget, metrics_every: int | None, holdout: Any, leaks: Sequence[str], strict: bool
) -> tuple[str, ...]:
    """Warn of everything that will leave without noise; return it for the guarantee."""
    named = list(leaks)
    if not budget.private:
        leak(
            "LEAK-NO-NOISE", "epsilon=inf: no noise is added, so the model is not private.", strict=strict, stacklevel=4
        )
    if metrics_every is not None:
        at_least("metrics_every", metrics_every, 1)
        named.append("exact training metrics" + ("" if holdout is None else " and exact held-out metrics"))
    elif holdout is not None:
        raise InvalidArgument("holdout is given without metrics_every; say how often to compute its exact loss")
    if budget.private:
        for name in named:
            text = f"{name}: values that depend on the records leave without noise."
            leak(code_of(name), text, strict=strict, stacklevel=4)
    return tuple(named)


def _opened(
    opening: Opening,
    people: list[Client],
    holdout: Any,
    noise_plan: Plan,
    run: RunDirectory,
    mechanism: Mechanism,
) -> tuple[list[Client], Any]:
    """Make the release before the first round, or find it; return the records as they are after it."""
    ledger = mechanism.ledger
    if not run.complete:
        ledger.rewind(-1)  # a resumed run makes the same release again, with the same noise
        mean = opening.mean([client.inputs.numpy() for client in people], noise_plan.population)
        run.opening = mechanism.release(mean, noise_plan.multipliers[SCALING]).value.tolist()
    value, std = np.array(run.opening), ledger.releases[0].noise_std
    people = [client._replace(inputs=opening.apply(value, std, client.inputs)) for client in people]
    return people, None if holdout is None else (opening.apply(value, std, torch.as_tensor(holdout[0])), holdout[1])


def _split(
    protection: Protection | None, compute: Compute | None, settings: Mapping[str, Any]
) -> tuple[Protection, Compute]:
    """Return what is protected and how it is computed, with the settings that were given by name."""
    names = {field.name for field in fields(Compute)}
    chosen = {name: value for name, value in settings.items() if name in names}
    others = {name: value for name, value in settings.items() if name not in names}
    return protected(protection, others), replace(Compute() if compute is None else compute, **chosen)


def _grouped(protection: Protection, grouped: bool) -> Protection:
    if not grouped and protection.unit == "group":
        raise InvalidArgument("unit='group' needs groups=..., the group of each record")
    if grouped and protection.unit == "client":
        raise InvalidArgument("groups protect groups of records, unit='client' whole clients; leave one of them out")
    return replace(protection, unit="group") if grouped else protection


def _placement(model: nn.Module, compute: Compute) -> tuple[torch.dtype, torch.device]:
    first = next((parameter for parameter in model.parameters() if parameter.dtype.is_floating_point), None)
    mine = torch.get_default_dtype() if first is None else first.dtype
    dtype = mine if compute.dtype is None else compute.dtype
    if dtype not in (torch.float32, torch.float64):
        raise InvalidArgument(f"expected dtype torch.float32 or torch.float64, got {dtype}; convert the model")
    device = compute.device
    if device is None:
        device = torch.device("cpu") if first is None else first.device
    try:
        return dtype, torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, NotImplementedError, TypeError):
        raise InvalidArgument(
            f"device={str(device)!r} is not to be had here, with PyTorch {torch.__version__}; leave device out, or "
            "take 'cpu'"
        ) from None


def _check_values(
    engine: Engine, loss: Loss, people: list[Client], example: tuple[torch.Tensor, torch.Tensor] | None
) -> None:
    """Refuse class numbers and indices that the model does not have, before anything is spent; say nothing of them."""
    module, made_up = engine.flat.module, made_up_inputs(Shapes.of(*people[0]), engine.flat.module, 1)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):  # dropout must not advance the caller's generator
        shape = module(made_up if example is None else example[0][:1].to(made_up)).shape
    for client in people:
        check_targets(loss, client.targets, shape)
    if not indices_fit(module, [client.inputs for client in people]):
        raise unusable("clients")
