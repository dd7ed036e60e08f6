"""A site's own records, encoded for training as agreed. Nothing here leaves the site."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...cohorts.clients import Client, as_groups
from ...data.tables import ClientTable, require_column
from ...errors import InvalidArgument
from ...tables.cell_column import Cells
from ...tables.files import read_tables
from ...tables.frames import Frame, as_frame
from ..agreement import Agreement, AnyAgreement
from ..fit_agreement import FitAgreement
from .clamped import Clamped
from .policy import SiteData, SiteFile
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
