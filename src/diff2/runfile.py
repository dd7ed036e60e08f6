"""Run files: everything about a run in one TOML file, checked before a record is read.

Tables: ``[data]``, ``[model]``, ``[algorithm]``, ``[routine]``, ``[privacy]`` and, optionally, ``[run]``. An unknown
table or key is an error that suggests the nearest one.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ._fields import from_table
from ._validate import at_least, nearest, one_of
from .data import TableSettings
from .errors import InvalidArgument
from .estimators import ALGORITHMS, Algorithm
from .models import ACTIVATIONS
from .population import CLIENT_ORDERS, WEIGHTINGS
from .preparation import OUTPUTS
from .privacy import Budget
from .privacy.calibration import ACCOUNTINGS
from .routines import ROUTINES

TABLES = ("data", "model", "algorithm", "routine", "privacy", "run")
DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class ModelSettings:
    """``[model]``: a fully connected network. ``seed`` draws its start, which holds nothing private."""

    hidden: tuple[int, ...] = (10,)
    activation: str = "softplus"
    seed: int = 0  # fixed, so that a killed run finds the same start again

    def __post_init__(self) -> None:
        one_of("activation", self.activation, ACTIVATIONS)
        at_least("seed", self.seed, 0)
        for i, width in enumerate(self.hidden):
            at_least(f"hidden[{i}]", width, 1)


@dataclass(frozen=True)
class PrivacySettings:
    """``[privacy]``: the budget, and how it is kept."""

    epsilon: float
    delta: float
    accounting: str = "exact"
    unit: str = "record"  # or "client"; owners of several records: data.group_column
    strict: bool = False

    def __post_init__(self) -> None:
        one_of("accounting", self.accounting, ACCOUNTINGS)
        one_of("unit", self.unit, ("record", "client"))
        Budget(self.epsilon, self.delta)

    @property
    def budget(self) -> Budget:
        return Budget(self.epsilon, self.delta)


@dataclass(frozen=True)
class RunSettings:
    """``[run]``: what belongs to no other table. A ``seed`` makes the noise repeatable and the run *not private*."""

    weighting: str = "clients"
    clients_per_round: int | None = None
    client_order: str = "round_robin"
    output: str = "last"
    dtype: str = "float32"
    seed: int | None = None
    metrics_every: int | None = None

    def __post_init__(self) -> None:
        one_of("weighting", self.weighting, WEIGHTINGS)
        one_of("client_order", self.client_order, CLIENT_ORDERS)
        one_of("output", self.output, OUTPUTS)
        one_of("dtype", self.dtype, DTYPES)
        for name, value, least in (
            ("seed", self.seed, 0),
            ("metrics_every", self.metrics_every, 1),
            ("clients_per_round", self.clients_per_round, 1),
        ):
            if value is not None:
                at_least(name, value, least)


@dataclass(frozen=True)
class RunFile:
    """A run file, read and checked."""

    path: Path
    data: TableSettings | None  # None only where a plan is made before there is data
    model: ModelSettings
    algorithm: Algorithm
    privacy: PrivacySettings
    run: RunSettings


def read_run_file(path: str | os.PathLike[str]) -> RunFile:
    """Read a run file. Paths of tables are made relative to the folder it is in; no table is opened."""
    source = Path(path)
    try:
        return _parse(source, tomllib.loads(source.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise InvalidArgument(f"no run file at {source}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{source} is not a TOML file: {error}") from None
    except InvalidArgument as error:
        raise InvalidArgument(f"{source}: {error}") from None


def _parse(path: Path, content: Mapping[str, Any]) -> RunFile:
    for name, table in content.items():
        if name not in TABLES:
            kind = "table" if isinstance(table, dict) else "key outside of a table:"
            raise InvalidArgument(f"unknown {kind} {name!r}{nearest(name, TABLES)} (known tables: {', '.join(TABLES)})")
        if not isinstance(table, dict):
            raise InvalidArgument(f"expected [{name}] to be a table, got {name} = {table!r}")
    routine = _named("routine", content, ROUTINES)
    return RunFile(
        path=path,
        data=_data(path, content["data"]) if "data" in content else None,
        model=from_table(ModelSettings, "model", content.get("model", {})),
        algorithm=_named("algorithm", content, ALGORITHMS, routine=routine),
        privacy=from_table(PrivacySettings, "privacy", _required(content, "privacy")),
        run=from_table(RunSettings, "run", content.get("run", {})),
    )


def _data(path: Path, table: Mapping[str, Any]) -> TableSettings:
    settings = from_table(TableSettings, "data", table)
    files = tuple(str(path.parent / file) for file in settings.files)
    return replace(settings, files=files, file=None if settings.file is None else str(path.parent / settings.file))


def _named(table: str, content: Mapping[str, Any], classes: Mapping[str, type], **given: Any) -> Any:
    """Build the class that the table's ``name`` chooses from the table's other keys."""
    keys = dict(_required(content, table))
    if "name" not in keys:
        raise InvalidArgument(f"[{table}] needs the key 'name', one of {sorted(classes)}")
    name = keys.pop("name")
    if not isinstance(name, str) or name not in classes:
        raise InvalidArgument(
            f"[{table}] name: expected one of {sorted(classes)}, got {name!r}{nearest(name, classes)}"
        )
    return from_table(classes[name], table, keys, **given)


def _required(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if name not in content:
        raise InvalidArgument(f"the table [{name}] is missing")
    table: Mapping[str, Any] = content[name]
    return table
