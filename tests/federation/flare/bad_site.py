"""Entry points of sites that misbehave: loading the records replaces how the site answers in one round."""

import os
import time
from pathlib import Path

import numpy as np

from diff2.federation.site import site as sites
from diff2.federation.wire.messages import Message, read, write

ROUND = 4
VARIABLE = "DIFF2_BAD_RECORDS"  # names the .npz with the records


def _loaded():
    with np.load(os.environ[VARIABLE]) as arrays:
        return arrays["inputs"], arrays["targets"]


def _misbehave(fault):
    good = sites.Site._once

    def answer(self, run, request, payload):
        found = good(self, run, request, payload)
        return fault(found) if request.question.round == ROUND else found

    sites.Site._once = answer
    return _loaded()


def _with_value(change):
    def fault(answer):
        message = read(answer)
        return write(Message(message.kind, message.fields, {"value": change(message.arrays["value"])}))

    return fault


def not_a_number():
    return _misbehave(_with_value(lambda value: value * np.nan))


def too_short():
    return _misbehave(_with_value(lambda value: value[:-1]))


def too_long():
    return _misbehave(_with_value(lambda value: value * 1e6))


def silent():
    """Never answer in that round; but only the first time, so that the run can be resumed afterwards."""
    marker = Path(os.environ[VARIABLE]).with_name("was-silent")

    def fault(answer):
        if not marker.exists():
            marker.touch()
            time.sleep(600)
        return answer

    return _misbehave(fault)


def heard_twice():
    """Every message reaches this site twice, and the second answer is the one that is sent."""
    good = sites.Site.answer

    def answer(self, payload, caller):
        first, second = good(self, payload, caller), good(self, payload, caller)
        if first != second:
            raise RuntimeError("a message that was delivered twice was answered in two ways")
        with open(Path(os.environ[VARIABLE]).with_name("heard-twice"), "a", encoding="utf-8") as file:
            file.write(read(payload).kind + "\n")
        return second

    sites.Site.answer = answer
    return _loaded()
