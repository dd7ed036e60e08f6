"""An agreement in plain words, for the person at a site who approves it, and what it would do with the site's table."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

from ..._numbers import epsilon_text
from ...data.scaling import Scaling
from ...errors import Diff2Error, WeakDeltaWarning, WeakEpsilonWarning
from ..agreement import Agreement
from ..own_noise.noise import check_trust
from .columns import check_columns
from .ledger import read_site_ledger
from .policy import SiteFile, epsilon_against_server
from .records import load_records


class Review(NamedTuple):
    """What a person reads before approving a run."""

    facts: dict[str, str]  # the agreement
    records: dict[str, str]  # what it makes of the site's table
    problems: list[str]  # why this site would refuse it


def review(agreement: Agreement, site: SiteFile) -> Review:
    """Put an agreement into words, and try it on the site's policy and its own table. Nothing leaves."""
    policy, problems, size, records = site.policy, list[str](), 1, dict[str, str]()
    try:
        found = load_records(site, agreement)
        size = policy.reported_size or found.client.size
        records = {"records": f"{found.client.size}; reported: {size}", "changed": "; ".join(found.notes) or "nothing"}
        if found.client.size < max(size, policy.smallest_size):
            problems.append("the table has fewer records than the policy requires")
    except Diff2Error as error:
        problems.append(str(error))
    sites, ledger = agreement.sites, site.directory / "ledger.jsonl"
    me = next((name for name in sites if name not in (policy.sites or ())), "")  # a site.toml does not say its name
    checks: list[Callable[[], None]] = [
        lambda: check_columns(site.data.columns, agreement.encoding),
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


def _facts(agreement: Agreement, size: int) -> dict[str, str]:
    encoding, privacy, run, trust = agreement.encoding, agreement.privacy, agreement.run, agreement.trust
    columns = "; ".join(f"{name}: {_meaning(scaling)}" for name, scaling in encoding.inputs.items())
    target = _meaning(encoding.target_scaling) if encoding.target_scaling else f"one of {list(encoding.classes or ())}"
    unit = {"client": "all records of this site together", "record": "each record"}[privacy.unit]
    if agreement.group_column is not None and privacy.unit == "record":
        unit = f"all records with the same {agreement.group_column!r} together"
    private = "" if run.seed is None else ". NOT PRIVATE: the noise comes from a seed that can be guessed"
    settings = ", ".join(f"{name} = {value}" for name, value in agreement.to_json()["algorithm"].items())
    return {
        "columns": columns,
        "target": f"{encoding.target}: {target}",
        "missing or unknown": "numbers outside are clamped; what is no number, or no class, becomes a public stand-in",
        "protected": unit,
        "epsilon, delta": f"{epsilon_text(privacy.epsilon)}, {privacy.delta:g}, for the whole run{private}",
        "without noise": "; ".join(agreement.leaks) or "nothing was taken from records to set up the run",
        "algorithm": settings,
        "model": f"fully connected, hidden layers {list(agreement.model.hidden)}, {run.dtype}, engine {run.engine}",
        "sites": ", ".join(agreement.sites)
        + ("" if agreement.minimum_sites is None else f"; it starts with {agreement.minimum_sites} of them"),
        "noise": _noise(agreement),
        "what leaves": _leaves(agreement, size),
        "who is trusted": "the server, with the sums of this site without noise"
        if trust.noise == "server"
        else f"{trust.honest_of(len(agreement.sites))} of the {len(agreement.sites)} sites, to add their noise and "
        "keep it secret" + ("; and no site gives the server the key" if trust.sealed else ""),
    }


def _meaning(scaling: Scaling) -> str:
    low, high = ("without bound" if bound is None else f"{bound:g}" for bound in (scaling.low, scaling.high))
    missing = "" if scaling.missing is None else f", missing is {scaling.missing:g}"
    return f"{low} to {high}{' in ' + scaling.unit if scaling.unit else ''}{missing}"


def _noise(agreement: Agreement) -> str:
    if agreement.trust.noise == "server":
        return "the server adds it"
    return "every site adds its own" + (", and the server sees ciphertexts only" if agreement.trust.sealed else "")


def _leaves(agreement: Agreement, size: int) -> str:
    """Say what leaves; the price against the server is for sites of the size of this one."""
    rounds, sites = agreement.algorithm.rounds, len(agreement.sites)
    if agreement.trust.noise == "server":
        return f"the number of records and, in each of {rounds} rounds, clipped sums over them, without noise"
    try:
        price = epsilon_text(epsilon_against_server(agreement, agreement.plan([size] * sites)))
    except Diff2Error:
        price = "unknown"
    return (
        f"the number of records and, in each of {rounds} rounds, clipped sums over them with this site's noise: "
        f"against whoever sees these by themselves, epsilon is at most about {price}"
    )
