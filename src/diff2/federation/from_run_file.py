"""From a run file to an order and a folder of sites on this machine.

Either every site has its own folder with a site.toml, or the clients of ``[data]`` are dealt into such folders here, to
try the thing out: each then holds its own records in an .npz, as encoded, and agrees to exactly this run.
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
from .server.order import Order

KEYS = "sites.keys"  # of sealed runs, for all sites


def order_of(
    run: RunFile, directory: Path, *, sites: Path | None = None, seed: int | None = None
) -> tuple[Order, Path]:
    """Return what the server is to do, and the folder with NAME/site.toml for every site.

    Args:
        directory: of the run.
        sites: that folder; without it, the clients of ``[data]`` are dealt into one in ``directory``.
        seed: instead of the file's.
    """
    federation = run.federation or FederationSettings()
    settings = run.run if seed is None else replace(run.run, seed=seed)
    run = replace(run, run=settings)
    if settings.metrics_every is not None:
        raise InvalidArgument("metrics_every computes exact values from all records; at sites that is not possible")
    if sites is not None or is_elsewhere(run):
        if sites is None:
            raise InvalidArgument("[data] names no tables; say where the sites' folders are: --sites DIR")
        names, agreement = federation.sites, agreement_at_sites(run)
        for name in names:
            if not (sites / name / "site.toml").is_file():
                raise InvalidArgument(f"no site file at {sites / name / 'site.toml'}; every site needs one")
    else:
        tables = load_clients(run.data, strict=run.privacy.strict)  # type: ignore[arg-type]
        names = federation.sites or site_names(tables.names)
        if len(names) != len(tables.clients):
            raise InvalidArgument(f"[federation] lists {len(names)} sites, [data] has {len(tables.clients)} clients")
        agreement = _agreement(run, tables.encoding, tables.leaks)
        sites = directory / "sites"
        _deal(tables, names, sites, agreement)
    if not names:
        raise InvalidArgument("[federation] needs the key 'sites'; add a line: sites = [...]")
    return Order(agreement, names, directory.resolve(), federation.timeout, federation.minimum_sites), sites


def agreement_at_sites(run: RunFile) -> Agreement:
    """Return the agreement that a run file describes without anybody having seen a record."""
    if not isinstance(run.data, TableSettings):
        raise InvalidArgument(f"{run.path}: [data] must describe the columns of the sites' tables")
    return _agreement(run, public_encoding(run.data), ())


def is_elsewhere(run: RunFile) -> bool:
    """Whether the run file leaves it to the sites where the tables are."""
    if run.data is None:
        raise InvalidArgument(f"{run.path}: the table [data] is missing")
    return isinstance(run.data, TableSettings) and run.data.file == AT_SITES


def public_encoding(data: TableSettings) -> Encoding:
    """Return how tables are used, from public settings alone."""
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
    """Return names for sites that FLARE accepts, from the names of clients.

    >>> site_names(["site 1", "site 2"]), site_names(["a.csv", "b/a.csv"])
    (('site-1', 'site-2'), ('site-1', 'site-2'))
    """
    names = tuple(re.sub(r"[^A-Za-z0-9-]+", "-", Path(name).stem).strip("-") for name in clients)
    usable = all(names) and len(set(names)) == len(names) and "server" not in names
    return names if usable else tuple(f"site-{i}" for i in range(1, len(clients) + 1))


def _agreement(run: RunFile, encoding: Encoding, leaks: tuple[str, ...]) -> Agreement:
    group = getattr(run.data, "group_column", None)
    trust = Trust() if run.federation is None else run.federation.who
    return Agreement(run.algorithm, run.model, run.privacy, run.run, encoding, group, leaks, trust)


def _deal(tables: EncodedClients, names: Sequence[str], folder: Path, agreement: Agreement) -> None:
    private = agreement.run.seed is None and agreement.privacy.budget.private
    epsilon = repr(agreement.privacy.epsilon) if private else "inf"
    place_of_keys = ""
    if agreement.trust.sealed:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / KEYS).exists():
            SiteKeys.generate().save(folder / KEYS)
        place_of_keys = f'\n[site]\nkeys = "../{KEYS}"\n'
    for p, name in enumerate(names):
        place = folder / name
        if (place / "site.toml").exists():
            continue
        place.mkdir(parents=True, exist_ok=True)
        inputs, targets = tables.clients[p]
        arrays: dict[str, Any] = {"inputs": inputs, "targets": targets}
        if tables.groups is not None:
            arrays["groups"] = np.asarray(tables.groups[p])
        np.savez(place / "records.npz", **arrays)
        policy = f"epsilon = {epsilon}\ndelta = {agreement.privacy.delta!r}\n"
        (place / "site.toml").write_text(
            f'[data]\nfile = "records.npz"\n\n[policy]\n{policy}{place_of_keys}', encoding="utf-8"
        )
