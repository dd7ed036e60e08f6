r"""Elementwise functions between linear layers, each with its derivative from the same exponentials.

A rule writes :math:`f(z)` and :math:`f'(z)` into memory that is given; ``z`` may be overwritten. Functions that are not
here are left to autograd, in the ghost engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

Activation: TypeAlias = Callable[[Tensor, Tensor, Tensor], None]  # (z, value, slope): z is lost


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

    Right to a unit of rounding of 1 or of z, whichever is larger, and half the time of ``F.softplus``. (Which returns
    z itself above its threshold: for the usual 20, a difference of 2e-9.)
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
