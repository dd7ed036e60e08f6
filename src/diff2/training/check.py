"""Which layers of a model can be trained privately, how fast, and what to put in the place of the others."""

import copy
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.conv import _ConvTransposeNd
from torch.nn.modules.instancenorm import _InstanceNorm

from .._vectors import Loss
from ..cohorts.clients import as_inputs
from ..errors import GradientFallbackWarning, InvalidArgument, UnsupportedModel
from ..gradients import Engine, FlatModule, Shapes, build_engine
from ..gradients.checks import MIXES, mixes_records
from ..gradients.ghost import GhostEngine
from ..gradients.network import NetworkEngine
from ..gradients.probe import made_up_inputs
from ..models.losses import cross_entropy, resolve_loss, squared
from .arguments import Compute, placement

FASTER = {nn.PReLU: "nn.LeakyReLU or nn.GELU", _ConvTransposeNd: "nn.Upsample and a convolution"}
REFUSED, SLOWER, FROZEN = "refused", "vmap, loop", "frozen"  # in the place of an engine


class LayerCheck(NamedTuple):
    """A layer that has parameters, or that is refused."""

    name: str
    kind: str
    parameters: int  # that are trained
    engine: str  # the fastest that serves it; "refused"; "frozen"
    note: str  # why, and what to do about it


