"""From a run file with ``[fit]`` to its agreement and, for a federation on one machine, a folder of sites.

Each client of ``[data]`` becomes a folder with its records as a CSV table, a site.toml and the approval of this fit.
"""

import csv
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from .._files import owner_only
from ..errors import InvalidArgument
from ..fitting.cohort import label_numbers
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
