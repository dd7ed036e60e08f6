"""The requests a server sends to a site, written to messages and read from them.

A request for an answer holds one :class:`Question`, or several with weights that make up one release. Where the server
adds the noise it asks one question at a time. Where the sites add it, a site must know what is released and with how
much noise: the questions of a release are sent together, with the noise multiplier.

A request for a statistic has the number of its release, the noise multiplier and the statistic itself, as
``fitting/travelling.py`` describes it. Its digest is that of all but the arrays, which the statistic names by their
hashes: a request that is sent again, with all of its arrays, is the same one.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from ..._fields import from_table
from ..._files import plain
from ..._vectors import Vector
from ...errors import InvalidArgument
from ...fitting.travelling import Packed, Unpacked, packed
from ...questions import DIFFERENCE, GRADIENT, Batch, Question
from ..faults import BadMessage, Refusal
from .messages import Message, digest, write

DESCRIBE, OPEN, ASK, CLOSE = "describe", "open", "ask", "close"  # requests
DESCRIPTION, OPENED, ANSWER, CLOSED = "description", "opened", "answer", "closed"  # and their answers
MAX_QUESTIONS = 8
ARRAYS = {GRADIENT: ("params",), DIFFERENCE: ("params", "previous")}
Label = tuple[int, str, str, int]  # round, purpose, kind, step
FIELDS = {"run", "number", "multiplier", "statistic"}


class Request(NamedTuple):
    """A request for an answer about the records."""

    run: str
    parts: tuple[tuple[float, Question], ...]  # weights and questions, of one release and about the same records
    multiplier: float = 0.0  # noise deviation / sensitivity of the release; 0: the server adds the noise

    @property
    def question(self) -> Question:
        """The first question; all share round, purpose, step, batch and params."""
        return self.parts[0][1]

    @property
    def label(self) -> Label:
        """What identifies the request within its run. Where the sites add noise there is one answer per release."""
        question = self.question
        return question.round, question.purpose, "" if self.multiplier else question.kind, question.step

    def __str__(self) -> str:
        kind = self.question.purpose if self.multiplier else self.question.kind
        return f"the {kind} of round {self.question.round}, step {self.question.step}"

    def message(self) -> Message:
        """Return the request as a message; the iterates, which all its questions share, are sent once."""
        arrays: dict[str, np.ndarray] = {}
        for _, question in self.parts:
            if question.transform is not None:
                raise InvalidArgument("sites clip gradients as they are; ask without a transform")
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
    """Return the request in a message; a malformed one is refused."""
    fields, described = message.fields, message.fields.get("parts")
    if not isinstance(described, list) or not 0 < len(described) <= MAX_QUESTIONS:
        raise BadMessage(f"expected a request of 1 to {MAX_QUESTIONS} questions")
    vectors = {name: _vector(name, array, dimension, dtype) for name, array in message.arrays.items()}
    parts = tuple(_part(one, vectors) for one in described)
    request = Request(str(fields.get("run")), parts, number(fields, "multiplier"))
    used = set[str]().union(*(ARRAYS[question.kind] for _, question in parts))
    if used != set(vectors):
        raise BadMessage(f"a request with arrays {sorted(vectors)}, expected {sorted(used)}")
    if any(_records_asked(question) != _records_asked(request.question) for _, question in parts):
        raise BadMessage("the questions of one release are not about the same draw of records")
    if len(parts) > 1 and not request.multiplier:
        raise BadMessage("where the server adds the noise, it asks one question at a time")
    return request


def as_array(vector: Vector) -> np.ndarray:
    """Return a vector as an array of the same precision."""
    array: np.ndarray = vector.detach().cpu().numpy()
    return array


def whole_number(fields: Mapping[str, Any], name: str) -> int:
    """Return a field that must be a whole number, zero or more."""
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadMessage(f"expected {name} to be a whole number, got {str(value)[:40]!r}")
    return value


def number(fields: Mapping[str, Any], name: str, *, infinite: bool = False) -> float:
    """Return a field that must be a finite number, zero or more; with ``infinite``, also the word "inf"."""
    value = fields.get(name)
    if infinite and value == "inf":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise BadMessage(f"expected {name} to be a finite number, zero or more, got {str(value)[:40]!r}")
    return float(value)


def _described(question: Question) -> dict[str, Any]:
    return {
        "kind": question.kind,
        "purpose": question.purpose,
        "round": question.round,
        "step": question.step,
        "leaves": question.leaves,
        "radius": plain(question.radius),
        "remember": question.remember,
        "batch": {name: value for name, value in asdict(question.batch).items() if value is not None},
    }


def _part(fields: Any, vectors: Mapping[str, Vector]) -> tuple[float, Question]:
    if not isinstance(fields, dict) or fields.get("kind") not in tuple(ARRAYS):
        raise BadMessage("a part of the request is not a question")
    kind, purpose = fields["kind"], fields.get("purpose")
    if not isinstance(purpose, str) or not 0 < len(purpose) <= 32:
        raise BadMessage(f"expected purpose to be a word, got {str(purpose)[:40]!r}")
    if not set(ARRAYS[kind]) <= set(vectors):
        raise BadMessage(f"a {kind} without {sorted(set(ARRAYS[kind]) - set(vectors))}")
    if not isinstance(fields.get("batch"), dict):
        raise BadMessage("expected batch to be a table")
    try:
        question = Question(
            kind,
            number(fields, "radius", infinite=True),
            purpose,
            from_table(Batch, "batch", fields["batch"]),
            whole_number(fields, "step"),
            whole_number(fields, "leaves"),
            whole_number(fields, "round"),
            vectors["params"],
            vectors["previous"] if kind == DIFFERENCE else None,
            fields.get("remember") is True,
        )
    except InvalidArgument as error:
        raise BadMessage(str(error)) from None
    return number(fields, "weight"), question


def _records_asked(question: Question) -> Question:
    """Return what the questions of one release must share: all but kind and radius."""
    return replace(question, kind=GRADIENT, radius=0.0)


def _vector(name: str, array: np.ndarray, dimension: int, dtype: torch.dtype) -> Vector:
    if name not in ("params", "previous"):
        raise BadMessage(f"an array {name[:40]!r} is not part of a question")
    vector = torch.from_numpy(array)
    if vector.shape != (dimension,) or vector.dtype != dtype:
        raise BadMessage(
            f"{name} have shape {tuple(vector.shape)} and type {vector.dtype}, the agreed model has {dimension} "
            f"parameters of type {dtype}"
        )
    if not bool(torch.isfinite(vector).all()):
        raise BadMessage(f"{name} are not finite")
    return vector


class StatisticRequest(NamedTuple):
    """A request for the sum of a statistic, or of the sums that candidates are scored by."""

    run: str
    number: int  # of the release, from 1
    multiplier: float  # one over its price
    statistic: Any
    dimension: int  # of its vectors

    @property
    def is_choice(self) -> bool:
        """Whether a candidate is to be chosen by the answer."""
        return hasattr(self.statistic, "scores")

    @property
    def label(self) -> Label:
        """What identifies the request within its run."""
        return self.number, self.statistic.purpose, type(self.statistic).__name__, 0

    def __str__(self) -> str:
        return f"release {self.number}, {type(self.statistic).__name__} for {self.statistic.purpose!r}"

    def packed(self) -> Packed:
        """Return the statistic as it is sent."""
        return packed(self.statistic)

    def message(self, content: Packed, known: Collection[str] = ()) -> Message:
        """Return the request as a message, without the arrays that the sites know."""
        fields = {"run": self.run, "number": self.number, "multiplier": self.multiplier, "statistic": content.tree}
        return Message(ASK, fields, {name: array for name, array in content.arrays.items() if name not in known})


def request_digest(message: Message) -> str:
    """Return the SHA-256 of a request, arrays by their names."""
    return digest(write(Message(message.kind, message.fields)))


def read_statistic_request(message: Message, unpacked: Unpacked) -> StatisticRequest:
    """Return the request in a message; refuse a malformed one, and a statistic that is not known here."""
    fields = message.fields
    if set(fields) != FIELDS:
        raise BadMessage(f"a request for a statistic has {sorted(FIELDS)}")
    multiplier = number(fields, "multiplier")
    if not multiplier:
        raise BadMessage("expected multiplier > 0")
    try:
        found, dimension = unpacked.statistic(fields["statistic"], message.arrays)
    except InvalidArgument as error:
        raise Refusal(str(error)) from None
    return StatisticRequest(str(fields["run"]), whole_number(fields, "number"), multiplier, found, dimension)
