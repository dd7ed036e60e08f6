"""Whether the ledger of a fit, or of an evaluation, fits together: releases that were chosen adaptively.

What was asked follows from earlier releases, so no plan can be recomputed. But a unit's vector is at most ``clip``
long, so two are between one and two of that apart, times the largest weight, which follows from the sizes. What the
releases cost together is compared in ``filter.py``; purposes, the task and the columns are protected by the chain.
"""

from collections.abc import Mapping
from typing import Any

from .._validate import one_of
from ..errors import Diff2Error, LedgerError
from ..privacy import Budget, Ledger, Release
from ..privacy.release import EXPONENTIAL, FULL, GAUSSIAN, REPLACE_ONE

CLOSE = 1e-9
HEADER: dict[str, Any] = {
    "adjacency": REPLACE_ONE,
    "clients_per_round": None,
    "client_order": "round_robin",
    "accounting": "exact",
    "opening_share": None,
    "multipliers": {},
}
RELEASE: dict[str, Any] = {"step": 0, "sampling": FULL, "rate": 1.0, "members": None, "leaves": 0}


def check_fit(path: str, ledger: Ledger) -> None:
    """Refuse a ledger whose header or releases no fit writes; name line and field."""
    header, first = ledger.header, f"{path}, line 1"
    for name, expected in HEADER.items():
        _require(first, name, header[name], expected)
    weight = _heaviest(first, header)
    for number, release in enumerate(ledger.releases, start=2):
        where = f"{path}, line {number}"
        for name, expected in RELEASE.items():
            _require(where, name, getattr(release, name), expected)
        if release.mechanism == EXPONENTIAL:
            _require(where, "clip", release.clip, 1.0)  # a choice has none
            _require(where, "parties", release.parties, 1)
        elif release.mechanism == GAUSSIAN:
            _check_sensitivity(where, release, weight)
        else:
            raise LedgerError(f"{where}: mechanism={release.mechanism!r} is not one of a fit")


def _heaviest(where: str, header: Mapping[str, Any]) -> float:
    """Return the largest weight of a unit, after checking what it follows from."""
    try:
        Budget(header["budget"]["epsilon"], header["budget"]["delta"])
        one_of("weighting", header["weighting"], ("records", "clients"))
        sizes, trust = header["client_sizes"], header["trust"]
        if not isinstance(trust, dict | None):
            raise ValueError(f"trust={trust!r}")
        if not sizes or any(type(size) is not int or size < 1 for size in sizes):
            raise ValueError(f"client_sizes={sizes!r}")
        columns = header["columns"]
        names = len(columns["columns"]) + sum(columns.get(role) is not None for role in ("target", "clients", "groups"))
    except (Diff2Error, KeyError, TypeError, ValueError, AttributeError) as error:
        raise LedgerError(
            f"{where}: budget, weighting, client_sizes, trust or columns is not what a fit writes ({error!r}); restore "
            "the file from a copy"
        ) from None
    if header["dimension"] != names:
        raise LedgerError(f"{where}: dimension={header['dimension']!r}; the columns and the target are {names}")
    return 1 / sum(sizes) if header["weighting"] == "records" else 1 / (len(sizes) * min(sizes))


def _check_sensitivity(where: str, release: Release, weight: float) -> None:
    least, most = (factor * release.clip * weight for factor in (1 - CLOSE, 2 + CLOSE))
    if not least <= release.sensitivity <= most:
        raise LedgerError(
            f"{where}: sensitivity={release.sensitivity!r}; with clip={release.clip!r} it is from {least!r} to "
            f"{most!r}, which follows from client_sizes and weighting in line 1"
        )


def _require(where: str, name: str, value: Any, expected: Any) -> None:
    if value != expected or type(value) is not type(expected):
        raise LedgerError(f"{where}: {name}={value!r}, and should be {expected!r}; restore the file from a copy")
