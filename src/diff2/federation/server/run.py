"""The server's side of a run: find the sites, agree, and train through a ``RemoteCohort``.

The run lives in its directory, with the same ledger and checkpoint as any other; the engine that carries the messages
may be restarted under it as often as needed.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..._validate import positive
from ...errors import CheckpointError, InvalidArgument
from ...gradients import build_engine
from ...models.losses import resolve_loss
from ...privacy import Ledger, Mechanism, NoiseSource
from ...training.assembly import assemble
from ...training.build import declare_leaks
from ...training.loop import Training
from ..agreement import Agreement
from ..faults import BadAnswer, SitesMissing
from ..own_noise.cohort import NoisyCohort, SharedNoise
from ..own_noise.shares import agreed_plan, check_trust
from ..sealed.keys import SiteKeys
from ..sealed.lead import SealedCohort
from ..wire.messages import Message, write
from ..wire.requests import CLOSE_RUN, DESCRIBE, OPEN
from ..wire.transport import Transport
from .cohort import Exchange, RemoteCohort, answers

RUN_FILE = "federation.json"  # the name of the run, and its sites


def prepare_at_sites(
    agreement: Agreement,
    transport: Transport,
    sites: Sequence[str],
    *,
    timeout: float = 60.0,
    directory: str | os.PathLike[str],
    resume: bool = False,
    watch: Callable[[Exchange], None] = lambda exchange: None,
    strict: bool = False,
    keys: SiteKeys | None = None,
) -> Training:
    """Agree with all sites and build the run; spend nothing yet. Use :func:`close_run` when it is done.

    Args:
        sites: the clients of the run, in this order. All must be there, in every round.
        timeout: seconds a site has for an answer.
        directory: keeps ledger, checkpoint and the name of the run.
        resume: go on with the run in ``directory``, or start it if there is none.
        watch: called after every exchange with the sites.
        keys: what the sites share, where this is the site that leads and ``transport`` can add ciphertexts.
    """
    if agreement.trust.sealed and keys is None:
        raise InvalidArgument("a sealed run is led by one of the sites, which have the keys, not by the server")
    positive("timeout", timeout)
    if agreement.run.metrics_every is not None:
        raise InvalidArgument("metrics_every computes exact values from all records; at sites that is not possible")
    check_trust(agreement, len(sites))
    require_members(transport, sites)
    told = {"agreement": agreement.to_json()}
    described = answers(
        transport.broadcast(write(Message(DESCRIBE, told)), sites, timeout), sites, timeout
    )  # fmt: skip
    sizes = [_size(site, described[site]) for site in sites]
    settings, privacy = agreement.run, agreement.privacy
    noise_plan = agreed_plan(agreement, sizes)
    name, loss = resolve_loss(agreement.encoding.loss)
    grouped = agreement.unit == "owner"
    engine, _ = build_engine(
        agreement.build_model(), loss, *_example(agreement, grouped), dtype=agreement.dtype,
        device=torch.device("cpu"), grouped=grouped,
    )  # fmt: skip
    leaks = declare_leaks(privacy.budget, None, None, agreement.leaks, strict)
    shared = _shared(agreement, len(sites))
    run = _run_id(Path(directory), sites, resume)

    def opened(noise: NoiseSource) -> bytes:
        """Open the run at all sites; return a hash of their hashes of their records."""
        fields = {**told, "run": run, "sites": list(sites), "sizes": sizes}
        replies = answers(transport.broadcast(write(Message(OPEN, fields)), sites, timeout), sites, timeout)
        for site in sites:
            if agreement.trust.sealed and replies[site].fields.get("keys") != (keys and keys.fingerprint):
                raise BadAnswer(f"site {site!r} has other keys than the site that leads; give all sites the same file")
        tags = [str(replies[site].fields.get("records")) for site in sites]
        return hashlib.sha256("\n".join(tags).encode()).digest()

    def cohort(noise: NoiseSource) -> RemoteCohort:
        place = (transport, sites, noise_plan.population, run)
        if shared is None:
            return RemoteCohort(*place, dtype=agreement.dtype, source=noise, timeout=timeout, watch=watch)
        options: dict[str, Any] = {"dtype": agreement.dtype, "source": noise, "timeout": timeout, "watch": watch}
        if keys is not None and agreement.trust.sealed:
            return SealedCohort(*place, keys=keys, honest=shared["honest"], **options)  # type: ignore[arg-type]
        return NoisyCohort(*place, honest=shared["honest"], **options)

    def mechanism(asked: RemoteCohort, ledger: Ledger, noise: NoiseSource, limit: float) -> Mechanism:
        if isinstance(asked, NoisyCohort):
            return SharedNoise(asked, ledger, noise, limit=limit)
        return Mechanism(ledger, noise, limit=limit)

    return assemble(
        noise_plan,
        engine,
        cohort=cohort,
        mechanism=mechanism,
        trust=shared,
        records_tag=opened,
        metrics=lambda cohort: None,
        settings={"loss": name, "model": asdict(agreement.model), "sites": list(sites), "run": run},
        seed=settings.seed,
        output=settings.output,
        directory=directory,
        resume=resume,
        leaks=leaks,
    )  # fmt: skip


def close_run(training: Training, transport: Transport, timeout: float) -> list[str]:
    """Tell the sites that the run is complete; return those that could not be told. They lose nothing by it."""
    sites = training.settings["sites"]
    replies = transport.broadcast(write(Message(CLOSE_RUN, {"run": training.settings["run"]})), sites, timeout)
    return [site for site in sites if site not in replies.answers]


def require_members(transport: Transport, sites: Sequence[str]) -> None:
    """Refuse to begin without all sites of the run."""
    present = transport.members()
    missing = [site for site in sites if site not in present]
    if missing:
        raise SitesMissing(
            f"{', '.join(map(repr, missing))} of the run's {len(sites)} sites are not there; present: "
            f"{', '.join(map(repr, present)) or 'none'}. Start them, then begin or resume the run"
        )


def _shared(agreement: Agreement, sites: int) -> dict[str, Any] | None:
    """Say, for the ledger, how the sites share the noise; None where the server adds it."""
    trust = agreement.trust
    if trust.noise == "server":
        return None
    return {
        "noise": trust.noise,
        "sites": sites,
        "honest": trust.honest_of(sites),
        "secure_aggregation": trust.secure_aggregation,
    }


def _size(site: str, description: Message) -> int:
    size = description.fields.get("size")
    if isinstance(size, bool) or not isinstance(size, int) or size < 1 or description.fields.get("site") != site:
        raise BadAnswer(f"site {site!r} does not describe itself properly")
    return size


def _example(agreement: Agreement, grouped: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return made-up records of the agreed shape, on which the engine tries the model."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(6, len(agreement.encoding.inputs), generator=generator, dtype=torch.float64)
    if agreement.encoding.classes is None:
        targets = torch.randn(6, 1, generator=generator, dtype=torch.float64).to(agreement.dtype)
    else:
        targets = torch.arange(6) % len(agreement.encoding.classes)
    example = (inputs.to(agreement.dtype), targets)
    return (example[0].unsqueeze(1), example[1].unsqueeze(1)) if grouped else example


def recorded_run(directory: Path) -> tuple[str, tuple[str, ...]] | None:
    """Return the name and the sites of the run in a directory, if there is one."""
    path = directory / RUN_FILE
    if not path.exists():
        return None
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return str(fields["run"]), tuple(map(str, fields["sites"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error!r}); restore it, or start a new run elsewhere") from None


def _run_id(directory: Path, sites: Sequence[str], resume: bool) -> str:
    """Return the name by which the sites know the run; drawn once, and kept."""
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
    (directory / RUN_FILE).write_text(json.dumps({"run": name, "sites": list(sites)}) + "\n", encoding="utf-8")
    return name
