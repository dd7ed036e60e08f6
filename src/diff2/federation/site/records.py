"""What a site holds: its records, encoded as agreed, and the secret of a run. Nothing here leaves the site."""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..._files import write_whole
from ...cohorts.clients import Client, as_groups
from ...data.tables import ClientTable, require_column
from ...errors import Diff2Error, InvalidArgument
from ...privacy import NoiseSource
from ...privacy.noise import KEY_BYTES
from ...privacy.release import ADD_OR_REMOVE_ONE
from ...tables.cells import Cells
from ...tables.files import read_tables
from ...tables.frames import Frame, as_frame
from ..agreement import Agreement, AnyAgreement
from ..faults import Refusal
from ..fit_agreement import FitAgreement
from .clamped import Clamped
from .policy import Policy, SiteData, SiteFile
from .table_records import TableRecords, table_records


class SiteRecords(NamedTuple):
    """The records of one site."""

    client: Client
    groups: Tensor | None  # the number of each record's group, where groups are protected
    notes: tuple[str, ...] = ()  # what had to be clamped or filled in, for the site's own log

    @property
    def records(self) -> int:
        """The number of records."""
        return self.client.size

    @property
    def size(self) -> int:
        """What the site reports."""
        return self.client.size

    @property
    def parts(self) -> list[Tensor]:
        """All that the site holds."""
        return [*self.client, *([] if self.groups is None else [self.groups])]

    def first(self, count: int) -> SiteRecords:
        """Return the first ``count`` records."""
        client = Client(*(part[:count].contiguous() for part in self.client))
        return SiteRecords(client, None if self.groups is None else self.groups[:count].contiguous(), self.notes)


def load_records(site: SiteFile, agreement: AnyAgreement) -> SiteRecords | TableRecords:
    """Read the site's table or arrays, rename its columns, and encode them as agreed.

    Raises an error if the file is damaged or its header does not have the agreed columns, but for no value in it.
    """
    found = _read(site)
    if isinstance(agreement, FitAgreement):
        return table_records(found, site.data, agreement)
    clamped, groups = Clamped(agreement.encoding), None
    if isinstance(found, tuple):
        inputs, targets = clamped.arrays(*found[:2])
        groups = as_frame({"groups": found[2]})["groups"] if len(found) == 3 and found[2] is not None else None
    else:
        columns = _columns(found, site.data, agreement)
        inputs, targets = clamped.table(columns)
        groups = None if agreement.group_column is None else columns[agreement.group_column]
    x = torch.from_numpy(inputs).to(agreement.dtype).contiguous()
    y = torch.from_numpy(targets)
    client = Client(x, y if agreement.encoding.classes is not None else y.to(agreement.dtype).contiguous())
    if client.size == 0:
        raise InvalidArgument("the table holds no record")
    if agreement.group_column is None:
        return SiteRecords(client, None, tuple(clamped.notes))
    if groups is None:
        raise InvalidArgument("the agreement protects groups of records, and the records of this site have no group")
    return SiteRecords(client, group_numbers(groups, client), tuple(clamped.notes))


def group_numbers(cells: Cells, client: Client) -> Tensor:
    """Return one whole number per record, the same for records of one group; those without a group are one group."""
    return as_groups([cells.mapped(lambda text: text or "", object)], [client])[0]


def _read(site: SiteFile) -> Any:
    """Return a table, or arrays (inputs, targets) or (inputs, targets, groups)."""
    data = site.data
    if data.file is None:
        return _called(data)
    path = site.path.parent / data.file
    return _unpacked(path) if path.suffix.lower() == ".npz" else read_tables(path, undecodable="replace")


def _called(data: SiteData) -> Any:
    module, function = str(data.entry_point).split(":")
    try:
        found = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise InvalidArgument(f"entry_point = {data.entry_point!r} cannot be found: {error}") from None
    if not hasattr(found, "columns") and not (isinstance(found, tuple) and len(found) in (2, 3)):
        raise InvalidArgument(f"entry_point = {data.entry_point!r} returns neither a table nor (inputs, targets)")
    return found if isinstance(found, tuple) else as_frame(found)


def _unpacked(path: Path) -> tuple[Any, Any, Any]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["inputs"], arrays["targets"], arrays.get("groups")
    except FileNotFoundError:
        raise InvalidArgument(f"no file at {path}") from None
    except (KeyError, ValueError, OSError, EOFError) as error:
        raise InvalidArgument(f"{path} holds no arrays 'inputs' and 'targets' ({type(error).__name__})") from None


def _columns(frame: Frame, data: SiteData, agreement: Agreement) -> dict[str, Cells]:
    """Return the agreed columns, each from the one that has its name at this site."""
    found, group = {}, [] if agreement.group_column is None else [agreement.group_column]
    for agreed in (*agreement.encoding.inputs, agreement.encoding.target, *group):
        name = data.name_of(agreed)
        require_column(ClientTable("site", frame), name)
        found[agreed] = frame[name]
    return found


@dataclass
class Holdings:
    """What a site holds, as an agreement asks for it. Why it cannot be read is for the site's own log."""

    load: Callable[[AnyAgreement], SiteRecords | TableRecords]  # returns the records, encoded for an agreement
    policy: Policy
    log: Callable[[str], None]  # takes what may quote them
    loaded: tuple[str, SiteRecords | TableRecords] | None = None  # and the digest of the agreement

    def records(self, agreement: AnyAgreement) -> SiteRecords | TableRecords:
        """Return the records this site trains on."""
        if self.loaded is None or self.loaded[0] != agreement.digest:
            try:
                records = self.load(agreement)
            except Diff2Error as error:
                self.log(f"the records cannot be read: {error}")
                raise Refusal("the site's records cannot be read as agreed; see its site.log") from None
            for note in records.notes:
                self.log(note)
            self.loaded = (agreement.digest, records)
        records, reported = self.loaded[1], self.policy.reported_size
        poisson = agreement.adjacency == ADD_OR_REMOVE_ONE and reported is not None
        if not poisson and records.records < max(self.policy.smallest_size, reported or 1):
            raise Refusal("the site has fewer records than its policy requires")
        return records if reported is None else records.first(reported)

    def size(self, agreement: AnyAgreement) -> int:
        """Return the number of records, or of units of a fit, that the site reports."""
        reported = self.policy.reported_size
        poisson = agreement.adjacency == ADD_OR_REMOVE_ONE
        return reported if poisson and reported is not None else self.records(agreement).size


def run_source(directory: Path, run: str, seed: int | None, *, new: bool) -> NoiseSource:
    """Return the source of batches, masks and noise: a secret of the site's own, unless the run is seeded."""
    if seed is not None:
        return NoiseSource.from_seed(seed)
    path = key_path(directory, run)
    if new:
        # A key that is there already belongs to a run the ledger does not know: its noise may have been used.
        path.unlink(missing_ok=True)
        write_whole(path, secrets.token_bytes(KEY_BYTES), secret=True)
    if not path.exists() or path.stat().st_size != KEY_BYTES:
        raise Refusal("the site has lost the key of this run, so it cannot be resumed; start a new run")
    return NoiseSource(path.read_bytes(), private=True)


def key_path(directory: Path, run: str) -> Path:
    """Return the file of a run's secret."""
    return directory / f"{run}.key"
