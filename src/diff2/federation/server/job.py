"""A job on the server: start or resume a run over sites, report its progress, and save its files."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

from ..._files import locked, write_json
from ...errors import InvalidArgument
from ...fitting.model import FittedModel
from ...privacy import Ledger
from ...runfile.run import described_model
from ...training.loop import Callback, RoundInfo, Training, TrainState
from ...training.result import TrainResult
from ..agreement import Agreement, AnyAgreement, read_agreement
from ..faults import SitesMissing
from ..fit_agreement import FitAgreement
from ..sealed.cohort import distribute_model
from ..sealed.keys import SiteKeys
from ..wire.cohort import Exchange
from ..wire.transport import Transport
from . import PROGRESS
from .fit import fit_at_sites
from .outcome import outcome_of
from .run import close_at_sites, close_run, prepare_at_sites, recorded_run

RESULT = "result.json"
PAUSE = 0.5  # seconds between two progress reports
PATIENCE = 30.0  # seconds to wait for the process of an earlier job to end
CLOSING = 10.0  # seconds a site has to confirm the end of the run


@dataclass(frozen=True)
class JobSpec:
    """What a job has to do.

    Args:
        directory: of the run, on the server.
        timeout: seconds a site has for an answer.
    """

    agreement: AnyAgreement
    directory: Path
    timeout: float = 60.0

    @property
    def sites(self) -> tuple[str, ...]:
        """The clients of the run, in this order."""
        return self.agreement.sites

    @property
    def required_sites(self) -> int:
        """How many sites must be connected for the run to start."""
        return self.agreement.required_sites

    def to_text(self) -> str:
        """Return JSON text."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        fields |= {"agreement": self.agreement.to_json(), "directory": str(self.directory)}
        return json.dumps(fields, sort_keys=True)


