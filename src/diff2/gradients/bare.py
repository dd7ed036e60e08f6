"""Parameters that a module uses directly (positions, a class token, a scale): each record gets a copy of its own.

In the place of a parameter of shape s stands one leaf of shape (records, 1, ..., 1, *s), or (records, *s[1:]) where s
begins with 1, all of whose rows are the parameter. Wherever the module broadcasts the parameter over the records, it
now takes from the leaf what belongs to each of them, and the gradient of the leaf is that of every record alone.

Which of these shapes it is, if any, is found on made-up records: the loss and the gradient must be those of each record
by itself, at a point near the given parameters. A shape that is right for three records could be wrong for more of them
only where the module cuts the leaf (``positions[:length]``); so it is tried again for the largest batch there has been.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .._vectors import Loss
from ..errors import UnsupportedModel
from .attention import dropping
from .checks import close
from .flat import FlatModule
from .rules import Feature, Rule, Term

LARGEST = 512  # records for which shapes are tried before there are any
MOST_ONES = 3  # dimensions between the records and the parameter


class BareRule(Rule):
    """A parameter of which every record has a copy: its gradient is written out."""

    def gradient(self, feature: Feature) -> Term:
        return self.explicit(feature.g, self.parts["parameter"])

    def difference(self, feature: Feature, previous: Feature) -> Term:
        return self.explicit(feature.g - previous.g, self.parts["parameter"])


class BareParameters:
    """The copies of all bare parameters of a model, for batches of any size.

    Args:
        flat: the model.
        rows: inputs and targets of a few made-up records.
        covered: where the parameters that have rules stand in the flat vector.
    """

    def __init__(self, flat: FlatModule, loss: Loss, rows: tuple[Tensor, Tensor], covered: list[slice]):
        self._flat, self._loss, self._rows = flat, loss, rows
        self._shapes: dict[str, tuple[int, ...]] = {}  # of a record's copy
        self._tried = len(rows[0])
        owners = dict(bare_parameters(flat, covered))
        self.rules = [BareRule(owner, {"parameter": flat.slices[name]}, flat.dtype) for name, owner in owners.items()]
        if owners:
            step = torch.randn(len(flat), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
            self._point = flat.vector + 0.1 * step.to(flat.vector)
            with self._tried_out():
                self._expected = self._one_by_one(list(owners))
                for name, owner in owners.items():
                    self._shapes[name] = self._found(name, owner)

    def copies(self, count: int) -> dict[str, Tensor]:
        """Return the leaves for a batch, by the name of the parameter; refuse a batch for which they are wrong."""
        if count > self._tried and self._shapes:
            with self._tried_out():
                if not self._right(self._shapes, count):
                    raise UnsupportedModel(
                        f"parameters {list(self._shapes)} are not used in the same way for {count} records as for "
                        f"{self._tried}; cut or index them along no dimension of size one or of the records"
                    )
            self._tried = count
        return self._leaves(self._shapes, count)

    def _found(self, name: str, owner: nn.Module) -> tuple[int, ...]:
        shape = tuple(self._flat.module.get_parameter(name).shape)
        tries = [shape[1:]] if shape[:1] == (1,) else []
        for one in [*tries, *((1,) * ones + shape for ones in range(MOST_ONES + 1))]:
            if self._right({name: one}, len(self._rows[0])):
                return one
        raise UnsupportedModel(
            f"there is no rule for layer {name.rpartition('.')[0] or 'the model itself'!r} ({type(owner).__name__}), "
            f"and its parameter {name!r} does not broadcast over the records; diff2.gradients.register_rule adds one"
        )

    def _right(self, shapes: dict[str, tuple[int, ...]], count: int) -> bool:
        """Whether copies of these shapes have the gradient of each record alone, in a batch of ``count``."""
        which = torch.arange(count, device=self._flat.device) % len(self._rows[0])
        leaves = self._leaves(shapes, count)
        try:
            losses, found = self._gradients(leaves, *(part[which] for part in self._rows))
        except (RuntimeError, ValueError, IndexError, TypeError):
            return False
        alone = {name: values[which] for name, values in self._expected.items()}
        return (losses.shape == (count,) and close(losses, alone["loss"])) and all(
            # Records that are alike cannot be told apart.
            bool((alone[name] != alone[name][:1]).any()) and close(found[name].reshape(count, -1), alone[name])
            for name in shapes
        )

    def _one_by_one(self, names: list[str]) -> dict[str, Tensor]:
        """Return losses and gradients of the made-up records, each alone."""
        rows = []
        for one in zip(*(part.split(1) for part in self._rows), strict=True):
            leaves = {name: self._flat.module.get_parameter(name).detach().clone().requires_grad_() for name in names}
            losses, found = self._gradients(leaves, *one)
            rows.append({"loss": losses.reshape(())} | {name: found[name].flatten() for name in names})
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def _gradients(
        self, leaves: dict[str, Tensor], inputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        with torch.enable_grad():
            losses = self._loss(functional_call(self._flat.module, leaves, (inputs,)), targets)
            values = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True)
        return losses.detach(), dict(zip(leaves, values, strict=True))

    def _leaves(self, shapes: dict[str, tuple[int, ...]], count: int) -> dict[str, Tensor]:
        get = self._flat.module.get_parameter
        return {
            name: get(name).detach().reshape(1, *shape).expand(count, *shape).requires_grad_()
            for name, shape in shapes.items()
        }

    @contextmanager
    def _tried_out(self) -> Iterator[None]:
        """Run the block near the given parameters, without dropout; then all is as before."""
        silenced = dropping(self._flat.module)
        before = self._flat.vector.clone()
        self._flat.load(self._point)
        for layer in silenced:
            layer.training = False
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            for layer in silenced:
                layer.training = True
            self._flat.load(before)


def bare_parameters(flat: FlatModule, covered: list[slice]) -> Iterator[tuple[str, nn.Module]]:
    """Yield names and owners of the trainable parameters that no rule covers."""
    for name, part in flat.slices.items():
        if not any(one.start < part.stop and part.start < one.stop for one in covered):
            yield name, flat.module.get_submodule(name.rpartition(".")[0])
