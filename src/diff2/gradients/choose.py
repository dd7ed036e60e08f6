"""Which engine a model needs, found by looking at it and by trying it on three records, or owners.

What is refused: layers that mix records (the gradient of one record would then depend on the others, and no clipping
bounds what it reveals), layers that store statistics of the records, randomness that cannot be repeated.

What is tried: the fast engine is used only if, on three records, it gives the gradients and the clipping that a plain
loop gives. So a model that does something unforeseen gets the slow engine, not a wrong answer.
"""

from __future__ import annotations

import copy
import math
import warnings
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from .._types import Loss, Vector
from ..errors import GradientFallbackWarning, InvalidArgument, UnsupportedModel
from .columns import ColumnsEngine
from .compiled import FusedEngine
from .flat import FlatModule
from .ghost import GhostEngine
from .groups import row_by_row
from .layers import RULES
from .per_record import LoopEngine, VmapEngine
from .records import FeatureCache, Records
from .stochastic import Masks, seeded

PROBE = 3  # records tried
PROBE_ROWS = 2  # rows of each, where a record is an owner with several rows: what one row does, two would not show


class Engine(Protocol):
    """Clipped weighted sums of per-record gradients and of their differences between two iterates."""

    name: str
    chunk_rows: int

    @property
    def flat(self) -> FlatModule: ...

    def clipped_gradient_sum(
        self,
        params: Vector,
        records: Records,
        radius: float,
        *,
        cache: FeatureCache | None = None,
        masks: Masks | None = None,
        remember: bool = True,
    ) -> Vector: ...

    def clipped_difference_sum(
        self,
        params: Vector,
        previous: Vector,
        records: Records,
        radius: float,
        *,
        cache: FeatureCache | None = None,
        masks: Masks | None = None,
        inner: float = math.inf,
    ) -> Vector: ...


def build_engine(
    module: nn.Module,
    loss: Loss,
    inputs: Tensor,
    targets: Tensor,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    chunk_rows: int | None = None,
    grouped: bool = False,
) -> tuple[Engine, bool]:
    """Return the fastest engine that is right for this model, and whether the model draws random numbers.

    Inputs and targets are those of the records to be trained on; only the first few are looked at. With ``grouped``, a
    record is an owner with several rows (``groups.py``): inputs and targets have the shape (owners, rows, ...), and the
    engine takes owners with any number of rows, the same for all owners of a call.
    """
    _refuse_mixing_layers(module)
    _require_full_precision()
    if grouped:
        _require_owners(inputs, targets)
        inputs, targets = inputs[:1000].flatten(0, 1), targets[:1000].flatten(0, 1)
    options = {"dtype": dtype, "device": device, "chunk_rows": chunk_rows, "grouped": grouped}
    loop = LoopEngine(module, loss, **options)  # type: ignore[arg-type]
    records = _probe_records(loop.flat.module, inputs, targets, PROBE * PROBE_ROWS if grouped else PROBE)
    stochastic, may_mix = _check_behaviour(loop.flat.module, records)
    masks = Masks(b"probe") if stochastic else None
    reason = _no_rule(loop.flat.module)
    if reason is None or grouped:
        not_by_record = _no_record_losses(loop, loss, records, masks)
        reason = reason or not_by_record
        if grouped and not_by_record:
            loss = row_by_row(loss)
            loop = LoopEngine(module, loss, **options)  # type: ignore[arg-type]
    if may_mix:
        reason = (
            "it cannot be seen whether it mixes records, so each is computed alone (it draws random numbers outside of "
            "dropout layers, or all records tried are alike)"
        )
    if grouped:
        records = Records.of(*(part.unflatten(0, (PROBE, PROBE_ROWS)) for part in (records.inputs, records.targets)))
    if reason is None and masks is None and not grouped and ColumnsEngine.fits(module):
        suits = FusedEngine.suits(module, loss, dtype, device)
        for kind in (FusedEngine, ColumnsEngine) if suits else (ColumnsEngine,):
            columns = kind(module, loss, dtype=dtype, device=device, chunk_rows=chunk_rows)
            if _agrees_where_it_runs(columns, loop, records):
                return columns, stochastic
    if reason is None:
        try:
            ghost = GhostEngine(module, loss, records, **options)  # type: ignore[arg-type]
            if _agrees(ghost, loop, records, masks):
                return ghost, stochastic
            reason = "its layers are not used in the plain way (shared, or functionally)"
        except (RuntimeError, IndexError, TypeError) as error:  # for example a layer called with named arguments
            reason = f"the fast engine cannot run it ({_first_line(error)})"
    engine: Engine = VmapEngine(module, loss, **options)  # type: ignore[arg-type]
    try:
        fine = _agrees(engine, loop, records, masks)
    except (RuntimeError, ValueError):
        fine = False
    if not fine:
        engine = loop
    warnings.warn(
        f"gradients are computed by the slower '{engine.name}' engine, because {reason}. "
        "The guarantee is the same; each round takes longer.",
        GradientFallbackWarning,
        stacklevel=4,
    )
    return engine, stochastic


