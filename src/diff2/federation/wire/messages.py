r"""Messages between a server and its sites: plain arrays and numbers, nothing that could be executed.

``b"diff2\x01"``, the length of the header in four bytes, the header in JSON, then the arrays one after the other, in
little-endian order. The header names the kind of the message, its fields and, for each array, name, type and shape.
Arrays and fields are sorted by name: the bytes of a message are the same in every process.

>>> message = Message("ask", {"round": 3, "radius": 0.5}, {"params": np.arange(2.0)})
>>> read(write(message)).fields
{'radius': 0.5, 'round': 3}
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..faults import BadMessage

MAGIC = b"diff2\x01"
TYPES = ("<f4", "<f8", "<i8", "|u1")
REFUSAL = "refusal"


@dataclass(frozen=True)
class Message:
    """A request or an answer."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)  # JSON values: finite numbers only
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


def write(message: Message) -> bytes:
    """Return the bytes of a message; equal messages have equal bytes."""
    arrays = {name: _little_endian(name, array) for name, array in sorted(message.arrays.items())}
    header = {
        "kind": message.kind,
        "fields": dict(message.fields),
        "arrays": [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()],
    }
    try:
        text = json.dumps(header, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise BadMessage(f"a field of the message is not a JSON value ({error})") from None
    parts = (array.tobytes() for array in arrays.values())
    return b"".join((MAGIC, len(text).to_bytes(4, "little"), text, *parts))


def read(data: Any) -> Message:
    """Return the message in these bytes; anything that :func:`write` would not have written is refused."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise BadMessage(f"expected bytes, got {type(data).__name__}")
    content, start = bytes(data), len(MAGIC) + 4
    if not content.startswith(MAGIC):
        raise BadMessage("not a message of this version of diff2; all parties need the same version")
    position = start + int.from_bytes(content[len(MAGIC) : start], "little")
    try:
        header, arrays = json.loads(content[start:position]), {}
        for name, dtype, shape in header["arrays"]:
            flat = np.frombuffer(content, dtype, math.prod(shape), position)
            arrays[str(name)], position = flat.reshape(shape).copy(), position + flat.nbytes
        message = Message(header["kind"], header["fields"], arrays)
        if isinstance(message.kind, str) and isinstance(message.fields, dict) and write(message) == content:
            return message
    except (BadMessage, KeyError, TypeError, ValueError, OverflowError, RecursionError):
        pass
    raise BadMessage("the message is damaged or truncated: it does not match its header")


def digest(data: bytes) -> str:
    """Return the SHA-256 of a message, which identifies it."""
    return hashlib.sha256(data).hexdigest()


def refusal(reason: str) -> bytes:
    """Return the answer that declines a request."""
    return write(Message(REFUSAL, {"reason": reason}))


def packed(data: bytes) -> np.ndarray:
    """Return bytes as an array, to be carried by a message."""
    return np.frombuffer(data, dtype=np.uint8)


def _little_endian(name: str, array: np.ndarray) -> np.ndarray:
    values = np.asarray(array, order="C")
    values = values.astype(values.dtype.newbyteorder("<"), copy=False)
    if values.dtype.str not in TYPES:
        raise BadMessage(f"array {name!r} has the type {values.dtype}, which messages do not carry")
    return values
