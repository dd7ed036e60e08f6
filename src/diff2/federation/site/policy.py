"""The site file, ``site.toml``: where a site's records are and what it agrees to. It never leaves the site.

.. code-block:: toml

    [data]
    file = "north.csv"          # CSV, CSV.gz, Parquet, or .npz with arrays inputs and targets
    [data.columns]              # by agreed name: the name at this site, and what the column means
    age = { name = "AGE_YEARS", bounds = [0, 100], unit = "years" }
    [policy]
    epsilon = 3.0               # over all runs together
    algorithms = ["diff2"]
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..._fields import from_table
from ..._files import AnyPath
from ..._numbers import epsilon_text
from ..._validate import at_least, one_of, positive
from ...algorithms import ALGORITHMS
from ...errors import InvalidArgument
from ...planning import Plan
from ...planning.filter import FILTER
from ...privacy import total_epsilon
from ...runfile.reader import parse_tables, required_table
from ..agreement import AnyAgreement
from ..among_sites import Column
from ..faults import Refusal
from ..fit_agreement import FitPlan

TABLES = ("site", "data", "policy")


@dataclass(frozen=True)
class Policy:
    """``[policy]``: the limits of a site, which hold for every run, approved by somebody or not.

    Args:
        epsilon: limit on the sum of the epsilons of all runs it takes part in; inf allows runs that are not private.
        delta: limit on the sum of their deltas.
        smallest_size: take part only with at least this number of records.
        algorithms: the allowed ones, "fit" among them; None: all.
        reported_size: train on the first records, up to this number, and report it instead of the true one. With
            Poisson batches there may also be fewer: the rest of the places is empty, and nobody can tell.
        require_own_noise: take part only where the sites add the noise themselves.
        require_secure_aggregation: take part only where the server sees nothing but ciphertexts.
        max_epsilon_per_run: limit on the epsilon of one run.
        max_rounds: limit on the rounds of one run; a fit counts as 512, the most that it may release.
        max_epsilon_against_server: limit on what one run costs against the server, which sees this site's answers with
            this site's noise alone; implies ``require_own_noise``.
        require_group_column: take part only where records with the same value in this column, by its agreed name, are
            protected together, or the whole site is.
        sites: those whom this site takes for honest, besides itself: no run may count on the noise of others. None: on
            the sites of an agreement that somebody here approved, by name, and on nobody else.
        min_honest_sites: take part only with at least this many of them, itself included.
        columns: what runs may use that nobody here approved: inputs, and a column of groups. Such a run is approved if
            its columns are these, and mean what ``[data.columns]`` says.
        targets: likewise.
    """

    epsilon: float
    delta: float = 1e-5
    smallest_size: int = 1
    algorithms: tuple[str, ...] | None = None
    reported_size: int | None = None
    require_own_noise: bool = False
    require_secure_aggregation: bool = False
    max_epsilon_per_run: float = math.inf
    max_rounds: int | None = None
    max_epsilon_against_server: float | None = None
    require_group_column: str | None = None
    sites: tuple[str, ...] | None = None
    min_honest_sites: int = 1
    columns: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon, infinite=True)
        positive("delta", self.delta)
        at_least("smallest_size", self.smallest_size, 1)
        for name in self.algorithms or ():
            one_of("algorithms", name, (*ALGORITHMS, FILTER))
        at_least("reported_size", self.reported_size, self.smallest_size, optional=True)
        positive("max_epsilon_per_run", self.max_epsilon_per_run, infinite=True)
        at_least("min_honest_sites", self.min_honest_sites, 1)
        at_least("max_rounds", self.max_rounds, 1, optional=True)
        positive("max_epsilon_against_server", self.max_epsilon_against_server, optional=True)
        if bool(self.columns) != bool(self.targets):
            raise InvalidArgument("expected columns and targets, which approve runs together, or neither")

    def approves(self, agreement: AnyAgreement, pinned: Mapping[str, Column]) -> bool:
        """Whether a run needs nobody's approval: all its columns are named here, and pinned in ``[data.columns]``."""
        group, used = agreement.group_column, (*agreement.inputs, agreement.target)
        inputs = {*agreement.inputs, *(() if group is None else (group,))}
        return (
            inputs <= set(self.columns)
            and agreement.target in self.targets
            and all(name in pinned and pinned[name].pinned for name in used)
        )

    def check(self, agreement: AnyAgreement) -> None:
        """Refuse an agreement that exceeds a limit."""
        name = agreement.method
        if self.algorithms is not None and name not in self.algorithms:
            raise Refusal(f"the policy of this site does not allow the algorithm {name!r}")
        own_noise = self.require_own_noise or self.max_epsilon_against_server is not None
        if own_noise and agreement.trust.noise != "sites":
            raise Refusal("the policy of this site requires that sites add the noise themselves: trust = 'sites'")
        if self.require_secure_aggregation and not agreement.trust.sealed:
            raise Refusal("the policy of this site requires secure_aggregation = 'tenseal'")
        if self.require_group_column not in (None, agreement.group_column) and agreement.privacy.unit != "client":
            raise Refusal(
                f"the policy of this site requires that records with the same {self.require_group_column!r} are "
                "protected together: group_column in [data]"
            )
        if self.max_rounds is not None and agreement.rounds > self.max_rounds:
            raise Refusal(f"the run has {agreement.rounds} rounds; the policy of this site allows {self.max_rounds}")
        if agreement.privacy.epsilon > self.max_epsilon_per_run:
            raise Refusal(
                f"the run costs epsilon={epsilon_text(agreement.privacy.epsilon)}; the policy of this site allows "
                f"{self.max_epsilon_per_run:g} per run"
            )
        if self.epsilon == float("inf"):
            return
        if agreement.run.seed is not None:
            raise Refusal("the run is seeded, hence not private, and the policy of this site allows private runs only")
        budget = agreement.privacy
        if budget.epsilon > self.epsilon or budget.delta > self.delta:
            raise Refusal(
                f"the run costs epsilon={epsilon_text(budget.epsilon)} at delta={budget.delta:g}; "
                f"the policy of this site allows epsilon={self.epsilon:g} at delta={self.delta:g} in total"
            )

    def check_total(self, agreement: AnyAgreement, epsilon: float, delta: float) -> None:
        """Refuse another run where earlier ones have cost ``epsilon`` and ``delta``."""
        new = epsilon + agreement.privacy.epsilon
        if new > self.epsilon or (self.epsilon < float("inf") and delta + agreement.privacy.delta > self.delta):
            raise Refusal(
                f"with this run the site would have agreed to epsilon={epsilon_text(new)} and delta="
                f"{delta + agreement.privacy.delta:g} in total; its policy allows epsilon={self.epsilon:g} and "
                f"delta={self.delta:g}"
            )

    def check_sites(
        self, agreement: AnyAgreement, plan: Plan | FitPlan, me: str, sites: Sequence[str], *, by_name: bool
    ) -> None:
        """Refuse a run that counts on the noise of sites that this one does not know.

        Args:
            by_name: somebody here approved the agreement, and so the names of its sites.
        """
        known = sites if self.sites is None and by_name else (me, *(self.sites or ()))
        named = sum(site in known for site in sites)
        if named < self.min_honest_sites:
            raise Refusal(
                f"{named} of the sites of the run are named in the policy of this site, which requires "
                f"{self.min_honest_sites}"
            )
        if agreement.trust.noise == "server":
            return
        honest = agreement.trust.honest_of(len(sites))
        if honest > named:
            raise Refusal(
                f"the run counts on the noise of {honest} honest sites; this site knows {named} of them by name, "
                f"itself included. Lower min_honest_sites of the run to {named}, or name them in the site's policy"
            )
        if self.max_epsilon_against_server is None:
            return
        found = epsilon_against_server(agreement, plan)
        if found > self.max_epsilon_against_server:
            raise Refusal(
                f"against the server, with the noise of this site alone, the run costs epsilon={found:g}; the policy "
                f"of this site allows {self.max_epsilon_against_server:g}"
            )


