r"""The paper's network. Anything else is the user's ``torch.nn.Module``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from .._validate import at_least, one_of

if TYPE_CHECKING:
    from torch import nn

# By the names of classes in torch.nn: run files are read without PyTorch.
ACTIVATIONS = {"softplus": "Softplus", "relu": "ReLU", "tanh": "Tanh", "sigmoid": "Sigmoid", "gelu": "GELU"}


def mlp(
    inputs: int,
    outputs: int,
    *,
    hidden: Sequence[int] = (10,),
    activation: str = "softplus",
    seed: int | None = None,
) -> nn.Sequential:
    r"""Return a fully connected network; with the default settings, the paper's.

    Weights and biases start uniform in :math:`[-1/\sqrt{w_{in}}, 1/\sqrt{w_{in}}]`. (The paper prints
    :math:`\sqrt{w_{in}}`, a misprint.) Starting points hold nothing private, so they may be seeded.

    >>> mlp(8, 1)
    Sequential(
      (0): Linear(in_features=8, out_features=10, bias=True)
      (1): Softplus(beta=1.0, threshold=20.0)
      (2): Linear(in_features=10, out_features=1, bias=True)
    )
    """
    import torch
    from torch import nn

    at_least("inputs", inputs, 1)
    at_least("outputs", outputs, 1)
    one_of("activation", activation, ACTIVATIONS)
    widths = [inputs, *hidden, outputs]
    for i, width in enumerate(widths):
        at_least(f"width of layer {i}", width, 1)
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    layers: list[nn.Module] = []
    for i, (fan_in, fan_out) in enumerate(pairwise(widths)):
        if i:
            layers.append(getattr(nn, ACTIVATIONS[activation])())
        with torch.random.fork_rng(devices=[]):  # its own start, drawn from the global generator, is not used
            linear = nn.Linear(fan_in, fan_out)
        bound = 1 / math.sqrt(fan_in)
        with torch.no_grad():
            for parameter in linear.parameters():
                parameter.uniform_(-bound, bound, generator=generator)
        layers.append(linear)
    return nn.Sequential(*layers)
