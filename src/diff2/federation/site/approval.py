"""Which agreements a site answers: those that somebody there approved, by their hash, or that its policy approves.

``diff2 federate approve`` shows an agreement in plain words and writes ``approved/HASH.json`` to the site's directory:
the whole agreement and the time. A server, or whoever submits a job, cannot write there.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..._files import read_json, write_json
from ..._numbers import epsilon_text
from ...data.scaling import Scaling
from ...errors import Diff2Error, WeakDeltaWarning, WeakEpsilonWarning
from ...privacy.release import ADD_OR_REMOVE_ONE
from ...tables.kinds import Category, Classes, Counts, Flag
from ..agreement import Agreement, AnyAgreement
from ..among_sites import Column
from ..faults import Refusal
from ..fit_agreement import FitAgreement
from ..own_noise.noise import check_trust
from .ledger import read_site_ledger
from .policy import Policy, SiteFile, epsilon_against_server
from .records import load_records
from .table_records import TableRecords

FOLDER = "approved"


class NotApproved(Refusal):
    """Nobody at the site approved the agreement, and its policy does not either."""

    def __init__(self, agreement: AnyAgreement):
        self.agreement = agreement
        super().__init__(
            f"nobody at this site approved the agreement {agreement.digest[:16]}; whoever answers for the records "
            "there reads and approves its run file: diff2 federate approve RUN.toml --site SITE.toml"
        )


def approve(directory: Path, agreement: AnyAgreement) -> Path:
    """Write down that this site takes part in runs of exactly this agreement; return the file."""
    path = _path(directory, agreement)
    path.parent.mkdir(parents=True, exist_ok=True)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    write_json(path, {"approved": now, "hash": agreement.digest, "agreement": agreement.to_json()})
    return path


def approved(directory: Path, agreement: AnyAgreement) -> bool:
    """Whether somebody at the site approved exactly this agreement."""
    return (read_json(_path(directory, agreement)) or {}).get("agreement") == agreement.to_json()


def require_approved(directory: Path, policy: Policy, columns: Mapping[str, Column], agreement: AnyAgreement) -> None:
    """Refuse an agreement that nobody here approved, or that exceeds a limit. No record is read."""
    if not (approved(directory, agreement) or policy.approves(agreement, columns)):
        raise NotApproved(agreement)
    check_columns(columns, agreement)
    policy.check(agreement)


def check_columns(pinned: Mapping[str, Column], agreement: AnyAgreement) -> None:
    """Refuse an agreement that takes a pinned column for something else; no record is read."""
    for name, column in pinned.items():
        if column.pinned and not agreement.agrees(name, column):
            raise Refusal(f"the column {name!r} does not mean at this site what the agreement says of it")


def _path(directory: Path, agreement: AnyAgreement) -> Path:
    return directory / FOLDER / f"{agreement.digest}.json"


class Review(NamedTuple):
    """What a person reads before approving a run."""

    facts: dict[str, str]  # the agreement
    records: dict[str, str]  # what it makes of the site's table
    problems: list[str]  # why this site would refuse it


def review(agreement: AnyAgreement, site: SiteFile) -> Review:
    """Put an agreement into words, and try it on the site's policy and its own table. Nothing leaves."""
    policy, problems, size, records = site.policy, list[str](), 1, dict[str, str]()
    try:
        found = load_records(site, agreement)
        count, reported = found.records, policy.reported_size
        size = reported or count
        if isinstance(found, TableRecords):
            size = found.size if reported is None else found.first(reported).size
        records = {"records": f"{count}; reported: {size}", "changed": "; ".join(found.notes) or "nothing"}
        if agreement.adjacency == ADD_OR_REMOVE_ONE and reported is not None:
            if count > reported:  # the first ones are used: without one of them, another would be
                problems.append("the table has more records than reported_size, a bound for Poisson batches; raise it")
        elif count < max(reported or 1, policy.smallest_size):
            problems.append("the table has fewer records than the policy requires")
    except Diff2Error as error:
        problems.append(str(error))
    sites, ledger = agreement.sites, site.directory / "ledger.jsonl"
    me = next((name for name in sites if name not in (policy.sites or ())), "")  # a site.toml does not say its name
    checks: list[Callable[[], None]] = [
        lambda: check_columns(site.data.columns, agreement),
        lambda: policy.check(agreement),
        lambda: check_trust(agreement, len(sites)),
        lambda: policy.check_sites(agreement, agreement.plan([size] * len(sites)), me, sites, by_name=True),
    ]
    if ledger.exists():
        books = read_site_ledger(ledger)
        checks.append(lambda: policy.check_total(agreement, books.epsilon, books.delta))
    with warnings.catch_warnings():
        for category in (WeakDeltaWarning, WeakEpsilonWarning):
            warnings.simplefilter("ignore", category)
        for check in checks:
            try:
                check()
            except Diff2Error as error:
                problems.append(str(error))
        return Review(_facts(agreement, size), records, problems)


