"""What the server asks a site, as messages: which kinds there are, and a request for an answer, written and read.

A request is a :class:`Question`, or several with weights that make up one release. Where the server adds the noise it
asks question by question and puts the answers together. Where the sites add it, a site must know what is released and
with how much noise, so the questions of a release come together, with its noise multiplier.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from ..._types import Vector
from ...errors import InvalidArgument
from ...questions import DIFFERENCE, GRADIENT, Batch, Question
from ..faults import BadMessage
from .messages import Message

DESCRIBE, OPEN, ASK, CLOSE = "describe", "open", "ask", "close"  # requests
DESCRIPTION, OPENED, ANSWER, CLOSED = "description", "opened", "answer", "closed"  # and what is answered
MOST_PARTS = 8
ARRAYS = {GRADIENT: {"params"}, DIFFERENCE: {"params", "previous"}}
Label = tuple[int, str, str, int]  # round, purpose, kind, step


class Request(NamedTuple):
    """A request for an answer about the records."""

    run: str
    parts: tuple[tuple[float, Question], ...]  # weights and questions: of one release, about one draw of records
    multiplier: float = 0.0  # noise deviation / sensitivity, of all honest sites together; 0: the server adds the noise

    @property
    def question(self) -> Question:
        """One of the questions, for what all have in common: round, purpose, step, batch, params."""
        return self.parts[0][1]

    @property
    def label(self) -> Label:
        """By which a site knows the request again. With noise of its own there is one answer for each release."""
        question = self.question
        return question.round, question.purpose, "" if self.multiplier else question.kind, question.step

    def __str__(self) -> str:
        kind = self.question.purpose if self.multiplier else self.question.kind
        return f"the {kind} of round {self.question.round}, step {self.question.step}"

    def message(self) -> Message:
        """Return the request as a message; the iterates of its questions must be the same, and are sent once."""
        arrays: dict[str, np.ndarray] = {}
        for _, question in self.parts:
            for name in ARRAYS[question.kind]:
                array = as_array(getattr(question, name))
                if name in arrays and not (arrays[name] == array).all():
                    raise InvalidArgument(f"questions of one release have different {name}; release them one by one")
                arrays.setdefault(name, array)
        fields = {
            "run": self.run,
            "multiplier": self.multiplier,
            "parts": [{"weight": weight, **_described(question)} for weight, question in self.parts],
        }
        return Message(ASK, fields, arrays)


def read_request(message: Message, dimension: int, dtype: torch.dtype) -> Request:
    """Return the request in a message; whatever is not a well-formed one is refused."""
    fields, described = message.fields, message.fields.get("parts")
    if not isinstance(described, list) or not 0 < len(described) <= MOST_PARTS:
        raise BadMessage(f"expected a request of 1 to {MOST_PARTS} questions")
    vectors = {name: _vector(name, array, dimension, dtype) for name, array in message.arrays.items()}
    parts = tuple(_part(one, vectors) for one in described)
    request = Request(str(fields.get("run")), parts, number(fields, "multiplier", largest=math.inf))
    first = request.question
    used = set().union(*(ARRAYS[question.kind] for _, question in parts))
    if used != set(vectors):
        raise BadMessage(f"a request with arrays {sorted(vectors)}, expected {sorted(used)}")
    for _, question in parts:
        if _place(question) != _place(first):
            raise BadMessage("the questions of one release are not about the same records, drawn once")
    if len(parts) > 1 and not request.multiplier:
        raise BadMessage("where the server adds the noise, questions are asked one by one")
    return request


def as_array(vector: Vector) -> np.ndarray:
    """Return a vector as an array of its own precision."""
    array: np.ndarray = vector.detach().cpu().numpy()
    return array


def whole_number(fields: Mapping[str, Any], name: str) -> int:
    """Return a field that must be a whole number, zero or more."""
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadMessage(f"expected {name} to be a whole number, got {str(value)[:40]!r}")
    return value


def number(fields: Mapping[str, Any], name: str, *, largest: float | None = None) -> float:
    """Return a field that must be a number, zero or more; below ``largest`` where that is given."""
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise BadMessage(f"expected {name} to be a number, zero or more, got {str(value)[:40]!r}")
    if largest is not None and not value < largest:
        raise BadMessage(f"expected {name} to be finite, got {value!r}")
    return float(value)


def _described(question: Question) -> dict[str, Any]:
    batch = question.batch
    return {
        "kind": question.kind,
        "purpose": question.purpose,
        "round": question.round,
        "step": question.step,
        "leaves": question.leaves,
        "radius": question.radius,
        "remember": question.remember,
        "clients": None if batch.clients is None else list(batch.clients),
        "size": batch.size,
        "rate": batch.rate,
        "part": None if batch.part is None else list(batch.part),
    }


def _part(fields: Any, vectors: Mapping[str, Vector]) -> tuple[float, Question]:
    if not isinstance(fields, dict) or fields.get("kind") not in ARRAYS:
        raise BadMessage("a question of the request is not one")
    kind, purpose = fields["kind"], fields.get("purpose")
    if not isinstance(purpose, str) or not 0 < len(purpose) <= 32:
        raise BadMessage(f"expected purpose to be a word, got {str(purpose)[:40]!r}")
    if not ARRAYS[kind] <= set(vectors):
        raise BadMessage(f"a {kind} without {sorted(ARRAYS[kind] - set(vectors))}")
    clients, part = _whole_numbers(fields, "clients"), _whole_numbers(fields, "part")
    if part is not None and len(part) != 2:
        raise BadMessage("expected part to be a pair")
    batch = Batch(
        clients,
        None if fields.get("size") is None else whole_number(fields, "size"),
        None if fields.get("rate") is None else number(fields, "rate"),
        None if part is None else (part[0], part[1]),
    )
    question = Question(
        kind,
        number(fields, "radius"),
        purpose,
        batch,
        whole_number(fields, "step"),
        whole_number(fields, "leaves"),
        whole_number(fields, "round"),
        vectors["params"],
        vectors["previous"] if kind == DIFFERENCE else None,
        fields.get("remember") is True,
    )
    return number(fields, "weight", largest=math.inf), question


def _place(question: Question) -> tuple[object, ...]:
    return question.round, question.purpose, question.step, question.batch, question.leaves


def _whole_numbers(fields: Mapping[str, Any], name: str) -> tuple[int, ...] | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(n, int) and not isinstance(n, bool) for n in value):
        raise BadMessage(f"expected {name} to be a list of whole numbers, got {str(value)[:40]!r}")
    return tuple(value)


def _vector(name: str, array: np.ndarray, dimension: int, dtype: torch.dtype) -> Vector:
    if name not in ("params", "previous"):
        raise BadMessage(f"an array {name[:40]!r} belongs to no question")
    vector = torch.from_numpy(array)
    if vector.shape != (dimension,) or vector.dtype != dtype:
        raise BadMessage(
            f"{name} have shape {tuple(vector.shape)} and type {vector.dtype}, the agreed model has {dimension} "
            f"parameters of type {dtype}"
        )
    if not bool(torch.isfinite(vector).all()):
        raise BadMessage(f"{name} are not finite")
    return vector
