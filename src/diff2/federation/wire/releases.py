"""A release as a message: questions with weights that a site answers together, with noise of its own.

Where the server adds the noise, it asks questions one by one and puts the answers together. Where the sites do, a site
must know what is released, with how much noise: several questions may make up one release, and share its noise.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from ...errors import InvalidArgument
from ...questions.population import Batch
from ..faults import BadMessage
from .messages import Message
from .requests import Asked, read_question, whole_number

RELEASE = "release"
MOST_PARTS = 8
PREVIOUS = "previous"


class AskedRelease(NamedTuple):
    """One release about the records."""

    purpose: str
    step: int  # of a tree: which leaf
    multiplier: float  # noise deviation / sensitivity, of all honest sites together
    parts: tuple[tuple[float, Asked], ...]  # weights and questions: of the same round, batch and draw
    leaves: int = 0  # of the tree that the release is a leaf of; 0: of none

    @property
    def run(self) -> str:
        return self.parts[0][1].run

    @property
    def round(self) -> int:
        return self.parts[0][1].round

    @property
    def batch(self) -> Batch:
        return self.parts[0][1].batch

    def message(self) -> Message:
        """Return the release as a message; the iterates of its questions must be the same, and are sent once."""
        arrays: dict[str, Any] = {}
        parts = []
        for weight, question in self.parts:
            asked = question.message()
            for name, array in asked.arrays.items():
                if name in arrays and not (arrays[name] == array).all():
                    raise InvalidArgument(f"questions of one release have different {name}; release them one by one")
                arrays.setdefault(name, array)
            parts.append({**asked.fields, "kind": question.kind, "weight": weight})
        fields = {
            "run": self.run,
            "round": self.round,
            "purpose": self.purpose,
            "step": self.step,
            "multiplier": self.multiplier,
            "leaves": self.leaves,
            "parts": parts,
        }
        return Message(RELEASE, fields, arrays)


def read_release(message: Message, dimension: int, dtype: torch.dtype) -> AskedRelease:
    """Return the release in a message; whatever is not a well-formed one is refused."""
    fields, described = message.fields, message.fields.get("parts")
    purpose, multiplier = fields.get("purpose"), _real(fields.get("multiplier"))
    if not isinstance(purpose, str) or not 0 < len(purpose) <= 32:
        raise BadMessage(f"expected purpose to be a word, got {str(purpose)[:40]!r}")
    if not multiplier > 0:
        raise BadMessage(f"expected multiplier to be above 0, got {multiplier!r}")
    if not isinstance(described, list) or not 0 < len(described) <= MOST_PARTS:
        raise BadMessage(f"expected a release of 1 to {MOST_PARTS} questions")
    parts = tuple(_part(one, message, dimension, dtype) for one in described)
    first = parts[0][1]
    for _, asked in parts:
        if (asked.run, asked.round, asked.batch, asked.step) != (first.run, first.round, first.batch, first.step):
            raise BadMessage("the questions of one release are not about the same records, drawn once")
    if first.run != fields.get("run") or first.round != fields.get("round"):
        raise BadMessage("the questions of the release are of another run or round than the release")
    return AskedRelease(purpose, whole_number(fields, "step"), multiplier, parts, whole_number(fields, "leaves"))


def _part(described: Any, message: Message, dimension: int, dtype: torch.dtype) -> tuple[float, Asked]:
    if not isinstance(described, dict) or not isinstance(described.get("kind"), str):
        raise BadMessage("a question of the release is not one")
    kind = described["kind"]
    unused = {PREVIOUS} if kind == "gradient" else set()
    arrays = {name: array for name, array in message.arrays.items() if name not in unused}
    return _real(described.get("weight")), read_question(Message(kind, described, arrays), dimension, dtype)


def _real(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadMessage(f"expected a finite number, got {str(value)[:40]!r}")
    return float(value)
