"""The arguments of a run, checked before anything is spent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import nn

from .._validate import at_least, one_of
from .._vectors import Loss
from ..algorithms import Algorithm
from ..cohorts import Client
from ..errors import InvalidArgument, unusable
from ..gradients import Engine, Shapes
from ..gradients.probe import indices_fit, made_up_inputs
from ..models.losses import check_targets
from ..planning.plan import protected
from ..privacy import Budget
from ..privacy.leaks import code_of, leak
from ..questions import Protection
from ..routines import Averaging
from . import OUTPUTS


@dataclass(frozen=True)
class Compute:
    """How gradients are computed. It changes speed and the last bits, not what is protected.

    Args:
        engine: ``"auto"``; ``"portable"``, the same whatever is installed; or an engine of docs/gradients.md by name.
        dtype, device: by default those of the model.
        chunk_rows: records per pass through the engine.
        example: a few *public or made-up* (inputs, targets) to try the model on, where it cannot take random ones.
        by_client: ask every client separately, as sites of a federation are asked: the same bytes as theirs with one
            seed, the same up to rounding as otherwise, and slower where clients are small.
    """

    engine: str = "auto"
    dtype: torch.dtype | None = None
    device: str | torch.device | None = None
    chunk_rows: int | None = None
    example: tuple[torch.Tensor, torch.Tensor] | None = None
    by_client: bool = False


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


def split_settings(
    protection: Protection | None, compute: Compute | None, settings: Mapping[str, Any]
) -> tuple[Protection, Compute]:
    """Return what is protected and how it is computed, with the settings that were given by name."""
    names = {field.name for field in fields(Compute)}
    chosen = {name: value for name, value in settings.items() if name in names}
    others = {name: value for name, value in settings.items() if name not in names}
    return protected(protection, others), replace(Compute() if compute is None else compute, **chosen)


def with_groups(protection: Protection, grouped: bool) -> Protection:
    """Return what is protected: groups of records, where there are any."""
    if not grouped and protection.unit == "group":
        raise InvalidArgument("unit='group' needs groups=..., the group of each record")
    if grouped and protection.unit == "client":
        raise InvalidArgument("groups protect groups of records, unit='client' whole clients; leave one of them out")
    return replace(protection, unit="group") if grouped else protection


def placement(model: nn.Module, compute: Compute) -> tuple[torch.dtype, torch.device]:
    """Return type and device of the computation: the model's own, or those that were chosen."""
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
            f"device={str(device)!r} is not available here, with PyTorch {torch.__version__}; leave device out, or "
            "use 'cpu'"
        ) from None


def check_values(
    engine: Engine, loss: Loss, clients: list[Client], example: tuple[torch.Tensor, torch.Tensor] | None
) -> None:
    """Refuse class numbers and indices that the model does not have, before anything is spent; say nothing of them."""
    module, made_up = engine.flat.module, made_up_inputs(Shapes.of(*clients[0]), engine.flat.module, 1)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):  # dropout must not advance the caller's generator
        shape = module(made_up if example is None else example[0][:1].to(made_up)).shape
    for client in clients:
        check_targets(loss, client.targets, shape)
    if not indices_fit(module, [client.inputs for client in clients]):
        raise unusable("clients")
