"""Requests: what is asked is read as it was asked, and a malformed request is refused."""

import math
from dataclasses import replace

import pytest
import torch

from diff2 import Batch
from diff2.errors import InvalidArgument
from diff2.federation.faults import BadMessage
from diff2.federation.wire.messages import read, write
from diff2.federation.wire.request import Request, read_request
from federated import C1, NEXT, RUN, START, difference, gradient, request

MESSAGE = request(gradient(), 1.5).message()


def as_read(message, dtype=torch.float64):
    return read_request(read(write(message)), len(START), dtype)


def with_question(**changes):
    return replace(MESSAGE, fields={**MESSAGE.fields, "parts": [{**MESSAGE.fields["parts"][0], **changes}]})


@pytest.mark.parametrize(
    "asked",
    [
        request(gradient()),
        request(gradient(radius=math.inf, remember=True)),
        request(gradient(batch=Batch(size=6), step=2)),
        request(gradient(batch=Batch(rate=0.25))),
        request(difference(batch=Batch(clients=(1,), size=2), step=2, purpose="local"), 3.0),
        request(gradient(batch=Batch(part=(1, 2)), step=1, leaves=2), 3.0),
        Request(RUN, ((0.3, gradient(params=NEXT)), (0.7, difference(round=1, purpose="gradient"))), 2.0),
    ],
)
def test_what_is_asked_is_read(asked):
    found = as_read(asked.message())
    assert found == asked
    for (_, mine), (_, theirs) in zip(found.parts, asked.parts, strict=True):
        assert torch.equal(mine.params, theirs.params)
        assert mine.remember == theirs.remember
        assert (mine.previous is None) == (theirs.previous is None)


@pytest.mark.parametrize(
    "params",
    [
        START[:-1],
        torch.cat([START, START]),
        START.float(),
        START.reshape(1, -1),
        torch.full_like(START, math.nan),
        torch.full_like(START, math.inf),
    ],
)
def test_parameters_that_are_not_those_of_the_model(params):
    with pytest.raises(BadMessage, match="params"):
        as_read(request(gradient(params=params)).message())


@pytest.mark.parametrize("name", ["round", "step", "leaves", "radius", "weight", "purpose", "kind", "batch"])
@pytest.mark.parametrize("value", [-1, [0.5], True, {"a": 1}, ["x"], None])
def test_fields_of_a_question(name, value):
    with pytest.raises(BadMessage):
        as_read(with_question(**{name: value}))


@pytest.mark.parametrize("name", ["clients", "size", "rate", "part"])
@pytest.mark.parametrize("value", ["1", [0.5], True, {"a": 1}, ["x"], None, [1, 2, 3.5]])
def test_fields_of_a_batch(name, value):
    with pytest.raises(BadMessage):
        as_read(with_question(batch={name: value}))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"multiplier": -1.0}, "multiplier"),
        ({"multiplier": "large"}, "finite number"),
        ({"multiplier": "inf"}, "finite number"),
        ({"parts": []}, "1 to 8 questions"),
        ({"parts": "all"}, "1 to 8 questions"),
        ({"parts": 9 * MESSAGE.fields["parts"]}, "1 to 8 questions"),
        ({"parts": [3]}, "not a question"),
    ],
)
def test_fields_of_a_request(change, reason):
    with pytest.raises(BadMessage, match=reason):
        as_read(replace(MESSAGE, fields={**MESSAGE.fields, **change}))


def test_a_number_that_overflows_is_not_finite():
    data = write(with_question(radius=12345.5)).replace(b"12345.5", b"1e99999")
    with pytest.raises(BadMessage):
        read(data)


def test_arrays_that_do_not_belong_to_the_question():
    for arrays in ({}, {**MESSAGE.arrays, "previous": START.numpy()}, {**MESSAGE.arrays, "more": START.numpy()}):
        with pytest.raises(BadMessage):
            as_read(replace(MESSAGE, arrays=arrays))


def test_questions_of_one_release_are_about_one_draw_at_one_iterate():
    apart = Request(RUN, ((0.5, gradient()), (0.5, gradient(step=1))), 10.0)
    with pytest.raises(BadMessage, match="same draw"):
        as_read(apart.message())
    with pytest.raises(InvalidArgument, match="different params"):
        Request(RUN, ((0.5, gradient()), (0.5, gradient(params=NEXT))), 10.0).message()
    with pytest.raises(BadMessage, match="one question at a time"):
        as_read(Request(RUN, ((0.5, gradient()), (0.5, gradient(radius=C1 / 2)))).message())
