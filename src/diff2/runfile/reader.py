"""Run files: everything about a run in one TOML file, checked before a record is read.

Tables: ``[data]``, ``[model]``, ``[algorithm]``, ``[routine]``, ``[privacy]`` and, optionally, ``[run]`` and
``[federation]``. An unknown table or key is an error that suggests the nearest one.

Files that hold more than one run, as experiments have them, are read with :func:`parse_tables` and the same parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .._fields import Problems, from_table
from .._files import AnyPath, read_toml
from .._validate import at_least, nearest, one_of, positive
from ..algorithms import ALGORITHMS, Algorithm
from ..algorithms.named import named
from ..errors import InvalidArgument
from ..models.mlp import ACTIVATIONS
from ..privacy import Budget
from ..privacy.calibration import ACCOUNTINGS
from ..privacy.trust import Trust
from ..questions import Protection
from ..routines import ROUTINES
from ..training import OUTPUTS

TABLES = ("data", "model", "algorithm", "routine", "privacy", "run", "federation")
OF_EXPERIMENTS = {"compare": "diff2 compare", "fit": "diff2 federate"} | dict.fromkeys(
    ("tune", "halving", "published"), "diff2 reproduce"
)
DTYPES = ("float32", "float64")

SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")

if TYPE_CHECKING:
    from ..data.loading import DataSettings

T = TypeVar("T")


@dataclass(frozen=True)
class ModelSettings:
    """``[model]``: a fully connected network. Other models are trained from Python.

    Args:
        hidden: widths of the hidden layers; [] is a linear model.
        activation: between the layers.
        seed: draws the starting point, which holds nothing private.
    """

    hidden: tuple[int, ...] = (10,)
    activation: str = "softplus"
    seed: int = 0  # a number, so that a killed run finds the same start again

    def __post_init__(self) -> None:
        one_of("activation", self.activation, ACTIVATIONS)
        at_least("seed", self.seed, 0)
        for i, width in enumerate(self.hidden):
            at_least(f"hidden[{i}]", width, 1)


@dataclass(frozen=True)
class PrivacySettings:
    """``[privacy]``: the budget, and how it is kept.

    Args:
        epsilon: of the whole run; ``"inf"`` adds no noise.
        delta: well below one over the number of records.
        accounting: ``"paper"`` uses the closed forms of the paper, which need more noise.
        unit: what is protected: a record, or all records of a client. For groups, see ``group_column`` in ``[data]``.
        strict: refuse leaks instead of warning.
        public_sizes: with Poisson batches, a public bound on the records of each client, one number or one for each;
            the exact numbers would leak.
    """

    epsilon: float
    delta: float
    accounting: str = "exact"
    unit: str = "record"
    strict: bool = False
    public_sizes: int | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        one_of("accounting", self.accounting, ACCOUNTINGS)
        one_of("unit", self.unit, ("record", "client"))
        Budget(self.epsilon, self.delta)

    @property
    def budget(self) -> Budget:
        return Budget(self.epsilon, self.delta)


@dataclass(frozen=True)
class RunSettings:
    """``[run]``: everything else.

    Args:
        weighting: ``"clients"``: the mean of the clients' risks; ``"records"``: the mean over all records.
        clients_per_round: how many clients take part in a round; by default all. Each is priced for its rounds.
        client_order: ``"round_robin"``: a shuffled, public order; ``"random"``: drawn in secret, for unit "client".
        output: ``"last"``: the last iterate; ``"uniform"``: one drawn at random, as in the paper's theorems.
        dtype: precision of parameters and records.
        seed: makes the noise repeatable and the run *not private*.
        metrics_every: exact training loss and gradient norm every N rounds, in history.csv; leaks.
        engine: how gradients are computed, by name; it changes speed and the last bits.
        sign_with: a file with an Ed25519 key, beside the run file; signs the ledger when the run is complete.
    """

    weighting: str = "clients"
    clients_per_round: int | None = None
    client_order: str = "round_robin"
    output: str = "last"
    dtype: str = "float32"
    seed: int | None = None
    metrics_every: int | None = None
    engine: str = "auto"
    sign_with: str | None = None

    def __post_init__(self) -> None:
        Protection("client", self.weighting, self.clients_per_round, self.client_order)
        one_of("output", self.output, OUTPUTS)
        one_of("dtype", self.dtype, DTYPES)
        at_least("seed", self.seed, 0, optional=True)
        at_least("metrics_every", self.metrics_every, 1, optional=True)


@dataclass(frozen=True)
class FederationSettings:
    """``[federation]``: the sites of a run, which keep their records.

    Args:
        sites: their names, in the order of the clients; without them, the clients of ``[data]`` on this machine.
        timeout: seconds a site has for an answer; then the run stops, with its checkpoint.
        start_timeout: seconds to wait until the sites are there.
        minimum_sites: how many sites the run needs to start, and then keeps; by default all.
        restarts: how often a run that stopped is resumed as a new job.
        trust: who adds the noise: ``"server"``, or ``"sites"``, each its own.
        min_honest_sites: with trust "sites", how many at least add their noise and keep it secret; by default all.
        secure_aggregation: ``"tenseal"``: the server adds ciphertexts, and one of the sites coordinates.
    """

    sites: tuple[str, ...] = ()
    timeout: float = 60.0
    start_timeout: float = 120.0
    minimum_sites: int | None = None
    restarts: int = 3
    trust: str = "server"
    min_honest_sites: int | None = None
    secure_aggregation: str = "none"

    @property
    def who(self) -> Trust:
        """Who is trusted with what."""
        return Trust(self.trust, self.min_honest_sites, self.secure_aggregation)

    def __post_init__(self) -> None:
        self.who.honest_of(len(self.sites) or self.min_honest_sites or 1)
        positive("timeout", self.timeout)
        positive("start_timeout", self.start_timeout)
        at_least("restarts", self.restarts, 0)
        for name in self.sites:
            if not SITE_NAME.fullmatch(name) or name == "server":
                raise InvalidArgument(
                    f"expected sites to be names of letters, digits, '-' and '_', none of them 'server', got {name!r}"
                )
        if len(set(self.sites)) < len(self.sites):
            raise InvalidArgument(f"a site is listed twice in sites={list(self.sites)!r}")
        at_least("minimum_sites", self.minimum_sites, 1, optional=True)
        if (self.minimum_sites or 0) > len(self.sites):
            raise InvalidArgument(
                f"minimum_sites={self.minimum_sites} is more than the {len(self.sites)} sites that are listed"
            )


@dataclass(frozen=True)
class RunFile:
    """A run file, read and checked."""

    path: Path
    data: DataSettings | None  # None only where a plan is made before there is data
    model: ModelSettings
    algorithm: Algorithm
    privacy: PrivacySettings
    run: RunSettings
    federation: FederationSettings | None = None
    text: str = ""  # of the file

    def __post_init__(self) -> None:
        by_number = [name for name in ("holdout", "clients") if getattr(self.data, name, None) is not None]
        if by_number and self.privacy.public_sizes is not None:
            raise InvalidArgument(
                f"[data] {by_number[0]} divides the records by how many there are, so adding or removing one would "
                "move all others, and public_sizes is to keep that number secret; leave it out, and give the records "
                "of each client, without those held out, as files of their own"
            )

    @property
    def protection(self) -> Protection:
        """What is protected, and how that is accounted."""
        return protection_of(self.privacy, self.run, grouped=getattr(self.data, "group_column", None) is not None)


def portable(engine: str) -> str:
    """Return the engine that all sites take: by itself, none that depends on what is installed."""
    return "portable" if engine == "auto" else engine


def protection_of(privacy: PrivacySettings, run: RunSettings, *, grouped: bool) -> Protection:
    """Return what ``[privacy]`` and ``[run]`` set; with groups of records, these are the unit."""
    unit = "group" if grouped and privacy.unit == "record" else privacy.unit
    return Protection(unit, run.weighting, run.clients_per_round, run.client_order, privacy.accounting)


def read_run_file(path: AnyPath, data_dir: AnyPath | None = None) -> RunFile:
    """Read a run file; no table is opened.

    Tables with relative names are looked up in the folder of the run file, then in ``data_dir``, then in the folder
    that the environment variable DIFF2_DATA names.
    """
    return parse_tables(path, TABLES, lambda content: _run_file(Path(path), content, data_dir))


def parse_tables(
    path: AnyPath,
    tables: Sequence[str],
    parse: Callable[[Mapping[str, Any]], T],
    what: str = "run file",
) -> T:
    """Return what ``parse`` makes of a TOML file of these tables; every message begins with the path."""
    content = read_toml(path, what)
    try:
        problems = Problems()
        known = _check_tables(content, tables, problems)
        found = problems.trying(lambda: parse(known))
        problems.refuse()
        return found  # type: ignore[return-value]  # nothing is wrong
    except InvalidArgument as error:
        raise type(error)(f"{path}: {error}") from None


def required_table(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a table that a file must have."""
    if name not in content:
        raise InvalidArgument(f"the table [{name}] is missing")
    table: Mapping[str, Any] = content[name]
    return table


