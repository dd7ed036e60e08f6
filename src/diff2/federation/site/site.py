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

import torch

from ..._version import __version__
from ...cohorts.per_client import ClientSums
from ...errors import Diff2Error, InvalidArgument
from ...gradients import build_engine
from ...models.losses import resolve_loss
from ...privacy import NoiseSource
from ...privacy.noise import KEY_BYTES
from ...questions.population import Population
from ...training import directory as checkpoints
from ..agreement import Agreement, read_agreement
from ..faults import BadMessage, Refusal
from ..own_noise.shares import SiteShares, computed, site_shares
from ..sealed.keys import MODEL, SEALED, SiteKeys, sealed_answer, take_model
from ..wire.messages import Message, digest, read, refusal, write
from ..wire.releases import RELEASE, read_release
from ..wire.requests import (
    ANSWER,
    CLOSE_RUN,
    CLOSED,
    DESCRIBE,
    DESCRIPTION,
    OPEN,
    OPENED,
    as_array,
    read_question,
    whole_number,
)
from .ledger import AnswerLine, Label, RunLine, SiteLedger
from .policy import Policy, SiteFile
from .questions import DIFFERENCE, GRADIENT, check_agreed
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
    shares: SiteShares | None = None  # the noise of this site, where it adds its own


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
            keys: what the sites share, where the server may see ciphertexts only.
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
        if message.kind == CLOSE_RUN:
            return write(self._close(self._known(message)))
        return self._question(message, payload, sealed=False)

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
            return self._question(inner, content, sealed=True)

        try:
            return sealed_answer(self._keys, self.name, message, payload, ask)
        except (Refusal, BadMessage) as error:
            self._refused("", str(error))
            return refusal(f"site {self.name!r}: a sealed question is declined; the site's own ledger says why")

    def _question(self, message: Message, payload: bytes, *, sealed: bool) -> bytes:
        run = self._known(message)
        if message.kind not in (GRADIENT, DIFFERENCE, RELEASE):
            raise BadMessage(f"a request of kind {message.kind!r}")
        if run in self.ledger.ended:
            raise Refusal("the run is complete; no further question of it is answered")
        if run not in self._runs:
            raise Refusal("the run is not open; open it first")
        if self._runs[run].agreement.trust.sealed != sealed:
            raise Refusal(
                "in this run questions and answers are sealed" if not sealed else "in this run nothing is sealed"
            )
        if (message.kind == RELEASE) != (self._runs[run].shares is not None):
            who = "the server adds" if message.kind == RELEASE else "the sites add"
            raise Refusal(f"a question of kind {message.kind!r} is not answered: in this run {who} the noise")
        answered = self._share if message.kind == RELEASE else self._sum
        return answered(self._runs[run], message, payload)

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
        population = Population(
            tuple(whole_number({"size": size}, "size") for size in sizes), agreement.run.weighting, agreement.unit,
            agreement.run.clients_per_round, agreement.run.client_order, agreement.algorithm.adjacency,
        )  # fmt: skip
        agreement.algorithm.check(population, agreement.privacy.budget.private)
        agreement.algorithm.routine.check(population, agreement.privacy.budget.private)
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
        engaged = self._engaged(run, agreement, population, index, records, source)
        line = RunLine(
            run, agreement.digest, agreement.algorithm.name,
            agreement.privacy.epsilon if agreement.run.seed is None else float("inf"), agreement.privacy.delta,
            tuple(map(str, sites)), population.sizes,
            checkpoints.records_tag(source.key, [records.parts]).hex(),
            0.0 if engaged.shares is None else engaged.shares.limit,
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
        self,
        run: str,
        agreement: Agreement,
        population: Population,
        index: int,
        records: SiteRecords,
        source: NoiseSource,
    ) -> _OpenRun:
        _, loss = resolve_loss(agreement.encoding.loss)
        client, grouped = records.client, records.owners is not None
        example = [part[:6].unsqueeze(1) for part in client] if grouped else list(client)
        engine, stochastic = build_engine(
            agreement.build_model(), loss, *example, dtype=agreement.dtype, device=torch.device("cpu"), grouped=grouped
        )
        sums = ClientSums(
            engine, client, index, population, source=source, stochastic=stochastic, owners=records.owners
        )  # fmt: skip
        shares = site_shares(agreement, population, index, sums, source, lambda: self.ledger.answers(run))
        return _OpenRun(agreement, population, index, sums, len(engine.flat), shares)

    def _close(self, run: str) -> Message:
        self.ledger.end(run)
        self._runs.pop(run, None)
        self._key_path(run).unlink(missing_ok=True)
        return Message(CLOSED, {"run": run, "site": self.name})

    def _sum(self, run: _OpenRun, message: Message, payload: bytes) -> bytes:
        asked = read_question(message, run.dimension, run.agreement.dtype)
        check_agreed(run.agreement.algorithm, run.population, run.client, asked)

        def answered(request: str) -> tuple[bytes, AnswerLine]:
            drawn = asked.batch.rate is not None
            count = None if drawn else run.population.count(run.client, asked.batch, asked.round)
            value = as_array(computed(run.sums, asked))
            answer = write(Message(ANSWER, {"request": request, "count": count}, {"value": value}))
            return answer, AnswerLine(asked.run, asked.round, asked.kind, asked.step, asked.radius, request, "")

        return self._once(asked.run, (asked.round, asked.kind, asked.step), payload, answered)

    def _share(self, run: _OpenRun, message: Message, payload: bytes) -> bytes:
        """Answer with this site's part of a release and its own noise."""
        asked, shares = read_release(message, run.dimension, run.agreement.dtype), run.shares
        if shares is None:
            raise Refusal("in this run the server adds the noise")
        for _, part in asked.parts:
            check_agreed(run.agreement.algorithm, run.population, run.client, part)

        def answered(request: str) -> tuple[bytes, AnswerLine]:
            fields: dict[str, object]
            share = shares.share(asked, request)
            fields = {"request": request, "grid": share.scale.grid, "noise_std": share.scale.share_std}
            fields |= {"together": [self.ledger.runs[asked.run].sites[p] for p in share.clients]}
            return write(Message(ANSWER, fields, {"steps": share.steps})), share.line

        return self._once(asked.run, (asked.round, asked.purpose, asked.step), payload, answered)

    def _once(
        self, run: str, label: Label, payload: bytes, answered: Callable[[str], tuple[bytes, AnswerLine]]
    ) -> bytes:
        """Return an answer: the same question gets the same bytes, a changed one none."""
        request = digest(payload)
        known, what = self.ledger.answered(run, label), f"the {label[1]} of round {label[0]}, step {label[2]},"
        if known is not None and known.request != request:
            raise Refusal(
                f"{what} was answered already, to a question with other content; a second answer would be a second "
                "release"
            )
        if self._last[0] == request:
            return self._last[1]
        answer, line = answered(request)
        if known is None:
            self.ledger.record(line._replace(answer=digest(answer)))
        elif known.answer != digest(answer):
            raise Refusal(
                f"{what} was answered before and would now come out differently (another machine, or another "
                "version?); start a new run"
            )
        self._last = (request, answer)
        return answer

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
        if records.client.size < max(self.policy.smallest_size, self.policy.told_size or 1):
            raise Refusal("the site has fewer records than its policy demands")
        return records if self.policy.told_size is None else records.first(self.policy.told_size)

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
