"""From what a user passes to a run that is ready: everything is checked before anything is spent."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from .._files import AnyPath
from .._progress import Show
from .._vectors import Loss
from ..algorithms import Algorithm
from ..cohorts import Client, LocalCohort, PerClientCohort
from ..cohorts.clients import as_clients, as_groups, as_pair
from ..cohorts.draws import EXACT_SIZES, slots_of
from ..cohorts.torch_datasets import tensors_of, with_tensors
from ..errors import InvalidArgument, UnsupportedModel
from ..gradients import Engine, Shapes, build_engine
from ..models.losses import resolve_loss
from ..planning import Plan, plan
from ..planning.verify import check_against
from ..privacy import Budget, Mechanism
from ..privacy.release import ADD_OR_REMOVE_ONE
from ..privacy.signing import Signer
from ..questions import SCALING, Cohort, Protection
from .arguments import Compute, check_output, check_values, declare_leaks, placement, split_settings, with_groups
from .directory import LEDGER, RunDirectory, header, same_bytes
from .loop import Callback, Training
from .metrics import ExactMetrics
from .result import TrainResult
from .scaling import PrivateScaling


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
        clients: a list of (inputs, targets) pairs, one per client; a single pair is one client. Instead of a pair,
            a PyTorch ``Dataset`` or ``DataLoader`` with (input, target) as records: it is read once, and a loader's
            batches and shuffling are not used. Inputs may be a tuple of arrays, which the model gets as
            positional arguments, or a dict of arrays, which it gets by name.
        algorithm: ``Diff2`` or another algorithm with its settings.
        budget: what the whole run may cost.
        seed: None takes the noise from the operating system. A seed makes the run repeatable and *not private*.
        callbacks: called after each round with (state, info); returning True ends the run. A :class:`diff2.RunCallback`
            is also called at its start and end.
        progress: show a bar; by default if standard error is a terminal; ``"lines"``: lines if it is not.
        options: see :func:`prepare`.

    >>> import torch
    >>> from diff2 import Budget, DPGD, GradientDescent, train
    >>> inputs = torch.linspace(-1, 1, 1000).reshape(-1, 1)
    >>> result = train(torch.nn.Linear(1, 1), "squared", (inputs, 3 * inputs),
    ...                DPGD(rounds=50, clip_gradient=4.0, routine=GradientDescent(learning_rate=0.5)),
    ...                Budget(epsilon=1.0, delta=1e-5), seed=0)
    >>> abs(result.model.weight.item() - 3) < 0.5, round(result.epsilon, 6), len(result.history["round"])
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
    directory: AnyPath | None = None,
    resume: bool = False,
    metrics_every: int | None = None,
    holdout: Any = None,
    leaks: Sequence[str] = (),
    strict: bool = False,
    opening: PrivateScaling | None = None,
    columns: Mapping[str, Any] | None = None,
    run_file: str | None = None,
    sign_with: AnyPath | None = None,
    **settings: Any,
) -> Training:
    """Check everything and build the run. Nothing is spent yet, except by an ``opening``.

    Args:
        protection: what is protected, and how that is accounted.
        compute: how gradients are computed.
        groups: for each client an array with the group of each record (numbers or texts, say of a person): the records
            of one group are protected together.
        public_sizes: with Poisson batches, which protect whether a record is there at all, a public upper
            bound on the records of each client: one number, or one for each. Without it the exact numbers leak.
        output: ``"last"`` returns x_R; ``"uniform"`` one of x_0, ..., x_{R-1} at random, as in the paper's theorems.
        directory: keeps ledger.jsonl and checkpoint.pt; without it both are in memory only.
        resume: resume the run in ``directory``, or start it if there is none.
        metrics_every: compute exact losses and gradient norms every N rounds. They leak; a warning says so.
        holdout: an (inputs, targets) pair, or a dataset, whose exact loss is computed as well.
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
    protection, compute = split_settings(protection, compute, settings)
    loss_name, loss_function = resolve_loss(loss)
    if not isinstance(model, nn.Module):
        raise InvalidArgument(f"expected model to be a torch.nn.Module, got {type(model).__name__}")
    untouched = copy.deepcopy(model)
    dtype, device = placement(model, compute)
    clients, holdout = with_tensors(clients, sizes_are_public=public_sizes is None), tensors_of("holdout", holdout)
    checked, layout = as_clients(clients, loss_function, dtype=dtype, device=device)
    example = compute.example
    if layout is not None:
        model = layout.on(model)
        example = example and as_pair("example", example, loss_function, layout, dtype=dtype, device=device)
    numbers = None if groups is None else as_groups(groups, checked)
    adjacency = getattr(algorithm, "adjacency", None)  # what is no algorithm is refused below
    noise_plan = plan(
        algorithm, budget, slots_of(public_sizes, checked, adjacency), with_groups(protection, numbers is not None),
        opening_share=None if opening is None else opening.share,
        dimension=sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
    )  # fmt: skip
    try:
        engine, stochastic = build_engine(
            model, loss_function, Shapes.of(*checked[0]), dtype=dtype, device=device, chunk_rows=compute.chunk_rows,
            grouped=numbers is not None, engine=compute.engine, example=example,
        )  # fmt: skip
    except UnsupportedModel as error:
        error.add_note("diff2.check(model, inputs) lists all layers, and what to put in the place of those refused")
        raise
    check_values(engine, loss_function, checked, example)
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
            "inputs": [list(client.inputs.shape) for client in checked] if layout is None else str(layout),
            "targets": [list(client.targets.shape) for client in checked],
            "by_client": compute.by_client,
            "opening": opening,
            "threads": engine.threads,
            **same_bytes(engine, output),
        },
        seed=seed,
        resume=resume,
    )
    mechanism = Mechanism(run.open_ledger([*checked, *([numbers] if numbers else [])]), run.noise)
    if opening is not None:
        checked, holdout = _opened(opening, checked, holdout, noise_plan, run, mechanism)
    kind = PerClientCohort if compute.by_client else LocalCohort
    cohort = kind(engine, checked, noise_plan.population, source=run.noise, stochastic=stochastic, groups=numbers)
    held = None if holdout is None else as_pair("holdout", holdout, loss_function, layout, dtype=dtype, device=device)
    metrics = None
    if metrics_every is not None:
        metrics = ExactMetrics(engine, loss_function, cohort, protection.weighting, metrics_every, held)
    return build_training(noise_plan, untouched, engine, run, cohort, mechanism, output, metrics, strict=strict)


def build_training(
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


def _opened(
    opening: PrivateScaling,
    checked: list[Client],
    holdout: Any,
    noise_plan: Plan,
    run: RunDirectory,
    mechanism: Mechanism,
) -> tuple[list[Client], Any]:
    """Make the release before the first round, or find it; return the records as they are after it."""
    ledger = mechanism.ledger
    if not run.complete:
        ledger.rewind(-1)  # a resumed run makes the same release again, with the same noise
        mean = opening.mean([client.inputs.numpy() for client in checked], noise_plan.population)
        run.opening = mechanism.release(mean, noise_plan.multipliers[SCALING]).value.tolist()
    value, std = np.array(run.opening), ledger.releases[0].noise_std
    checked = [client._replace(inputs=opening.apply(value, std, client.inputs)) for client in checked]
    return checked, None if holdout is None else (opening.apply(value, std, torch.as_tensor(holdout[0])), holdout[1])