def common_settings(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of ``[model]``, ``[privacy]`` and ``[run]``, by these names."""
    problems = Problems()
    found = {
        "model": problems.trying(lambda: from_table(ModelSettings, "model", content.get("model", {}))),
        "privacy": problems.trying(lambda: from_table(PrivacySettings, "privacy", required_table(content, "privacy"))),
        "run": problems.trying(lambda: from_table(RunSettings, "run", content.get("run", {}))),
    }
    problems.refuse()
    return found


def _check_tables(content: Mapping[str, Any], tables: Sequence[str], problems: Problems) -> dict[str, Any]:
    """Note what is no table of such a file; return the rest."""
    known = {}
    for name, table in content.items():
        if name in OF_EXPERIMENTS and name not in tables:
            text = f"[{name}] is for {OF_EXPERIMENTS[name]}, which reads this file; a run file has none"
        elif name not in tables:
            kind = "table" if isinstance(table, dict) else "key outside of a table:"
            text = f"unknown {kind} {name!r}{nearest(name, tables)} (known tables: {', '.join(tables)})"
        elif not isinstance(table, dict):
            text = f"expected [{name}] to be a table, got {name} = {table!r}"
        else:
            known[name] = table
            continue
        problems.found.append(InvalidArgument(text))
    return known


def _run_file(path: Path, content: Mapping[str, Any], data_dir: AnyPath | None) -> RunFile:
    """Return the run file; all that is wrong in any of its tables is reported at once."""
    problems, tables, federation = Problems(), content, content.get("federation")
    routine = problems.trying(lambda: named("routine", required_table(tables, "routine"), ROUTINES))
    algorithm: Any = problems.trying(
        lambda: named(
            "algorithm", required_table(tables, "algorithm"), ALGORITHMS, build=routine is not None, routine=routine
        )
    )
    data = sites = None
    if "data" in tables:
        from .data_table import data_folders, data_settings  # a plan may need neither tables nor numpy

        folders = data_folders(path, data_dir)
        data = problems.trying(lambda: data_settings(tables["data"], folders, at_sites=federation is not None))
    if federation is not None:
        sites = problems.trying(lambda: from_table(FederationSettings, "federation", federation))
    common = problems.trying(lambda: common_settings(tables))
    problems.refuse()
    text = path.read_text(encoding="utf-8")
    return RunFile(path=path, text=text, data=data, federation=sites, algorithm=algorithm, **(common or {}))
