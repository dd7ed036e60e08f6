"""Builders that several tests share."""

from __future__ import annotations

from diff2.privacy import Ledger

DELTA = 1e-5


def ledger_header(*, delta=DELTA, seeded=False, **fields):
    """Return what a run writes into the first line of its ledger."""
    return {
        "adjacency": "replace-one",
        "unit": "record",
        "client_sizes": [30, 70],
        "budget": {"epsilon": 3.0, "delta": delta},
        "algorithm": {"name": "diff2"},
        "seeded": seeded,
        **fields,
    }


def in_memory_ledger(**fields):
    return Ledger(ledger_header(**fields))
