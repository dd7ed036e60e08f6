"""From ``[data]`` to arrays that can be trained on."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import InvalidArgument
from . import randhie
from .named import BuiltinSettings, DatasetSettings
from .scaling import Encoding, choose_encoding, private_ranges
from .settings import TableSettings
from .tables import ClientTable, deal, hold_out, read_clients, texts

DataSettings = TableSettings | DatasetSettings | BuiltinSettings
Pair = tuple[np.ndarray, np.ndarray]  # inputs and targets


class Pending(NamedTuple):
    """Columns that are within [-1, 1], by public ranges, and await a mean and a deviation with noise."""

    columns: tuple[int, ...]  # numbers of the inputs
    share: float  # of the budget's mu^2 that this may cost


class EncodedClients(NamedTuple):
    """Tables made ready for ``diff2.train(clients=..., groups=..., leaks=...)``."""

    clients: list[Pair]
    names: list[str]
    encoding: Encoding
    leaks: tuple[str, ...]  # what was taken from the data without noise
    groups: list[np.ndarray] | None = None  # the group of each record, one array per client
    holdout: Pair | None = None  # records not to train on
    pending: Pending | None = None  # what is still to be scaled, privately


def load_clients(settings: DataSettings, *, strict: bool = False, pending: bool = False) -> EncodedClients:
    """Read the tables and encode them; whatever is taken from the data itself is a leak: warned of, or refused.

    Args:
        pending: the caller knows what ``scale = "private"`` leaves to be done; for others it is an error.
    """
    if getattr(settings, "scale", None) == "private" and not pending:
        raise InvalidArgument(
            "scale='private' spends a share of one run's budget, so it is for 'diff2 train'; here, give bounds"
        )
    if getattr(settings, "missing", None):
        raise InvalidArgument("missing is for tables at sites; here a missing value is an error, so leave it out")
    if isinstance(settings, BuiltinSettings):
        return _load_builtin(settings)
    if isinstance(settings, DatasetSettings):
        return _prepared(settings.table(), settings.read(), np.dtype(np.float32), strict=strict)
    return _prepared(settings, read_clients(settings), np.dtype(np.float64), strict=strict)


def _prepared(
    settings: TableSettings, tables: list[ClientTable], dtype: np.dtype[Any], *, strict: bool
) -> EncodedClients:
    """Hold out, deal, scale; inputs and targets of a regression have type ``dtype``."""
    held, group = list[ClientTable](), settings.group_column
    if group is not None:
        for table in tables:
            texts(table, group)  # before anything else can go wrong with a misspelt column
    if settings.holdout is not None:
        tables, held = hold_out(tables, settings.holdout, settings.holdout_seed, group, split=settings.holdout_split)
    if settings.clients is not None:
        tables = deal(tables, settings.clients, group)
    encoding, leaks = choose_encoding(settings, tables, held, strict=strict)
    pairs, others = _encoded(encoding, tables, dtype), _encoded(encoding, held, dtype)
    return EncodedClients(
        pairs,
        [table.name for table in tables],
        encoding,
        leaks,
        None if group is None else [texts(table, group) for table in tables],
        (np.concatenate([x for x, _ in others]), np.concatenate([y for _, y in others])) if others else None,
        _pending(settings, list(encoding.inputs)),
    )


def _pending(settings: TableSettings, names: Sequence[str]) -> Pending | None:
    share = settings.opening_share
    if share is None:
        return None
    ranges = private_ranges(settings, names)
    columns = tuple(j for j, name in enumerate(names) if name in ranges)
    return Pending(columns, share)


def _encoded(encoding: Encoding, tables: Sequence[ClientTable], dtype: np.dtype[Any]) -> list[Pair]:
    return [(encoding.encode_inputs(table, dtype), encoding.encode_targets(table, dtype)) for table in tables]


def _load_builtin(settings: BuiltinSettings) -> EncodedClients:
    data = randhie.load()
    return EncodedClients(
        [(inputs.numpy(), targets.numpy()) for inputs, targets in data.clients],
        [f"site {site}" for site in randhie.SITES],
        settings.encoding(),
        (),
        None if settings.group_column is None else data.people,
        (data.test[0].numpy(), data.test[1].numpy()),
    )
