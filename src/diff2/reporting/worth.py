"""How good a model is, and how much of it is noise: from releases alone, or "not measured"."""

import csv
import math
from pathlib import Path
from statistics import median
from typing import Any

from ..planning.filter import FILTERED
from ..privacy import Ledger
from ..training.model_file import MODEL

OF_FIT = "on the records of the fit itself, which is slightly optimistic; diff2 evaluate scores on others"
UNSURE = "from history.csv, which the ledger does not vouch for"


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
