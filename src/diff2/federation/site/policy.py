"""The site file, ``site.toml``: where a site's records are and what it agrees to. It never leaves the site.

.. code-block:: toml

    [data]
    file = "north.csv"          # CSV, CSV.gz, Parquet, or .npz with arrays inputs and targets
    [data.columns]              # where a column has another name at this site: agreed name = its name
    age = "AGE_YEARS"
    [policy]
    epsilon = 3.0               # over all runs together
    algorithms = ["diff2"]
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..._files import read_toml
from ..._validate import at_least, nearest, one_of, positive
from ...algorithms import ALGORITHMS
from ...errors import InvalidArgument
from ...runfile.fields import from_table
from ..agreement import Agreement
from ..faults import Refusal

TABLES = ("site", "data", "policy")
MODELS = ("mlp",)


@dataclass(frozen=True)
class Policy:
    """``[policy]``: what a site agrees to.

    Args:
        epsilon: limit on the sum of the epsilons of all runs it takes part in; inf allows runs that are not private.
        delta: limit on the sum of their deltas.
        smallest_size: take part only with at least this many records.
        algorithms: the allowed ones; None: all.
        models: the allowed ones.
        reported_size: train on the first records only, this many, and report this number instead of the true one. With
            Poisson batches there may also be fewer: the rest of the places is empty, and nobody can tell.
        require_own_noise: take part only where the sites add the noise themselves.
        require_secure_aggregation: take part only where the server sees nothing but ciphertexts.
    """

    epsilon: float
    delta: float = 1e-5
    smallest_size: int = 1
    algorithms: tuple[str, ...] | None = None
    models: tuple[str, ...] = MODELS
    reported_size: int | None = None
    require_own_noise: bool = False
    require_secure_aggregation: bool = False

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon, infinite=True)
        positive("delta", self.delta)
        at_least("smallest_size", self.smallest_size, 1)
        for name in self.algorithms or ():
            one_of("algorithms", name, ALGORITHMS)
        for name in self.models:
            one_of("models", name, MODELS)
        if self.reported_size is not None:
            at_least("reported_size", self.reported_size, self.smallest_size)

    def check(self, agreement: Agreement) -> None:
        """Refuse an agreement that this site does not allow."""
        name = agreement.algorithm.name
        if self.algorithms is not None and name not in self.algorithms:
            raise Refusal(f"the policy of this site does not allow the algorithm {name!r}")
        if "mlp" not in self.models:
            raise Refusal("the policy of this site does not allow the model 'mlp'")
        if self.require_own_noise and agreement.trust.noise != "sites":
            raise Refusal("the policy of this site requires that sites add the noise themselves: trust = 'sites'")
        if self.require_secure_aggregation and not agreement.trust.sealed:
            raise Refusal("the policy of this site requires secure_aggregation = 'tenseal'")
        if self.epsilon == float("inf"):
            return
        if agreement.run.seed is not None:
            raise Refusal("the run is seeded, hence not private, and the policy of this site allows private runs only")
        if agreement.privacy.epsilon > self.epsilon or agreement.privacy.delta > self.delta:
            raise Refusal(
                f"the run costs epsilon={agreement.privacy.epsilon:g} at delta={agreement.privacy.delta:g}; the policy "
                f"of this site allows epsilon={self.epsilon:g} at delta={self.delta:g} in total"
            )

    def check_total(self, agreement: Agreement, epsilon: float, delta: float) -> None:
        """Refuse another run where earlier ones have cost ``epsilon`` and ``delta``."""
        self.check(agreement)
        new = epsilon + agreement.privacy.epsilon
        if new > self.epsilon or (self.epsilon < float("inf") and delta + agreement.privacy.delta > self.delta):
            raise Refusal(
                f"with this run the site would have agreed to epsilon={new:g} and delta="
                f"{delta + agreement.privacy.delta:g} in total; its policy allows epsilon={self.epsilon:g} and "
                f"delta={self.delta:g}"
            )


@dataclass(frozen=True)
class SiteData:
    """``[data]``: where the records are. Exactly one of ``file`` and ``entry_point``.

    Args:
        file: a CSV, CSV.gz or Parquet table, or an .npz with arrays ``inputs``, ``targets`` and, where groups are
            protected, ``groups``; relative to site.toml.
        entry_point: ``"module:function"``, which returns a table or (inputs, targets) or (inputs, targets, groups).
        columns: agreed name = name at this site.
    """

    file: str | None = None
    entry_point: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.file is None) == (self.entry_point is None):
            raise InvalidArgument("expected either file = '...' or entry_point = 'module:function'")
        if self.entry_point is not None and self.entry_point.count(":") != 1:
            raise InvalidArgument(f"expected entry_point = 'module:function', got {self.entry_point!r}")


@dataclass(frozen=True)
class SiteStorage:
    """``[site]``: where the site keeps its own files; relative to site.toml.

    Args:
        directory: for its ledger, its log and the keys of unfinished runs.
        keys: the file of secrets that all sites share, for ``secure_aggregation``.
    """

    directory: str = "diff2-site"
    keys: str | None = None


@dataclass(frozen=True)
class SiteFile:
    """A site.toml, read and checked."""

    path: Path
    data: SiteData
    policy: Policy
    storage: SiteStorage

    @property
    def directory(self) -> Path:
        return self.path.parent / self.storage.directory

    @property
    def keys(self) -> Path | None:
        return None if self.storage.keys is None else self.path.parent / self.storage.keys


def read_site_file(path: str | os.PathLike[str]) -> SiteFile:
    """Read a site.toml; no record is read."""
    content = read_toml(path, "site file")
    try:
        for name, table in content.items():
            if name not in TABLES:
                raise InvalidArgument(f"unknown table {name!r}{nearest(name, TABLES)} (known: {', '.join(TABLES)})")
            if not isinstance(table, dict):
                raise InvalidArgument(f"expected [{name}] to be a table, got {name} = {table!r}")
        return SiteFile(
            Path(path),
            from_table(SiteData, "data", _required(content, "data")),
            from_table(Policy, "policy", _required(content, "policy")),
            from_table(SiteStorage, "site", content.get("site", {})),
        )
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error}") from None


def _required(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if name not in content:
        raise InvalidArgument(f"the table [{name}] is missing")
    table: Mapping[str, Any] = content[name]
    return table
