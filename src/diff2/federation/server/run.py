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
from typing import Any

from ..._files import AnyPath, write_json
from ..._validate import positive
from ...cohorts.slots import EXACT_SIZES
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
from ..sealed.cohort import SealedCohort
from ..sealed.keys import SiteKeys
from ..wire.cohort import Exchange, RemoteCohort, read_answers
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
    positive("timeout", timeout)
    check_trust(agreement, len(sites))
    require_members(transport, sites)
    agreed = {"agreement": agreement.to_json()}
    described = asked(transport, Message(DESCRIBE, agreed), sites, timeout)
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
        fields = {**agreed, "run": name, "sites": list(sites), "sizes": sizes, "engine": engine.name}
        opened = asked(transport, Message(OPEN, fields), sites, timeout)
        tag = sites_tag(sites, opened, keys if agreement.trust.sealed else None)
    ledger = run.open_ledger(tag)
    place: dict[str, Any] = {"transport": transport, "sites": tuple(sites), "run": name, "timeout": timeout}
    place |= {"population": noise_plan.population, "source": run.noise, "watch": watch}
    if trust is None:
        cohort, mechanism = RemoteCohort(**place), Mechanism(ledger, run.noise)
    else:
        place["honest"] = trust["min_honest_sites"]
        asking = OwnNoiseCohort(**place) if keys is None else SealedCohort(**place, keys=keys)
        cohort, mechanism = asking, SitesMechanism(asking, ledger, run.noise)
    return build_training(noise_plan, agreement.build_model(), engine, run, cohort, mechanism, agreement.run.output)


def asked(transport: Transport, message: Message, sites: Sequence[str], timeout: float) -> Mapping[str, Message]:
    """Return what all sites answer."""
    return read_answers(transport.broadcast(write(message), sites, timeout), sites, timeout)


def sites_tag(sites: Sequence[str], opened: Mapping[str, Message], keys: SiteKeys | None = None) -> bytes:
    """Return a hash of the fingerprints of the sites' keys, each of which is bound to the records of its site.

    A site that lost its ledger takes a new key, so the run is not resumed. Sites whose keys for sealing are not the
    coordinator's are refused.
    """
    for site in sites:
        if keys is not None and opened[site].fields.get("keys") != keys.fingerprint:
            raise BadAnswer(f"site {site!r} has other keys than the coordinator; give all sites the same file")
    tags = [str(opened[site].fields.get("key")) for site in sites]
    return hashlib.sha256("\n".join(tags).encode()).digest()


def close_run(training: Training, transport: Transport, timeout: float) -> list[str]:
    """Notify the sites that the run is complete; return those that could not be reached, which does no harm."""
    sites, run = (training.directory.settings[name] for name in ("sites", "run"))
    return close_at_sites(run, sites, transport, timeout)


def close_at_sites(run: str, sites: Sequence[str], transport: Transport, timeout: float) -> list[str]:
    """Do the same for a run by its name."""
    replies = transport.broadcast(write(Message(CLOSE, {"run": run})), sites, timeout)
    return [site for site in sites if site not in replies.answers]


def require_members(transport: Transport, sites: Sequence[str]) -> None:
    """Refuse to start without all sites of the run."""
    present = transport.members()
    missing = [site for site in sites if site not in present]
    if missing:
        raise SitesMissing(
            f"{', '.join(map(repr, missing))} of the run's {len(sites)} sites are not connected; connected: "
            f"{', '.join(map(repr, present)) or 'none'}. Start them, then start or resume the run"
        )


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
