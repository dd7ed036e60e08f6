"""Whether a ledger fits together: everything that follows from its header is recomputed and compared.

Sensitivities follow from radius, sizes, weighting and unit; deviations from multipliers; multipliers, rates, members,
number, order and purposes of the releases from algorithm, budget and protection; the closing line from all of them.
What nothing else in the file repeats is protected by the chain of its lines alone.
"""

import hashlib
import math
from collections.abc import Mapping
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from .._files import AnyPath
from ..errors import InvalidArgument, LedgerError
from ..privacy import BoundedMean, Ledger, Release
from ..privacy.exponential import RATE_BITS, rate_of
from ..privacy.lines import SHA256, parse
from ..privacy.mechanism import noise_scale
from ..privacy.release import EXPONENTIAL, GAUSSIAN, NONE, ZERO
from ..questions import SCALING, Question, Smoothness
from .filter import FILTERED, check_fit
from .header import described, read_plan, require_same, with_parties
from .plan import Plan

CLAIMS = (  # of the header, protected by the chain alone
    "seeded, leaks, engine, columns, run_file, signed_by, version, time, and settings of the algorithm that no release "
    "shows"
)
OF_FIT = "sha256, purpose, and the dimension of a choice"  # of a release of a fit, likewise
NOISED = "the noise of every release, from its multiplier and sensitivity"
PLANNED = (
    "the noise multipliers, from algorithm, budget, sizes and protection",
    "number, order and purpose of the releases, against the plan",
    "every sensitivity, from radius, sizes, weighting and unit",
)
OF_PLAN = ("round", "purpose", "step", "sampling", "rate", "members", "leaves", "parties")
_of_plan = attrgetter(*OF_PLAN)
CLOSE, CLOSEST = 1e-9, 1e-12


class Verified(NamedTuple):
    """A ledger without a contradiction."""

    ledger: Ledger
    checked: tuple[str, ...]
    unchecked: tuple[str, ...] = ()


def verify(path: AnyPath) -> Verified:
    """Read a ledger file; raise LedgerError, with line and field, where anything contradicts anything else."""
    found = parse(Path(path))
    found.require_whole(path)
    ledger, first, last = Ledger.of(found), f"{path}, line 1", len(found.releases) + 2
    _check_notes(first, ledger.header)
    filtered = ledger.header["algorithm"]["name"] in FILTERED
    noise = None if filtered else read_plan(first, ledger.header)
    if noise is not None:
        check_releases(str(path), ledger, noise)
    if filtered:
        check_fit(str(path), ledger)
    _check_noise(str(path), ledger)
    try:
        _check_end(f"{path}, line {last}", ledger)
    except (TypeError, ValueError, KeyError, AttributeError) as error:  # where no plan has checked what it is made of
        raise LedgerError(f"{first}: the header is damaged ({error!r}); restore the file from a copy") from None
    claims = (
        "" if found.changed is None else {1: CLAIMS, last: "model"}.get(found.changed, OF_FIT if filtered else "sha256")
    )
    found.require_unchanged(path, f" What can be recomputed agrees; look at: {claims}." if claims else "")
    checked: tuple[str, ...] = (f"the chain of its {last - (not ledger.complete)} lines", NOISED)
    if ledger.complete:
        checked += ("the guarantee of the closing line",)
    if filtered:
        return Verified(ledger, (*checked, "that the releases spend no more than the budget"))
    if noise is not None:
        return Verified(ledger, checked + PLANNED)
    why = f"{ledger.header['algorithm']['name']!r} is not installed here, or cannot be built from its settings"
    return Verified(ledger, checked, tuple(f"{what}: the algorithm {why}" for what in PLANNED))


def check_against(noise: Plan, ledger: Ledger, path: AnyPath) -> None:
    """Raise LedgerError where a ledger is not that of a run with this plan."""
    require_same(f"{path}, line 1", ledger.header, described(noise, ledger.header["trust"]))
    check_releases(str(path), ledger, noise)
    _check_noise(str(path), ledger)


