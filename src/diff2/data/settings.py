"""``[data]`` of a run file: where the clients' tables are, and what their columns mean."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

from .._validate import at_least, nearest, one_of, positive, wrong
from ..errors import InvalidArgument
from ..tables.file_format import FileFormat

TASKS = ("regression", "classification")
SCALES = ("none", "data", "private")
SCALE_SHARE = 0.02  # of the budget's mu^2, for scale = "private"
TARGET_SCALES = ("none", "max")
OWN, SCIKIT_LEARN = SPLITS = ("own", "scikit_learn")


@dataclass(frozen=True, kw_only=True)
class CommonSettings:
    """Settings that files and public tables share.

    Args:
        client_column: the column that separates the clients of one table; without it and the next one, all records
            are one client's.
        clients: the number of clients among which one table is divided: record i goes to client i mod ``clients``.
        columns: the inputs, in order; by default all columns except target, client and group column and ``drop``.
        drop: columns to leave out.
        bounds: public range [low, high] of a column.
        scale: ``"none"`` uses columns without bounds as they are; ``"data"`` standardises them by their own mean and
            standard deviation (over the training records), which leaks; ``"private"`` by a mean and standard deviation
            released with noise, for a share of the budget.
        unscaled: inputs that are used as they are, whatever ``scale`` says.
        scale_bounds: for ``"private"``: the public range to which values are clipped first; B for [-B, B] in all
            columns, or [low, high] by column.
        scale_share: for ``"private"``: the share of the budget's mu^2.
        target_scale: for a regression, instead of what ``scale`` says: ``"none"``, or ``"max"``: divided by its own
            largest absolute value, held-out records included, which leaks.
        holdout: share of each client's records (with ``group_column``, of its groups) that is not trained on.
        holdout_seed: draws them.
        holdout_split: ``"own"``, or ``"scikit_learn"``: those that its ``train_test_split`` holds out with this seed.
    """

    client_column: str | None = None
    clients: int | None = None
    columns: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    scale: str = "none"
    unscaled: tuple[str, ...] = ()
    scale_bounds: float | Mapping[str, tuple[float, float]] | None = None
    scale_share: float | None = None
    target_scale: str | None = None
    holdout: float | None = None
    holdout_seed: int = 0
    holdout_split: str = OWN

    @property
    def common(self) -> dict[str, Any]:
        """All of these settings, by name."""
        return {field.name: getattr(self, field.name) for field in fields(CommonSettings)}


@dataclass(frozen=True)
class TableSettings(CommonSettings):
    """Where the tables are and what their columns mean; the ``[data]`` table of a run file.

    Args:
        target: the column to predict.
        task: ``"regression"`` or ``"classification"``.
        files: one CSV, CSV.gz or Parquet file per client.
        file: instead, one file for all clients.
        format: how CSV files are written: delimiter, encoding and decimal sign.
        group_column: names the group of a record inside a client (say, a person); its records are protected together.
        missing: the number that sites use for a missing one, by column; by default the middle of its bounds.
        units: units of measurement by column, for the people who approve the run at a site.
        classes: the public list of classes; by default those found in the data, which leaks.
    """

    target: str
    task: str
    files: tuple[str, ...] = ()
    file: str | None = None
    format: FileFormat = FileFormat()  # noqa: RUF009 (frozen)
    group_column: str | None = None
    missing: Mapping[str, float] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    classes: tuple[Any, ...] | None = None

    def __post_init__(self) -> None:
        one_of("task", self.task, TASKS)
        one_of("scale", self.scale, SCALES)
        self._check_files()
        self._check_columns()
        self._check_target()
        self._check_private_scale()
        if self.holdout is not None and not 0 < self.holdout < 1:
            wrong(f"expected holdout to be a share between 0 and 1, got holdout={self.holdout!r}")
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
    def inputs(self) -> int | None:
        """How many inputs the model needs, where that is known before the tables are read."""
        return None if self.columns is None else len(self.columns)

    @property
    def outputs(self) -> int | None:
        """How many outputs the model needs, where that is known before the tables are read."""
        if self.task == "regression":
            return 1
        return None if self.classes is None else len(self.classes)

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
                    f"clients={self.clients} splits the records of one file = '...' between this many clients; leave "
                    "it out with files and client_column, which say whose records they are"
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
        wrong(f"expected {key} of {name!r} to be finite, low < high, got [{low!r}, {high!r}]")
