"""The figure of the benchmark: mean share of what boosting explains, against epsilon."""

from __future__ import annotations

from pathlib import Path

from .contestants import CONTESTANTS, FIT, LINEAR
from .scores import Scores

COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#1f6f8b", "#d55e00", "#8c6d31", "#7b6fb0", "#4d4d4d"]
LOWEST = -0.5  # of the axis; lines below leave it
APART = 0.055  # of the axis, between labels


def draw(scores: Scores, path: Path) -> None:
    """Draw a line for each private contestant that ran on all tables, labelled at its end, and the references."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8.5, 4.8), layout="constrained")
    epsilons = scores.epsilons
    ends = {}
    private = [name for name in CONTESTANTS if CONTESTANTS[name].private]
    for name, colour in zip(private, COLOURS, strict=True):
        means = [scores.mean_share(name, epsilon) for epsilon in epsilons]
        points = [(epsilon, mean) for epsilon, mean in zip(epsilons, means, strict=True) if mean is not None]
        if points and not scores.not_run(name):
            x, y = zip(*points, strict=True)
            heavy = name == FIT
            axes.plot(x, y, marker="o", ms=6 if heavy else 4, lw=2.8 if heavy else 1.4, color=colour)
            label = name if y[-1] >= LOWEST else f"{name} (below)"
            ends[label] = (max(y[-1], LOWEST + 0.02), colour, "bold" if heavy else "normal")
    axes.axhline(1.0, color="#888888", lw=1, ls="--")
    axes.axhline(0.0, color="#888888", lw=1, ls="--")
    ends["boosting, not private"] = (1.0, "#666666", "normal")
    ends["mean or prior"] = (0.0, "#666666", "normal")
    linear = scores.mean_share(LINEAR, None)
    if linear is not None:
        axes.axhline(linear, color="#888888", lw=1, ls=":")
        ends["linear, not private"] = (linear, "#666666", "normal")
    for name, height in spread({name: end[0] for name, end in ends.items()}).items():
        axes.annotate(name, (1.01, height), xycoords=("axes fraction", "data"), va="center", fontsize=9,
                      color=ends[name][1], fontweight=ends[name][2], annotation_clip=False)  # fmt: skip
    axes.set_xscale("log")
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes.minorticks_off()
    axes.set_ylim(LOWEST, max(1.08, *(height + 0.05 for height, _, _ in ends.values())))
    axes.set_xlabel("epsilon (delta = 1e-5, replacing one row)")
    axes.set_ylabel("share of what boosting explains, mean over tables")
    axes.set_title(f"Private models of {len(scores.tables)} public tables, no tuning", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def spread(heights: dict[str, float]) -> dict[str, float]:
    """Return heights of labels that do not overlap, in the same order.

    >>> spread({"a": 0.5, "b": 0.5})
    {'a': 0.4725, 'b': 0.5275}
    """
    apart = APART
    names = sorted(heights, key=lambda name: heights[name])
    blocks: list[tuple[list[str], float]] = []  # labels that touch, and the middle of the block
    for name in names:
        block, middle = [name], heights[name]
        while blocks and middle - apart * len(block) / 2 < blocks[-1][1] + apart * len(blocks[-1][0]) / 2:
            below, lower = blocks.pop()
            middle = (lower * len(below) + middle * len(block)) / (len(below) + len(block))
            block = below + block
        blocks.append((block, middle))
    return {
        name: round(middle + apart * (i - (len(block) - 1) / 2), 6)
        for block, middle in blocks
        for i, name in enumerate(block)
    }
