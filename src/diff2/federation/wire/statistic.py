"""Requests for a statistic, written to messages and read from them.

A request has the number of its release, the noise multiplier and the statistic itself, as ``fitting/travelling.py``
describes it. Its digest is that of all but the arrays, which the statistic names by their hashes: a request that is
sent again, with all of its arrays, is the same one.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

from ...errors import InvalidArgument
from ...fitting.travelling import Packed, Unpacked, packed
from ..faults import BadMessage, Refusal
from .messages import Message, digest, write
from .request import ASK, Label, number, whole_number

FIELDS = {"run", "number", "multiplier", "statistic"}


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
