"""Numbers and tables as text."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def plus_minus(mean: float, sd: float | None) -> str:
    """Return mean and deviation with as many decimals as two digits of the deviation need.

    >>> plus_minus(0.0183472, 0.000123), plus_minus(68531.2, 487.0), plus_minus(0.575, 0.02), plus_minus(0.5123, None)
    ('0.01835 ± 0.00012', '68,531 ± 487', '0.575 ± 0.020', '0.5123')
    >>> plus_minus(4.234e-5, 1.1e-6), plus_minus(9.5354e-4, 1.26e-6), plus_minus(4e-5, 1e-3), plus_minus(0.5, 0.0)
    ('4.23e-05 ± 1.1e-06', '9.535e-04 ± 1.3e-06', '4.0e-05 ± 1.0e-03', '0.5 ± 0')
    """
    if sd is None:
        return f"{mean:,.0f}" if 1e3 <= abs(mean) < 1e7 else f"{mean:.4g}"
    if sd == 0 or mean == 0:
        return f"{mean:.4g} ± {sd:.2g}"
    if not 1e-3 <= abs(mean) < 1e7:
        digits = 1 + math.floor(math.log10(abs(mean))) - math.floor(math.log10(sd))
        return f"{mean:.{min(max(digits, 1), 5)}e} ± {sd:.1e}"
    decimals = min(max(1 - math.floor(math.log10(sd)), 0), 6)
    return f"{mean:,.{decimals}f} ± {sd:,.{decimals}f}"


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return mean and deviation; neither if a run diverged, and no deviation of a single value.

    >>> spread([1.0, 3.0])
    {'mean': 2.0, 'sd': 1.4142135623730951, 'diverged': 0, 'values': [1.0, 3.0]}
    >>> spread([1.0, math.nan])
    {'mean': None, 'sd': None, 'diverged': 1, 'values': [1.0, None]}
    """
    diverged = sum(not math.isfinite(value) for value in values)
    return {
        "mean": None if diverged else float(np.mean(values)),
        "sd": None if diverged or len(values) < 2 else float(np.std(values, ddof=1)),
        "diverged": diverged,
        "values": [value if math.isfinite(value) else None for value in values],
    }


def spread_text(found: Mapping[str, Any]) -> str:
    """Return mean and deviation, or how many diverged.

    >>> spread_text(spread([1.0, 1.5])), spread_text(spread([1.0, math.inf]))
    ('1.25 ± 0.35', 'diverged (1 of 2)')
    """
    if found["diverged"]:
        return f"diverged ({found['diverged']} of {len(found['values'])})"
    return plus_minus(found["mean"], found["sd"])


def counted(count: int, noun: str) -> str:
    """Return ``"1 seed"``, ``"5 seeds"``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def markdown_line(cells: Iterable[str]) -> str:
    """Return one line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]], *, digits: int | None = None) -> Path:
    """Write rows that have the same keys; numbers with so many digits, or all."""
    lines = list(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]) if lines else [], lineterminator="\n")
        writer.writeheader()
        for row in lines:
            writer.writerow(
                {name: f"{v:.{digits}g}" if digits and isinstance(v, float) else v for name, v in row.items()}
            )
    return path