def _refuse_mixing_layers(module: nn.Module) -> None:
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None):
            raise UnsupportedModel(
                f"layer {name!r} ({type(layer).__name__}) normalises each record by the others of its batch, so no "
                "clipping bounds what one record reveals. Replace it by nn.GroupNorm or nn.LayerNorm, or, where it is "
                "pretrained, freeze it with .eval()"
            )


def _require_full_precision() -> None:
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise InvalidArgument(
            "torch.autocast is on: products of lower precision let a record exceed its clipping radius; train outside "
            "of the autocast block"
        )
    if torch.get_float32_matmul_precision() != "highest":
        raise InvalidArgument(
            "torch.get_float32_matmul_precision() is "
            f"{torch.get_float32_matmul_precision()!r}: products rounded to 10 bits or less let a record exceed its "
            'clipping radius; call torch.set_float32_matmul_precision("highest")'
        )


def _require_owners(inputs: Tensor, targets: Tensor) -> None:
    shapes = tuple(inputs.shape), tuple(targets.shape)
    if min(map(len, shapes)) < 2 or shapes[0][:2] != shapes[1][:2] or 0 in shapes[0][:2]:
        raise InvalidArgument(
            "expected inputs and targets of shape (owners, rows, ...), with as many owners and rows in both and at "
            f"least one row an owner, got {shapes[0]} and {shapes[1]}"
        )


def _probe_records(module: nn.Module, inputs: Tensor, targets: Tensor, count: int) -> Records:
    """Return a few records to try: invented inputs where the model takes them, so that no two are alike."""
    rows = torch.arange(count) % inputs.shape[0]
    if not inputs.dtype.is_floating_point:
        distinct = torch.unique(inputs[:1000], dim=0)
        return Records.of(distinct[torch.arange(count) % len(distinct)], targets[rows])
    generator = torch.Generator().manual_seed(0)
    invented = torch.randn(count, *inputs.shape[1:], generator=generator).to(inputs)
    with torch.no_grad(), seeded(Masks(b"probe"), 0):
        try:
            usable = bool(torch.isfinite(copy.deepcopy(module)(invented)).all())
        except (RuntimeError, ValueError, IndexError, TypeError):  # for example codes of categories, read as numbers
            usable = False
    return Records.of(invented if usable else inputs[rows], targets[rows])


def _check_behaviour(module: nn.Module, records: Records) -> tuple[bool, bool]:
    """Refuse what cannot be private; return whether the model draws random numbers, and whether it may mix records."""
    version = records.inputs._version
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad():
        outputs, stochastic = _forward_and_drawn(module, records.inputs)
        repeated, _ = _forward_and_drawn(module, records.inputs)
        if records.inputs._version != version:
            raise UnsupportedModel("the model changes its inputs in place; let it work on a copy")
        for name, buffer in module.named_buffers():
            if not torch.equal(buffers[name], buffer):
                raise UnsupportedModel(
                    f"buffer {name!r} changes in the forward pass: it would carry statistics of the records out of the "
                    "run without noise. Switch that off (track_running_stats=False), or call .eval() on the layer"
                )
        if outputs.dim() == 0 or outputs.shape[0] != records.size:
            raise UnsupportedModel(
                f"expected one output a record, got outputs of shape {tuple(outputs.shape)} for {records.size} "
                "records; let the first dimension of the outputs count the records"
            )
        if outputs.dtype != next(module.parameters()).dtype:
            raise UnsupportedModel(
                f"the model computes in {outputs.dtype}, its parameters are {next(module.parameters()).dtype}: "
                "products of lower precision let a record exceed its clipping radius; switch off autocast in the model"
            )
        if not torch.equal(outputs, repeated):
            raise UnsupportedModel(
                "two runs of the model with the same random seed differ: the same mask at both iterates cannot be "
                "guaranteed. Remove the source of randomness (only torch's own generator can be repeated)"
            )
        return stochastic, not _works_on_each_record_alone(module, records.inputs)


def _works_on_each_record_alone(module: nn.Module, inputs: Tensor) -> bool:
    """Whether the output for a record is the same without the others; False if that cannot be seen."""
    quiet = copy.deepcopy(module)
    for layer in quiet.modules():
        if isinstance(layer, _DropoutNd):
            layer.eval()
    outputs, drawn = _forward_and_drawn(quiet, inputs)
    if drawn or len(torch.unique(inputs, dim=0)) == 1:
        return False
    alone = torch.cat([_forward(quiet, inputs[i : i + 1]) for i in range(len(inputs))])
    if alone.shape != outputs.shape or not _close(alone, outputs):
        raise UnsupportedModel(
            "the output for a record changes with the other records of its batch: the model mixes records, so no "
            "clipping bounds what one record reveals. Make every layer work on each record alone"
        )
    return True


