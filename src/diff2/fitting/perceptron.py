"""Networks that were fitted: a small perceptron, which predicts without PyTorch, and a module of the caller's own."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..errors import InvalidArgument
from ..tables.rows import Rows
from .preparation import Preparation


@dataclass(frozen=True, eq=False)
class Perceptron:
    """Layers of tanh units on prepared inputs: predicts offset + scale * outputs."""

    preparation: Preparation
    weights: tuple[np.ndarray, ...]  # (outputs, inputs) of each layer
    biases: tuple[np.ndarray, ...]
    scale: float
    offset: np.ndarray | float

    def outputs(self, rows: Rows, cache: dict[Any, Any]) -> np.ndarray:
        """Return the outputs for encoded records: one number, or one score per class."""
        values = self.preparation.inputs(rows)
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            values = (np.tanh(values) if layer else values) @ weight.T + bias
        return scaled(values, self.scale, self.offset)


@dataclass(frozen=True, eq=False)
class ModuleModel:
    """A module of the caller's own. Its state is saved, its code is not: whoever loads it gives the module again."""

    preparation: Preparation
    state: tuple[np.ndarray, ...]  # in the order of the module's ``state_dict``
    scale: float
    offset: np.ndarray | float
    module: Any = field(default=None, metadata={"saved": False})  # torch.nn.Module, with this state

    def outputs(self, rows: Rows, cache: dict[Any, Any]) -> np.ndarray:
        """Return the outputs for encoded records: one number, or one score per class."""
        import torch

        if self.module is None:
            raise InvalidArgument("this model is your own module: load it with FittedModel.load(folder, module=...)")
        seeing = copy.deepcopy(self.module)  # a module may keep what it sees: this one is thrown away
        with torch.no_grad():
            values = seeing(torch.from_numpy(self.preparation.inputs(rows))).numpy()
        return scaled(values, self.scale, self.offset)

    def having(self, module: Any) -> ModuleModel:
        """Return the model with a copy of this module, given the state that was saved."""
        import torch

        from ..gradients.checks import refuse_mixing

        own = copy.deepcopy(module).cpu().double().eval()
        with torch.no_grad():
            own(torch.zeros(1, self.preparation.width, dtype=torch.float64))  # gives lazy layers their sizes
        known = own.state_dict()
        shapes, saved = [tuple(value.shape) for value in known.values()], [array.shape for array in self.state]
        if shapes != saved:
            raise InvalidArgument(
                f"the module is not the one that was fitted: its state has the shapes {shapes}, the saved one {saved}; "
                "give the module that was given to fit"
            )
        pairs = zip(known.items(), self.state, strict=True)
        own.load_state_dict({name: torch.from_numpy(array).to(value.dtype) for (name, value), array in pairs})
        refuse_mixing(own, self.preparation.width)
        return replace(self, module=own)


NetworkModel = Perceptron | ModuleModel


def scaled(values: np.ndarray, scale: float, offset: np.ndarray | float) -> np.ndarray:
    """Return offset + scale * values; for a single number (rows,)."""
    return offset + scale * (values[:, 0] if np.ndim(offset) == 0 else values)
