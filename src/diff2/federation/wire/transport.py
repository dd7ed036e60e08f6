"""What a federated engine must be able to do for us: hand bytes to sites and bring bytes back. Three methods.

A second engine needs an object with these methods and something at the sites that calls ``Site.answer``; nothing else
in the library knows what carries the messages.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

Answerer = Callable[[bytes], bytes]


class Replies(NamedTuple):
    """Who answered what, and why others did not."""

    answers: dict[str, bytes]
    failures: dict[str, str]


class Transport(Protocol):
    """Carries bytes between the server and its sites."""

    def members(self) -> list[str]:
        """Return the names of the sites that are there."""
        ...

    def broadcast(self, payload: bytes, sites: Iterable[str], timeout: float) -> Replies:
        """Hand the same bytes to these sites, wait for all, and for none longer than ``timeout`` seconds."""
        ...

    def call(self, site: str, payload: bytes, timeout: float) -> Replies:
        """Hand bytes to one site."""
        ...


class InProcessTransport:
    """Sites in this process: for tests, and for trying things out."""

    def __init__(self, sites: Mapping[str, Answerer]):
        """Give each site's name and the function that answers for it."""
        self._sites = dict(sites)

    def members(self) -> list[str]:
        return list(self._sites)

    def broadcast(self, payload: bytes, sites: Iterable[str], timeout: float) -> Replies:
        waiting = {name: self._start(name, payload) for name in sites}
        replies = Replies({}, {})
        for name, answers in waiting.items():
            try:
                answer = answers.get(timeout=timeout)
            except queue.Empty:
                replies.failures[name] = f"no answer within {timeout:g} s"
                continue
            if isinstance(answer, bytes):
                replies.answers[name] = answer
            else:
                replies.failures[name] = f"{type(answer).__name__}: {answer}"
        return replies

    def call(self, site: str, payload: bytes, timeout: float) -> Replies:
        return self.broadcast(payload, [site], timeout)

    def _start(self, name: str, payload: bytes) -> queue.Queue[object]:
        answers: queue.Queue[object] = queue.Queue()

        def work() -> None:
            try:
                answers.put(self._sites[name](payload))
            except Exception as error:  # whatever happens at a site is its failure, not ours
                answers.put(error)

        threading.Thread(target=work, daemon=True, name=f"site {name}").start()
        return answers
