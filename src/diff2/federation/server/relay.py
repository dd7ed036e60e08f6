"""A sealed run on an engine whose server calls and whose sites answer: the lead says what to ask, the server asks it.

The server calls the lead: *what next?* The lead's answer is a question for the sites, sealed, or the end. The server
asks the sites, adds ciphertexts where that is wanted, and tells the lead what it heard. At the lead the run goes on in
a thread; its transport hands questions out and waits.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..._files import read_json, write_json
from ...errors import Diff2Error
from .. import faults
from ..faults import BadAnswer, FederationError, Refusal
from ..server.cohort import answers
from ..server.order import OUTCOME, PROGRESS, Order, carry_out, read_order
from ..site.policy import SiteFile
from ..site.site import Site, site_from_file
from ..wire.messages import Message, read, refusal, write
from ..wire.transport import Replies, Transport
from .keys import SiteKeys
from .lead import AddingServer

LEAD, HEARD, NEXT, LED = "lead", "heard", "next", "led"
BROADCAST, TOTAL = "broadcast", "total"
THINKING = 600.0  # seconds the lead has between two questions: it may have to price a run


def carry_out_through_lead(order: Order, transport: Transport) -> None:
    """Do the server's part in a sealed run: ask what the lead, the first site, wants asked; note how far it is."""
    lead, adder, path = order.sites[0], AddingServer(transport), order.directory
    path.mkdir(parents=True, exist_ok=True)
    (path / OUTCOME).unlink(missing_ok=True)
    message = Message(LEAD, {"order": order.to_text(), "members": transport.members()})
    try:
        while True:
            replies = transport.call(lead, write(message), order.timeout + THINKING)
            answer = answers(replies, [lead], order.timeout + THINKING)[lead]
            if answer.fields.get("progress"):
                write_json(path / PROGRESS, answer.fields["progress"])
            if answer.kind == LED:
                _write_end(path, answer)
                return
            if answer.kind != NEXT:
                raise BadAnswer(f"site {lead!r}, which leads, answered with {answer.kind!r}")
            message = _heard(answer, adder)
    except Diff2Error as error:
        write_json(path / OUTCOME, {"state": "stopped", "error": type(error).__name__, "message": str(error)})
        raise


def _heard(wanted: Message, adder: AddingServer) -> Message:
    """Ask the sites what the lead wants asked."""
    fields = wanted.fields
    try:
        payload, what = bytes(wanted.arrays["payload"]), fields["what"]
        sites, timeout = [str(site) for site in fields["sites"]], float(fields["timeout"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadAnswer(f"the site that leads asked for something else than a question ({error!r})") from None
    if what == TOTAL:
        try:
            return Message(HEARD, {"failures": {}}, {TOTAL: _bytes(adder.total(payload, sites, timeout))})
        except FederationError as error:
            return Message(HEARD, {"failures": {}, "error": type(error).__name__, "message": str(error)})
    replies = adder.broadcast(payload, sites, timeout)
    return Message(
        HEARD, {"failures": replies.failures}, {site: _bytes(answer) for site, answer in replies.answers.items()}
    )


def _write_end(path: Path, answer: Message) -> None:
    outcome = answer.fields.get("outcome")
    if not isinstance(outcome, dict):
        raise BadAnswer("the site that leads ended the run without saying how")
    if answer.fields.get("result"):
        write_json(path / "result.json", answer.fields["result"])
    write_json(path / OUTCOME, outcome)


class LeadingSite:
    """A site that can also lead; it answers what a site answers, and what the server asks a lead."""

    def __init__(self, name: str, file: SiteFile):
        self._site: Site = site_from_file(name, file)
        self._keys = None if file.keys is None else SiteKeys.load(file.keys)
        self._directory = file.directory
        self._lead: _Lead | None = None

    def answer(self, payload: bytes) -> bytes:
        """Answer the server."""
        try:
            message = read(payload)
        except faults.BadMessage:
            return self._site.answer(payload)
        if message.kind not in (LEAD, HEARD):
            return self._site.answer(payload)
        try:
            return write(self._next(message))
        except Diff2Error as error:
            return refusal(f"site {self._site.name!r}, which leads: {error}")

    def _next(self, message: Message) -> Message:
        if message.kind == LEAD:
            if self._keys is None:
                raise Refusal("this site has no keys of sealed runs; name them in its site.toml: [site] keys = '...'")
            order = read_order(str(message.fields.get("order")))
            place = hashlib.sha256(f"{order.directory} {order.agreement.digest}".encode()).hexdigest()[:16]
            order = replace(order, directory=self._directory / "runs" / place)
            self._lead = _Lead(order, self._keys, [str(name) for name in message.fields.get("members", [])])
        elif self._lead is None:
            raise Refusal("this site leads no run")
        else:
            self._lead.heard.put(message)
        return self._lead.next()


class _Lead:
    """The run at the lead, in a thread, and the transport it sees."""

    def __init__(self, order: Order, keys: SiteKeys, members: list[str]):
        self._order = order
        self._keys = keys
        self._members = members
        self.heard: queue.Queue[Message] = queue.Queue()
        self._wanted: queue.Queue[Message] = queue.Queue()
        threading.Thread(target=self._run, daemon=True, name="lead").start()

    def next(self) -> Message:
        """Return what is to be asked next, or the end of the run."""
        try:
            return self._wanted.get(timeout=self._order.timeout + THINKING)
        except queue.Empty:
            raise FederationError("the run at the site that leads does not go on") from None

    def members(self) -> list[str]:
        return self._members

    def broadcast(self, payload: bytes, sites: Iterable[str], timeout: float) -> Replies:
        message = self._asked(BROADCAST, payload, list(sites), timeout)
        failures = {str(site): str(why) for site, why in message.fields["failures"].items()}
        return Replies({site: bytes(answer) for site, answer in message.arrays.items()}, failures)

    def call(self, site: str, payload: bytes, timeout: float) -> Replies:
        return self.broadcast(payload, [site], timeout)

    def total(self, payload: bytes, sites: Sequence[str], timeout: float) -> bytes:
        message = self._asked(TOTAL, payload, list(sites), timeout)
        if "error" in message.fields:
            kind = getattr(faults, str(message.fields["error"]), FederationError)
            raise kind(str(message.fields.get("message")))
        return bytes(message.arrays[TOTAL])

    def _asked(self, what: str, payload: bytes, sites: list[str], timeout: float) -> Message:
        fields = {"what": what, "sites": sites, "timeout": timeout, "progress": self._progress()}
        self._wanted.put(Message(NEXT, fields, {"payload": _bytes(payload)}))
        try:
            return self.heard.get(timeout=timeout + THINKING)
        except queue.Empty:
            raise FederationError("the server does not say what the sites answered") from None

    def _progress(self) -> dict[str, Any] | None:
        return read_json(self._order.directory / PROGRESS)

    def _run(self) -> None:
        outcome: dict[str, Any] | None = None
        try:
            carry_out(self._order, self, self._keys)
        except Diff2Error as error:
            outcome = {"state": "stopped", "error": type(error).__name__, "message": str(error)}
        except Exception as error:  # whatever else: the server must not wait for it
            outcome = {
                "state": "stopped",
                "error": "FederationError",
                "message": f"at the lead: {type(error).__name__}",
            }
        place = self._order.directory
        fields = {
            "outcome": outcome or read_json(place / OUTCOME),
            "progress": self._progress(),
            "result": read_json(place / "result.json") if outcome is None else None,
        }
        self._wanted.put(Message(LED, fields))


def _bytes(data: bytes) -> np.ndarray:
    return np.frombuffer(data, dtype=np.uint8)
