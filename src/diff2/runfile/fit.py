"""Run files with ``[fit]``: a model of a table whose records are at sites, without anything to tune.

.. code-block:: toml

    [fit]
    epsilon = 1.0
    delta = 1e-5
    schema = "visits.schema.toml"   # or its tables here: [fit.target], [fit.columns.age], ...
    [federation]
    sites = ["north", "south"]

``[data]`` names tables on this machine, ``file``, ``files`` or ``builtin``; without it they are at the sites.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._fields import from_table
from .._files import AnyPath, read_toml
from .._validate import at_least, one_of
from ..errors import InvalidArgument
from ..fitting.opening import UNITS, Terms, budget_of
from ..tables.schema import Schema
from .data_table import data_folders, found_file
from .reader import FederationSettings, RunFile, parse_tables, read_run_file, required_table

FIT = "fit"
TABLES = (FIT, "data", "federation")
OF_SCHEMA = ("clients", "groups", "file", "target", "columns")


@dataclass(frozen=True)
class FitSettings:
    """``[fit]``, but for its schema: the arguments of :func:`diff2.fit`. Sites agree to a delta, so it is a number."""

    epsilon: float
    delta: float
    unit: str = "record"
    weighting: str = "records"
    score: bool = True
    seed: int | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        budget_of(self.epsilon, self.delta)
        one_of("unit", self.unit, UNITS)
        one_of("weighting", self.weighting, ("records", "clients"))
        at_least("seed", self.seed, 0, optional=True)

    def check(self, schema: Schema) -> None:
        """Refuse a schema without the column of the groups that are protected; sites are clients without a column."""
        self.terms._replace(unit="record" if self.unit == "client" else self.unit).check(schema)

    @property
    def terms(self) -> Terms:
        return Terms(self.epsilon, self.delta, self.unit, self.weighting, self.seed)


@dataclass(frozen=True)
class FitData:
    """``[data]``: tables on this machine, whose clients become sites.

    Args:
        file: CSV, CSV.gz or Parquet; the schema's ``clients`` is the column with the client of each record.
        files: likewise, of the same columns.
        builtin: ``"randhie"``: the six sites of the RAND health insurance experiment, four fifths of the people.
    """

    file: str | None = None
    files: tuple[str, ...] = ()
    builtin: str | None = None

    def __post_init__(self) -> None:
        if sum((self.file is not None, bool(self.files), self.builtin is not None)) != 1:
            raise InvalidArgument("expected one of file, files and builtin")
        if self.builtin is not None:
            one_of("builtin", self.builtin, ("randhie",))

    def paths(self, folders: list[Path]) -> list[str]:
        """Return the files, each where it is found first."""
        return [found_file(file, folders) for file in ((self.file,) if self.file is not None else self.files)]


@dataclass(frozen=True)
class FitFile:
    """A run file with ``[fit]``, read and checked."""

    path: Path
    schema: Schema
    fit: FitSettings
    federation: FederationSettings
    data: FitData | None = None  # None: at the sites
    folders: tuple[Path, ...] = ()
    schema_path: Path | None = None  # where the schema is a file of its own


def read_federated(path: AnyPath, data_dir: AnyPath | None = None) -> RunFile | FitFile:
    """Read a run file of either kind; no table is opened."""
    if FIT not in read_toml(path, "run file"):
        return read_run_file(path, data_dir)
    folders = data_folders(path, data_dir)
    return parse_tables(path, TABLES, lambda content: _fit_file(Path(path), content, folders))


def _fit_file(path: Path, content: Mapping[str, Any], folders: list[Path]) -> FitFile:
    table, schema_path = dict(content[FIT]), None
    inline = {key: table.pop(key) for key in OF_SCHEMA if key in table}
    named = table.pop("schema", None)
    if (named is None) == (not inline):
        raise InvalidArgument(
            "[fit] needs exactly one schema: schema = 'FILE.toml', or its tables [fit.target] and [fit.columns.*]"
        )
    if named is None:
        schema = Schema.from_json(inline)
    else:
        schema_path = Path(found_file(str(named), folders))
        schema = Schema.read(schema_path)
    settings = from_table(FitSettings, FIT, table)
    settings.check(schema)
    return FitFile(
        path,
        schema,
        settings,
        from_table(FederationSettings, "federation", required_table(content, "federation")),
        from_table(FitData, "data", content["data"]) if "data" in content else None,
        tuple(folders),
        schema_path,
    )
