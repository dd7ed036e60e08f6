"""Names for the few shapes that travel through the library."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

Vector: TypeAlias = torch.Tensor  # one dimension: all trainable parameters, or a gradient with respect to them
Loss: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (outputs, targets) -> one loss a record
