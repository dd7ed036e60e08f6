"""From a run file with ``[fit]`` to its agreement and, for a federation on one machine, a folder of sites.

Each client of ``[data]`` becomes a folder with its records as a CSV table, a site.toml and the approval of this fit.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..errors import InvalidArgument
from ..runfile.fit import FitFile
from ..tables.files import read_tables
from ..tables.frames import Frame, as_frame
from .agreement import AnyAgreement
from .fit_agreement import FitAgreement
from .site.approval import approve
from .site.policy import read_site_file


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
    clients = texts[column].astype(str)
    return {
        str(name): as_frame({key: one[clients == name] for key, one in texts.items()}) for name in np.unique(clients)
    }


def write_fit_sites(clients: Sequence[Frame], folder: Path, agreement: FitAgreement) -> None:
    """Write one folder per client: table, site.toml, the approval of this fit; leave existing ones as they are."""
    if len(agreement.sites) != len(clients):
        raise InvalidArgument(f"[federation] lists {len(agreement.sites)} sites, [data] has {len(clients)} clients")
    for name, frame in zip(agreement.sites, clients, strict=True):
        path = folder / name / "site.toml"
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_name("records.csv"), "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([frame.names, *zip(*(cells.values for cells in frame.cells), strict=True)])
        text = f'[data]\nfile = "records.csv"\n\n[policy]\n{policy_for(agreement)}'
        path.write_text(text, encoding="utf-8")
        approve(read_site_file(path).directory, agreement)


def policy_for(agreement: AnyAgreement) -> str:
    """Return the lines of a policy that allows exactly one run."""
    private = agreement.run.seed is None and agreement.privacy.budget.private
    epsilon = repr(agreement.privacy.epsilon) if private else "inf"
    return f"epsilon = {epsilon}\ndelta = {agreement.privacy.delta!r}\n"
