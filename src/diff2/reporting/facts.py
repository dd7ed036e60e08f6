"""What a report states of a run, as plain values: released ones and public ones, so that it may be shared.

``diff2 report --json`` prints it; page and card are made of it and of nothing else.
"""

import csv
import math
import os
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

from .._files import AnyPath, plain
from ..errors import Diff2Error
from ..planning.filter import FILTERED
from ..planning.project import project_of, standing
from ..privacy import Guarantee, Ledger, Release, total_epsilon
from ..privacy.attacks import group_epsilon, largest_mu, true_positives
from ..privacy.guarantee import PROTECTED
from ..privacy.leaks import code_of
from ..training.model_file import MODEL
from .columns import columns, dropped
from .verdict import AS_STATED, BROKEN, LEAKS, Verdict, judge, ledger_of

FORMAT = 1
STEPS = (1, 10, 100)  # epsilon is stated at the budget's delta, and at delta over these
GROUPS = (1, 2, 3, 4, 5)
FALSE_POSITIVES = (0.01, 0.1)
COLOURS = {AS_STATED: "green", LEAKS: "amber"}
POINTS = 120  # of a path, at most
OF_FIT = "on the records of the fit itself, which is slightly optimistic; diff2 evaluate scores on others"
UNSURE = "from history.csv, which the ledger does not vouch for"


def facts(run: AnyPath, public_key: AnyPath | None = None) -> dict[str, Any]:
    """Return what a report of a run states; of a broken run, why it is broken and nothing else."""
    from .files import files  # brings the recipes of fits, which `account` does without

    folder = ledger_of(run).resolve().parent
    try:
        found = judge(folder / ledger_of(run).name, public_key)
        quality, health = worth(folder, found.ledger)
    except Diff2Error as error:
        if not ledger_of(run).exists():  # not a run at all
            raise
        verdict = {"status": BROKEN, "colour": "red", "words": "broken", "reason": _without_place(error, folder)}
        return {"format": FORMAT, "run": folder.name, "verdict": verdict}
    ledger, guarantee = found.ledger, found.ledger.guarantee()
    as_stated = found.status == AS_STATED
    document = {
        "format": FORMAT,
        "run": folder.name,
        "algorithm": guarantee.algorithm,
        "version": f"{ledger.header['library']} {ledger.header['version']}",
        "time": ledger.header["time"],
        "verdict": _verdict(found, guarantee),
        "guarantee": _guarantee(ledger, guarantee),
        "checks": [
            *({"what": what, "done": True, "reason": ""} for what in found.checked),
            *({"what": what, "done": False, "reason": why} for what, _, why in _split(found.unchecked)),
        ],
        "releases": _releases(ledger, guarantee),
        "columns": columns(ledger.header),
        "dropped": dropped(ledger.header),
        "quality": quality,
        "health": health,
        "project": _project(folder),
        "files": files(folder, private=as_stated, complete=ledger.complete),
        "signed_by": found.signed_by,
        "chain": ledger.chain,
    }
    return dict(plain(document))


def _without_place(error: Diff2Error, folder: Path) -> str:
    return str(error).replace(f"{folder}{os.sep}", "")


def _verdict(found: Verdict, guarantee: Guarantee) -> dict[str, Any]:
    return {
        "status": found.status,
        "colour": COLOURS.get(found.status, "red"),
        "words": "private apart from named leaks" if found.status == LEAKS else found.words,
        "reason": "" if guarantee.complete else "the run is not complete; what is stated is its whole plan",
        "leaks": [f"{code_of(name)}: {name}" for name in guarantee.leaks],
    }


def _guarantee(ledger: Ledger, guarantee: Guarantee) -> dict[str, Any]:
    profiles = ledger.profiles()
    deltas = [guarantee.delta / step for step in STEPS]
    return {
        "sentence": str(guarantee),
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "budget": ledger.header["budget"],
        "unit": guarantee.unit,
        "adjacency": guarantee.adjacency,
        "protected": PROTECTED[guarantee.unit, guarantee.adjacency],
        "clients": len(guarantee.client_sizes),
        "records": sum(guarantee.client_sizes),
        "deltas": deltas,
        "groups": [
            {"units": size, "epsilon": [group_epsilon(profiles, delta, size) for delta in deltas]} for size in GROUPS
        ],
        "mu": largest_mu(profiles),
        "guesses": [
            {"false_positives": share, "true_positives": true_positives(profiles, share)} for share in FALSE_POSITIVES
        ],
        "assumptions": guarantee.assumptions(),
        "trusted": _trusted(guarantee),
        "not_protected": _not_protected(guarantee),
    }


