"""Several inputs of a record as one tensor, which is what batches, slots and engines know.

They are packed side by side once, and taken apart in front of the model, by a hook on a copy of it. So the model is
called as it was written: with a tuple as positional arguments, with a dict as named ones. Nothing is rounded: floating
and whole numbers side by side are kept as 64 bits each.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Part(NamedTuple):
    """One input of a record."""

    name: str | None  # None: a positional argument
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Layout:
    """Where each input stands in the one tensor; the hook that takes it apart.

    >>> layout = Layout((Part("x", (2,), torch.float32), Part("key", (), torch.int64)))
    >>> packed = layout.pack([torch.tensor([[0.5, -2.0]]), torch.tensor([7])])
    >>> packed.shape, layout(nn.Identity(), (packed,), {})
    (torch.Size([1, 3]), ((), {'x': tensor([[ 0.5000, -2.0000]]), 'key': tensor([7])}))
    """

    parts: tuple[Part, ...]

    @property
    def _as_bits(self) -> bool:
        return len({part.dtype.is_floating_point for part in self.parts}) == 2

    def pack(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return (records, numbers) of inputs whose first dimension counts the records."""
        flat = [tensor.reshape(len(tensor), -1) for tensor in tensors]
        if not self.parts[0].dtype.is_floating_point or self._as_bits:
            flat = [
                part.double().contiguous().view(torch.int64) if part.dtype.is_floating_point else part.long()
                for part in flat
            ]
        return torch.cat(flat, 1)

    def __call__(
        self, module: nn.Module, arguments: tuple[Tensor, ...], named: dict[str, Any]
    ) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """Return the arguments of the model: all of them are in the one tensor that it was given."""
        packed = arguments[0]
        pieces = packed.split([torch.Size(part.shape).numel() for part in self.parts], 1)
        inputs = [
            (piece.view(torch.float64) if self._as_bits and part.dtype.is_floating_point else piece)
            .reshape(len(packed), *part.shape)
            .to(part.dtype)
            for piece, part in zip(pieces, self.parts, strict=True)
        ]
        if self.parts[0].name is None:
            return tuple(inputs), {}
        return (), {str(part.name): value for part, value in zip(self.parts, inputs, strict=True)}

    def on(self, module: nn.Module) -> nn.Module:
        """Return a copy of the model that takes the packed inputs."""
        copied = copy.deepcopy(module)
        copied.register_forward_pre_hook(self, prepend=True, with_kwargs=True)
        return copied

    def __str__(self) -> str:
        return ", ".join(
            f"{'' if part.name is None else f'{part.name} '}{part.shape} of type {part.dtype}" for part in self.parts
        )


def layout_of(module: nn.Module) -> Layout | None:
    """Return how the inputs of this copy of a model are packed; None: a record has one input."""
    return next((hook for hook in module._forward_pre_hooks.values() if isinstance(hook, Layout)), None)