def _facts(agreement: AnyAgreement, size: int) -> dict[str, str]:
    privacy, run, trust = agreement.privacy, agreement.run, agreement.trust
    unit = {"client": "all records of this site together", "record": "each record"}[privacy.unit]
    if agreement.group_column is not None and privacy.unit == "record":
        unit = f"all records with the same {agreement.group_column!r} together"
    private = "" if run.seed is None else ". NOT PRIVATE: the noise comes from a seed that can be guessed"
    used = _fitted(agreement) if isinstance(agreement, FitAgreement) else _trained(agreement)
    return {
        **used,
        "protected": unit,
        "epsilon, delta": f"{epsilon_text(privacy.epsilon)}, {privacy.delta:g}, for the whole run{private}",
        "without noise": "; ".join(agreement.leaks) or "nothing was taken from records to set up the run",
        "sites": ", ".join(agreement.sites)
        + ("" if agreement.minimum_sites is None else f"; it starts with {agreement.minimum_sites} of them"),
        "noise": _noise(agreement),
        "what leaves": _leaves(agreement, size),
        "who is trusted": "the server, with the sums of this site without noise"
        if trust.noise == "server"
        else f"{trust.honest_of(len(agreement.sites))} of the {len(agreement.sites)} sites, to add their noise and "
        "keep it secret" + ("; and no site gives the server the key" if trust.sealed else ""),
    }


def _trained(agreement: Agreement) -> dict[str, str]:
    encoding, run = agreement.encoding, agreement.run
    target = _meaning(encoding.target_scaling) if encoding.target_scaling else f"one of {list(encoding.classes or ())}"
    settings = ", ".join(f"{name} = {value}" for name, value in agreement.to_json()["algorithm"].items())
    return {
        "columns": "; ".join(f"{name}: {_meaning(scaling)}" for name, scaling in encoding.inputs.items()),
        "target": f"{encoding.target}: {target}",
        "missing or unknown": "numbers outside are clamped; anything else becomes a public stand-in",
        "algorithm": settings,
        "model": f"fully connected, hidden layers {list(agreement.model.hidden)}, {run.dtype}, engine {run.engine}",
    }


def _fitted(agreement: FitAgreement) -> dict[str, str]:
    schema, score = agreement.schema, ", and a score of it" if agreement.settings.score else ""
    return {
        "columns": "; ".join(f"{name}: {_part(part)}" for name, part in schema.columns.items()),
        "target": f"{schema.target_name}: {_part(schema.target)}",
        "missing or unknown": "numbers outside are clamped; categories that are not listed become 'other'; a record "
        "whose target cannot be used stays, with weight zero",
        "algorithm": f"fit: a model of the target{score}. Which statistics are asked for follows from earlier "
        f"releases; their prices add up to no more than epsilon, and there are at most {agreement.rounds}",
        "weights": "equal weight for every site"
        if agreement.settings.weighting == "clients"
        else "equal weight for every unit, at all sites",
    }


def _part(part: Any) -> str:
    """Say what a column of a schema is."""
    if isinstance(part, Category | Classes):
        return f"one of {list(part.values)}"
    if isinstance(part, Flag):
        return "yes or no"
    low, high = (0, part.high) if isinstance(part, Counts) else (part.low, part.high)
    if low is None or high is None:
        return "a number, whose bounds are released with noise"
    unit = getattr(part, "unit", "")
    return f"{low} to {high}{' in ' + unit if unit else ''}"


def _meaning(scaling: Scaling) -> str:
    low, high = ("without bound" if bound is None else f"{bound:g}" for bound in (scaling.low, scaling.high))
    missing = "" if scaling.missing is None else f", missing is {scaling.missing:g}"
    return f"{low} to {high}{' in ' + scaling.unit if scaling.unit else ''}{missing}"


def _noise(agreement: AnyAgreement) -> str:
    if agreement.trust.noise == "server":
        return "the server adds it"
    return "every site adds its own" + (", and the server sees ciphertexts only" if agreement.trust.sealed else "")


def _leaves(agreement: AnyAgreement, size: int) -> str:
    """Say what leaves; the price against the server is for sites of the size of this one."""
    sites, fit = len(agreement.sites), isinstance(agreement, FitAgreement)
    times = f"for each of at most {agreement.rounds} statistics" if fit else f"in each of {agreement.rounds} rounds"
    what = f"the number of records and, {times}, {'bounded' if fit else 'clipped'} sums over them"
    if agreement.trust.noise == "server":
        return f"{what}, without noise"
    try:
        price = epsilon_text(epsilon_against_server(agreement, agreement.plan([size] * sites)))
    except Diff2Error:
        price = "unknown"
    return f"{what} with this site's noise: against whoever sees these by themselves, epsilon is at most about {price}"
