"""From a run file to a job and a folder of sites on this machine.

Either every site has its own folder with a site.toml, or the clients of ``[data]`` are written to such folders, to run
a federation on one machine: each folder then holds the client's records, encoded in an .npz file or, of a fit, as a CSV
table, a site.toml, and the approval of exactly this run.
"""

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .._files import owner_only
from ..data.loading import EncodedClients, load_clients
from ..data.scaling import Encoding, Scaling
from ..data.settings import TableSettings
from ..errors import InvalidArgument
from ..fitting.cohort import label_numbers
from ..runfile.data_table import AT_SITES
from ..runfile.fit import FitFile
from ..runfile.reader import FederationSettings, RunFile
from ..tables.files import read_tables
from ..tables.frames import Frame, as_frame
from .agreement import Agreement, AnyAgreement
from .fit_agreement import FitAgreement
from .sealed.keys import SiteKeys
from .server.job import JobSpec
from .site.approval import approve
from .site.policy import read_site_file

KEYS = "sites.keys"  # of sealed runs, for all sites


def job_from_run_file(
    run: RunFile | FitFile, directory: Path, *, sites: Path | None = None, seed: int | None = None
) -> tuple[JobSpec, Path]:
    """Return the server's job, and the folder with NAME/site.toml for every site.

    Args:
        directory: of the run.
        sites: that folder; without it, the clients of ``[data]`` are written to one in ``directory``.
        seed: overrides the file's.
    """
    run = _seeded(run, seed)
    federation = run.federation or FederationSettings()
    agreement: AnyAgreement
    if sites is not None or has_data_at_sites(run):
        if sites is None:
            raise InvalidArgument("[data] names no tables; say where the sites' folders are: --sites DIR")
        agreement = public_agreement(run)
        for name in agreement.sites:
            if not (sites / name / "site.toml").is_file():
                raise InvalidArgument(f"no site file at {sites / name / 'site.toml'}; every site needs one")
    elif isinstance(run, FitFile):
        clients = client_tables(run)
        agreement, sites = fit_agreement(run, federation.sites or site_names(list(clients))), directory / "sites"
        write_fit_sites(list(clients.values()), sites, agreement)
    else:
        tables = load_clients(run.data, strict=run.privacy.strict)  # type: ignore[arg-type]
        names = federation.sites or site_names(tables.names)
        if len(names) != len(tables.clients):
            raise InvalidArgument(f"[federation] lists {len(names)} sites, [data] has {len(tables.clients)} clients")
        agreement, sites = _agreement(run, tables.encoding, tables.leaks, names), directory / "sites"
        _write_sites(tables, sites, agreement, run.privacy.public_sizes)
    return JobSpec(agreement, directory.resolve(), federation.timeout), sites


def agreement_of(run: RunFile | FitFile, seed: int | None = None) -> AnyAgreement:
    """Return the agreement of a run whose tables are at its sites, for a site to approve.

    Args:
        seed: overrides the file's.
    """
    return public_agreement(_seeded(run, seed))


def public_agreement(run: RunFile | FitFile) -> AnyAgreement:
    """Return the agreement that a run file describes without any record."""
    if isinstance(run, FitFile):
        if not run.federation.sites:
            raise InvalidArgument("[federation] needs the key 'sites'; add a line: sites = [...]")
        return fit_agreement(run, run.federation.sites)
    if not isinstance(run.data, TableSettings):
        raise InvalidArgument(f"{run.path}: [data] must describe the columns of the sites' tables")
    if run.federation is None or not run.federation.sites:
        raise InvalidArgument("[federation] needs the key 'sites'; add a line: sites = [...]")
    return _agreement(run, public_encoding(run.data), (), run.federation.sites)


def has_data_at_sites(run: RunFile | FitFile) -> bool:
    """Whether only the sites know where the tables are."""
    if isinstance(run, FitFile):
        return run.data is None
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
    regression = data.task == "regression"
    for name in (*data.columns, *([data.target] if regression else [])):
        if name not in data.bounds:
            raise InvalidArgument(
                f"[data] bounds need the public range of {name!r}: at sites whatever is outside of it is clamped, "
                f"for example bounds = {{ {name} = [0, 100] }}"
            )
    inputs = {name: Scaling.of_input(*data.meaning(name)) for name in data.columns}
    target = Scaling.of_target(*data.meaning(data.target)) if regression else None
    return Encoding(inputs, data.target, target, data.classes)


def site_names(clients: Sequence[str]) -> tuple[str, ...]:
    """Return site names that FLARE accepts, from the names of clients.

    >>> site_names(["site 1", "site 2"]), site_names(["a.csv", "b/a.csv"])
    (('site-1', 'site-2'), ('site-1', 'site-2'))
    """
    names = tuple(re.sub(r"[^A-Za-z0-9-]+", "-", Path(name).stem).strip("-") for name in clients)
    usable = all(names) and len(set(names)) == len(names) and "server" not in names
    return names if usable else tuple(f"site-{i}" for i in range(1, len(clients) + 1))