@dataclass(frozen=True)
class ModelCheck:
    """What :func:`diff2.check` found. Prints as a table."""

    layers: tuple[LayerCheck, ...]
    engine: str | None  # of the whole model, which is the slowest of its layers'; None: not tried, or refused
    problems: tuple[str, ...]  # why it cannot be trained privately as it is
    notes: tuple[str, ...]  # why it is slower than it could be

    @property
    def ok(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        cells = [(one.name, one.kind, f"{one.parameters:,}", one.engine, one.note) for one in self.layers]
        cells.insert(0, ("layer", "type", "parameters", "engine", ""))
        a, b, c, d = (max(len(row[column]) for row in cells) for column in range(4))
        lines = [f"{r[0]:<{a}}  {r[1]:<{b}}  {r[2]:>{c}}  {r[3]:<{d}}  {r[4]}".rstrip() for r in cells]
        verdict = self.engine or ("not tried; pass inputs=..." if self.ok else REFUSED)
        seen = {f"layer {one.name!r} ({one.kind}) {one.note}" for one in self.layers}
        said = [text for text in (*self.problems, *self.notes) if text not in seen]
        return "\n".join([*lines, f"the whole model: {verdict}", *said])


def check(model: nn.Module, inputs: Any = None, targets: Any = None, loss: str | Loss = "squared") -> ModelCheck:
    """Say which engine each layer of a model uses, which layers are refused, and what to replace them with.

    Nothing is trained, the model is not changed, and it is tried on made-up records only.

    Args:
        inputs: an array of records, or a tuple or a dict of arrays, of which shape and type count; a tuple of whole
            numbers is the shape of one record. Without it, layers are inspected, and nothing is tried.
        targets: an array, of which shape and type count; by default what the loss takes.
        loss: as for :func:`diff2.train`.

    >>> import diff2
    >>> model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 2))
    >>> print(diff2.check(model, (1, 8, 8), loss="cross_entropy"))
    layer  type         parameters  engine
    0      Conv2d               80  ghost
    1      BatchNorm2d          16  refused  normalises each record by the others ...; write nn.GroupNorm(8, 8), ...
    4      Linear              578  ghost
    the whole model: refused
    >>> model[1] = nn.GroupNorm(8, 8)
    >>> diff2.check(model, (1, 8, 8), loss="cross_entropy").engine
    'ghost'
    """
    if not isinstance(model, nn.Module):
        raise InvalidArgument(f"expected model to be a torch.nn.Module, got {type(model).__name__}")
    layers = list(_layers(model))
    problems = [f"layer {one.name!r} ({one.kind}) {one.note}" for one in layers if one.engine == REFUSED]
    engine, notes = None, []
    if inputs is not None and not problems:
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                kind = _tried(model, inputs, targets, loss)
            engine = kind.name
            if issubclass(kind, NetworkEngine):  # it serves whole models only
                layers = [one if one.engine == FROZEN else one._replace(engine=engine) for one in layers]
            notes = [str(one.message) for one in caught if issubclass(one.category, GradientFallbackWarning)]
        except InvalidArgument as error:
            problems.append(str(error))
    return ModelCheck(tuple(layers), engine, tuple(problems), tuple(notes))


def _tried(model: nn.Module, inputs: Any, targets: Any, loss: str | Loss) -> type[Engine]:
    """Return the engine that serves the whole model; raise as a run would."""
    (_, function), (dtype, device) = resolve_loss(loss), placement(model, Compute())
    if isinstance(inputs, tuple) and inputs and all(isinstance(length, int) for length in inputs):
        inputs = torch.zeros(1, *inputs, dtype=dtype)
    given, layout = as_inputs("inputs", inputs, dtype, device)
    tried = copy.deepcopy(model).to(device, dtype) if layout is None else layout.on(model).to(device, dtype)
    shapes = Shapes.of(given, torch.zeros(1) if targets is None else torch.as_tensor(targets))
    if targets is None:
        if function not in (squared, cross_entropy):
            raise InvalidArgument("your own loss needs targets=..., an array of the right shape and type")
        shapes = shapes._replace(targets_dtype=torch.int64 if function is cross_entropy else dtype)
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                outputs = copy.deepcopy(tried)(made_up_inputs(shapes, tried, 2))
            shapes = shapes._replace(targets=() if function is cross_entropy else tuple(outputs.shape[1:]))
        except Exception:  # the engines say it better
            pass
    return type(build_engine(tried, function, shapes, dtype=dtype, device=device)[0])


def _layers(model: nn.Module) -> Iterator[LayerCheck]:
    inside: str | None = None  # how the names begin of what is in a layer that is shown as a whole
    for name, layer in model.named_modules():
        if inside is not None and name.startswith(inside):
            continue
        own, whole = list(layer.parameters(recurse=False)), type(layer).__module__.startswith("torch.")
        if not own and not mixes_records(layer) and not _keeps_statistics(layer):
            continue
        inside = (f"{name}." if name else "") if whole else None
        lazy = any(isinstance(one, nn.parameter.UninitializedParameter) for one in own)
        trained = sum(one.numel() for one in (layer.parameters() if whole else own) if one.requires_grad and not lazy)
        engine, note = (
            (REFUSED, "has no size yet; run the model once on made-up inputs") if lazy else _served(layer, whole)
        )
        yield LayerCheck(name or "(the model)", type(layer).__name__, trained, engine, note)


def _served(layer: nn.Module, whole: bool) -> tuple[str, str]:
    """Return the engine of a layer, with all that is in it or without, and what to do about it."""
    if mixes_records(layer):
        width = int(layer.num_features)  # type: ignore[arg-type]
        return REFUSED, f"{MIXES}; write nn.GroupNorm({math.gcd(32, width)}, {width}), or freeze it with .eval()"
    if _keeps_statistics(layer):
        return REFUSED, "keeps statistics of the records; set track_running_stats=False"
    alone = copy.copy(layer)
    if not whole:
        alone._modules = {}
    if not any(one.requires_grad for one in alone.parameters()):
        return FROZEN, ""
    try:
        if GhostEngine.unsuited(FlatModule(alone), squared) is None:
            return GhostEngine.name, ""
    except UnsupportedModel as error:  # parameters of several types
        return REFUSED, str(error)
    better = next((text for kind, text in FASTER.items() if isinstance(layer, kind)), "")
    return SLOWER, f"faster: {better}" if better else "faster with a rule (diff2.gradients.register_rule)"


def _keeps_statistics(layer: nn.Module) -> bool:
    return isinstance(layer, _InstanceNorm) and layer.training and layer.track_running_stats
