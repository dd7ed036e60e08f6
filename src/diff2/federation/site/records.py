"""A site's own records, encoded for training as agreed. Nothing here leaves the site."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...cohorts.clients import Client, as_clients, as_groups
from ...data.tables import ClientTable, groups_of, read_table, require_column
from ...errors import InvalidArgument
from ...models.losses import check_targets, resolve_loss
from ..agreement import Agreement
from .policy import SiteData, SiteFile

if TYPE_CHECKING:
    import pandas


class SiteRecords(NamedTuple):
    """The records of one site."""

    client: Client
    groups: Tensor | None  # the number of each record's group, where groups are protected

    @property
    def parts(self) -> list[Tensor]:
        """All that the site holds."""
        return [*self.client, *([] if self.groups is None else [self.groups])]

    def first(self, count: int) -> SiteRecords:
        """Return the first ``count`` records."""
        client = Client(*(part[:count].contiguous() for part in self.client))
        return SiteRecords(client, None if self.groups is None else self.groups[:count].contiguous())


def load_records(site: SiteFile, agreement: Agreement) -> SiteRecords:
    """Read the site's table or arrays, rename its columns, and encode them with the agreed public ranges."""
    inputs, targets, groups = _arrays(site, agreement)
    _, loss = resolve_loss(agreement.encoding.loss)
    client = as_clients([(inputs, targets)], loss, dtype=agreement.dtype, device=torch.device("cpu"))[0]
    width = len(agreement.encoding.inputs)
    if client.inputs.dim() != 2 or client.inputs.shape[1] != width:
        raise InvalidArgument(f"expected inputs of shape (records, {width}), got {tuple(client.inputs.shape)}")
    check_targets(loss, client.targets, torch.Size((1, agreement.encoding.outputs)))
    if agreement.group_column is None:
        return SiteRecords(client, None)
    if groups is None:
        raise InvalidArgument("the agreement protects groups of records, and the records of this site have no group")
    return SiteRecords(client, as_groups([groups], [client])[0])


def _arrays(site: SiteFile, agreement: Agreement) -> tuple[Any, Any, Any]:
    data = site.data
    if data.file is None:
        found = _called(data)
        if isinstance(found, tuple) and len(found) in (2, 3):
            return (*found, None) if len(found) == 2 else found
        return _encoded(found, data, agreement)
    path = site.path.parent / data.file
    if path.suffix.lower() == ".npz":
        return _unpacked(path)
    return _encoded(read_table(str(path)), data, agreement)


def _called(data: SiteData) -> Any:
    module, function = str(data.entry_point).split(":")
    try:
        return getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise InvalidArgument(f"entry_point = {data.entry_point!r} cannot be found: {error}") from None


def _unpacked(path: Path) -> tuple[Any, Any, Any]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["inputs"], arrays["targets"], arrays.get("groups")
    except FileNotFoundError:
        raise InvalidArgument(f"no file at {path}") from None
    except (KeyError, ValueError, OSError, EOFError) as error:
        raise InvalidArgument(f"{path} holds no arrays 'inputs' and 'targets' ({type(error).__name__})") from None


def _encoded(frame: pandas.DataFrame, data: SiteData, agreement: Agreement) -> tuple[Any, Any, Any]:
    table = ClientTable("site", frame)
    for column in data.columns.values():
        require_column(table, column)
    # A column that happens to have an agreed name must not replace the one that is mapped to that name.
    frame = frame.drop(columns=[name for name in data.columns if name in frame.columns])
    frame = frame.rename(columns={column: agreed for agreed, column in data.columns.items()})
    encoding, group = agreement.encoding, agreement.group_column
    return (
        encoding.encode_inputs(frame, "site"),
        encoding.encode_targets(frame, "site"),
        None if group is None else groups_of(ClientTable("site", frame), group),
    )
