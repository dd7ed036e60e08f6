"""A site that can also coordinate a sealed run: it trains in a thread, and the server relays its questions.

``server/relay.py`` is the other half. The run sees a transport that hands each question to the server's next call and
waits for the replies.
"""

import hashlib
import queue
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..._files import read_json
from ...errors import Diff2Error
from .. import faults
from ..faults import BadMessage, FederationError, Refusal
from ..sealed.keys import NO_KEYS, SiteKeys
from ..server import OUTCOME, PROGRESS
from ..server.job import JobSpec, read_job_spec, run_job
from ..server.outcome import stopped_outcome
from ..server.relay import BROADCAST, COORDINATE, COORDINATOR_TIMEOUT, ENDED, NEXT, REPLIES, TOTAL
from ..wire.messages import Message, packed, read, write
from ..wire.transport import NOBODY, Caller, Replies
from .policy import SiteFile
from .site import site_from_file


class CoordinatorSite:
    """A site that answers as :class:`Site` does, and can be asked to coordinate a sealed run."""

    def __init__(self, name: str, file: SiteFile):
        self._site = site_from_file(name, file)
        self._directory = file.directory
        self._run: _CoordinatedRun | None = None

    def answer(self, payload: bytes, caller: Caller = NOBODY) -> bytes:
        """Answer the server."""
        try:
            message = read(payload)
        except BadMessage:
            return self._site.answer(payload, caller)
        if message.kind not in (COORDINATE, REPLIES):
            return self._site.answer(payload, caller)
        try:
            return write(self._next(message))
        except Diff2Error as error:
            return self._site.refused(error, caller)

    def _next(self, message: Message) -> Message:
        if message.kind == COORDINATE:
            if self._site.keys is None:
                raise Refusal(NO_KEYS)
            spec, members = read_job_spec(str(message.fields.get("job"))), message.fields.get("members")
            self._site.require_approved(spec.agreement)
            if not isinstance(members, list):
                raise BadMessage("expected members to be a list of names")
            name = hashlib.sha256(f"{spec.directory} {spec.agreement.digest}".encode()).hexdigest()[:16]
            spec = replace(spec, directory=self._directory / "runs" / name)
            self._run = _CoordinatedRun(spec, self._site.keys, [str(name) for name in members])
        elif self._run is None:
            raise Refusal("this site coordinates no run")
        else:
            self._run.replies.put(message)
        return self._run.next()


class _CoordinatedRun:
    """The run at the coordinator, in a thread, and the transport it sees."""

    def __init__(self, spec: JobSpec, keys: SiteKeys, members: list[str]):
        self._spec = spec
        self._keys = keys
        self._members = members
        self.replies: queue.Queue[Message] = queue.Queue()
        self._wanted: queue.Queue[Message] = queue.Queue()
        threading.Thread(target=self._work, daemon=True, name="coordinator").start()

    def next(self) -> Message:
        """Return the next question for the sites, or the end of the run."""
        return _wait(self._wanted, self._spec.timeout, "the coordinator's run makes no progress")

    def members(self) -> list[str]:
        return self._members

    def broadcast(self, payload: bytes, sites: Iterable[str], timeout: float) -> Replies:
        message = self._ask(BROADCAST, payload, list(sites), timeout)
        failures = {str(site): str(why) for site, why in message.fields["failures"].items()}
        return Replies({site: bytes(answer) for site, answer in message.arrays.items()}, failures)

    def total(self, payload: bytes, sites: Sequence[str], timeout: float) -> bytes:
        message = self._ask(TOTAL, payload, list(sites), timeout)
        if "error" in message.fields:
            kind = getattr(faults, str(message.fields["error"]), FederationError)
            raise kind(str(message.fields.get("message")))
        return bytes(message.arrays[TOTAL])

    def _ask(self, what: str, payload: bytes, sites: list[str], timeout: float) -> Message:
        fields = {"what": what, "sites": sites, "timeout": timeout, "progress": self._read(PROGRESS)}
        self._wanted.put(Message(NEXT, fields, {"payload": packed(payload)}))
        return _wait(self.replies, timeout, "the server does not return the sites' replies")

    def _read(self, name: str) -> dict[str, Any] | None:
        return read_json(Path(self._spec.directory) / name)

    def _work(self) -> None:
        outcome: dict[str, Any] | None = None
        try:
            run_job(self._spec, self, self._keys)
        except Diff2Error as error:
            outcome = stopped_outcome(error)
        except Exception as error:  # the server must not wait forever, whatever happens
            outcome = stopped_outcome(FederationError(f"at the coordinator: {type(error).__name__}"))
        fields = {
            "outcome": outcome or self._read(OUTCOME),
            "progress": self._read(PROGRESS),
            "result": self._read("result.json") if outcome is None else None,
        }
        self._wanted.put(Message(ENDED, fields))


def _wait(messages: queue.Queue[Message], timeout: float, otherwise: str) -> Message:
    try:
        return messages.get(timeout=timeout + COORDINATOR_TIMEOUT)
    except queue.Empty:
        raise FederationError(otherwise) from None
