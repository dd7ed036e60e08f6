"""A job on the server: begin or go on with a run at sites, tell how far it is, and leave its files."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._files import locked, write_json
from ...errors import Diff2Error, InvalidArgument
from ...privacy import Ledger
from ...runfile.run import described_model
from ...training.loop import RoundInfo, Training, TrainState
from ...training.result import TrainResult
from ..agreement import Agreement, read_agreement
from ..faults import SitesMissing
from ..sealed.keys import SiteKeys
from ..sealed.lead import hand_over
from ..wire.transport import Transport
from .cohort import Exchange
from .run import close_run, prepare_at_sites, recorded_run

PROGRESS, OUTCOME = "progress.json", "outcome.json"
PAUSE = 0.5  # seconds between two lines of progress
PATIENCE = 30.0  # seconds to wait for a process of an earlier job that is about to end
CLOSING = 10.0  # seconds a site has to hear that the run is over


@dataclass(frozen=True)
class Order:
    """What the server is to do."""

    agreement: Agreement
    sites: tuple[str, ...]
    directory: Path
    timeout: float = 60.0
    minimum_sites: int | None = None

    def to_text(self) -> str:
        """Return the order as JSON text."""
        fields = {
            "agreement": self.agreement.to_json(),
            "sites": list(self.sites),
            "directory": str(self.directory),
            "timeout": self.timeout,
            "minimum_sites": self.minimum_sites,
        }
        return json.dumps(fields, sort_keys=True)


def read_order(text: str) -> Order:
    """Return what :meth:`Order.to_text` described."""
    try:
        fields = json.loads(text)
        agreement = read_agreement(fields.pop("agreement"))
        sites, directory = tuple(map(str, fields.pop("sites"))), Path(fields.pop("directory"))
        return Order(agreement, sites, directory, **fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgument(f"the order of the job is damaged ({error!r})") from None


def carry_out(order: Order, transport: Transport, keys: SiteKeys | None = None) -> TrainResult:
    """Begin the run, or go on with it; write progress, outcome, model, history and result to its directory.

    Args:
        keys: of a sealed run, at the site that leads it; ``transport`` must then be able to add.
    """
    with locked(order.directory / "lock", f"the run in {order.directory}", patience=PATIENCE):
        return _carried_out(order, transport, keys)


def _carried_out(order: Order, transport: Transport, keys: SiteKeys | None) -> TrainResult:
    progress = Progress(order)
    (order.directory / OUTCOME).unlink(missing_ok=True)
    try:
        training = prepare_at_sites(
            order.agreement,
            transport,
            _sites_of(order, transport),
            timeout=order.timeout,
            directory=order.directory,
            resume=True,
            watch=progress.heard,
            strict=order.agreement.privacy.strict,
            keys=keys,
        )
        result = training.run(callbacks=[progress.callback(training)], progress=False)
        _save(order, training, result)
        if keys is not None:
            hand_over(training, result.params, transport, keys, min(CLOSING, order.timeout))
        untold = close_run(training, transport, min(CLOSING, order.timeout))
    except Diff2Error as error:
        write_json(
            order.directory / OUTCOME, {"state": "stopped", "error": type(error).__name__, "message": str(error)}
        )
        raise
    write_json(order.directory / OUTCOME, {"state": "done", "epsilon": result.epsilon, "untold": untold})
    return result


class Progress:
    """Tells how far a run is, in a file that anyone on the server may read: rounds, sites, epsilon, time."""

    def __init__(self, order: Order):
        self._path = order.directory / PROGRESS
        self._rounds = order.agreement.algorithm.rounds
        self._heard: dict[str, int] = dict.fromkeys(order.sites, 0)  # the last round a site answered in
        self._asking = 0.0
        self._bytes = [0, 0]
        self._last = 0.0
        self._began: tuple[float, int] | None = None

    def heard(self, exchange: Exchange) -> None:
        """Take note of an exchange with the sites."""
        self._heard |= dict.fromkeys(exchange.sites, exchange.round)
        self._asking += exchange.seconds
        self._bytes = [self._bytes[0] + exchange.sent, self._bytes[1] + exchange.received]

    def callback(self, training: Training) -> Any:
        """Return what the training calls after each round."""

        def after(state: TrainState, info: RoundInfo) -> None:
            now = time.monotonic()
            if self._began is None:
                self._began = (now - info.seconds, state.round - 1)
            if now - self._last > PAUSE or state.round == self._rounds:
                self._write(state.round, training.mechanism.ledger, now)
                self._last = time.monotonic() + 20 * (time.monotonic() - now)  # pricing may take a while

        return after

    def _write(self, round: int, ledger: Ledger, now: float) -> None:
        began, before = self._began or (now, round)
        pace = (now - began) / max(1, round - before)
        fields = {
            "round": round,
            "rounds": self._rounds,
            "sites": self._heard,
            "epsilon": ledger.epsilon(),
            "seconds_per_round": pace,
            "seconds_left": pace * (self._rounds - round),
            "seconds_asking": self._asking,
            "bytes_sent": self._bytes[0],
            "bytes_received": self._bytes[1],
        }
        write_json(self._path, fields)


def _sites_of(order: Order, transport: Transport) -> tuple[str, ...]:
    """Return the sites of the run: those it began with, or, at the beginning, those that are there."""
    known = recorded_run(order.directory)
    if known is not None:
        return known[1]
    members = transport.members()
    present = tuple(site for site in order.sites if site in members)
    least = len(order.sites) if order.minimum_sites is None else order.minimum_sites
    if len(present) < least:
        missing = [site for site in order.sites if site not in members]
        raise SitesMissing(
            f"{len(present)} of {len(order.sites)} sites are there, at least {least} are needed; missing: "
            f"{', '.join(map(repr, missing))}. Start them and begin again"
        )
    return present


def _save(order: Order, training: Training, result: TrainResult) -> None:
    settings, sizes, agreement = training.directory.settings, result.plan.client_sizes, order.agreement
    clients = [{"name": name, "records": size} for name, size in zip(settings["sites"], sizes, strict=True)]
    described = described_model(agreement.encoding, agreement.model, agreement.run)
    result.save(order.directory, {"clients": clients, "run": settings["run"], **described})
