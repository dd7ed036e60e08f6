"""A site: it holds its own records, answers questions about them with clipped sums, and trusts nobody.

The site clips, not the server. It answers a question only if the question belongs to an agreement that somebody at the
site approved and its policy allows, is well-formed, has a radius within the agreed rule, and was not answered before
with other content. Refusals are reported to both sides and recorded. Formal guarantee: ``answer`` returns nothing but
a description that the policy allows, sums that ``ClientSums`` has clipped, or a refusal, whatever bytes it is given;
and for tables of equal size that hold the agreed columns, all but the sums is the same, whatever the records are.
"""

import contextlib
import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..._version import __version__
from ...errors import InvalidArgument
from ...training.directory import records_tag
from ..agreement import AnyAgreement, read_agreement
from ..among_sites import Column
from ..faults import BadMessage, CannotWrite, Refusal
from ..sealed.keys import MODEL, NO_KEYS, SEALED, SiteKeys, sealed_answer, store_model
from ..wire.messages import Message, digest, read, refusal, write
from ..wire.request import ASK, CLOSE, CLOSED, DESCRIBE, DESCRIPTION, OPEN, OPENED
from ..wire.transport import NOBODY, Caller
from .approval import approve, approved, require_approved
from .ledger import Answer, RunLine, SiteLedger
from .open_fit import OpenFit
from .open_run import OpenRun
from .opening import RUN_ID, opened_run, stated
from .policy import Policy, SiteFile
from .records import Holdings, SiteRecords, key_path, load_records, run_source
from .table_records import TableRecords

LOG = logging.getLogger("diff2.site")


