"""Which models and losses are refused, and why; found by looking at them and by trying them on a few records.

Refused are layers that mix records (the gradient of one record would then depend on the others, and no clipping bounds
what it reveals), layers that store statistics of the records, products of reduced precision, and randomness that cannot
be repeated.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from .._vectors import Loss
from ..errors import InvalidArgument, UnsupportedModel
from .probe import Shapes, made_up_inputs, made_up_targets
from .records import Records
from .several_inputs import layout_of
from .stochastic import Masks, seeded

REMEDY = (
    ". This was tried on made-up records; if the shapes are right, pass example=(inputs, targets): a few public or "
    "made-up records that the model and the loss can take"
)
MIXES = "normalises each record by the others of its batch, so no clipping bounds what one record reveals"


class Findings(NamedTuple):
    """What trying a model on a few records has shown."""

    records: Records  # those that were tried
    stochastic: bool  # the model draws random numbers
    mixing: str | None  # why it cannot be seen that the model works on each record alone
    batch_loss: str | None  # why the loss cannot be computed for a whole batch at once


def refuse_mixing_layers(module: nn.Module) -> None:
    """Refuse batch normalisation that uses statistics of its batch."""
    for name, layer in module.named_modules():
        if mixes_records(layer):
            raise UnsupportedModel(
                f"layer {name!r} ({type(layer).__name__}) {MIXES}. Replace it with nn.GroupNorm or nn.LayerNorm, or, "
                "where it is pretrained, freeze it with .eval()"
            )


def refuse_mixing(module: nn.Module, width: int) -> None:
    """Refuse a model of ``width`` numbers per record whose output for a record changes with the others, as it is."""
    refuse_mixing_layers(module)
    values = torch.randn(3, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    unseen = _check_mixing(module, values, "")
    if unseen is not None:
        raise UnsupportedModel(unseen)


def mixes_records(layer: nn.Module) -> bool:
    """Whether a layer is batch normalisation that uses statistics of its batch."""
    return isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None)


def require_full_precision() -> None:
    """Refuse global settings under which products are rounded to fewer bits than the parameters have."""
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


def try_model(
    module: nn.Module, loss: Loss, shapes: Shapes, count: int, example: tuple[Tensor, Tensor] | None
) -> Findings:
    """Refuse what cannot be private; return what was found for ``count`` records, from the example or made up."""
    remedy = REMEDY if example is None else ""
    if example is None:
        inputs = made_up_inputs(shapes, module, count)
    else:
        inputs, targets = _from_example(example, shapes, module, count)
    outputs, stochastic = _check_forward(module, inputs, remedy)
    mixing = _check_mixing(module, inputs, remedy)
    if example is None:
        targets = made_up_targets(shapes, loss, outputs)
    return Findings(Records.of(inputs, targets), stochastic, mixing, _check_loss(loss, outputs, targets, remedy))


def _from_example(
    example: tuple[Tensor, Tensor], shapes: Shapes, module: nn.Module, count: int
) -> tuple[Tensor, Tensor]:
    inputs, targets = example
    if not len(inputs) == len(targets) > 0 or Shapes.of(inputs, targets)[:2] != shapes[:2]:
        raise InvalidArgument(
            f"expected example=(inputs, targets) of shapes (n, *{shapes.inputs}) and (n, *{shapes.targets}), got "
            f"{tuple(inputs.shape)} and {tuple(targets.shape)}"
        )
    rows, device = torch.arange(count) % len(inputs), next(module.parameters()).device
    return inputs[rows].to(device, shapes.inputs_dtype), targets[rows].to(device, shapes.targets_dtype)


def _check_forward(module: nn.Module, inputs: Tensor, remedy: str) -> tuple[Tensor, bool]:
    """Return the outputs, and whether random numbers were drawn for them."""
    version = inputs._version
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    outputs, stochastic = _forward(module, inputs, remedy)
    repeated, _ = _forward(module, inputs, remedy)
    if inputs._version != version:
        raise UnsupportedModel("the model changes its inputs in place; let it work on a copy")
    for name, buffer in module.named_buffers():
        if not torch.equal(buffers[name], buffer):
            raise UnsupportedModel(
                f"buffer {name!r} changes in the forward pass: it would carry statistics of the records out of the "
                "run without noise. Switch that off (track_running_stats=False), or call .eval() on the layer"
            )
    if outputs.dim() == 0 or outputs.shape[0] != len(inputs):
        raise UnsupportedModel(
            f"expected one output per record, got outputs of shape {tuple(outputs.shape)} for {len(inputs)} "
            "records; let the first dimension of the outputs count the records"
        )
    if outputs.dtype != next(module.parameters()).dtype:
        raise UnsupportedModel(
            f"the model computes in {outputs.dtype}, its parameters are {next(module.parameters()).dtype}: "
            "products of lower precision let a record exceed its clipping radius; switch off autocast in the model"
        )
    if remedy and not torch.isfinite(outputs).all():
        shape = _inputs_shown(module, inputs)
        raise InvalidArgument(f"the outputs of the model are not finite for inputs of shape {shape}{remedy}")
    if not torch.equal(outputs, repeated):
        raise UnsupportedModel(
            "two runs of the model with the same random seed differ: the same mask at both iterates cannot be "
            "guaranteed. Remove the source of randomness (only torch's own generator can be repeated)"
        )
    return outputs, stochastic


def _check_mixing(module: nn.Module, inputs: Tensor, remedy: str) -> str | None:
    """Refuse a model whose output for a record changes with the others; return why that cannot be seen, or None."""
    quiet = copy.deepcopy(module)
    for layer in quiet.modules():
        if isinstance(layer, _DropoutNd):
            layer.eval()
    outputs, drawn = _forward(quiet, inputs, remedy)
    if drawn or len(torch.unique(inputs, dim=0)) == 1:
        return (
            "it cannot be seen whether the model mixes records, so each is computed alone (it draws random numbers "
            "outside of dropout layers, or all records tried are alike)"
        )
    alone = torch.cat([_forward(quiet, inputs[i : i + 1], remedy)[0] for i in range(len(inputs))])
    if alone.shape != outputs.shape or not close(alone, outputs):
        raise UnsupportedModel(
            "the output for a record changes with the other records of its batch: the model mixes records, so no "
            "clipping bounds what one record reveals. Make every layer work on each record alone"
        )
    return None


def _check_loss(loss: Loss, outputs: Tensor, targets: Tensor, remedy: str) -> str | None:
    """Refuse a loss that fits no record; return why it cannot be computed for a whole batch at once, or None."""
    try:
        losses = loss(outputs, targets)
        alone = [loss(outputs[i : i + 1], targets[i : i + 1]) for i in range(len(outputs))]
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise InvalidArgument(
            f"the loss cannot be applied to outputs of shape {tuple(outputs.shape)} and targets of shape "
            f"{shown(targets)}: {first_line(error)}{remedy}"
        ) from error
    if any(value.numel() != 1 for value in alone) or losses.shape not in ((len(outputs),), ()):
        raise InvalidArgument(
            f"expected the loss to return one number per record, shape ({len(outputs)},), got {tuple(losses.shape)} "
            f"for outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}; check that their shapes agree"
        )
    if remedy and not torch.isfinite(losses).all():
        raise InvalidArgument(f"the loss is not finite for targets of shape {shown(targets)}{remedy}")
    if losses.dim() == 0:
        return "the loss returns one number for a batch, so it is called once per record"
    if not close(torch.stack([value.reshape(()) for value in alone]), losses):
        return "the loss of a record changes with the other records of its batch, so it is called once per record"
    return None


def _forward(module: nn.Module, inputs: Tensor, remedy: str) -> tuple[Tensor, bool]:
    """Return the outputs with fixed masks, and whether random numbers were drawn for them."""
    device = inputs.device
    state = torch.get_rng_state if device.type == "cpu" else torch.get_device_module(device).get_rng_state
    with torch.no_grad(), seeded(Masks(b"probe"), 0):
        before = [torch.get_rng_state(), state()]
        try:
            outputs = module(inputs)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise InvalidArgument(
                f"the model cannot be applied to inputs of shape {_inputs_shown(module, inputs)}: {first_line(error)}"
                f"{remedy}"
            ) from error
        drawn = not all(map(torch.equal, before, [torch.get_rng_state(), state()]))
    if not isinstance(outputs, Tensor):
        raise UnsupportedModel(f"expected the model to return one tensor, got {type(outputs).__name__}")
    return outputs, drawn


def close(first: Tensor, second: Tensor, dtype: torch.dtype | None = None) -> bool:
    """Whether two tensors agree up to rounding, relative to the larger of them."""
    tolerance = 1e-3 if (dtype or first.dtype) != torch.float64 else 1e-7
    if not torch.isfinite(second).all():
        return True  # nothing to compare: such a record counts as zero in every engine
    return float((first - second).norm()) <= tolerance * float(second.norm()) + 1e-30


def _inputs_shown(module: nn.Module, inputs: Tensor) -> str:
    layout = layout_of(module)
    return shown(inputs) if layout is None else f"{layout}, {len(inputs)} records"


def shown(values: Tensor) -> str:
    return f"{tuple(values.shape)} and type {values.dtype}"


def first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
