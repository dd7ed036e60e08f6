"""What a federated engine must provide: send bytes to sites and return their answers. Two methods.

Another engine needs an object with these methods, and code at the sites that calls ``Site.answer``. Nothing else in the
library depends on what carries the messages.
"""

import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

Answerer = Callable[[bytes], bytes]


class Caller(NamedTuple):
    """Who asks, as far as the transport knows; empty where it does not."""

    caller: str = ""  # the party that the request came from, authenticated
    job: str = ""  # as the server names it
    submitter: str = ""  # of the job, as the server names them


NOBODY = Caller()


class Replies(NamedTuple):
    """The answers, and why others did not answer."""

    answers: dict[str, bytes]
    failures: dict[str, str]


class Transport(Protocol):
    """Carries bytes between the server and its sites."""

    def members(self) -> list[str]:
        """Return the names of the connected sites."""
        ...

    def broadcast(self, payload: bytes, sites: Iterable[str], timeout: float) -> Replies:
        """Send the same bytes to these sites; wait for each at most ``timeout`` seconds."""
        ...


class InProcessTransport:
    """Sites in this process, for tests and experiments."""

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

    def _start(self, name: str, payload: bytes) -> queue.Queue[object]:
        answers: queue.Queue[object] = queue.Queue()

        def work() -> None:
            try:
                answers.put(self._sites[name](payload))
            except Exception as error:  # an error at a site is that site's failure
                answers.put(error)

        threading.Thread(target=work, daemon=True, name=f"site {name}").start()
        return answers