def check_releases(path: str, ledger: Ledger, noise: Plan) -> None:
    """Compare the releases with the plan: each is the next one that was planned."""
    planned, header = list(with_parties(noise, ledger.header["trust"])), ledger.header
    asked: dict[tuple[int, str, int], list[Question]] = {}
    of_label: dict[tuple[int, str, int], Release] = {}
    for number, release in enumerate(ledger.releases, start=2):
        where, second = f"{path}, line {number}", release.label in of_label
        if not second and len(of_label) == len(planned):
            raise LedgerError(f"{where}: release {number - 1} is beyond the {len(planned)} planned ones of line 1")
        expected = of_label[release.label].again() if second else planned[len(of_label)]
        of_label.setdefault(expected.label, expected)
        if release.round and release.label not in asked:
            asked = _asked(noise, expected.round)
        if _of_plan(release) != _of_plan(expected):
            for name in OF_PLAN:
                _require(where, name, getattr(release, name), getattr(expected, name), header)
        _check_radius(where, release, expected, asked.get(release.label, []), header)
        _check_noised_as_planned(where, release, expected, header)
    made = len(of_label)
    if ledger.complete and 0 < made < len(planned) and planned[made].round == planned[made - 1].round:
        raise LedgerError(
            f"{path}, line {len(ledger.releases) + 2}: the run ended after {made} releases, in the middle of round "
            f"{planned[made].round}; lines are missing"
        )


def _asked(noise: Plan, round: int) -> dict[tuple[int, str, int], list[Question]]:
    found: dict[tuple[int, str, int], list[Question]] = {}
    for question in noise.algorithm.declared(round, noise.population) if round else ():
        found.setdefault((round, question.purpose, question.step), []).append(question)
    return found


def _check_radius(
    where: str, release: Release, expected: Release, asked: list[Question], header: Mapping[str, Any]
) -> None:
    bound = expected.sensitivity * release.clip if release.clip else 0.0
    if not math.isclose(release.sensitivity, bound, rel_tol=CLOSE):
        raise LedgerError(
            f"{where}: sensitivity={release.sensitivity!r}; with clip={release.clip!r} it should be {bound!r}, which "
            f"follows from line 1: {_shown(header, 'client_sizes', 'weighting', 'unit', 'clients_per_round')}"
        )
    rules = [question.radius for question in asked]
    if len(rules) == 1:
        limit = rules[0].cap if isinstance(rules[0], Smoothness) else rules[0]
        free = isinstance(rules[0], Smoothness) and 0 <= release.clip <= limit * (1 + CLOSEST)
        if not free and not math.isclose(release.clip, limit, rel_tol=CLOSEST):
            raise LedgerError(f"{where}: clip={release.clip!r}; line 1: by the algorithm it is {limit!r}, or at most")
    elif release.mechanism == ZERO and not all(isinstance(rule, Smoothness) for rule in rules):
        raise LedgerError(f"{where}: mechanism={ZERO!r}, and the algorithm asks for more than differences")


def _check_noised_as_planned(where: str, release: Release, expected: Release, header: Mapping[str, Any]) -> None:
    if release.mechanism == ZERO:
        _require(where, "clip", release.clip, 0.0, header)
    else:
        _require(where, "mechanism", release.mechanism, GAUSSIAN if expected.multiplier else NONE, header)
        _require(where, "multiplier", release.multiplier, expected.multiplier, header)
    size = 2 * round(release.clip**2) if release.purpose == SCALING else header["dimension"]
    _require(where, "dimension", release.dimension, size, header)


def _check_noise(path: str, ledger: Ledger) -> None:
    """Recompute every deviation, as the mechanism has computed it."""
    for number, release in enumerate(ledger.releases, start=2):
        std = rounding = 0.0
        if release.mechanism == GAUSSIAN:
            rounding = release.rounding
            std = _noise_std(release)
        elif release.mechanism == EXPONENTIAL:
            std = rate_of(1 / release.multiplier, int(release.sensitivity)) * 2.0**-RATE_BITS
        if release.noise_std != std or release.rounding != rounding:
            raise LedgerError(
                f"{path}, line {number}: noise_std={release.noise_std!r}; with multiplier={release.multiplier!r}, "
                f"sensitivity={release.sensitivity!r}, rounding={release.rounding!r}, clip={release.clip!r}, "
                f"parties={release.parties} and dimension={release.dimension} it should be {std!r}"
            )