def _seeded(run: RunFile | FitFile, seed: int | None) -> RunFile | FitFile:
    if seed is None:
        return run
    if isinstance(run, FitFile):
        return replace(run, fit=replace(run.fit, seed=seed))
    return replace(run, run=replace(run.run, seed=seed))


def _agreement(run: RunFile, encoding: Encoding, leaks: tuple[str, ...], sites: tuple[str, ...]) -> Agreement:
    group, federation = getattr(run.data, "group_column", None), run.federation or FederationSettings()
    privacy = replace(run.privacy, public_sizes=None)  # every site states its own, as reported_size
    return Agreement(
        run.algorithm, run.model, privacy, run.run, encoding, sites, group, leaks, federation.who,
        federation.minimum_sites,
    )  # fmt: skip


@owner_only()
def _write_sites(
    tables: EncodedClients, folder: Path, agreement: Agreement, public_sizes: int | Sequence[int] | None
) -> None:
    """Write one folder per client: records, a site.toml, the approval of this run; leave existing ones as they are."""
    keys = f'\n[site]\nkeys = "../{KEYS}"\n' if agreement.trust.sealed else ""
    folder.mkdir(parents=True, exist_ok=True)
    if keys and not (folder / KEYS).exists():
        SiteKeys.generate().save(folder / KEYS)
    for p, name in enumerate(agreement.sites):
        inputs, targets = tables.clients[p]
        arrays: dict[str, Any] = {"inputs": inputs, "targets": targets}
        if tables.groups is not None:
            arrays["groups"] = np.asarray(tables.groups[p])
        reported = ""
        if public_sizes is not None:
            reported = f"reported_size = {public_sizes if isinstance(public_sizes, int) else public_sizes[p]}\n"
        write_site(folder / name / "site.toml", agreement, "records.npz", partial(np.savez, **arrays), reported + keys)


def fit_agreement(run: FitFile, sites: tuple[str, ...]) -> FitAgreement:
    """Return the agreement that a run file describes without any record."""
    return FitAgreement(run.schema, run.fit, sites, run.federation.who, run.federation.minimum_sites)


def client_tables(run: FitFile) -> dict[str, Frame]:
    """Return the records of each client, by its name, in the order in which :func:`diff2.fit` takes them."""
    if run.data is None:
        raise InvalidArgument(f"{run.path}: [data] names no tables on this machine")
    column = run.schema.clients
    if column is None:
        raise InvalidArgument("[fit] names no clients: the column with the client of each record; add clients = '...'")
    if run.data.builtin is not None:
        from ..data import randhie

        table = randhie.read_table()
        people = table[randhie.PERSON].numbers().astype(np.int64)
        frame = table.take(np.flatnonzero(randhie.fifth_of(people) != randhie.TEST_FIFTH))
    else:
        frame = read_tables(run.data.paths(list(run.folders)), run.schema.file)
    missing = [name for name in run.schema.names if name not in frame.names]
    if missing:
        raise InvalidArgument(f"[data] lacks the columns {', '.join(map(repr, missing))} of the schema")
    texts = {name: frame[name].mapped(lambda text: text or "", object) for name in run.schema.names}
    names, numbers = label_numbers(texts[column])
    return {
        name: as_frame({key: one[numbers == place] for key, one in texts.items()}) for place, name in enumerate(names)
    }


def write_fit_sites(clients: Sequence[Frame], folder: Path, agreement: FitAgreement) -> None:
    """Write one folder per client: table, site.toml, the approval of this fit; leave existing ones as they are."""
    if len(agreement.sites) != len(clients):
        raise InvalidArgument(f"[federation] lists {len(agreement.sites)} sites, [data] has {len(clients)} clients")
    for name, frame in zip(agreement.sites, clients, strict=True):
        write_site(folder / name / "site.toml", agreement, "records.csv", partial(_write_csv, frame))


def _write_csv(frame: Frame, path: Path) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([frame.names, *zip(*(cells.values for cells in frame.cells), strict=True)])


@owner_only()
def write_site(
    path: Path, agreement: AnyAgreement, records: str, write: Callable[[Path], object], more: str = ""
) -> None:
    """Write a site.toml, its records and the approval of this run, all its owner's alone; leave one that is there.

    Args:
        records: the name of the file that ``write`` writes them to.
        more: further lines of the policy, and what follows it.
    """
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path.with_name(records))
    text = f'[data]\nfile = "{records}"\n\n[policy]\n{_policy_for(agreement)}{more}'
    path.write_text(text, encoding="utf-8")
    approve(read_site_file(path).directory, agreement)


def _policy_for(agreement: AnyAgreement) -> str:
    """Return the lines of a policy that allows exactly one run."""
    private = agreement.run.seed is None and agreement.privacy.budget.private
    epsilon = repr(agreement.privacy.epsilon) if private else "inf"
    return f"epsilon = {epsilon}\ndelta = {agreement.privacy.delta!r}\n"
