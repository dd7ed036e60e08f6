"""Messages: what is written is read, and nothing else is."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from diff2.federation.faults import BadMessage
from diff2.federation.wire.messages import MAGIC, TYPES, Message, digest, read, write

FINITE = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=7), inner, max_size=3),
    max_leaves=8,
)
ARRAYS = st.sampled_from(TYPES).flatmap(
    lambda kind: arrays.arrays(np.dtype(kind), arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)


def changed(data, **header):
    """The message with another header."""
    start = len(MAGIC) + 4
    length = int.from_bytes(data[len(MAGIC) : start], "little")
    fields = {**json.loads(data[start : start + length]), **header}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    return MAGIC + len(text).to_bytes(4, "little") + text + data[start + length :]


EXAMPLE = write(Message("gradient", {"round": 3, "radius": 0.5}, {"params": np.arange(3.0)}))


@given(st.text(), st.dictionaries(st.text(), VALUES, max_size=3), st.dictionaries(st.text(), ARRAYS, max_size=3))
def test_what_is_written_is_read(kind, fields, values):
    data = write(Message(kind, fields, values))
    message = read(data)
    assert (message.kind, message.fields) == (kind, fields)
    assert list(message.arrays) == sorted(values)
    for name, array in values.items():
        assert message.arrays[name].dtype == array.dtype
        assert message.arrays[name].tobytes() == array.tobytes()
        assert message.arrays[name].shape == array.shape
    assert write(message) == data


def test_equal_messages_have_equal_bytes_whatever_the_order_of_their_parts():
    """A server that was restarted must repeat its requests byte for byte; the order of a set differs by process."""
    one, other = ({name: np.arange(2.0) for name in names} for names in (("a", "b"), ("b", "a")))
    assert write(Message("ask", {"x": 1, "y": 2}, one)) == write(Message("ask", {"y": 2, "x": 1}, other))


@given(st.binary(max_size=300))
def test_other_bytes_are_refused_and_nothing_else_happens(data):
    for wrong in (data, MAGIC + data, EXAMPLE[: len(data)], EXAMPLE + data[:5] + b"x"):
        with pytest.raises(BadMessage):
            read(wrong)


@given(st.integers(0, len(EXAMPLE) - 1), st.integers(1, 255))
def test_a_changed_byte_is_refused_or_gives_another_message(place, change):
    wrong = bytearray(EXAMPLE)
    wrong[place] ^= change
    try:
        message = read(bytes(wrong))
    except BadMessage:
        return
    assert write(message) != EXAMPLE
    assert digest(bytes(wrong)) != digest(EXAMPLE)


@pytest.mark.parametrize(
    "header",
    [
        {"arrays": [["params", "|O", [3]]]},
        {"arrays": [["params", "<c16", [3]]]},
        {"arrays": [["params", "<f8", [-3]]]},
        {"arrays": [["params", "<f8", [2**40, 2**40]]]},
        {"arrays": [["params", "<f8", [4]]]},
        {"arrays": [["params", "<f8", [2]]]},
        {"arrays": [["params", "<f8", [True]]]},
        {"arrays": [["params", "<f8"]]},
        {"arrays": [["params", "<f8", [1]], ["params", "<f8", [2]]]},
        {"arrays": None},
        {"fields": None},
        {"fields": [1]},
        {"kind": 3},
    ],
)
def test_a_header_that_lies_is_refused(header):
    with pytest.raises(BadMessage):
        read(changed(EXAMPLE, **header))


def test_a_deep_header_is_refused_and_does_not_crash():
    text = b"[" * 100_000
    with pytest.raises(BadMessage):
        read(MAGIC + len(text).to_bytes(4, "little") + text)


@pytest.mark.parametrize("values", [np.array(["a"]), np.array([object()]), np.array([1j]), np.array([True])])
def test_only_plain_numbers_are_written(values):
    with pytest.raises(BadMessage):
        write(Message("gradient", {}, {"params": values}))


@pytest.mark.parametrize("value", [math.nan, math.inf, object(), b"bytes"])
def test_fields_are_plain_and_finite(value):
    with pytest.raises(BadMessage):
        write(Message("gradient", {"radius": value}))


def test_arrays_are_little_endian_whatever_the_machine():
    data = write(Message("answer", {}, {"value": np.array([1.0, 2.0], dtype=">f8")}))
    assert data.endswith(np.array([1.0, 2.0], dtype="<f8").tobytes())