def read_job_spec(text: str) -> JobSpec:
    """Read what :meth:`JobSpec.to_text` wrote."""
    try:
        fields = json.loads(text)
        agreement = read_agreement(fields.pop("agreement"))
        return JobSpec(agreement, Path(fields.pop("directory")), **fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgument(f"the job description is damaged ({error!r})") from None


def run_job(spec: JobSpec, transport: Transport, keys: SiteKeys | None = None) -> TrainResult | FittedModel:
    """Start the run, or resume it; write progress, outcome, model, history and result to its directory.

    Args:
        keys: of a sealed run, at its coordinator site; ``transport`` must then be able to add.
    """
    with locked(spec.directory / "lock", f"the run in {spec.directory}", patience=PATIENCE):
        with outcome_of(spec.directory) as outcome:
            result: TrainResult | FittedModel
            if isinstance(spec.agreement, FitAgreement):
                if keys is not None:
                    raise InvalidArgument("a fit is not sealed; the server coordinates it")
                result, not_notified = _fit(spec, spec.agreement, transport)
            else:
                result, not_notified = _train(spec, spec.agreement, transport, keys)
            outcome |= {"state": "done", "epsilon": result.epsilon, "not_notified": not_notified}
        return result


def _train(
    spec: JobSpec, agreement: Agreement, transport: Transport, keys: SiteKeys | None
) -> tuple[TrainResult, list[str]]:
    progress, closing = Progress(spec, agreement.rounds), min(CLOSING, spec.timeout)
    training = prepare_at_sites(
        agreement,
        transport,
        _sites_of(spec, transport),
        timeout=spec.timeout,
        directory=spec.directory,
        resume=True,
        watch=progress.count,
        strict=agreement.privacy.strict,
        keys=keys,
    )
    result = training.run(callbacks=[progress.callback(training)], progress=False)
    _save(spec, agreement, training, result)
    if keys is not None:
        distribute_model(training, result.params, transport, keys, closing)
    return result, close_run(training, transport, closing)


def _fit(spec: JobSpec, agreement: FitAgreement, transport: Transport) -> tuple[FittedModel, list[str]]:
    progress, began, sites = Progress(spec, 100), time.monotonic(), _sites_of(spec, transport)
    model, census = fit_at_sites(
        agreement,
        transport,
        sites,
        timeout=spec.timeout,
        directory=spec.directory,
        watch=progress.count,
        progress=progress.of_budget,
    )
    progress.of_budget(1.0, "")
    name, guarantee = (recorded_run(spec.directory) or ("",))[0], model.guarantee
    document = {
        "clients": [{"name": site, "records": count} for site, count in zip(sites, census.records, strict=True)],
        "run": name,
        "rounds": len(model.ledger.releases),
        "seconds": time.monotonic() - began,
        "epsilon": guarantee.epsilon,
        "guarantee": guarantee.to_json(),
        "health": None if model.health is None else model.health.to_json(),
    }
    write_json(spec.directory / RESULT, document)
    return model, close_at_sites(name, sites, transport, min(CLOSING, spec.timeout))


class Progress:
    """Writes the progress of a run to a file: rounds, sites, epsilon, time. Of a fit, rounds are hundredths."""

    def __init__(self, spec: JobSpec, rounds: int):
        self._path = spec.directory / PROGRESS
        self._rounds = rounds
        self._percent: int | None = None  # of the budget of a fit
        self._sites: dict[str, int] = dict.fromkeys(spec.sites, 0)  # the last round each site answered in
        self._totals = {"seconds_asking": 0.0, "bytes_sent": 0, "bytes_received": 0}
        self._last = 0.0
        self._began: tuple[float, int] | None = None

    def count(self, exchange: Exchange) -> None:
        """Count an exchange with the sites."""
        self._sites |= dict.fromkeys(exchange.sites, exchange.round if self._percent is None else self._percent)
        new = {"seconds_asking": exchange.seconds, "bytes_sent": exchange.sent, "bytes_received": exchange.received}
        self._totals = {name: total + new[name] for name, total in self._totals.items()}

    def of_budget(self, spent: float, purpose: str) -> None:
        """Take in what a fit has spent; what its releases cost together is not computed while it runs."""
        now, self._percent = time.monotonic(), min(100, round(100 * spent))
        self._began = self._began or (now, self._percent)
        if now - self._last > PAUSE or self._percent == self._rounds:
            self._write(self._percent, None, now)
            self._last = now

    def callback(self, training: Training) -> Callback:
        """Return the function that the training calls after each round."""

        def after_round(state: TrainState, info: RoundInfo) -> None:
            now = time.monotonic()
            if self._began is None:
                self._began = (now - info.seconds, state.round - 1)
            if now - self._last > PAUSE or state.round == self._rounds:
                self._write(state.round, training.mechanism.ledger, now)
                self._last = time.monotonic() + 20 * (time.monotonic() - now)  # pricing may take a while

        return after_round

    def _write(self, round: int, ledger: Ledger | None, now: float) -> None:
        began, before = self._began or (now, round)
        pace = (now - began) / max(1, round - before)
        fields = {
            "round": round,
            "rounds": self._rounds,
            "unit": "rounds" if self._percent is None else "% of the budget",
            "sites": self._sites,
            "epsilon": None if ledger is None else ledger.released_epsilon(),  # so far; no guarantee
            "seconds_per_round": pace,
            "seconds_left": pace * (self._rounds - round),
            **self._totals,
        }
        write_json(self._path, fields)


def _sites_of(spec: JobSpec, transport: Transport) -> tuple[str, ...]:
    """Return the sites of the run: those it started with or, at the start, those that are connected."""
    known = recorded_run(spec.directory)
    if known is not None:
        return known[1]
    members = transport.members()
    present = tuple(site for site in spec.sites if site in members)
    if len(present) < spec.required_sites:
        missing = [site for site in spec.sites if site not in members]
        raise SitesMissing(
            f"{len(present)} of {len(spec.sites)} sites are connected, at least {spec.required_sites} are required; "
            f"missing: {', '.join(map(repr, missing))}. Start them and try again"
        )
    return present


def _save(spec: JobSpec, agreement: Agreement, training: Training, result: TrainResult) -> None:
    settings, sizes = training.directory.settings, result.plan.client_sizes
    clients = [{"name": name, "records": size} for name, size in zip(settings["sites"], sizes, strict=True)]
    described = described_model(agreement.encoding, agreement.model, agreement.run)
    result.save(spec.directory, {"clients": clients, "run": settings["run"], **described})
