"""Names for the few shapes that travel through the library; PyTorch is not imported for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    Vector: TypeAlias = torch.Tensor  # one dimension: all trainable parameters, or a gradient with respect to them
    Loss: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (outputs, targets) -> one loss per record
else:
    Vector = Loss = Any
