"""The server's side of a run: find the sites, agree with them, and train through a ``RemoteCohort``.

The run is kept in its directory, with the same ledger and checkpoint as any other run; the engine that carries the
messages may be restarted as often as needed.
"""

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from ..._files import AnyPath, write_json
from ..._validate import positive
from ...cohorts.draws import EXACT_SIZES
from ...data.scaling import described_columns
from ...errors import CheckpointError, InvalidArgument
from ...privacy import Mechanism
from ...privacy.release import ADD_OR_REMOVE_ONE
from ...training.arguments import declare_leaks
from ...training.build import build_training
from ...training.directory import RunDirectory, header, same_bytes
from ...training.loop import Training
from ..agreement import Agreement, AnyAgreement
from ..faults import BadAnswer, SitesMissing
from ..own_noise.cohort import OwnNoiseCohort, SitesMechanism
from ..own_noise.noise import check_trust
from ..sealed.cohort import Adder, SealedCohort
from ..sealed.keys import SiteKeys
from ..wire.cohort import Exchange, RemoteCohort, Sites
from ..wire.messages import Message, write
from ..wire.request import CLOSE, DESCRIBE, OPEN
from ..wire.transport import Transport

RUN_FILE = "federation.json"  # the name of the run, and its sites


def prepare_at_sites(
    agreement: Agreement,
    transport: Transport,
    sites: Sequence[str],
    *,
    timeout: float = 60.0,
    directory: AnyPath,
    resume: bool = False,
    watch: Callable[[Exchange], None] = lambda exchange: None,
    strict: bool = False,
    keys: SiteKeys | None = None,
) -> Training:
    """Agree with all sites and build the run; nothing is spent yet. Call :func:`close_run` when it is complete.

    Args:
        sites: the clients of the run, in this order. All must be connected, in every round.
        timeout: seconds a site has for an answer.
        directory: keeps ledger, checkpoint and the name of the run.
        resume: resume the run in ``directory``, or start it if there is none.
        watch: called after every exchange with the sites.
        keys: of a sealed run, at its coordinator site; ``transport`` must then be able to add.
    """
    if agreement.trust.sealed and keys is None:
        raise InvalidArgument("a sealed run is coordinated by one of the sites, which have the keys, not by the server")
    asked = Sites(transport, tuple(sites), timeout, watch)
    described = describe(asked, agreement)
    sizes = [size_of(site, described[site]) for site in sites]
    noise_plan = agreement.plan(sizes)
    engine, _ = agreement.build_engine()
    told = [EXACT_SIZES] if noise_plan.population.adjacency == ADD_OR_REMOVE_ONE and _exact(described) else []
    leaks = declare_leaks(agreement.privacy.budget, None, None, (*agreement.leaks, *told), strict)
    columns = described_columns(agreement.encoding, agreement.leaks)
    trust, name = trust_of(agreement, len(sites)), run_id(Path(directory), sites, resume)
    run = RunDirectory(
        directory,
        header=header(noise_plan, engine, agreement.run.seed, leaks, trust, columns=columns),
        settings={
            "loss": agreement.encoding.loss,
            "model": asdict(agreement.model),
            "sites": list(sites),
            "run": name,
            **same_bytes(engine, agreement.run.output),
        },
        seed=agreement.run.seed,
        resume=resume,
    )
    tag = b""
    if not run.complete:
        shared = keys if agreement.trust.sealed else None
        tag = opened_by(asked, agreement, keys=shared, run=name, sizes=sizes, engine=engine.name)
    ledger, place = run.open_ledger(tag), (asked, name, noise_plan.population, run.noise)
    if trust is None:
        cohort, mechanism = RemoteCohort(*place), Mechanism(ledger, run.noise)
    else:
        honest, adder = trust["min_honest_sites"], cast(Adder, transport)
        asking = OwnNoiseCohort(*place, honest) if keys is None else SealedCohort(*place, honest, adder, keys)
        cohort, mechanism = asking, SitesMechanism(asking, ledger, run.noise)
    return build_training(noise_plan, agreement.build_model(), engine, run, cohort, mechanism, agreement.run.output)