def _trusted(guarantee: Guarantee) -> str:
    if guarantee.noise == "server":
        return "whoever runs the program that reads the records and adds the noise, and its machine"
    return f"at least {guarantee.min_honest_sites} of the {guarantee.sites} sites, which add the noise"


def _not_protected(guarantee: Guarantee) -> list[str]:
    people = {
        "record": ["a person with several records, as one"],
        "group": ["a person with records at two clients, as one"],
    }
    sizes = "the number of clients" if guarantee.unit == "client" else "the number of records of each client"
    if guarantee.adjacency == "add-or-remove-one":
        sizes = "the public bound of the number of records"
    return [
        *people.get(guarantee.unit, []),
        sizes,
        "what is true of everybody, and shows whoever takes part",
        "how long the computation took",
    ]


def _releases(ledger: Ledger, guarantee: Guarantee) -> dict[str, Any]:
    return {
        "made": guarantee.releases,
        "planned": guarantee.planned,
        "purposes": purposes(ledger, guarantee.delta),
        "path": path(ledger) if math.isfinite(guarantee.epsilon) else [],
    }


def _project(folder: Path) -> dict[str, Any] | None:
    """Return what all runs of the project cost; None where there is none. Fingerprints stay with their owner."""
    project = project_of(folder)
    if project is None:
        return None
    found = standing(project).to_json()
    return {**found, "runs": [{key: run[key] for key in ("run", "epsilon", "state")} for run in found["runs"]]}


def _split(unchecked: tuple[str, ...]) -> list[tuple[str, str, str]]:
    return [what.partition(": ") for what in unchecked]


def purposes(ledger: Ledger, delta: float) -> list[dict[str, Any]]:
    """Return what was released for which purpose: how often, with which noise, and what it would cost alone."""
    groups: dict[tuple[str, str, str], list[Release]] = {}
    for release in ledger.releases:
        groups.setdefault((release.purpose, release.mechanism, release.sampling), []).append(release)
    return [
        {
            "purpose": purpose,
            "mechanism": mechanism,
            "sampling": sampling,
            "rate": max(release.rate for release in found),
            "count": len(found),
            "multiplier_min": min(release.multiplier for release in found),
            "multiplier_max": max(release.multiplier for release in found),
            "epsilon_alone": total_epsilon(found, delta),
        }
        for (purpose, mechanism, sampling), found in groups.items()
    ]


def path(ledger: Ledger) -> list[list[float]]:
    """Return pairs of a round and what was released by then, which is no guarantee; at most ``POINTS`` of them."""
    rounds = sorted({release.round for release in ledger.releases})
    if not rounds:
        return []
    step = -(-len(rounds) // POINTS)
    chosen = sorted({*rounds[::step], rounds[-1]})
    return [[float(r), value] for r, value in zip(chosen, accumulate(ledger.epsilon_path(chosen), max), strict=True)]


def worth(folder: Path, ledger: Ledger) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Return the quality of a run's model, None where it was not measured, and its health."""
    if ledger.header["algorithm"]["name"] in FILTERED and (folder / MODEL).exists():
        from ..fitting.saving import load

        health = load(folder)["health"]
        if health is None:
            return None, {"lines": [], "stages": []}
        score = None if health.score is None else {**health.score.to_json(), "sentence": str(health.score)}
        stages = [
            {
                "purpose": stage.purpose, "releases": stage.releases, "noise_share": stage.noise_share,
                "clipped": stage.clipped,
            }
            for stage in health.stages
        ]  # fmt: skip
        lines = [] if health.expected is None else [health.expected]
        return None if score is None else {**score, "where": OF_FIT}, {"lines": lines, "stages": stages}
    return None, {"lines": [], "stages": _rounds(folder / "history.csv", ledger.header["dimension"])}


def _rounds(file: Path, dimension: int) -> list[dict[str, Any]]:
    """Return the share of noise in the gradient estimates, by purpose; of columns that hold released values."""
    shares: dict[str, list[float]] = {}
    try:
        with open(file, encoding="utf-8", newline="") as rows:
            for row in csv.DictReader(rows):
                length, std = float(row["estimate_norm"]), float(row["estimate_std"])
                noise = std * math.sqrt(dimension)
                share = min(1.0, (noise / length) ** 2) if length > 0 else 1.0
                if math.isfinite(share):
                    shares.setdefault(row["purpose"], []).append(share)
    except (OSError, KeyError, ValueError, TypeError):
        return []
    return [
        {"purpose": purpose, "releases": len(found), "noise_share": median(found), "clipped": None, "source": UNSURE}
        for purpose, found in shares.items()
    ]
