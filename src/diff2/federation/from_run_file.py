"""From a run file to a job and a folder of sites on this machine.

Either every site has its own folder with a site.toml, or the clients of ``[data]`` are written to such folders, to run
a federation on one machine: each folder then holds the client's records, encoded, in an .npz file, and a site.toml that
agrees to exactly this run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..data import EncodedClients, Encoding, TableSettings, load_clients
from ..data.scaling import Scaling
from ..errors import InvalidArgument
from ..privacy.trust import Trust
from ..runfile.reader import AT_SITES, FederationSettings, RunFile
from .agreement import Agreement
from .sealed.keys import SiteKeys
from .server.job import JobSpec

KEYS = "sites.keys"  # of sealed runs, for all sites


def job_from_run_file(
    run: RunFile, directory: Path, *, sites: Path | None = None, seed: int | None = None
) -> tuple[JobSpec, Path]:
    """Return the server's job, and the folder with NAME/site.toml for every site.

    Args:
        directory: of the run.
        sites: that folder; without it, the clients of ``[data]`` are written to one in ``directory``.
        seed: overrides the file's.
    """
    run = run if seed is None else replace(run, run=replace(run.run, seed=seed))
    federation = run.federation or FederationSettings()
    if sites is not None or has_data_at_sites(run):
        if sites is None:
            raise InvalidArgument("[data] names no tables; say where the sites' folders are: --sites DIR")
        names, agreement = federation.sites, public_agreement(run)
        for name in names:
            if not (sites / name / "site.toml").is_file():
                raise InvalidArgument(f"no site file at {sites / name / 'site.toml'}; every site needs one")
    else:
        tables = load_clients(run.data, strict=run.privacy.strict)  # type: ignore[arg-type]
        names = federation.sites or site_names(tables.names)
        if len(names) != len(tables.clients):
            raise InvalidArgument(f"[federation] lists {len(names)} sites, [data] has {len(tables.clients)} clients")
        agreement, sites = _agreement(run, tables.encoding, tables.leaks), directory / "sites"
        _write_sites(tables, names, sites, agreement, run.privacy.public_sizes)
    require_sites(names)
    return JobSpec(agreement, names, directory.resolve(), federation.timeout, federation.minimum_sites), sites


def require_sites(names: Sequence[str]) -> None:
    """Refuse a run file that lists no sites."""
    if not names:
        raise InvalidArgument("[federation] needs the key 'sites'; add a line: sites = [...]")


def public_agreement(run: RunFile) -> Agreement:
    """Return the agreement that a run file describes without any record."""
    if not isinstance(run.data, TableSettings):
        raise InvalidArgument(f"{run.path}: [data] must describe the columns of the sites' tables")
    return _agreement(run, public_encoding(run.data), ())


def has_data_at_sites(run: RunFile) -> bool:
    """Whether only the sites know where the tables are."""
    if run.data is None:
        raise InvalidArgument(f"{run.path}: the table [data] is missing")
    return isinstance(run.data, TableSettings) and run.data.file == AT_SITES


def public_encoding(data: TableSettings) -> Encoding:
    """Return how columns are encoded, from public settings alone."""
    if data.columns is None:
        raise InvalidArgument("[data] needs the key 'columns': the inputs must be listed where tables are at sites")
    if data.scale != "none" or data.target_scale not in (None, "none"):
        raise InvalidArgument("[data] scale by the data's own values is not possible at sites; give public bounds")
    if data.task == "classification" and data.classes is None:
        raise InvalidArgument("[data] needs the key 'classes': they must be listed where tables are at sites")
    if data.holdout is not None:
        raise InvalidArgument("[data] holdout is not possible at sites; leave it out")
    inputs = {
        name: Scaling.of_input(data.bounds[name]) if name in data.bounds else Scaling() for name in data.columns
    }  # fmt: skip
    target = Scaling.of_target(data.bounds[data.target]) if data.target in data.bounds else Scaling()
    return Encoding(inputs, data.target, target if data.task == "regression" else None, data.classes)


def site_names(clients: Sequence[str]) -> tuple[str, ...]:
    """Return site names that FLARE accepts, from the names of clients.

    >>> site_names(["site 1", "site 2"]), site_names(["a.csv", "b/a.csv"])
    (('site-1', 'site-2'), ('site-1', 'site-2'))
    """
    names = tuple(re.sub(r"[^A-Za-z0-9-]+", "-", Path(name).stem).strip("-") for name in clients)
    usable = all(names) and len(set(names)) == len(names) and "server" not in names
    return names if usable else tuple(f"site-{i}" for i in range(1, len(clients) + 1))


def _agreement(run: RunFile, encoding: Encoding, leaks: tuple[str, ...]) -> Agreement:
    group = getattr(run.data, "group_column", None)
    trust = Trust() if run.federation is None else run.federation.who
    privacy = replace(run.privacy, public_sizes=None)  # every site states its own, as reported_size
    return Agreement(run.algorithm, run.model, privacy, run.run, encoding, group, leaks, trust)


def _write_sites(
    tables: EncodedClients,
    names: Sequence[str],
    folder: Path,
    agreement: Agreement,
    public_sizes: int | Sequence[int] | None,
) -> None:
    """Write one folder per client, with its records and a site.toml; leave existing ones as they are."""
    private = agreement.run.seed is None and agreement.privacy.budget.private
    epsilon = repr(agreement.privacy.epsilon) if private else "inf"
    keys = f'\n[site]\nkeys = "../{KEYS}"\n' if agreement.trust.sealed else ""
    folder.mkdir(parents=True, exist_ok=True)
    if keys and not (folder / KEYS).exists():
        SiteKeys.generate().save(folder / KEYS)
    for p, name in enumerate(names):
        path = folder / name / "site.toml"
        if path.exists():
            continue
        path.parent.mkdir(exist_ok=True)
        inputs, targets = tables.clients[p]
        arrays: dict[str, Any] = {"inputs": inputs, "targets": targets}
        if tables.groups is not None:
            arrays["groups"] = np.asarray(tables.groups[p])
        np.savez(path.with_name("records.npz"), **arrays)
        policy = f"epsilon = {epsilon}\ndelta = {agreement.privacy.delta!r}\n"
        if public_sizes is not None:
            size = public_sizes if isinstance(public_sizes, int) else public_sizes[p]
            policy += f"reported_size = {size}\n"
        path.write_text(f'[data]\nfile = "records.npz"\n\n[policy]\n{policy}{keys}', encoding="utf-8")