class Site:
    """One site of a federation."""

    _lock = threading.Lock()  # shared by all sites in a process, as is PyTorch's generator, which dropout draws from

    def __init__(
        self,
        name: str,
        load: Callable[[AnyAgreement], SiteRecords | TableRecords],
        policy: Policy,
        directory: Path,
        keys: SiteKeys | None = None,
        columns: Mapping[str, Column] | None = None,
    ):
        """Take part as ``name``.

        Args:
            load: returns the records, encoded for an agreement.
            directory: keeps the ledger, what was approved, and the keys of unfinished runs.
            keys: the secret that all sites share, for sealed runs.
            columns: what columns mean at this site, by their agreed names.
        """
        self._columns = dict(columns or {})
        self.keys = keys
        self.name = name
        self.policy = policy
        self.ledger = SiteLedger(directory / "ledger.jsonl", name)
        self._holdings = Holdings(load, policy, self._log)
        self._directory = directory
        self._runs: dict[str, OpenRun | OpenFit] = {}
        self._last: tuple[str, bytes] = ("", b"")  # digest of the last request, and its answer

    def approve(self, agreement: AnyAgreement) -> None:
        """Take part in runs of exactly this agreement, as far as the policy allows."""
        approve(self._directory, agreement)

    def require_approved(self, agreement: AnyAgreement) -> None:
        """Refuse an agreement that nobody here approved, or that exceeds a limit. No record is read."""
        require_approved(self._directory, self.policy, self._columns, agreement)

    def answer(self, payload: bytes, caller: Caller = NOBODY) -> bytes:
        """Return the answer to a request, or a refusal, whatever the bytes are and whatever happens here."""
        return self._recorded(caller, lambda: self._answer(payload))

    def refused(self, error: Exception, caller: Caller = NOBODY) -> bytes:
        """Record that this site does not coordinate a run, and return the refusal."""
        agreement = getattr(error, "agreement", None)
        return self._recorded(caller, lambda: self._refused("", f"as coordinator: {error}", agreement))

    def _recorded(self, caller: Caller, answer: Callable[[], bytes]) -> bytes:
        try:
            with self._lock, self.ledger.exclusive(caller):
                return answer()
        except CannotWrite as error:
            reason = f"an error at the site: {error}"
        except Exception:
            self._log(traceback.format_exc())
            reason = "an error at the site: its ledger cannot be read or is in use; see its site.log"
        LOG.warning("site %s: %s", self.name, reason)
        return refusal(f"site {self.name!r}: {reason}")

    def _answer(self, payload: bytes) -> bytes:
        run = ""
        try:
            message = read(payload)
            run = str(message.fields.get("run", ""))[:32]
            return self._answered(message, payload)
        except (Refusal, BadMessage) as error:
            return self._refused(run, str(error), getattr(error, "agreement", None))
        except CannotWrite:
            raise
        except Exception:
            self._log(traceback.format_exc())
            return self._refused(run, "an error at the site; see its site.log")

    def _log(self, text: str) -> None:
        """Log what may quote records to a file of the site's own: FLARE can send its logs to the server."""
        with (
            contextlib.suppress(OSError),
            open(self._directory / "site.log", "a", encoding="utf-8", opener=_secret) as file,
        ):
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text.rstrip()}\n")

    def _refused(self, run: str, reason: str, agreement: AnyAgreement | None = None) -> bytes:
        LOG.warning("site %s refused: %s", self.name, reason)
        self.ledger.refuse(
            run if RUN_ID.fullmatch(run) else "", reason, None if agreement is None else agreement.to_json()
        )
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
        return self._once(run, run.read(message, sealed=sealed), run.identity(message, payload))

    def _describe(self, message: Message) -> Message:
        agreement = self._agreement(message)
        records = self._holdings.records(agreement)
        size, exact = self._holdings.size(agreement), self.policy.reported_size is None
        fields = {"site": self.name, "size": size, "exact": exact, "version": __version__}
        if isinstance(records, TableRecords):
            fields["records"] = records.records
        return Message(DESCRIPTION, fields)

    def _agreement(self, message: Message) -> AnyAgreement:
        """Return the agreement in a message, if this site takes part in it."""
        try:
            agreement = read_agreement(message.fields.get("agreement"))
        except InvalidArgument as error:
            raise Refusal(f"the agreement cannot be accepted: {error}") from None
        self.require_approved(agreement)
        return agreement

    def _open(self, message: Message) -> Message:
        agreement = self._agreement(message)
        by_name = approved(self._directory, agreement)
        run, sites, plan = stated(message, agreement, self.name, self.policy, by_name=by_name)
        index, records = sites.index(self.name), self._holdings.records(agreement)
        if plan.client_sizes[index] != self._holdings.size(agreement):
            raise Refusal("the size stated for this site is not the one it reported")
        if agreement.trust.sealed and self.keys is None:
            raise Refusal(NO_KEYS)
        known = self.ledger.runs.get(run)
        if run in self.ledger.ended:
            raise Refusal("the run is complete; it cannot be opened again")
        self._require_affordable(run, agreement)
        source = run_source(self._directory, run, agreement.run.seed, new=known is None)
        opened = opened_run(agreement, plan, index, records, source, message.fields.get("records"))
        if opened.engine != message.fields.get("engine"):
            raise Refusal(
                f"this site computes gradients with the engine {opened.engine!r}, the server expects "
                f"{message.fields.get('engine')!r}; the bytes would differ. Install the same versions and extras"
            )
        epsilon = agreement.privacy.epsilon if agreement.run.seed is None else float("inf")
        tag = records_tag(source.key, [records.parts]).hex()
        line = RunLine(
            run, agreement.digest, agreement.method, epsilon, agreement.privacy.delta, sites, plan.client_sizes,
            tag, opened.threads, agreement.to_json(),
        )  # fmt: skip
        if known is not None and known._replace(terms={}) != line._replace(terms={}):
            changed = [name for name in RunLine._fields[:-1] if getattr(known, name) != getattr(line, name)]
            raise Refusal(f"the run was agreed to with other {' and '.join(changed)}; restore that, or start a new run")
        self._runs = {run: opened}  # one run at a time
        if known is None:
            self.ledger.agree(line)
        LOG.info("site %s takes part in run %s with %d records", self.name, run, plan.client_sizes[index])
        shared = {"keys": self.keys.fingerprint} if self.keys is not None and agreement.trust.sealed else {}
        return Message(OPENED, {"run": run, "site": self.name, "key": source.bytes(16, "fingerprint").hex(), **shared})

    def _require_affordable(self, run: str, agreement: AnyAgreement) -> None:
        """Refuse a run that was not answered yet, hence cost nothing, and would now exceed the policy's total."""
        if not self.ledger.charged(run):
            self.policy.check_total(agreement, self.ledger.epsilon, self.ledger.delta)

    def _close(self, run: str) -> Message:
        self.ledger.end(run)
        self._runs.pop(run, None)
        key_path(self._directory, run).unlink(missing_ok=True)
        return Message(CLOSED, {"run": run, "site": self.name})

    def _once(self, run: OpenRun | OpenFit, request: Any, sent: str) -> bytes:
        """Return an answer: a repeated request, by its digest, gets the same bytes, a changed one is refused."""
        name = request.run
        known = self.ledger.answered(name, request.label)
        if known is not None and known.request != sent:
            raise Refusal(
                f"{request}, was answered already, for a request with other content; a second answer would be a second "
                "release"
            )
        if self._last[0] == sent:
            return self._last[1]
        self._require_affordable(name, run.agreement)
        message, release, leaf = run.answer(request, sent, self.ledger.runs[name].sites, self.ledger.answers(name))
        answer = write(message)
        if known is None:
            line = Answer(name, release, request.label[2], request.multiplier, sent, digest(answer), leaf)
            self.ledger.record(line)
        elif known.answer != digest(answer):
            raise Refusal(
                f"{request}, was answered before and would now come out differently (another machine, or another "
                "version?); start a new run"
            )
        self._last = (sent, answer)
        return answer


def site_from_file(name: str, file: SiteFile) -> Site:
    """Return the site that a site.toml describes."""
    keys = None if file.keys is None else SiteKeys.load(file.keys)
    columns = file.data.columns
    return Site(name, lambda agreement: load_records(file, agreement), file.policy, file.directory, keys, columns)


def _secret(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
