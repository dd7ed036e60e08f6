r"""Elementwise functions between linear layers, each computed together with its derivative.

A rule writes :math:`f(z)` and :math:`f'(z)` into given memory; ``z`` may be overwritten. A model with another function
runs by the ghost engine, where autograd computes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

Activation: TypeAlias = Callable[[Tensor, Tensor, Tensor], None]  # (z, value, slope): z is overwritten


def activation_rule(layer: nn.Module) -> Activation | None:
    """Return the rule for a layer, or None where there is none."""
    kind = type(layer)
    if isinstance(layer, nn.Softplus) and (layer.beta != 1 or layer.threshold < 20):
        return None
    if isinstance(layer, nn.GELU) and layer.approximate != "none":
        return None
    return RULES.get(kind)


def softplus(z: Tensor, value: Tensor, slope: Tensor) -> None:
    r"""log(1 + e^z) = max(z, 0) - log(sigmoid(|z|)), and sigmoid(|z|) = 1/2 + |sigmoid(z) - 1/2|.

    Accurate to one unit of rounding of max(1, z), in half the time of ``F.softplus``. (``F.softplus`` returns z itself
    above its threshold: for the usual 20, a difference of 2e-9.)
    """
    torch.sigmoid(z, out=slope)
    torch.sub(slope, 0.5, out=value)
    value.abs_().add_(0.5).log_()
    torch.sub(z.clamp_(min=0), value, out=value)


def relu(z: Tensor, value: Tensor, slope: Tensor) -> None:
    torch.clamp(z, min=0, out=value)
    torch.gt(z, 0, out=slope)


def tanh(z: Tensor, value: Tensor, slope: Tensor) -> None:
    torch.tanh(z, out=value)
    torch.mul(value, value, out=slope)
    torch.sub(1, slope, out=slope)


def sigmoid(z: Tensor, value: Tensor, slope: Tensor) -> None:
    torch.sigmoid(z, out=value)
    torch.addcmul(value, value, value, value=-1, out=slope)


def silu(z: Tensor, value: Tensor, slope: Tensor) -> None:
    """z s, with the derivative s + z s (1 - s), s = sigmoid(z)."""
    torch.sigmoid(z, out=slope)
    torch.mul(z, slope, out=value)
    torch.sub(1, slope, out=z)
    slope.addcmul_(value, z)


def gelu(z: Tensor, value: Tensor, slope: Tensor) -> None:
    """z P, with the derivative P + z p, for the standard normal distribution P and its density p."""
    torch.mul(z, math.sqrt(0.5), out=slope)
    slope.erf_().add_(1).mul_(0.5)
    torch.mul(z, slope, out=value)
    density = torch.mul(z, z).mul_(-0.5).exp_().mul_(1 / math.sqrt(2 * math.pi))
    slope.addcmul_(z, density)


RULES: dict[type[nn.Module], Activation] = {
    nn.Softplus: softplus,
    nn.ReLU: relu,
    nn.Tanh: tanh,
    nn.Sigmoid: sigmoid,
    nn.SiLU: silu,
    nn.GELU: gelu,
}