def _noise_std(release: Release) -> float:
    try:
        return noise_scale(BoundedMean(None, release, release.rounding), release.multiplier, release.parties)[0]
    except InvalidArgument:
        return math.nan  # no noise is like that


def _check_notes(where: str, header: Mapping[str, Any]) -> None:
    """Check the fields of the header that can be judged by themselves."""
    file = header["run_file"]
    wrong = {
        "library": header["library"] != "diff2",
        "version": not isinstance(header["version"], str),
        "time": not _is_time(header["time"]),
        "engine": not isinstance(header["engine"], str),
        "dimension": type(header["dimension"]) is not int or header["dimension"] < 1,
        "seeded": not isinstance(header["seeded"], bool),
        "leaks": not _is_texts(header["leaks"]),
        "columns": not isinstance(header["columns"], dict | None),
        "signed_by": not isinstance(header["signed_by"], str | None),
        "run_file": file is not None and not _is_run_file(file),
        "algorithm": not isinstance(header["algorithm"], dict) or not isinstance(header["algorithm"].get("name"), str),
    }
    for name, is_wrong in wrong.items():
        if is_wrong:
            raise LedgerError(
                f"{where}: {name}={header[name]!r} is not what a run writes; restore the file from a copy"
            )


def _check_end(where: str, ledger: Ledger) -> None:
    """Recompute the closing line, or, where there is none yet, what it would say."""
    float(ledger.header["budget"]["epsilon"])
    expected, found, model = ledger.closing(), ledger.end, ledger.model
    if not ledger.complete:
        return
    if model is not None and not (isinstance(model, str) and SHA256.fullmatch(model)):
        raise LedgerError(f"{where}: model={model!r} is not a SHA-256; restore the file from a copy")
    pairs = [("released_epsilon", found["released_epsilon"], expected["released_epsilon"])]
    stated = found["guarantee"] if isinstance(found["guarantee"], dict) else {}
    for name in {**expected["guarantee"], **stated}:
        pairs.append((name, stated.get(name, "nothing"), expected["guarantee"].get(name, "nothing")))
    for name, mine, theirs in pairs:
        numbers = isinstance(mine, float) and isinstance(theirs, float)
        if not (math.isclose(mine, theirs, rel_tol=1e-6) if numbers else mine == theirs and type(mine) is type(theirs)):
            raise LedgerError(
                f"{where}: the guarantee says {name}={mine!r}; the header (line 1: {name}, {_shown(ledger.header)}) "
                f"and the releases give {theirs!r}"
            )


def _require(where: str, name: str, value: Any, expected: Any, header: Mapping[str, Any]) -> None:
    close = isinstance(value, float) and isinstance(expected, float) and math.isclose(value, expected, rel_tol=CLOSE)
    if not close and value != expected:
        raise LedgerError(
            f"{where}: {name}={value!r}; it should be {expected!r}, which follows from line 1: "
            f"dimension={header['dimension']}, algorithm, {_shown(header)}"
        )


def _shown(header: Mapping[str, Any], *names: str) -> str:
    names = names or ("client_sizes", "unit", "clients_per_round", "seeded", "leaks", "budget")
    return ", ".join(f"{name}={_short(header[name])}" for name in names)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_time(value: Any) -> bool:
    try:
        return datetime.fromisoformat(value).utcoffset() is not None
    except (TypeError, ValueError):
        return False


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_run_file(file: Any) -> bool:
    if not isinstance(file, dict) or set(file) != {"text", "sha256"} or not isinstance(file["text"], str):
        return False
    return bool(hashlib.sha256(file["text"].encode()).hexdigest() == file["sha256"])
