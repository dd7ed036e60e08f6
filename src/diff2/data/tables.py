"""The clients' tables: one file per client, or one file with a column that names the client.

Nothing is filled in, dropped or guessed. A message about a bad table names the file or client and the column, never a
value or a count of the records behind it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._validate import at_least, nearest, one_of, positive
from ..errors import InvalidArgument
from .partition import Equal, Partition

if TYPE_CHECKING:
    import pandas

TASKS = ("regression", "classification")
SCALES = ("none", "data", "private")
SCALE_SHARE = 0.02  # of the budget's mu^2, for scale = "private"
TARGET_SCALES = ("none", "max")
OWN, SCIKIT_LEARN = SPLITS = ("own", "scikit_learn")
PARQUET = (".parquet", ".pq")


@dataclass(frozen=True)
class TableSettings:
    """Where the tables are and what their columns mean; the ``[data]`` table of a run file.

    Args:
        target: the column to predict.
        task: ``"regression"`` or ``"classification"``.
        files: one CSV, CSV.gz or Parquet file a client.
        file: one file for all clients; ``client_column`` then names the column that tells them apart, or ``clients``
            says to how many its records are dealt in turn (without both, all records are one client's).
        partition: another way to deal the records of one file to clients, see ``partition.py``.
        group_column: names the group of a record inside a client (say, a person); its records are protected together.
        columns: the inputs, in order; by default all columns but target, client and group column and ``drop``.
        drop: columns to leave out.
        bounds: public range [low, high] of a column.
        missing: what sites use where a column holds no number; by default the middle of its bounds.
        units: of measurement, by column, for whoever approves the run at a site.
        scale: ``"none"`` uses columns without bounds as they are; ``"data"`` standardises them by their own mean and
            deviation (of the records trained on), which leaks; ``"private"`` by a mean and deviation released with
            noise, for a share of the budget.
        unscaled: inputs that are used as they are, whatever ``scale`` says.
        scale_bounds: for ``"private"``: the public range to which values are clipped first; B for [-B, B] in all
            columns, or [low, high] by column.
        scale_share: for ``"private"``: the share of the budget's mu^2.
        target_scale: of a regression, instead of what ``scale`` says: ``"none"``, or ``"max"``: divided by its own
            largest absolute value, held-out records included, which leaks.
        classes: the public list of classes; by default those found in the data, which leaks.
        holdout: share of each client's records (with ``group_column``, of its groups) that is not trained on.
        holdout_seed: draws them.
        holdout_split: ``"own"``, or ``"scikit_learn"``: those that its ``train_test_split`` holds out by this seed.
    """

    target: str
    task: str
    files: tuple[str, ...] = ()
    file: str | None = None
    client_column: str | None = None
    clients: int | None = None
    partition: Partition | None = None
    group_column: str | None = None
    columns: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    missing: Mapping[str, float] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    scale: str = "none"
    unscaled: tuple[str, ...] = ()
    scale_bounds: float | Mapping[str, tuple[float, float]] | None = None
    scale_share: float | None = None
    target_scale: str | None = None
    classes: tuple[Any, ...] | None = None
    holdout: float | None = None
    holdout_seed: int = 0
    holdout_split: str = OWN

    def __post_init__(self) -> None:
        one_of("task", self.task, TASKS)
        one_of("scale", self.scale, SCALES)
        self._check_files()
        self._check_columns()
        self._check_target()
        self._check_private_scale()
        if self.holdout is not None and not 0 < self.holdout < 1:
            raise InvalidArgument(f"expected holdout to be a share between 0 and 1, got holdout={self.holdout!r}")
        at_least("holdout_seed", self.holdout_seed, 0)
        one_of("holdout_split", self.holdout_split, SPLITS)
        for name, (low, high) in self.bounds.items():
            _check_range("bounds", name, low, high)

    @property
    def opening_share(self) -> float | None:
        """The share of the budget's mu^2 that is spent before the first round."""
        if self.scale != "private":
            return None
        return SCALE_SHARE if self.scale_share is None else self.scale_share

    @property
    def dealt(self) -> Partition | None:
        """How the records of one file are dealt to clients."""
        return self.partition if self.clients is None else Equal(self.clients)

    def meaning(self, name: str) -> tuple[tuple[float, float], float | None, str]:
        """Return bounds, stand-in for missing values and unit of a column."""
        return self.bounds[name], self.missing.get(name), self.units.get(name, "")

    def _check_files(self) -> None:
        if bool(self.files) == (self.file is not None):
            raise InvalidArgument(
                "expected either files = [...] (one per client) or file = '...' (with client_column), got "
                f"files={list(self.files)!r} and file={self.file!r}"
            )
        if self.files and self.client_column is not None:
            raise InvalidArgument(
                f"client_column={self.client_column!r} goes with file = '...'; with files = [...] each file is a client"
            )
        if self.clients is not None:
            at_least("clients", self.clients, 1)
            if self.files or self.client_column is not None:
                raise InvalidArgument(
                    f"clients={self.clients} deals the records of one file = '...' to this many clients; leave it out "
                    "with files and client_column, which say whose records they are"
                )
        if self.partition is not None and (self.files or self.client_column is not None or self.clients is not None):
            raise InvalidArgument(
                "partition deals the records of one file = '...' to clients; leave it out with files, client_column "
                "and clients, which say whose records they are"
            )
        for first, second in pairwise(sorted(self.files)):
            if first == second:
                raise InvalidArgument(f"{first!r} is listed twice in files; a record must be in one place only")

    def _check_columns(self) -> None:
        if self.columns is not None and self.drop:
            raise InvalidArgument("expected columns (what to use) or drop (what to leave out), got both")
        if self.columns is not None and not self.columns:
            raise InvalidArgument("expected columns to name at least one input, got columns=[]")
        inputs = self.columns or ()
        if len(set(inputs)) < len(inputs):
            raise InvalidArgument(f"a column is listed twice in columns={list(inputs)!r}")
        for role in ("target", "client_column", "group_column"):
            name = getattr(self, role)
            if name in inputs:
                raise InvalidArgument(f"{role}={name!r} is also listed in columns; it cannot be an input")
        if self.target in self.drop or self.target in (self.client_column, self.group_column):
            raise InvalidArgument(f"target={self.target!r} cannot also be dropped, or name the client or the group")
        if self.group_column is not None and self.group_column == self.client_column:
            raise InvalidArgument(
                f"client_column and group_column are both {self.group_column!r}; to protect whole clients, leave "
                "group_column out and set unit = 'client' in [privacy]"
            )
        for key in ("missing", "units"):
            for name in getattr(self, key):
                if name not in self.bounds:
                    raise InvalidArgument(f"{key} names {name!r}, which has no bounds{nearest(name, self.bounds)}")
        for name in self.unscaled:
            if name in self.bounds or name == self.target:
                raise InvalidArgument(f"unscaled names {name!r}, which is the target or has bounds; leave it out")

    def _check_private_scale(self) -> None:
        if self.scale != "private":
            for key in ("scale_bounds", "scale_share"):
                if getattr(self, key) is not None:
                    raise InvalidArgument(f"{key} goes with scale = 'private', got scale={self.scale!r}; leave it out")
            return
        if self.scale_bounds is None:
            raise InvalidArgument(
                "scale='private' needs scale_bounds, the public range of values: one number B for [-B, B], or a table "
                "{ column = [low, high] }"
            )
        if isinstance(self.scale_bounds, Mapping):
            for name, (low, high) in self.scale_bounds.items():
                _check_range("scale_bounds", name, low, high)
        else:
            positive("scale_bounds", self.scale_bounds)
        if self.scale_share is not None and not 0 < self.scale_share < 1:
            raise InvalidArgument(f"expected scale_share between 0 and 1, got scale_share={self.scale_share!r}")
        if self.group_column is not None:
            raise InvalidArgument(
                f"scale='private' protects records or clients, not groups of records, got group_column="
                f"{self.group_column!r}; give bounds instead"
            )

    def _check_target(self) -> None:
        if self.task == "classification" and self.target in self.bounds:
            raise InvalidArgument(f"bounds of the target {self.target!r} make no sense for task='classification'")
        if self.classes is not None:
            if self.task != "classification":
                raise InvalidArgument(f"classes are given, but task={self.task!r}; leave them out")
            if len(self.classes) < 2 or len(set(self.classes)) < len(self.classes):
                raise InvalidArgument(f"expected two or more different classes, got classes={list(self.classes)!r}")
        if self.target_scale is not None:
            one_of("target_scale", self.target_scale, TARGET_SCALES)
            if self.task != "regression" or self.target in self.bounds:
                raise InvalidArgument(
                    f"target_scale={self.target_scale!r} is for a regression whose target has no bounds; leave it out"
                )


def _check_range(key: str, name: str, low: float, high: float) -> None:
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InvalidArgument(f"expected {key} of {name!r} to be finite, low < high, got [{low!r}, {high!r}]")


class ClientTable(NamedTuple):
    """One client's table."""

    name: str  # for messages: the file, or the value of the client column
    frame: pandas.DataFrame


def read_clients(settings: TableSettings) -> list[ClientTable]:
    """Read the tables; every client has at least one record."""
    if settings.file is None:
        short = [Path(file).name for file in settings.files]
        names = short if len(set(short)) == len(short) else settings.files
        clients = [ClientTable(name, read_table(file)) for name, file in zip(names, settings.files, strict=True)]
    else:
        clients = split_by_column(ClientTable(Path(settings.file).name, read_table(settings.file)), settings)
    for client in clients:
        if len(client.frame) == 0:
            raise InvalidArgument(f"client {client.name!r} holds no record; leave it out, or check its file")
    return clients


def split_by_column(whole: ClientTable, settings: TableSettings) -> list[ClientTable]:
    """Return one client for each value of ``client_column``, or the whole table where there is none."""
    frame = whole.frame
    if settings.client_column is None or len(frame) == 0:
        return [whole]
    require_column(whole, settings.client_column)
    _require_present(whole, settings.client_column, frame[settings.client_column])
    return [ClientTable(str(value), part) for value, part in frame.groupby(settings.client_column, sort=False)]


def read_table(file: str) -> pandas.DataFrame:
    """Read one CSV, CSV.gz or Parquet file."""
    import pandas

    path = Path(file)
    if not path.is_file():
        raise InvalidArgument(
            f"no file at {path}; relative names are looked up beside the run file, in --data-dir "
            "and in the folder that the environment variable DIFF2_DATA names"
        )
    try:
        if path.suffix.lower() in PARQUET:
            return pandas.read_parquet(path, engine="pyarrow")
        return pandas.read_csv(path, low_memory=False)
    except ImportError:
        raise InvalidArgument(
            f"{path} needs pyarrow to be read; install it with: pip install 'diff2[parquet]'"
        ) from None
    except pandas.errors.EmptyDataError:
        raise InvalidArgument(f"{path} is empty; expected a line of column names and one line a record") from None
    except (ValueError, EOFError, pandas.errors.ParserError) as error:
        # The parser's own message may quote a record.
        kind = type(error).__name__
        raise InvalidArgument(f"{path} is not a readable CSV, CSV.gz or Parquet table ({kind})") from None


def input_columns(settings: TableSettings, clients: Sequence[ClientTable]) -> tuple[str, ...]:
    """Return the names of the inputs, after checking that every name used anywhere is a column of every client."""
    first = clients[0]
    others = {settings.target, settings.client_column, settings.group_column, *settings.drop}
    inputs = settings.columns or tuple(str(name) for name in first.frame.columns if name not in others)
    for name in inputs if settings.columns is None else ():
        if name.startswith("Unnamed: "):  # what pandas calls a column without a name: mostly the number of the row
            raise InvalidArgument(f"client {first.name!r} has a column without a name; leave it out: drop = [{name!r}]")
    if not inputs:
        raise InvalidArgument(f"client {first.name!r} has no column left to be an input; check target and drop")
    for client in clients:
        for name in (settings.target, *inputs, *settings.drop):
            require_column(client, name)
        extra = [name for name in client.frame.columns if name not in others and name not in inputs]
        if extra and settings.columns is None:
            raise InvalidArgument(
                f"client {client.name!r} has column {extra[0]!r}, client {first.name!r} has not; list the inputs in "
                "columns, or leave it out with drop"
            )
    for name in settings.unscaled:
        if name not in inputs:
            raise InvalidArgument(f"unscaled names {name!r}, which is no input{nearest(name, inputs)}")
    for name in settings.bounds:
        if name not in (*inputs, settings.target):
            hint = nearest(name, (*inputs, settings.target))
            raise InvalidArgument(f"bounds name {name!r}, which is neither an input nor the target{hint}")
    return inputs


def require_column(client: ClientTable, name: str) -> None:
    """Refuse a column that the client's table does not have."""
    if name not in client.frame.columns:
        known = [str(column) for column in client.frame.columns]
        raise InvalidArgument(f"client {client.name!r} has no column {name!r}{nearest(name, known)}")


def numbers(client: ClientTable, name: str) -> np.ndarray:
    """Return a column as finite double-precision numbers; booleans become 0 and 1."""
    import pandas

    require_column(client, name)
    column = client.frame[name]
    kinds = pandas.api.types
    if not kinds.is_numeric_dtype(column.dtype) or kinds.is_complex_dtype(column.dtype):
        _require_present(client, name, column)
        raise InvalidArgument(
            f"column {name!r} of client {client.name!r} is not numeric ({column.dtype}); encode it as numbers at the "
            "client, one 0/1 column a category, or leave it out with drop"
        )
    values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    if not np.isfinite(values).all():
        raise _missing(client, name)
    return values


def labels(client: ClientTable, name: str) -> list[Any]:
    """Return a column of class labels as plain Python values."""
    require_column(client, name)
    column = client.frame[name]
    _require_present(client, name, column)
    return list(column.tolist())


def groups_of(client: ClientTable, name: str) -> np.ndarray:
    """Return the group of each record, as numbers or texts."""
    require_column(client, name)
    if client.frame[name].isna().any():
        raise InvalidArgument(
            f"column {name!r} of client {client.name!r} holds missing values; each record needs a group, so fill them "
            "in or remove those records at the client"
        )
    return np.asarray(client.frame[name].tolist())


def _require_present(client: ClientTable, name: str, column: pandas.Series) -> None:
    if column.isna().any():
        raise _missing(client, name)


def _missing(client: ClientTable, name: str) -> InvalidArgument:
    return InvalidArgument(
        f"column {name!r} of client {client.name!r} holds missing or infinite values; fill them in or remove those "
        "records at the client, or leave the column out with drop"
    )
