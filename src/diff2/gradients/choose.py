r"""Which engine computes the clipped sums of a model.

The choice follows from the declared model, loss, shapes and types alone, never from records: everyone who agrees on
these gets the same engine. ``engine="auto"`` takes the first of this table that serves the model.

============  ==========================================================================================================
engine        serves
============  ==========================================================================================================
``compiled``  ``nn.Sequential(nn.Linear, nn.Softplus, nn.Linear)`` with biases, nothing frozen, at most 128 features, 32
              units and 12 outputs; loss ``"squared"`` or ``"cross_entropy"``; float32 on a CPU; numba installed
``columns``   ``nn.Sequential`` of ``nn.Linear``, with softplus, ReLU, tanh, sigmoid, SiLU, GELU or nothing in between
``ghost``     a rule for every layer that is trained (``RULES``), each layer called once; parameters that linear layers,
              convolutions and embeddings share; ``nn.MultiheadAttention`` (``attention.py``);
              parameters that a module of one's own uses directly, where they broadcast over the records (``bare.py``);
              with or without dropout, and for groups of rows
``vmap``      whatever ``torch.func.vmap`` can differentiate
``loop``      whatever PyTorch can differentiate
============  ==========================================================================================================

The first three also need a loss that gives one number per record, and a model that draws random numbers in dropout
layers only; the first two, a model that draws none, and records that are not groups of rows. An engine is used only if
it gives the loop's gradients, differences and clipping on three made-up records: a model that does something unforeseen
gets a slower engine, not a wrong answer.

``engine="portable"`` is the same without ``compiled``: the choice then does not depend on what is installed, and is the
same at all sites of a federation. The name of an engine forces that one, or is refused with the reason.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .._validate import one_of
from .._vectors import Loss, Vector
from ..errors import GradientFallbackWarning, InvalidArgument, UnsupportedModel
from ..questions.question import Question
from .checks import Findings, close, first_line, refuse_mixing_layers, require_full_precision, try_model
from .columns import ColumnsEngine
from .compiled import CompiledEngine
from .engine import Engine
from .ghost import GhostEngine
from .network import NetworkEngine
from .per_record import LoopEngine, VmapEngine
from .probe import PROBE, PROBE_ROWS, Shapes
from .records import Records, row_by_row
from .stochastic import Masks

ENGINES: dict[str, type[Engine]] = {
    kind.name: kind for kind in (CompiledEngine, ColumnsEngine, GhostEngine, VmapEngine, LoopEngine)
}
SELECTIONS = ("auto", "portable", *ENGINES)


def build_engine(
    module: nn.Module,
    loss: Loss,
    shapes: Shapes,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    chunk_rows: int | None = None,
    grouped: bool = False,
    engine: str = "auto",
    example: tuple[Tensor, Tensor] | None = None,
) -> tuple[Engine, bool]:
    """Return the engine for this model, and whether the model draws random numbers.

    Args:
        module: the model; it is copied, never changed.
        loss: (outputs, targets) -> one loss per record.
        shapes: shape and type of one record's inputs and targets.
        dtype: type of the parameters; None: as they are.
        device: where to compute; None: where the parameters are.
        chunk_rows: records that go through together; None: as many as suit the processor's cache.
        grouped: a record is a group of several rows (``records.py``): engines then take inputs of shape (groups,
            rows, ...), with any number of rows. The shapes are those of a row.
        engine: "auto", "portable", or the name of an engine.
        example: a few records to try the model on, where it cannot take made-up ones. They are not protected: use
            public or made-up records.
    """
    one_of("engine", engine, SELECTIONS)
    refuse_mixing_layers(module)
    require_full_precision()
    options: dict[str, Any] = {"dtype": dtype, "device": device, "chunk_rows": chunk_rows, "grouped": grouped}
    loop = LoopEngine(module, loss, **options)
    found = try_model(loop.flat.module, loss, shapes, PROBE * PROBE_ROWS if grouped else PROBE, example)
    if grouped:
        if found.batch_loss is not None:
            loss = row_by_row(loss)
            loop = LoopEngine(module, loss, **options)
        rows = (part.unflatten(0, (PROBE, PROBE_ROWS)) for part in found.records[:2])
        found = found._replace(records=Records.of(*rows))
    reasons: dict[str, str] = {}
    for name in _candidates(engine):
        made = _tried(name, module, loss, loop, found, options)
        if isinstance(made, Engine):
            if engine in ("auto", "portable") and name in ("vmap", "loop"):
                warnings.warn(
                    f"gradients are computed with the slower '{name}' engine, because {reasons['ghost']}. "
                    "The guarantee is the same; each round takes longer. diff2.check(model, inputs) shows all layers.",
                    GradientFallbackWarning,
                    stacklevel=4,
                )
            return made, found.stochastic
        reasons[name] = made
    raise InvalidArgument(f"engine={engine!r} does not support this model: {reasons[engine]}; or use engine='auto'")


def _candidates(engine: str) -> list[str]:
    if engine in ENGINES:
        return [engine]
    return [name for name in ENGINES if engine == "auto" or name != CompiledEngine.name]


def _tried(
    name: str, module: nn.Module, loss: Loss, loop: LoopEngine, found: Findings, options: dict[str, Any]
) -> Engine | str:
    """Return the engine of this name, or why it does not serve the model."""
    kind = ENGINES[name]
    if kind is LoopEngine:
        return loop
    reason = None if kind is VmapEngine else found.mixing or found.batch_loss
    if issubclass(kind, NetworkEngine) and (found.stochastic or options["grouped"]):
        reason = "the model draws random numbers" if found.stochastic else "records are groups of several rows"
    reason = reason or kind.unsuited(loop.flat, loss)
    if reason is not None:
        return reason
    try:
        make: Any = partial(GhostEngine, example=found.records) if kind is GhostEngine else kind
        made: Engine = make(module, loss, **options)
        if _agrees(made, loop, found.records, Masks(b"probe") if found.stochastic else None):
            return made
    except UnsupportedModel as error:
        return str(error)
    except Exception as error:  # a layer called with named arguments, or a kernel that cannot be compiled here
        return f"the '{name}' engine cannot run it ({first_line(error)})"
    return "its layers are not used in the plain way (called twice, or functionally)"


def _agrees(engine: Engine, loop: LoopEngine, records: Records, masks: Masks | None) -> bool:
    """Whether the engine gives the loop's gradients, differences and clipping, record by record."""
    generator = torch.Generator().manual_seed(0)
    start = loop.flat.vector.clone()

    def near() -> Vector:
        step = torch.randn(len(loop.flat), generator=generator, dtype=torch.float64)
        return start + 0.1 * step.to(start)

    params, previous = near(), near()
    for row in range(records.size):
        alone = Records(*(part[row : row + 1] for part in records))
        # With masks, a record alone draws other masks than a record in a batch: compare batches of one.
        asked = alone if masks else records._replace(weights=torch.eye(records.size).to(records.weights)[row])
        for radius in (torch.inf, 1e-3):
            for question in (
                Question.gradient(radius).at(1, params),
                Question.difference(radius).at(1, params, previous),
            ):
                fast = engine.clipped_sum(question, asked, masks=masks)
                if not close(fast, loop.clipped_sum(question, alone, masks=masks), start.dtype):
                    return False
    return True