def epsilon_against_server(agreement: AnyAgreement, plan: Plan | FitPlan) -> float:
    """Return at most what all answers of a site cost against someone who sees each, with the site's noise alone."""
    if agreement.trust.noise == "server":
        return math.inf
    share = math.sqrt(agreement.trust.honest_of(len(plan.client_sizes)))
    releases = (release._replace(multiplier=release.multiplier / share) for release in plan.releases)
    return total_epsilon(releases, agreement.privacy.delta)


@dataclass(frozen=True)
class SiteData:
    """``[data]``: where the records are. Exactly one of ``file`` and ``entry_point``.

    Args:
        file: a CSV, CSV.gz or Parquet table, or an .npz with arrays ``inputs``, ``targets`` and, where groups are
            protected, ``groups``; relative to site.toml.
        entry_point: ``"module:function"``, which returns a table or (inputs, targets) or (inputs, targets, groups).
        columns: by agreed name: what the column is called here, or a table of that and of what it means.
    """

    file: str | None = None
    entry_point: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.file is None) == (self.entry_point is None):
            raise InvalidArgument("expected either file = '...' or entry_point = 'module:function'")
        if self.entry_point is not None and self.entry_point.count(":") != 1:
            raise InvalidArgument(f"expected entry_point = 'module:function', got {self.entry_point!r}")
        object.__setattr__(self, "columns", {name: _column(name, given) for name, given in self.columns.items()})

    def name_of(self, agreed: str) -> str:
        """Return what a column is called at this site."""
        return (self.columns[agreed].name if agreed in self.columns else None) or agreed


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


def read_site_file(path: AnyPath) -> SiteFile:
    """Read a site.toml; no record is read."""

    def parse(content: Mapping[str, Any]) -> SiteFile:
        return SiteFile(
            Path(path),
            from_table(SiteData, "data", required_table(content, "data")),
            from_table(Policy, "policy", required_table(content, "policy")),
            from_table(SiteStorage, "site", content.get("site", {})),
        )

    return parse_tables(path, TABLES, parse, "site file")


def _column(name: str, given: Any) -> Column:
    if isinstance(given, str | Column):
        return given if isinstance(given, Column) else Column(given)
    if not isinstance(given, dict):
        raise InvalidArgument(f"expected columns.{name} to be a name in quotes or a table, got {given!r}")
    return from_table(Column, f"data.columns.{name}", given)
