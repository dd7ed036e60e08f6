"""What several fits on the same records cost together: counted record by record, in this process.

Cross-validation and grid search fit many times. Every fit keeps within its own epsilon; a record that took part in all
of them pays for all. So each record is remembered by a fingerprint, with a key that no other process has, and so are
the prices of the fits it took part in, from their start; none of it is stored. Records with the same inputs have the
same fingerprint, so the total is never too small for fits in this process. Where groups or clients are protected they
are remembered, too, by their names: one takes part in a fit as soon as one of its records does. Fits in other processes
are not seen, and seeded ones, which are not private anyway, are not counted.
"""

from __future__ import annotations

import math
import secrets
import threading
import warnings
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from .._numbers import epsilon_text
from ..errors import CompositionWarning
from ..privacy import Ledger
from ..privacy.accounting import gdp_epsilon
from ..privacy.discrete import discrete_epsilon
from ..tables.cells import Cells
from ..tables.frames import Frame
from ..tables.schema import Schema
from .health import planned


class Together(NamedTuple):
    """The fits that the record which took part in most of them took part in, and what they cost."""

    fits: int
    epsilon: float


class Repeats:
    """Remembers who took part in which fits of this process."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(16)
        self._lock = threading.Lock()
        self._prints = np.zeros(0, np.uint64)  # of all records so far, in order
        self._spent = np.zeros((0, 3))  # of each: fits, releases, sum of the squared prices

    def add(self, frame: Frame, ledger: Ledger, units: Frame | None = None) -> Together:
        """Count a fit on these records; return what it costs with all earlier ones that share a record with it.

        Args:
            units: the names of each record's group or client, where these are protected.
        """
        cost = np.array([1.0, *planned(ledger)])
        here = np.unique(np.concatenate([self._fingerprints(one) for one in (frame, units) if one is not None]))
        with self._lock:
            everyone = np.union1d(self._prints, here)
            spent = np.zeros((len(everyone), 3))
            spent[np.searchsorted(everyone, self._prints)] = self._spent
            places = np.searchsorted(everyone, here)
            spent[places] += cost
            self._prints, self._spent = everyone, spent
        fits, releases, squares = spent[places].max(axis=0)
        epsilon = discrete_epsilon(partial(gdp_epsilon, math.sqrt(squares)), ledger.delta, int(releases))
        return Together(int(fits), epsilon)

    def _fingerprints(self, frame: Frame) -> np.ndarray:
        """Return a number for each record that depends on all its cells."""
        found = np.zeros(frame.size, np.uint64)
        for name, cells in zip(frame.names, frame.cells, strict=True):
            found = _mixed(found * np.uint64(0x9E3779B97F4A7C15) + self._of_column(name, cells))
        return found

    def _of_column(self, name: str, cells: Cells) -> np.ndarray:
        values = cells.values
        if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
            with np.errstate(all="ignore"):
                bits = np.ascontiguousarray(values, np.float64).view(np.uint64)
            return _mixed(bits ^ np.uint64(self._number(name)))
        texts, places = cells.texts()
        return np.array([self._number(f"{name}\0{text}") for text in texts], np.uint64)[places]

    def _number(self, text: str) -> int:
        return int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8, key=self._key).digest(), "big")


def _mixed(bits: np.ndarray) -> np.ndarray:
    """Return numbers of which each bit depends on all bits (the end of MurmurHash3)."""
    bits = (bits ^ (bits >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    bits = (bits ^ (bits >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return bits ^ (bits >> np.uint64(33))


REPEATS = Repeats()


def warn_of_repeats(frame: Frame, schema: Schema, unit: str, ledger: Ledger) -> None:
    """Count a fit that is about to begin, and warn of what it costs with earlier ones on the same records."""
    names = {"group": {"clients": schema.clients, "groups": schema.groups}, "client": {"clients": schema.clients}}
    labels = {role: frame[name] for role, name in names.get(unit, {}).items() if name is not None}
    units = Frame(tuple(labels), tuple(labels.values()), frame.size) if labels else None
    inputs = Frame(tuple(schema.columns), tuple(frame[name] for name in schema.columns), frame.size)
    together = REPEATS.add(inputs, ledger, units)
    if together.fits > 1:
        budget = float(ledger.header["budget"]["epsilon"])
        warnings.warn(
            f"this is fit number {together.fits} in this process on these records, or some of them. For a {unit} in "
            f"all these fits they cost epsilon={epsilon_text(together.epsilon)} at delta={ledger.delta:g} together; "
            f"the guarantee of this one, epsilon={epsilon_text(budget)}, does not speak of the others. Compare models "
            "on public records, or give each fit a part of the budget",
            CompositionWarning,
            stacklevel=3,
        )
