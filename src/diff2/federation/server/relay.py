"""The server's part in a sealed run: it relays the coordinator's questions to the sites and adds ciphertexts.

On an engine where only the server can call, it asks the coordinator site *what next?*. The answer is a sealed question
for the sites, or the end of the run. The server sends the question to the sites, adds ciphertexts where it is asked to,
and returns the replies to the coordinator. ``site/coordinator.py`` is the other half.
"""

from ..._files import write_json
from ..faults import BadAnswer, FederationError
from ..sealed.cohort import AddingServer
from ..wire.cohort import read_answers
from ..wire.messages import Message, packed, write
from ..wire.transport import Transport
from . import PROGRESS
from .job import JobSpec
from .outcome import outcome_of

COORDINATE, REPLIES = "coordinate", "replies"  # from the server to the coordinator
NEXT, ENDED = "next", "ended"  # and its answers
BROADCAST, TOTAL = "broadcast", "total"
COORDINATOR_TIMEOUT = 600.0  # seconds between two questions: the coordinator may have to price a run


def relay_job(spec: JobSpec, transport: Transport) -> None:
    """Relay between the coordinator, which is the first site, and all sites; write progress and outcome."""
    coordinator, adder, directory = spec.sites[0], AddingServer(transport), spec.directory
    timeout = spec.timeout + COORDINATOR_TIMEOUT
    message = Message(COORDINATE, {"job": spec.to_text(), "members": transport.members()})
    with outcome_of(directory) as outcome:
        while True:
            replies = transport.broadcast(write(message), [coordinator], timeout)
            answer = read_answers(replies, [coordinator], timeout)[coordinator]
            if answer.fields.get("progress"):
                write_json(directory / PROGRESS, answer.fields["progress"])
            if answer.kind == ENDED:
                break
            if answer.kind != NEXT:
                raise BadAnswer(f"site {coordinator!r}, the coordinator, answered with {answer.kind!r}")
            message = _relayed(answer, adder)
        if not isinstance(answer.fields.get("outcome"), dict):
            raise BadAnswer("the coordinator ended the run without stating the outcome")
        if answer.fields.get("result"):
            write_json(directory / "result.json", answer.fields["result"])
        outcome |= answer.fields["outcome"]


def _relayed(wanted: Message, adder: AddingServer) -> Message:
    """Send the coordinator's question to the sites; return their replies as a message to it."""
    fields = wanted.fields
    try:
        payload, what = bytes(wanted.arrays["payload"]), fields["what"]
        sites, timeout = [str(site) for site in fields["sites"]], float(fields["timeout"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadAnswer(f"the coordinator sent something that is not a question ({error!r})") from None
    if what == TOTAL:
        try:
            return Message(REPLIES, {"failures": {}}, {TOTAL: packed(adder.total(payload, sites, timeout))})
        except FederationError as error:
            return Message(REPLIES, {"failures": {}, "error": type(error).__name__, "message": str(error)})
    replies = adder.broadcast(payload, sites, timeout)
    arrays = {site: packed(answer) for site, answer in replies.answers.items()}
    return Message(REPLIES, {"failures": replies.failures}, arrays)