def describe(sites: Sites, agreement: AnyAgreement) -> Mapping[str, Message]:
    """Return what all sites say of themselves; refuse to start without one of them."""
    positive("timeout", sites.timeout)
    check_trust(agreement, len(sites.names))
    present = sites.transport.members()
    missing = [site for site in sites.names if site not in present]
    if missing:
        raise SitesMissing(
            f"{', '.join(map(repr, missing))} of the run's {len(sites.names)} sites are not connected; connected: "
            f"{', '.join(map(repr, present)) or 'none'}. Start them, then start or resume the run"
        )
    return sites.tell(DESCRIBE, {"agreement": agreement.to_json()})


def opened_by(sites: Sites, agreement: AnyAgreement, *, keys: SiteKeys | None = None, **stated: Any) -> bytes:
    """Have all sites open a run; return a hash of the fingerprints of their keys, each bound to the site's records.

    A site that lost its ledger takes a new key, so the run is not resumed. Sites whose keys for sealing are not the
    coordinator's are refused.
    """
    opened = sites.tell(OPEN, {"agreement": agreement.to_json(), "sites": list(sites.names), **stated})
    for site in sites.names:
        if keys is not None and opened[site].fields.get("keys") != keys.fingerprint:
            raise BadAnswer(f"site {site!r} has other keys than the coordinator; give all sites the same file")
    tags = [str(opened[site].fields.get("key")) for site in sites.names]
    return hashlib.sha256("\n".join(tags).encode()).digest()


def close_run(training: Training, transport: Transport, timeout: float) -> list[str]:
    """Notify the sites that the run is complete; return those that could not be reached, which does no harm."""
    sites, run = (training.directory.settings[name] for name in ("sites", "run"))
    return close_at_sites(run, sites, transport, timeout)


def close_at_sites(run: str, sites: Sequence[str], transport: Transport, timeout: float) -> list[str]:
    """Do the same for a run by its name."""
    replies = transport.broadcast(write(Message(CLOSE, {"run": run})), sites, timeout)
    return [site for site in sites if site not in replies.answers]


def trust_of(agreement: AnyAgreement, sites: int) -> dict[str, Any] | None:
    """Return who adds the noise, for the ledger; None where the server does."""
    trust = agreement.trust
    if trust.noise == "server":
        return None
    return {**asdict(trust), "sites": sites, "min_honest_sites": trust.honest_of(sites)}


def size_of(site: str, description: Message, what: str = "size") -> int:
    """Return a number of records, or of units, as a site states it."""
    size = description.fields.get(what)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1 or description.fields.get("site") != site:
        raise BadAnswer(f"site {site!r} does not describe itself correctly")
    return size


def _exact(described: Mapping[str, Message]) -> bool:
    """Whether a site reports the exact number of its records: it states no ``reported_size`` of its own."""
    return any(message.fields.get("exact") is not False for message in described.values())


def recorded_run(directory: Path) -> tuple[str, tuple[str, ...]] | None:
    """Return the name and the sites of the run in a directory, if there is one."""
    path = directory / RUN_FILE
    if not path.exists():
        return None
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return str(fields["run"]), tuple(map(str, fields["sites"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} is damaged ({error!r}); restore it, or start a new run in another directory"
        ) from None


def run_id(directory: Path, sites: Sequence[str], resume: bool) -> str:
    """Return the random identifier of the run, which is kept in its directory."""
    known = recorded_run(directory)
    if known is not None:
        if not resume:
            raise CheckpointError(f"{directory} holds a run: resume it (resume=True), or choose another directory")
        if known[1] != tuple(sites):
            raise CheckpointError(
                f"the run in {directory} has the sites {list(known[1])}, not {list(sites)}; its noise is for those"
            )
        return known[0]
    directory.mkdir(parents=True, exist_ok=True)
    name = secrets.token_hex(16)
    write_json(directory / RUN_FILE, {"run": name, "sites": list(sites)})
    return name
