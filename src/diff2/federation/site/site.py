"""A site: it holds its own records, answers questions about them with clipped sums, and trusts nobody.

The site clips, not the server. It answers a question only if the question belongs to an agreement that its policy
allows, is well-formed, has a radius within the agreed rule, and was not answered before with other content. Refusals
are reported to both sides and recorded. Formal guarantee: ``answer`` returns nothing but a description that the policy
allows, sums that ``ClientSums`` has clipped, or a refusal, whatever bytes it is given.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from ..._files import write_whole
from ..._version import __version__
from ...errors import Diff2Error, InvalidArgument
from ...planning import Plan
from ...privacy import NoiseSource
from ...privacy.noise import KEY_BYTES
from ...privacy.release import ADD_OR_REMOVE_ONE
from ...training.directory import records_tag
from ..agreement import Agreement, read_agreement
from ..faults import BadMessage, Refusal
from ..own_noise.noise import check_trust
from ..sealed.keys import MODEL, NO_KEYS, SEALED, SiteKeys, sealed_answer, store_model
from ..wire.messages import Message, digest, read, refusal, write
from ..wire.request import (
    ASK,
    CLOSE,
    CLOSED,
    DESCRIBE,
    DESCRIPTION,
    OPEN,
    OPENED,
    Request,
    whole_number,
)
from .ledger import Answer, RunLine, SiteLedger
from .open_run import OpenRun
from .policy import Policy, SiteFile
from .records import SiteRecords, load_records

LOG = logging.getLogger("diff2.site")
RUN_ID = re.compile(r"[0-9a-f]{32}")


class Site:
    """One site of a federation."""

    _lock = threading.Lock()  # shared by all sites in a process, as is PyTorch's generator, which dropout draws from

    def __init__(
        self,
        name: str,
        load: Callable[[Agreement], SiteRecords],
        policy: Policy,
        directory: Path,
        keys: SiteKeys | None = None,
    ):
        """Take part as ``name``.

        Args:
            load: returns the records, encoded for an agreement.
            directory: keeps the ledger and the keys of unfinished runs.
            keys: the secret that all sites share, for sealed runs.
        """
        self.keys = keys
        self.name = name
        self.policy = policy
        self.ledger = SiteLedger(directory / "ledger.jsonl", name)
        self._load = load
        self._directory = directory
        self._runs: dict[str, OpenRun] = {}
        self._loaded: tuple[str, SiteRecords] | None = None
        self._last: tuple[str, bytes] = ("", b"")  # digest of the last request, and its answer

    def answer(self, payload: bytes) -> bytes:
        """Return the answer to a request, or a refusal, whatever the bytes are."""
        with self._lock, self.ledger.exclusive():
            run = ""
            try:
                message = read(payload)
                run = str(message.fields.get("run", ""))[:32]
                return self._answered(message, payload)
            except (Refusal, BadMessage) as error:
                return self._refused(run, str(error))
            except Exception:
                self._log(traceback.format_exc())
                return self._refused(run, "an error at the site; see its site.log")

    def _log(self, text: str) -> None:
        """Log what may quote records to a file of the site's own: FLARE can send its logs to the server."""
        with open(self._directory / "site.log", "a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text.rstrip()}\n")

    def _refused(self, run: str, reason: str) -> bytes:
        LOG.warning("site %s refused: %s", self.name, reason)
        self.ledger.refuse(run if RUN_ID.fullmatch(run) else "", reason)
        return refusal(f"site {self.name!r}: {reason}")

    def _answered(self, message: Message, payload: bytes) -> bytes:
        if message.kind == SEALED:
            return self._sealed(message, payload)
        if message.kind == DESCRIBE:
            return write(self._describe(message))
        if message.kind == OPEN:
            return write(self._open(message))
        if message.kind == CLOSE:
            return write(self._close(self._known(message)))
        return self._ask(message, payload, sealed=False)

    def _known(self, message: Message) -> str:
        run = message.fields.get("run")
        if not isinstance(run, str) or run not in self.ledger.runs:
            raise Refusal("the request belongs to no run that this site has agreed to")
        return run

    def _sealed(self, message: Message, payload: bytes) -> bytes:
        """Answer a sealed request; the reason for a refusal goes to the site's own ledger only."""

        def ask(inner: Message, content: bytes) -> bytes:
            if inner.kind == MODEL:
                return write(store_model(inner, self._known(inner), self._directory))
            return self._ask(inner, content, sealed=True)

        try:
            return sealed_answer(self.keys, self.name, message, payload, ask)
        except (Refusal, BadMessage) as error:
            self._refused("", str(error))
            return refusal(f"site {self.name!r}: a sealed request is refused; see the site's own ledger")

    def _ask(self, message: Message, payload: bytes, *, sealed: bool) -> bytes:
        """Answer a request of an open run: with a clipped sum, or with this site's part of a release and its noise."""
        name = self._known(message)
        if message.kind != ASK:
            raise BadMessage(f"a request of kind {message.kind!r}")
        if name in self.ledger.ended:
            raise Refusal("the run is complete; no further request of it is answered")
        if name not in self._runs:
            raise Refusal("the run is not open; open it first")
        run = self._runs[name]
        return self._once(run, run.read(message, sealed=sealed), payload)

    def _describe(self, message: Message) -> Message:
        agreement = _agreement(message)
        self.policy.check(agreement)
        records = self._records(agreement)
        size, exact = self._size(agreement, records), self.policy.reported_size is None
        return Message(DESCRIPTION, {"site": self.name, "size": size, "exact": exact, "version": __version__})

    def _size(self, agreement: Agreement, records: SiteRecords) -> int:
        """Return the number of records that the site reports."""
        reported = self.policy.reported_size
        poisson = agreement.algorithm.adjacency == ADD_OR_REMOVE_ONE
        return reported if poisson and reported is not None else records.client.size

    def _open(self, message: Message) -> Message:
        agreement = _agreement(message)
        run, sites, plan = self._stated(message, agreement)
        index, records = sites.index(self.name), self._records(agreement)
        if plan.client_sizes[index] != self._size(agreement, records):
            raise Refusal("the size stated for this site is not the one it reported")
        if agreement.trust.sealed and self.keys is None:
            raise Refusal(NO_KEYS)
        known = self.ledger.runs.get(run)
        if run in self.ledger.ended:
            raise Refusal("the run is complete; it cannot be opened again")
        if known is None:
            self.policy.check_total(agreement, self.ledger.epsilon, self.ledger.delta)
        source = self._source(run, agreement.run.seed, known is None)
        opened = OpenRun(agreement, plan, index, records, source)
        if opened.engine != message.fields.get("engine"):
            raise Refusal(
                f"this site computes gradients with the engine {opened.engine!r}, the server expects "
                f"{message.fields.get('engine')!r}; the bytes would differ. Install the same versions and extras"
            )
        epsilon = agreement.privacy.epsilon if agreement.run.seed is None else float("inf")
        tag = records_tag(source.key, [records.parts]).hex()
        line = RunLine(
            run, agreement.digest, agreement.algorithm.name, epsilon, agreement.privacy.delta, sites, plan.client_sizes,
            tag,
        )  # fmt: skip
        if known is not None and known != line:
            changed = [name for name in RunLine._fields if getattr(known, name) != getattr(line, name)]
            raise Refusal(f"the run was agreed to with other {' and '.join(changed)}; start a new run")
        self._runs = {run: opened}  # one run at a time
        if known is None:
            self.ledger.agree(line)
        LOG.info("site %s takes part in run %s with %d records", self.name, run, plan.client_sizes[index])
        shared = {"keys": self.keys.fingerprint} if self.keys is not None and agreement.trust.sealed else {}
        return Message(OPENED, {"run": run, "site": self.name, "records": tag, **shared})

    def _stated(self, message: Message, agreement: Agreement) -> tuple[str, tuple[str, ...], Plan]:
        """Return the run, its sites and its plan as the server states them."""
        run, sites, sizes = (message.fields.get(name) for name in ("run", "sites", "sizes"))
        if not isinstance(run, str) or not RUN_ID.fullmatch(run):
            raise BadMessage("expected run to be 32 hexadecimal digits")
        if not isinstance(sites, list) or not isinstance(sizes, list) or len(sites) != len(sizes):
            raise BadMessage("expected sites and sizes to be lists of the same length")
        if sites.count(self.name) != 1:
            raise Refusal("this site is not among the sites of the run")
        counts = [whole_number({"size": size}, "size") for size in sizes]
        try:
            check_trust(agreement, len(sites))
            return run, tuple(map(str, sites)), agreement.plan(counts)
        except Diff2Error as error:
            raise Refusal(f"the agreement cannot be accepted: {error}") from None

    def _close(self, run: str) -> Message:
        self.ledger.end(run)
        self._runs.pop(run, None)
        self._key_path(run).unlink(missing_ok=True)
        return Message(CLOSED, {"run": run, "site": self.name})

    def _once(self, run: OpenRun, request: Request, payload: bytes) -> bytes:
        """Return an answer: a repeated request gets the same bytes, a changed one is refused."""
        name, sent = request.run, digest(payload)
        known = self.ledger.answered(name, request.label)
        if known is not None and known.request != sent:
            raise Refusal(
                f"{request}, was answered already, for a request with other content; a second answer would be a second "
                "release"
            )
        if self._last[0] == sent:
            return self._last[1]
        earlier = [answer.release for answer in self.ledger.answers(name)]
        message, release = run.answer(request, sent, self.ledger.runs[name].sites, earlier)
        answer = write(message)
        if known is None:
            line = Answer(name, release, request.label[2], request.multiplier, sent, digest(answer))
            self.ledger.record(line)
        elif known.answer != digest(answer):
            raise Refusal(
                f"{request}, was answered before and would now come out differently (another machine, or another "
                "version?); start a new run"
            )
        self._last = (sent, answer)
        return answer

    def _records(self, agreement: Agreement) -> SiteRecords:
        """Return the records this site trains on, read once."""
        key = repr((agreement.encoding, agreement.dtype, agreement.group_column))
        if self._loaded is None or self._loaded[0] != key:
            try:
                records = self._load(agreement)
            except Diff2Error as error:
                self._log(f"the records cannot be read: {error}")
                raise Refusal("the site's records cannot be used as agreed; see its site.log") from None
            self._loaded = (key, records)
        records = self._loaded[1]
        poisson = agreement.algorithm.adjacency == ADD_OR_REMOVE_ONE and self.policy.reported_size is not None
        if not poisson and records.client.size < max(self.policy.smallest_size, self.policy.reported_size or 1):
            raise Refusal("the site has fewer records than its policy requires")
        return records if self.policy.reported_size is None else records.first(self.policy.reported_size)

    def _source(self, run: str, seed: int | None, new: bool) -> NoiseSource:
        """Return the source of batches, masks and noise: a secret of the site's own, unless the run is seeded."""
        if seed is not None:
            return NoiseSource.from_seed(seed)
        path = self._key_path(run)
        if new:
            # A key that is there already belongs to a run the ledger does not know: its noise may have been used.
            path.unlink(missing_ok=True)
            write_whole(path, secrets.token_bytes(KEY_BYTES), secret=True)
        if not path.exists() or path.stat().st_size != KEY_BYTES:
            raise Refusal("the site has lost the key of this run, so it cannot be resumed; start a new run")
        return NoiseSource(path.read_bytes(), private=True)

    def _key_path(self, run: str) -> Path:
        return self._directory / f"{run}.key"


def site_from_file(name: str, file: SiteFile) -> Site:
    """Return the site that a site.toml describes."""
    keys = None if file.keys is None else SiteKeys.load(file.keys)
    return Site(name, lambda agreement: load_records(file, agreement), file.policy, file.directory, keys)


def _agreement(message: Message) -> Agreement:
    try:
        return read_agreement(message.fields.get("agreement"))
    except InvalidArgument as error:
        raise Refusal(f"the agreement cannot be accepted: {error}") from None
