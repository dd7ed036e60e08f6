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
HEADER_LIMIT = 1 << 24  # bytes
SIZE_LIMIT = 1 << 32  # bytes of one array
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
    """Return the message in these bytes; anything else is refused."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise BadMessage(f"expected bytes, got {type(data).__name__}")
    view = memoryview(data).cast("B")
    start = len(MAGIC) + 4
    if len(view) < start or bytes(view[: len(MAGIC)]) != MAGIC:
        raise BadMessage("not a message of this version of diff2; all parties need the same version")
    length = int.from_bytes(view[len(MAGIC) : start], "little")
    if length > HEADER_LIMIT or start + length > len(view):
        raise BadMessage("the message is truncated in its header")
    try:
        header = json.loads(bytes(view[start : start + length]), parse_constant=_refused_constant)
        kind, fields, described = header["kind"], header["fields"], header["arrays"]
        arrays, position = {}, start + length
        for name, dtype, shape in described:
            arrays[str(name)], position = _array(view, position, dtype, shape)
    except BadMessage:
        raise
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise BadMessage(f"the header of the message is damaged ({type(error).__name__})") from None
    if position != len(view) or len(arrays) != len(described) or not isinstance(kind, str):
        raise BadMessage("the message does not match its header")
    if not isinstance(fields, dict):
        raise BadMessage("the fields of the message are not a table")
    return Message(kind, fields, arrays)


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


def _array(view: memoryview, start: int, dtype: Any, shape: Any) -> tuple[np.ndarray, int]:
    if dtype not in TYPES or not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in shape):
        raise BadMessage(f"an array of type {dtype!r} and shape {shape!r} is not part of a message")
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size > SIZE_LIMIT or start + size > len(view):
        raise BadMessage("the message is truncated in its arrays")
    return np.frombuffer(view[start : start + size], dtype=dtype).reshape(shape).copy(), start + size


def _refused_constant(name: str) -> Any:
    raise BadMessage(f"{name} is not a JSON value")
