"""Made-up records on which a model is tried: the choice of an engine never depends on anybody's records.

And the one question about the records themselves: whether a model's embeddings have rows for them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._vectors import Loss
from ..models.losses import cross_entropy
from .several_inputs import layout_of

PROBE = 3  # records, or groups, that are tried
CHUNK_ROWS = 4096  # of records whose indices are looked at together
TABLES = (nn.Embedding, nn.EmbeddingBag)
PROBE_ROWS = 2  # rows of each group: an error in how rows are assigned to groups does not show with one


class Shapes(NamedTuple):
    """What is declared about the records: shape and type of one record's inputs and of its targets.

    Where a record is a group of several rows, of one row.

    >>> Shapes.of(torch.zeros(50, 8), torch.zeros(50, dtype=torch.int64))
    Shapes(inputs=(8,), targets=(), inputs_dtype=torch.float32, targets_dtype=torch.int64)
    """

    inputs: tuple[int, ...]
    targets: tuple[int, ...]
    inputs_dtype: torch.dtype = torch.float32
    targets_dtype: torch.dtype = torch.float32

    @classmethod
    def of(cls, inputs: Tensor, targets: Tensor) -> Shapes:
        """Return the shapes of records whose first dimension counts them; no value is looked at."""
        return cls(tuple(inputs.shape[1:]), tuple(targets.shape[1:]), inputs.dtype, targets.dtype)


def made_up_inputs(shapes: Shapes, module: nn.Module, count: int) -> Tensor:
    """Return inputs, no two alike where possible: normal numbers, or whole ones that every embedding knows."""
    layout = layout_of(module)
    if layout is None:
        return _made_up(shapes.inputs, shapes.inputs_dtype, module, count, 0)
    parts = enumerate(layout.parts)
    return layout.pack([_made_up(part.shape, part.dtype, module, count, seed) for seed, part in parts])


def _made_up(shape: tuple[int, ...], dtype: torch.dtype, module: nn.Module, count: int, seed: int) -> Tensor:
    generator, device = torch.Generator().manual_seed(seed), next(module.parameters()).device
    if dtype.is_floating_point:
        return torch.randn(count, *shape, generator=generator).to(device, dtype)
    tables = [layer.num_embeddings for layer in module.modules() if isinstance(layer, TABLES)]
    values = 2 if dtype == torch.bool else min(tables, default=2)
    inputs = torch.randint(0, values, (count, *shape), generator=generator)
    inputs.view(count, -1)[:, :1] = torch.arange(count).unsqueeze(1) % values
    return inputs.to(device, dtype)


def indices_fit(module: nn.Module, inputs: Iterable[Tensor]) -> bool:
    """Whether the model can look up all that it looks up for these records: one forward pass, if it has embeddings."""
    if not any(isinstance(layer, TABLES) for layer in module.modules()):
        return True
    tried = copy.deepcopy(module)  # it may keep what it sees
    for layer in tried.modules():
        if isinstance(layer, TABLES):
            layer.register_forward_pre_hook(_require_rows)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for records in inputs:
                for chunk in records.split(CHUNK_ROWS):
                    tried(chunk)
    except (IndexError, RuntimeError, ValueError):
        return False
    return True


def _require_rows(layer: Any, arguments: tuple[Tensor, ...]) -> None:
    indices = arguments[0]
    if indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < layer.num_embeddings:
        raise IndexError


def made_up_targets(shapes: Shapes, loss: Loss, outputs: Tensor) -> Tensor:
    """Return targets for these outputs: normal numbers; class numbers for the cross entropy; else zeros and ones."""
    count = outputs.shape[0]
    if shapes.targets_dtype.is_floating_point:
        generator = torch.Generator().manual_seed(2)
        return torch.randn(count, *shapes.targets, generator=generator).to(outputs.device, shapes.targets_dtype)
    classes = outputs.shape[1] if loss is cross_entropy and outputs.dim() == 2 else 2
    size = torch.Size(shapes.targets).numel()
    values = torch.arange(count * size).view(count, *shapes.targets) % classes
    return values.to(outputs.device, shapes.targets_dtype)
