"""A site's own table, encoded for a fit as agreed. Nothing here leaves the site.

Whether a table can be read depends on its header and on the file, on no value: a number outside its bounds is moved to
them, a category that is not listed is ``other``, what cannot be read is missing (``tables/encode.py``).
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...errors import InvalidArgument, PrivacyLeakWarning
from ...fitting.cohort import ClientTable
from ...tables.encode import Encoded, check, encode
from ...tables.frames import Frame, as_frame
from ...tables.rows import Rows
from ...tables.schema import Schema
from ..fit_agreement import FitAgreement
from .policy import SiteData


class TableRecords(NamedTuple):
    """The records of one site."""

    encoded: Encoded
    unit: str
    table: ClientTable
    notes: tuple[str, ...] = ()  # what is missing, unreadable or out of bounds, for the site's own log

    @property
    def records(self) -> int:
        """The number of records."""
        return self.table.records

    @property
    def size(self) -> int:
        """What the site reports: the number of units, which are records, groups, or the site itself."""
        return self.table.units

    @property
    def parts(self) -> list[Tensor]:
        """All that the site holds."""
        arrays = [*self.encoded.rows, self.encoded.usable, self.table.numbers]
        return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays if array.size]

    def first(self, count: int) -> TableRecords:
        """Return the first ``count`` records."""
        rows, usable, _, groups = self.encoded
        kept = Encoded(
            Rows(*(part[:count] for part in rows)), usable[:count], None, None if groups is None else groups[:count]
        )
        return _records(kept, self.unit, self.notes)


def table_records(found: Any, data: SiteData, agreement: FitAgreement) -> TableRecords:
    """Encode a site's table, whose columns have the names that ``data`` gives them."""
    if isinstance(found, tuple):
        raise InvalidArgument("a fit needs a table with named columns: CSV, CSV.gz, Parquet or a data frame")
    schema = replace(agreement.schema, clients=None)
    if agreement.settings.unit != "group":
        schema = replace(schema, groups=None)
    frame = _agreed(as_frame(found), schema, data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        encoded = encode(frame, schema, least=0)
    if encoded.rows.size == 0:
        raise InvalidArgument("the table holds no record")
    return _records(encoded, agreement.settings.unit, _notes(frame, schema))


def _records(encoded: Encoded, unit: str, notes: tuple[str, ...]) -> TableRecords:
    return TableRecords(encoded, unit, ClientTable(encoded, unit), notes)


def _agreed(frame: Frame, schema: Schema, data: SiteData) -> Frame:
    """Return the agreed columns by their agreed names; one that the header lacks, or has twice, is left to be told."""
    places = [
        (name, place) for name in schema.names for place, own in enumerate(frame.names) if own == data.name_of(name)
    ]
    return Frame(tuple(name for name, _ in places), tuple(frame.cells[place] for _, place in places), frame.size)


def _notes(frame: Frame, schema: Schema) -> tuple[str, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        found = check(frame, schema)
    return tuple(
        f"column {one.name!r}: of {frame.size} values {one.missing} are missing, {one.unreadable} cannot be read, "
        f"{one.outside} are outside of bounds or list"
        for one in found
        if one.missing or one.unreadable or one.outside
    )
