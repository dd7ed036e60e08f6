r"""A transform of every record's gradient before it is clipped: Kronecker factors for linear layers.

The gradient of a linear layer is :math:`g \otimes (a, 1)`, with the layer's input ``a`` and the error ``g`` at its
output. With two fixed matrices per layer, G for errors and A for inputs, it becomes

.. math::
    (G g) \otimes (A (a, 1)),

an outer product of transformed features. Its norm and its sums over records are computed from these very features, as
those of any other gradient (``rules.py``): a record that is clipped to the radius in the norm is clipped in the sum,
whatever the matrices are, zero, huge or singular. A difference of gradients is transformed at both iterates alike.
A step is mapped back by :meth:`Transform.back`: :math:`G^T M A`.

The matrices must be made of public or released numbers. A good choice makes all coordinates alike: :math:`A^T A` and
:math:`G^T G` are the inverses of the second moments of inputs and errors. :func:`from_probes` estimates these from
made-up records, which costs no privacy (DP-KFC).

Sums are in the coordinates of the transform: for a layer the rows of M, each with its bias last. Layers without
factors, and layers of other types, are left as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._vectors import Loss, Vector
from ..errors import InvalidArgument
from .flat import FlatModule
from .recorder import Recorder
from .records import Records

DAMPING = 0.01  # of the largest eigenvalue of a second moment, added to all


class Factors(NamedTuple):
    """The two matrices of a linear layer."""

    inputs: Tensor  # A, (k, k) with k inputs, the constant of the bias among them
    errors: Tensor  # G, (outputs, outputs)

    def of_inputs(self, a: Tensor) -> Tensor:
        """Return A (a, 1) for inputs in the last dimension; A a of a layer without a bias."""
        weight = self.inputs
        return F.linear(a, weight) if weight.shape[1] == a.shape[-1] else F.linear(a, weight[:, :-1], weight[:, -1])

    def of_errors(self, g: Tensor) -> Tensor:
        """Return G g for errors in the last dimension."""
        return F.linear(g, self.errors)


class Place(NamedTuple):
    """A layer with factors, and where its parameters stand in the flat vector."""

    factors: Factors
    part: slice  # weight and bias
    shape: tuple[int, int]  # of the weight

    def of_rows(self, rows: Tensor) -> Tensor:
        """Return the transformed gradients of records, (records, size of the part), from those of the layer."""
        outputs, inputs = self.shape
        matrices = rows[:, : outputs * inputs].unflatten(1, self.shape)
        if self.factors.inputs.shape[0] > inputs:
            matrices = torch.cat([matrices, rows[:, outputs * inputs :].unsqueeze(2)], dim=2)
        return (self.factors.errors @ matrices @ self.factors.inputs.t()).flatten(1)

    def back(self, rows: Vector) -> Vector:
        """Return the step that such a vector stands for: G^T M A, the weight before the bias."""
        matrix = self.factors.errors.t() @ rows.view(self.shape[0], -1) @ self.factors.inputs
        return torch.cat([matrix[:, : self.shape[1]].flatten(), matrix[:, self.shape[1] :].flatten()])


@dataclass(frozen=True, eq=False)
class Transform:
    """Factors of linear layers, by the name of the layer in the model. Public or released numbers alone."""

    layers: Mapping[str, Factors]

    def places(self, flat: FlatModule) -> dict[int, Place]:
        """Return the layers by the start of their weight in the flat vector; refuse what does not fit the model."""
        modules, found = dict(flat.module.named_modules()), {}
        for name, factors in self.layers.items():
            layer = modules.get(name)
            if type(layer) is not nn.Linear:
                kind = "no layer" if layer is None else f"a {type(layer).__name__}"
                raise InvalidArgument(f"layer {name!r} of the transform is {kind} of the model; name an nn.Linear")
            prefix = f"{name}." if name else ""
            parts = [flat.slices.get(prefix + own) for own, _ in layer.named_parameters()]
            if None in parts:
                raise InvalidArgument(f"layer {name!r} of the transform has a frozen parameter; leave it out")
            every = [one for _, one in flat.module.named_parameters(remove_duplicate=False)]
            if any(sum(one is own for one in every) > 1 for own in layer.parameters()):
                raise InvalidArgument(f"layer {name!r} of the transform shares a parameter; leave it out")
            outputs, inputs = layer.weight.shape
            width = inputs + (layer.bias is not None)
            for what, matrix, size in (("inputs", factors.inputs, width), ("errors", factors.errors, outputs)):
                if tuple(matrix.shape) != (size, size) or not bool(torch.isfinite(matrix).all()):
                    raise InvalidArgument(
                        f"expected the factor for {what} of layer {name!r} to be ({size}, {size}) finite numbers, got "
                        f"shape {tuple(matrix.shape)}"
                    )
            own = Factors(*(matrix.detach().to(flat.device, flat.dtype).contiguous() for matrix in factors))
            start, stop = parts[0].start, parts[-1].stop  # type: ignore[union-attr]  # a bias follows its weight
            found[start] = Place(own, slice(start, stop), (outputs, inputs))
        return found

    def back(self, flat: FlatModule, vector: Vector) -> Vector:
        """Return a vector of the transform's coordinates as a step of the parameters."""
        step = vector.clone()
        for place in self.places(flat).values():
            exact = Place(Factors(*(matrix.to(vector) for matrix in place.factors)), place.part, place.shape)
            step[place.part] = exact.back(vector[place.part])
        return step


def from_probes(
    flat: FlatModule, loss: Loss, probes: Records, params: Vector, *, damping: float = DAMPING
) -> Transform:
    """Return the transform that makes gradients of made-up records about round, layer by layer.

    With second moments of the inputs and of the errors over the probes, each plus ``damping`` of its largest
    eigenvalue, the factors are their inverse roots. All of a model's linear layers get factors, unless a parameter of
    theirs is frozen.
    """
    own = FlatModule(flat.trained_module(params))
    recorder, layers = Recorder(own, loss), {}
    names = {id(module): name for name, module in own.module.named_modules()}
    for rule, feature in zip(recorder.rules, recorder.features(probes, {}), strict=True):
        if type(rule.module) is not nn.Linear or len(rule.parts) != len(list(rule.module.named_parameters())):
            continue
        a, g = feature.a.double().flatten(0, -2), feature.g.double().flatten(0, -2)
        if rule.bias is not None:
            a = torch.cat([a, a.new_ones(len(a), 1)], dim=1)
        layers[names[id(rule.module)]] = Factors(*(_inverse_root(values, damping) for values in (a, g)))
    return Transform(layers)


def _inverse_root(values: Tensor, damping: float) -> Tensor:
    """Return the inverse root of the second moment of rows; of rows of zeros the identity."""
    eigenvalues, vectors = torch.linalg.eigh(values.t() @ values / len(values))
    largest = float(eigenvalues[-1])
    if not 0 < largest < torch.inf:
        return torch.eye(len(vectors), dtype=torch.float64, device=values.device)
    return vectors @ ((eigenvalues.clamp(min=0) + damping * largest).rsqrt().unsqueeze(1) * vectors.t())