def _forward_and_drawn(module: nn.Module, inputs: Tensor) -> tuple[Tensor, bool]:
    """Return the outputs with fixed masks, and whether random numbers were drawn for them."""
    with seeded(Masks(b"probe"), 0):
        state = (
            torch.get_rng_state if inputs.device.type == "cpu" else torch.get_device_module(inputs.device).get_rng_state
        )
        before = [torch.get_rng_state(), state()]
        outputs = _forward(module, inputs)
        drawn = not all(map(torch.equal, before, [torch.get_rng_state(), state()]))
    return outputs, drawn


def _forward(module: nn.Module, inputs: Tensor) -> Tensor:
    try:
        outputs = module(inputs)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise InvalidArgument(
            f"the model cannot be applied to inputs of shape {tuple(inputs.shape)} and type {inputs.dtype}: "
            f"{_first_line(error)}"
        ) from error
    if not isinstance(outputs, Tensor):
        raise UnsupportedModel(f"expected the model to return one tensor, got {type(outputs).__name__}")
    return outputs


def _no_rule(module: nn.Module) -> str | None:
    """Return why the rules do not cover all trainable parameters, or None."""
    if sum(1 for _ in module.named_parameters(remove_duplicate=False)) != sum(1 for _ in module.named_parameters()):
        return "parameters are shared between layers"
    for name, layer in module.named_modules():
        if not any(True for _ in layer.parameters(recurse=False)):
            continue
        if type(layer) not in RULES:
            return f"there is no rule for layer {name or 'the model itself'!r} ({type(layer).__name__})"
        if isinstance(layer, nn.Embedding) and (layer.max_norm is not None or layer.scale_grad_by_freq):
            return f"embedding {name!r} uses max_norm or scale_grad_by_freq"
    return None


def _no_record_losses(loop: LoopEngine, loss: Loss, records: Records, masks: Masks | None) -> str | None:
    """Return why the loss cannot be taken for a whole batch at once, or None; refuse one that fits no record."""
    module = loop.flat.module
    with torch.no_grad(), seeded(masks, 0):
        outputs = _forward(module, records.inputs)
        try:
            losses = loss(outputs, records.targets)
            alone = [loss(outputs[i : i + 1], records.targets[i : i + 1]) for i in range(records.size)]
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise InvalidArgument(
                f"the loss cannot be applied to outputs of shape {tuple(outputs.shape)} and targets of shape "
                f"{tuple(records.targets.shape)} and type {records.targets.dtype}: {_first_line(error)}"
            ) from error
    if any(value.numel() != 1 for value in alone) or losses.shape not in ((records.size,), ()):
        raise InvalidArgument(
            f"expected the loss to return one number a record, shape ({records.size},), got {tuple(losses.shape)} for "
            f"outputs {tuple(outputs.shape)} and targets {tuple(records.targets.shape)}; check that their shapes agree"
        )
    if losses.dim() == 0:
        return "the loss returns one number for a batch, so it is called once a record"
    if not _close(torch.stack([value.reshape(()) for value in alone]), losses):
        return "the loss of a record changes with the other records of its batch, so it is called once a record"
    return None


def _agrees(engine: Engine, loop: LoopEngine, records: Records, masks: Masks | None) -> bool:
    """Whether the engine gives the loop's gradients, differences and clipping, record by record."""
    generator = torch.Generator().manual_seed(0)
    start = loop.flat.vector.clone()

    def near(scale: float) -> Vector:
        step = torch.randn(len(loop.flat), generator=generator, dtype=torch.float64)
        return start + scale * step.to(start)

    params, previous = near(0.1), near(0.1)
    for row in range(records.size):
        # With masks, a record alone draws other masks than a record in a batch: compare batches of one.
        one = Records(*(part[row : row + 1] for part in records)) if masks else records
        weights = torch.ones_like(one.weights) if masks else torch.eye(records.size).to(one.weights)[row]
        one = one._replace(weights=weights)
        for radius in (torch.inf, 1e-3):
            pairs = (
                (engine.clipped_gradient_sum(params, one, radius, masks=masks),
                 loop.clipped_gradient_sum(params, one, radius, masks=masks)),
                (engine.clipped_difference_sum(params, previous, one, radius, masks=masks),
                 loop.clipped_difference_sum(params, previous, one, radius, masks=masks)),
            )  # fmt: skip
            if not all(_close(fast, slow, start.dtype) for fast, slow in pairs):
                return False
    return True


def _agrees_where_it_runs(engine: Engine, loop: LoopEngine, records: Records) -> bool:
    """Whether the engine runs on these records at all, and then gives what the loop gives."""
    try:
        return _agrees(engine, loop, records, None)
    except Exception:  # records of more than one dimension, or a kernel that cannot be compiled here
        return False


def _close(first: Tensor, second: Tensor, dtype: torch.dtype | None = None) -> bool:
    """Whether two tensors agree up to rounding, relative to the larger of them."""
    tolerance = 1e-3 if (dtype or first.dtype) != torch.float64 else 1e-7
    if not torch.isfinite(second).all():
        return True  # nothing to compare: such a record counts as zero in every engine
    return float((first - second).norm()) <= tolerance * float(second.norm()) + 1e-30


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
