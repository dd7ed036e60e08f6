"""The questions as messages: what the server writes and the site reads, in one place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from ..._types import Vector
from ...questions.population import ALL, Batch
from ..faults import BadMessage
from ..site.questions import DIFFERENCE, GRADIENT
from .messages import Message

DESCRIBE, OPEN, CLOSE_RUN, ANSWER, DESCRIPTION, OPENED, CLOSED = (
    "describe", "open", "close", "answer", "description", "opened", "closed",
)  # fmt: skip


class Asked(NamedTuple):
    """One question about the records."""

    kind: str  # "gradient" or "difference"
    run: str
    round: int
    params: Vector
    radius: float
    previous: Vector | None = None  # of a difference
    batch: Batch = ALL
    step: int = 0
    inner: float = math.inf
    remember: bool = False

    def message(self) -> Message:
        """Return the question as a message."""
        batch = self.batch
        fields = {
            "run": self.run,
            "round": self.round,
            "step": self.step,
            "radius": self.radius,
            "inner": self.inner,
            "remember": self.remember,
            "clients": None if batch.clients is None else list(batch.clients),
            "size": batch.size,
            "rate": batch.rate,
            "part": None if batch.part is None else list(batch.part),
        }
        arrays = {"params": as_array(self.params)}
        if self.previous is not None:
            arrays["previous"] = as_array(self.previous)
        return Message(self.kind, fields, arrays)


def read_question(message: Message, dimension: int, dtype: torch.dtype) -> Asked:
    """Return the question in a message; whatever is not a well-formed one is refused."""
    fields, names = message.fields, {GRADIENT: {"params"}, DIFFERENCE: {"params", "previous"}}
    if set(message.arrays) != names.get(message.kind):
        raise BadMessage(f"a question of kind {message.kind!r} with arrays {sorted(message.arrays)}")
    vectors = {name: _vector(name, array, dimension, dtype) for name, array in message.arrays.items()}
    clients, part = _whole_numbers(fields, "clients"), _whole_numbers(fields, "part")
    if part is not None and len(part) != 2:
        raise BadMessage("expected part to be a pair")
    size = fields.get("size")
    return Asked(
        message.kind,
        str(fields.get("run")),
        whole_number(fields, "round"),
        vectors["params"],
        _number(fields, "radius"),
        vectors.get("previous"),
        Batch(
            clients,
            None if size is None else whole_number(fields, "size"),
            None if fields.get("rate") is None else _number(fields, "rate"),
            None if part is None else (part[0], part[1]),
        ),
        whole_number(fields, "step"),
        _number(fields, "inner"),
        fields.get("remember") is True,
    )


def as_array(vector: Vector) -> np.ndarray:
    """Return a vector as an array of its own precision."""
    array: np.ndarray = vector.detach().cpu().numpy()
    return array


def whole_number(fields: Mapping[str, Any], name: str) -> int:
    """Return a field that must be a whole number, zero or more."""
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadMessage(f"expected {name} to be a whole number, got {value!r}")
    return value


def _number(fields: Mapping[str, Any], name: str) -> float:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise BadMessage(f"expected {name} to be a number, zero or more, got {value!r}")
    return float(value)


def _whole_numbers(fields: Mapping[str, Any], name: str) -> tuple[int, ...] | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(n, int) and not isinstance(n, bool) for n in value):
        raise BadMessage(f"expected {name} to be a list of whole numbers, got {value!r}")
    return tuple(value)


def _vector(name: str, array: np.ndarray, dimension: int, dtype: torch.dtype) -> Vector:
    vector = torch.from_numpy(array)
    if vector.shape != (dimension,) or vector.dtype != dtype:
        raise BadMessage(
            f"{name} have shape {tuple(vector.shape)} and type {vector.dtype}, the agreed model has {dimension} "
            f"parameters of type {dtype}"
        )
    if not bool(torch.isfinite(vector).all()):
        raise BadMessage(f"{name} are not finite")
    return vector
