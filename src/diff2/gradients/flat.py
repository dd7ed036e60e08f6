"""One vector for all trainable parameters of a module."""

from __future__ import annotations

import copy

import torch
from torch import nn

from .._vectors import Vector
from ..errors import InvalidArgument, UnsupportedModel


class FlatModule:
    """A copy of a module whose trainable parameters are views of one vector, in the order of ``parameters()``.

    Parameters with ``requires_grad=False`` stay as they are. The module passed in is never changed.
    """

    def __init__(self, module: nn.Module, *, dtype: torch.dtype | None = None, device: torch.device | None = None):
        _refuse_unusable(module)
        self.module = copy.deepcopy(module).to(device=device, dtype=dtype)
        self.slices: dict[str, slice] = {}
        self._parameters: dict[str, nn.Parameter] = {
            name: parameter for name, parameter in self.module.named_parameters() if parameter.requires_grad
        }
        flat = [parameter.detach().reshape(-1) for parameter in self._parameters.values()]
        self.vector: Vector = torch.cat(flat)
        start = 0
        for name, parameter in self._parameters.items():
            self.slices[name] = slice(start, start + parameter.numel())
            parameter.data = self.vector[self.slices[name]].view(parameter.shape)
            parameter.requires_grad_(False)
            start += parameter.numel()

    def __len__(self) -> int:
        return self.vector.numel()

    @property
    def dtype(self) -> torch.dtype:
        return self.vector.dtype

    @property
    def device(self) -> torch.device:
        return self.vector.device

    def load(self, params: Vector) -> None:
        """Give the module these parameters."""
        self.vector.copy_(params)

    def part_of(self, parameter: torch.Tensor) -> slice | None:
        """Return where a parameter, or a part of one, stands in the vector; None: it is frozen."""
        if parameter.untyped_storage().data_ptr() != self.vector.untyped_storage().data_ptr():
            return None
        start = parameter.storage_offset() - self.vector.storage_offset()
        return slice(start, start + parameter.numel())

    def unflatten(self, params: Vector) -> dict[str, torch.Tensor]:
        """Return the vector as named tensors, differentiably."""
        return {name: params[part].view(self._parameters[name].shape) for name, part in self.slices.items()}

    def trained_module(self, params: Vector) -> nn.Module:
        """Return an independent module with these parameters, trainable again."""
        self.load(params)
        module = copy.deepcopy(self.module)
        for name, parameter in module.named_parameters():
            if name in self.slices:
                # A copy of its own: every view would keep, and save, the whole vector.
                parameter.data = parameter.detach().clone()
                parameter.requires_grad_(True)
        return module


def _refuse_unusable(module: nn.Module) -> None:
    if not isinstance(module, nn.Module):
        raise InvalidArgument(f"expected model to be a torch.nn.Module, got {type(module).__name__}")
    for name, parameter in module.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise UnsupportedModel(
                f"parameter {name!r} has no size yet; run the model once on example inputs before training"
            )
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not trainable:
        raise UnsupportedModel(
            "the model has no trainable parameter; set requires_grad=True on those that are to be trained"
        )
    kinds = {(parameter.dtype, parameter.device) for parameter in trainable}
    if len(kinds) > 1 or not trainable[0].dtype.is_floating_point:
        raise UnsupportedModel(
            "expected all trainable parameters to share one floating-point dtype and device, got "
            f"{sorted(map(str, kinds))}; convert the model with .to(...)"
        )
