"""The clients' records, checked before anything else happens."""

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._vectors import Loss
from ..errors import InvalidArgument, unusable
from ..gradients.several_inputs import Layout, Part
from ..models.losses import cross_entropy


class Client(NamedTuple):
    """One client's records."""

    inputs: Tensor
    targets: Tensor

    @property
    def size(self) -> int:
        return self.inputs.shape[0]


def as_clients(
    clients: Any, loss: Loss, *, dtype: torch.dtype, device: torch.device
) -> tuple[list[Client], Layout | None]:
    """Return checked clients from pairs of arrays; a single pair is one client.

    Floating-point inputs get ``dtype``. Nothing is reordered, dropped or filled in. A tuple or dict of arrays as inputs
    is packed into one tensor; the layout says how.
    """
    if isinstance(clients, tuple) and len(clients) == 2 and not (_is_pair(clients[0]) and _is_pair(clients[1])):
        clients = [clients]
    if not isinstance(clients, Sequence) or not clients:
        raise InvalidArgument(
            f"expected clients to be a non-empty list of (inputs, targets) pairs, got {type(clients).__name__}"
        )
    found = [_as_client(f"clients[{i}]", pair, loss, dtype, device) for i, pair in enumerate(clients)]
    (first, layout), checked = found[0], [client for client, _ in found]
    for i, (client, other) in enumerate(found):
        _same_layout(f"clients[{i}]", other, layout)
        for part, mine, theirs in zip(Client._fields, client, first, strict=True):
            if mine.shape[1:] != theirs.shape[1:] or mine.dtype != theirs.dtype:
                raise InvalidArgument(
                    f"{part} of clients[{i}] have shape {tuple(mine.shape)} and type {mine.dtype}, those of clients[0] "
                    f"{tuple(theirs.shape)} and {theirs.dtype}; all clients must hold the same columns"
                )
    return checked, layout


def as_groups(groups: Any, clients: Sequence[Client]) -> list[Tensor]:
    """Return for each client one whole number per record, the same for records of one group.

    Args:
        groups: for each client an array of numbers or texts, one per record; for a single client also its array alone.
    """
    several = isinstance(groups, list | tuple)
    if len(clients) == 1 and not (several and len(groups) == 1 and len(_shape(groups[0])) == 1):
        groups = [groups]
    if not isinstance(groups, list | tuple) or len(groups) != len(clients):
        raise InvalidArgument(
            f"expected groups to be a list with one array for each of the {len(clients)} clients, got "
            f"{type(groups).__name__}" + (f" of {len(groups)}" if hasattr(groups, "__len__") else "")
        )
    numbers = []
    for p, (given, client) in enumerate(zip(groups, clients, strict=True)):
        if _shape(given) != (client.size,):
            raise InvalidArgument(
                f"groups[{p}] has shape {_shape(given)}, its client {client.size} records; give one group per record"
            )
        places: dict[Any, int] = {}  # by first records; label by label: in an array, one decides the type of all
        try:
            labels = [label.item() if hasattr(label, "item") else label for label in given]
            found = [places.setdefault(label, len(places)) for label in labels]
            usable = all(label not in (None, math.inf, -math.inf) and label == label for label in places)
        except TypeError:  # of what has no hash, or is of another library and missing
            usable = False
        if not usable:
            raise InvalidArgument("groups hold records without a group; give each record a number or a text")
        numbers.append(torch.tensor(found, dtype=torch.int64))
    return numbers


def as_pair(
    name: str, pair: Any, loss: Loss, layout: Layout | None, *, dtype: torch.dtype, device: torch.device
) -> Client:
    """Return one checked pair whose inputs are those of the clients, for example held-out records."""
    client, other = _as_client(name, pair, loss, dtype, device)
    _same_layout(name, other, layout)
    return client


def _shape(column: Any) -> tuple[int, ...]:
    return tuple(getattr(column, "shape", (len(column),) if isinstance(column, list | tuple) else ()))


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and not isinstance(value[0], int | float)


def _same_layout(name: str, layout: Layout | None, expected: Layout | None) -> None:
    if layout != expected:
        one, other = ("one tensor" if each is None else str(each) for each in (layout, expected))
        raise InvalidArgument(
            f"a record of {name} has the inputs {one}, one of clients[0] {other}; all must hold the same columns"
        )


def _as_client(
    name: str, pair: Any, loss: Loss, dtype: torch.dtype, device: torch.device
) -> tuple[Client, Layout | None]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InvalidArgument(f"expected {name} to be a pair (inputs, targets), got {type(pair).__name__}")
    argument = name.partition("[")[0]  # errors about values do not say whose they are
    inputs, layout = as_inputs(name, pair[0], dtype, device)
    targets = _as_tensor(argument, pair[1], dtype, device)
    if inputs.dim() == 0 or targets.dim() == 0 or inputs.shape[0] == 0:
        raise InvalidArgument(f"{name} holds no record; leave the client out, or check how its data was read")
    if inputs.shape[0] != targets.shape[0]:
        raise InvalidArgument(
            f"{name} has {inputs.shape[0]} inputs and {targets.shape[0]} targets; each record needs one of each"
        )
    if loss is cross_entropy:
        if targets.dtype.is_floating_point or targets.dtype == torch.bool:
            raise InvalidArgument(
                f"expected whole class numbers as targets of {name} for the loss 'cross_entropy', got {targets.dtype}; "
                "convert them with targets.long()"
            )
        targets = targets.long()
    return Client(inputs, targets), layout


def as_inputs(name: str, values: Any, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Layout | None]:
    """Return the inputs as one tensor, and how they were packed where there are several."""
    argument, names = name.partition("[")[0], list(values) if isinstance(values, Mapping) else None
    if names is None and not (isinstance(values, tuple) and values and all(map(_is_array, values))):
        return _as_tensor(argument, values, dtype, device), None
    if names is not None and (not names or not all(isinstance(key, str) for key in names)):
        raise InvalidArgument(f"expected inputs of {name} by name, such as {{'tokens': ..., 'ages': ...}}")
    arrays = list(values.values()) if isinstance(values, Mapping) else list(values)
    tensors = [_as_tensor(argument, array, dtype, device) for array in arrays]
    lengths = {tensor.shape[0] if tensor.dim() else 0 for tensor in tensors}
    if len(lengths) > 1 or 0 in lengths:
        raise InvalidArgument(
            f"the inputs of {name} hold {sorted(lengths)} records; all of them need the same number, at least one"
        )
    parts = zip(names or [None] * len(tensors), tensors, strict=True)
    layout = Layout(tuple(Part(key, tuple(tensor.shape[1:]), tensor.dtype) for key, tensor in parts))
    return layout.pack(tensors), layout


def _is_array(values: Any) -> bool:
    return len(getattr(values, "shape", ())) > 0


def _as_tensor(argument: str, values: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    if isinstance(values, np.ndarray) and not values.flags.writeable:
        values = values.copy()  # PyTorch cannot share memory that must not be written to
    tensor = None
    with contextlib.suppress(TypeError, ValueError, RuntimeError):  # these quote values
        tensor = torch.as_tensor(values)
    if tensor is None:
        raise InvalidArgument(
            f"{argument} cannot be turned into tensors; give each of inputs and targets as an array of numbers, "
            "several inputs as a tuple or a dict of arrays"
        )
    tensor = tensor.detach().to(device)
    if tensor.dtype.is_floating_point:
        tensor = tensor.to(dtype)
        if not torch.isfinite(tensor).all():
            raise unusable(argument)
    return tensor.contiguous()
