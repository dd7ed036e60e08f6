"""The files of experiments, and those that come with the package.

They have the tables of a run file, but ``[algorithm]`` and ``[routine]`` are only what the methods have in common, and
need not be complete; a table ``[compare.NAME]`` or ``[tune.NAME]`` adds what one method has of its own (``methods.py``,
``grids.py``).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from diff2._fields import from_table
from diff2._validate import nearest
from diff2.data import places
from diff2.data.loading import DataSettings, EncodedClients, load_clients
from diff2.data.named import BuiltinSettings
from diff2.errors import InvalidArgument, PrivacyLeakWarning
from diff2.privacy.leaks import leak
from diff2.runfile.data_table import data_folders, data_settings
from diff2.runfile.reader import (
    TABLES,
    ModelSettings,
    PrivacySettings,
    RunSettings,
    common_settings,
    parse_tables,
    required_table,
)

from .learning_rates import Halving, RateSearch

ALL_TABLES = (*TABLES, "compare", "tune", "halving", "published")

PathLike = str | os.PathLike[str]


class Setup(NamedTuple):
    """What the runs of an experiment have in common, besides their records."""

    model: ModelSettings
    privacy: PrivacySettings
    run: RunSettings


@dataclass(frozen=True)
class CompareFile:
    """A file for ``diff2 compare``."""

    path: Path
    data: DataSettings
    model: ModelSettings
    privacy: PrivacySettings
    run: RunSettings
    algorithm: Mapping[str, Any]  # base settings; fields of different algorithms side by side
    routine: Mapping[str, Any] | None
    methods: Mapping[str, Mapping[str, Any]]  # [compare.NAME] or [tune.NAME]

    @property
    def name(self) -> str:
        """The data set, or the file where the data has no name."""
        if isinstance(self.data, BuiltinSettings):
            return self.data.builtin
        return getattr(self.data, "dataset", None) or self.path.stem

    @property
    def setup(self) -> Setup:
        return Setup(self.model, self.privacy, self.run)


@dataclass(frozen=True)
class TuneFile(CompareFile):
    """A file for ``diff2 reproduce``."""

    search: RateSearch  # [tune]
    published: Mapping[str, Any]  # values to compare with
    halving: Halving = field(default_factory=Halving)  # how a grid is thinned out, where that is asked for


def read_compare_file(path: PathLike, data_dir: PathLike | None = None) -> CompareFile:
    """Read a file for a comparison; no table of records is opened."""

    def parse(content: Mapping[str, Any]) -> CompareFile:
        methods = content.get("compare", {})
        for name, table in methods.items():
            if not isinstance(table, dict):
                raise InvalidArgument(f"expected [compare.{name}] to be a table, got {name} = {table!r}")
        return CompareFile(**_base(path, content, data_dir), methods=methods)

    return parse_tables(path, ALL_TABLES, parse)


def read_tune_file(path: PathLike, data_dir: PathLike | None = None) -> TuneFile:
    """Read a file for tuning: ``[tune]`` holds the learning-rate search, ``[tune.NAME]`` the methods."""

    def parse(content: Mapping[str, Any]) -> TuneFile:
        tune = required_table(content, "tune")
        methods = {name: table for name, table in tune.items() if isinstance(table, dict)}
        keys = {key: value for key, value in tune.items() if key not in methods}
        return TuneFile(
            **_base(path, content, data_dir),
            methods=methods,
            search=from_table(RateSearch, "tune", keys),
            published=content.get("published", {}),
            halving=from_table(Halving, "halving", content.get("halving", {})),
        )

    return parse_tables(path, ALL_TABLES, parse)


def find_file(folder: str, name: str) -> Path:
    """Return the path that was given, or the file of that name in a folder of this package.

    >>> find_file("compare", "randhie").name, find_file("compare", "my/own.toml").name
    ('randhie.toml', 'own.toml')
    """
    if name.endswith(".toml"):
        return Path(name)
    files = [file for file in (resources.files(__package__) / folder).iterdir() if file.name.endswith(".toml")]
    known = {Path(str(file)).stem: file for file in files}
    if name not in known:
        raise InvalidArgument(
            f"expected a .toml file or one of {', '.join(sorted(known))}, got {name!r}{nearest(name, known)}"
        )
    return Path(str(known[name]))


def load_public(file: CompareFile, what: str) -> EncodedClients:
    """Read the records of an experiment, and say once what leaks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)  # named below
        tables = load_clients(file.data, strict=file.privacy.strict)
    named = ["exact losses and gradient norms of the records", "settings tuned on such numbers", *tables.leaks]
    leak(
        "LEAK-METRICS",
        f"{what} IS NOT PRIVATE. It shows {', '.join(named)}, and its noise is seeded. Use public data.",
        strict=file.privacy.strict,
        stacklevel=4,
    )
    return tables


def _base(path: PathLike, content: Mapping[str, Any], data_dir: PathLike | None) -> dict[str, Any]:
    return {
        "path": Path(path),
        "data": data_settings(required_table(content, "data"), [*data_folders(path, data_dir), places.cache_folder()]),
        "algorithm": content.get("algorithm", {}),
        "routine": content.get("routine"),
        **common_settings(content),
    }
