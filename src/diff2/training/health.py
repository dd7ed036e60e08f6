"""What the releases of a run say of its model: how much of the gradient estimates is noise.

How many records are clipped is not released, so nothing is said of it. Neither is the loss: ``diff2.evaluate`` scores
models of ``fit``; for others, score on public records.
"""

from collections.abc import Mapping

import numpy as np

MOSTLY = 0.9  # share of noise from which on a run is called mostly noise
NAMES = ("estimate_norm", "estimate_std")  # of the history, which are used
PARTS = 10  # of the rounds, of which the first and the last are shown


def noise_share(history: Mapping[str, np.ndarray], dimension: int) -> float:
    """Return the share of noise in the squared lengths of the estimates, at most 1.

    It can be below what noise alone explains by chance; then all of it is noise.
    """
    released = float(np.square(history["estimate_norm"]).sum())
    noise = dimension * float(np.square(history["estimate_std"]).sum())
    return min(1.0, noise / released) if released > 0 else float(noise > 0)


def health_of(history: Mapping[str, np.ndarray], dimension: int) -> list[str]:
    """Return lines that say how much of the gradient estimates is noise, from released values alone."""
    if "estimate_std" not in history or not history["estimate_std"].any():
        return ["no noise was added to the gradient estimates"]
    size = max(1, len(history["estimate_std"]) // PARTS)
    parts = ({name: history[name][of] for name in NAMES} for of in (slice(None), slice(size), slice(-size, None)))
    whole, first, last = (noise_share(part, dimension) for part in parts)
    lines = [f"noise is {whole:.0%} of the gradient estimates: {first:.0%} in the first rounds, {last:.0%} in the last"]
    if first >= MOSTLY:
        lines.append(
            "from the first round on estimates are mostly noise: expect little of the model. More records, a larger "
            "epsilon, fewer rounds or a smaller model help; for a table, diff2 fit needs no settings"
        )
    return lines
