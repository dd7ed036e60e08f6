"""A site: it holds its own records, answers questions about them with clipped sums, and defends itself.

The site clips, not the server. It answers a question only if the question belongs to an agreement that its policy
allows, is well-formed, has a radius within the agreed formula, and was not answered before with other content. What it
refuses, it says to both sides, and writes down. Formal guarantee: ``answer`` returns nothing but a description that the
policy allows, sums that ``ClientSums`` has clipped, or a refusal; whatever bytes it is given.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..._version import __version__
from ...cohorts.per_client import ClientSums
from ...errors import Diff2Error, InvalidArgument
from ...planning import Plan
from ...privacy import NoiseSource, Release
from ...privacy.noise import KEY_BYTES
from ...privacy.release import NONE
from ...questions import Population
from ...training.directory import records_tag
from ..agreement import Agreement, read_agreement
from ..faults import BadMessage, Refusal
from ..own_noise.noise import LARGEST, SiteNoise, check_trust
from ..sealed.keys import LARGEST as LARGEST_SEALED
from ..sealed.keys import MODEL, SEALED, SiteKeys, sealed_answer, take_model
from ..wire.messages import Message, digest, read, refusal, write
from ..wire.request import (
    ANSWER,
    ASK,
    CLOSE,
    CLOSED,
    DESCRIBE,
    DESCRIPTION,
    OPEN,
    OPENED,
    Request,
    as_array,
    read_request,
    whole_number,
)
from .declared import require_declared
from .ledger import Answer, RunLine, SiteLedger
from .policy import Policy, SiteFile
from .records import SiteRecords, load_records

LOG = logging.getLogger("diff2.site")
RUN_ID = re.compile(r"[0-9a-f]{32}")


class _OpenRun(NamedTuple):
    """A run this site takes part in."""

    agreement: Agreement
    population: Population
    client: int  # which of the clients this site is
    sums: ClientSums
    dimension: int
    noise: SiteNoise | None = None  # of this site, where it adds its own


class Site:
    """One owner's side of a federation."""

    _lock = threading.Lock()  # of all sites in a process: PyTorch's generator, which dropout draws from, is shared

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
            load: returns the records, encoded as an agreement says.
            directory: keeps the ledger and the keys of unfinished runs.
            keys: what the sites have in common, where the server may see ciphertexts only.
        """
        self._keys = keys
        self.name = name
        self.policy = policy
        self.ledger = SiteLedger(directory / "ledger.jsonl", name)
        self._load = load
        self._directory = directory
        self._runs: dict[str, _OpenRun] = {}
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
                self._note(traceback.format_exc())
                return self._refused(run, "an error at the site; its site.log says which")

    def _note(self, text: str) -> None:
        """Write down what may speak of records: in a file of the site's own, for FLARE can send its logs away."""
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
            raise Refusal("the question belongs to no run that this site has agreed to")
        return run

    def _sealed(self, message: Message, payload: bytes) -> bytes:
        """Answer what only sites can read; why it is refused, only the site's own ledger says."""

        def ask(inner: Message, content: bytes) -> bytes:
            if inner.kind == MODEL:
                return write(take_model(inner, self._known(inner), self._directory))
            return self._ask(inner, content, sealed=True)

        try:
            return sealed_answer(self._keys, self.name, message, payload, ask)
        except (Refusal, BadMessage) as error:
            self._refused("", str(error))
            return refusal(f"site {self.name!r}: a sealed question is declined; the site's own ledger says why")

    def _ask(self, message: Message, payload: bytes, *, sealed: bool) -> bytes:
        """Answer a request of an open run: with a clipped sum, or with this site's part of a release and its noise."""
        name = self._known(message)
        if message.kind != ASK:
            raise BadMessage(f"a request of kind {message.kind!r}")
        if name in self.ledger.ended:
            raise Refusal("the run is complete; no further question of it is answered")
        if name not in self._runs:
            raise Refusal("the run is not open; open it first")
        run = self._runs[name]
        if run.agreement.trust.sealed != sealed:
            raise Refusal(
                "in this run questions and answers are sealed" if not sealed else "in this run nothing is sealed"
            )
        request = read_request(message, run.dimension, run.agreement.dtype)
        if bool(request.multiplier) != (run.noise is not None):
            who = "the server adds" if request.multiplier else "the sites add"
            raise Refusal(f"{request} is not answered: in this run {who} the noise")
        for _, question in request.parts:
            require_declared(run.agreement.algorithm, run.population, run.client, question)
        return self._once(run, request, payload)

    def _describe(self, message: Message) -> Message:
        agreement = _agreement(message)
        self.policy.check(agreement)
        records = self._records(agreement)
        return Message(DESCRIPTION, {"site": self.name, "size": records.client.size, "version": __version__})

    def _open(self, message: Message) -> Message:
        fields, agreement = message.fields, _agreement(message)
        run, sites, sizes = fields.get("run"), fields.get("sites"), fields.get("sizes")
        if not isinstance(run, str) or not RUN_ID.fullmatch(run):
            raise BadMessage("expected run to be 32 hexadecimal digits")
        if not isinstance(sites, list) or not isinstance(sizes, list) or len(sites) != len(sizes):
            raise BadMessage("expected sites and sizes to be lists of the same length")
        if sites.count(self.name) != 1:
            raise Refusal("this site is not among the sites of the run")
        counts = [whole_number({"size": size}, "size") for size in sizes]
        try:
            plan = agreement.plan(counts)
            check_trust(agreement, len(sites))
        except Diff2Error as error:
            raise Refusal(f"the agreement cannot be accepted: {error}") from None
        population = plan.population
        index, records = sites.index(self.name), self._records(agreement)
        if population.sizes[index] != records.client.size:
            raise Refusal("the size stated for this site is not the one it told")
        if agreement.trust.sealed and self._keys is None:
            raise Refusal("this site has no keys of sealed runs; name them in its site.toml: [site] keys = '...'")
        known = self.ledger.runs.get(run)
        if run in self.ledger.ended:
            raise Refusal("the run is complete; it cannot be opened again")
        if known is None:
            self.policy.check_total(agreement, self.ledger.epsilon, self.ledger.delta)
        source = self._source(run, agreement.run.seed, known is None)
        engaged = self._engaged(agreement, plan, index, records, source)
        line = RunLine(
            run, agreement.digest, agreement.algorithm.name,
            agreement.privacy.epsilon if agreement.run.seed is None else float("inf"), agreement.privacy.delta,
            tuple(map(str, sites)), population.sizes,
            records_tag(source.key, [records.parts]).hex(),
        )  # fmt: skip
        if known is not None and known != line:
            changed = [name for name in RunLine._fields if getattr(known, name) != getattr(line, name)]
            raise Refusal(f"the run was agreed to with other {' and '.join(changed)}; start a new run")
        self._runs = {run: engaged}  # one run at a time
        if known is None:
            self.ledger.agree(line)
        LOG.info("site %s takes part in run %s with %d records", self.name, run, records.client.size)
        shared = {"keys": self._keys.fingerprint} if self._keys is not None and agreement.trust.sealed else {}
        return Message(OPENED, {"run": run, "site": self.name, "records": line.records, **shared})

    def _engaged(
        self, agreement: Agreement, plan: Plan, index: int, records: SiteRecords, source: NoiseSource
    ) -> _OpenRun:
        engine, stochastic = agreement.build_engine()
        sums = ClientSums(
            engine, records.client, index, plan.population, source=source, stochastic=stochastic, groups=records.groups
        )
        noise = None
        if agreement.trust.noise == "sites":
            largest = LARGEST_SEALED if agreement.trust.sealed else LARGEST
            noise = SiteNoise(plan, agreement.trust.honest_of(len(plan.client_sizes)), index, sums, source, largest)
        return _OpenRun(agreement, plan.population, index, sums, len(engine.flat), noise)

    def _close(self, run: str) -> Message:
        self.ledger.end(run)
        self._runs.pop(run, None)
        self._key_path(run).unlink(missing_ok=True)
        return Message(CLOSED, {"run": run, "site": self.name})

    def _once(self, run: _OpenRun, request: Request, payload: bytes) -> bytes:
        """Return an answer: the same request gets the same bytes, a changed one none."""
        name, sent = request.run, digest(payload)
        known = self.ledger.answered(name, request.label)
        if known is not None and known.request != sent:
            raise Refusal(
                f"{request}, was answered already, to a question with other content; a second answer would be a second "
                "release"
            )
        if self._last[0] == sent:
            return self._last[1]
        message, release = self._clipped(run, request, sent) if run.noise is None else self._noisy(run, request, sent)
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

    def _clipped(self, run: _OpenRun, request: Request, sent: str) -> tuple[Message, Release]:
        """Answer with the clipped sum, for the server to add the noise."""
        question, population = request.question, run.population
        drawn = question.batch.rate is not None
        count = None if drawn else population.count(run.client, question.batch, question.round)
        value = as_array(run.sums.answer(question))
        release = population.release(question, question.round)._replace(
            clip=question.radius, dimension=run.dimension, mechanism=NONE
        )
        return Message(ANSWER, {"request": sent, "count": count}, {"value": value}), release

    def _noisy(self, run: _OpenRun, request: Request, sent: str) -> tuple[Message, Release]:
        """Answer with this site's part of a release and its own noise."""
        if run.noise is None:
            raise Refusal("in this run the server adds the noise")
        found = run.noise.answer(request, self.ledger.answers(request.run))
        fields = {
            "request": sent,
            "grid": found.scale.grid,
            "noise_std": found.scale.site_std,
            "together": [self.ledger.runs[request.run].sites[p] for p in found.scale.clients],
        }
        return Message(ANSWER, fields, {"steps": found.steps}), found.release

    def _records(self, agreement: Agreement) -> SiteRecords:
        """Return the records this site trains on, read once."""
        key = repr((agreement.encoding, agreement.dtype, agreement.group_column))
        if self._loaded is None or self._loaded[0] != key:
            try:
                records = self._load(agreement)
            except Diff2Error as error:
                self._note(f"the records cannot be read: {error}")
                raise Refusal("the site's records cannot be used as agreed; its site.log says why") from None
            self._loaded = (key, records)
        records = self._loaded[1]
        if records.client.size < max(self.policy.smallest_size, self.policy.reported_size or 1):
            raise Refusal("the site has fewer records than its policy demands")
        return records if self.policy.reported_size is None else records.first(self.policy.reported_size)

    def _source(self, run: str, seed: int | None, new: bool) -> NoiseSource:
        """Return where batches and masks are drawn from: the site's own secret, unless the run is seeded."""
        if seed is not None:
            return NoiseSource.from_seed(seed)
        path = self._key_path(run)
        if new:
            path.unlink(missing_ok=True)  # of a run that the ledger does not know: its noise may have been used
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
        if not path.exists() or path.stat().st_size != KEY_BYTES:
            raise Refusal("the key of this run is gone from the site, so it cannot go on; start a new run")
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
