"""Figures: drawn on their own canvas, without a display and without touching matplotlib's global state."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import Diff2Error

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito: told apart by colour-blind readers, and in grey by their lightness and dashes.
STYLES: dict[str, dict[str, Any]] = {
    "GD": {"color": "#555555", "linestyle": (0, (4, 2))},
    "DP-GD": {"color": "#D55E00", "linestyle": (0, (1.2, 1))},
    "DIFF2-GD": {"color": "#0072B2", "linestyle": "-"},
}
OTHER = {"color": "#009E73", "linestyle": "-."}
DPI = 160


class Curve(NamedTuple):
    """How one method went, at some of its rounds."""

    label: str
    rounds: Sequence[int]
    test_loss: Sequence[float]
    squared_gradient_norm: Sequence[float]


def draw_curves(curves: Sequence[Curve], path: Path, *, title: str, subtitle: str) -> Path:
    """Draw test loss and squared gradient norm against rounds, side by side, and write them to ``path``."""
    figure = _new_figure(9.0, 3.9)
    loss, gradient = figure.subplots(1, 2)
    for curve in curves:
        style = STYLES.get(curve.label, OTHER)
        loss.plot(curve.rounds, curve.test_loss, linewidth=2, **style)
        gradient.plot(curve.rounds, curve.squared_gradient_norm, linewidth=2, **style)
    _dress(loss, "test loss", "mean squared error of log(1 + visits), held-out people")
    _dress(gradient, "squared gradient norm", "of the training loss")
    gradient.set_yscale("log")
    _focus(loss, [curve.test_loss for curve in curves])
    _label_ends(loss, curves, [curve.test_loss[-1] for curve in curves])
    _label_ends(gradient, curves, [curve.squared_gradient_norm[-1] for curve in curves])
    figure.suptitle(title, x=0.012, ha="left", fontsize=12.5, fontweight="bold")
    figure.text(0.012, 0.895, subtitle, ha="left", va="center", fontsize=9.5, color="#444444")
    figure.subplots_adjust(left=0.06, right=0.895, top=0.745, bottom=0.13, wspace=0.5)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI, metadata={"Software": None})
    return path


def require_matplotlib() -> None:
    """Raise where figures could not be drawn, so that a long run need not find out at its end."""
    if importlib.util.find_spec("matplotlib") is None:
        raise Diff2Error("figures need matplotlib, which is not installed; pip install 'diff2[plots]'")


def _new_figure(width: float, height: float) -> Figure:
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _dress(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, pad=18)
    axes.text(0, 1.025, unit, transform=axes.transAxes, fontsize=8.5, color="#444444")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("round", fontsize=10)
    axes.tick_params(labelsize=9)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _focus(axes: Axes, values: Sequence[Sequence[float]]) -> None:
    """Show where the curves end; the first rounds, which are far above, may leave the picture."""
    lowest = min(min(series) for series in values)
    highest = max(series[-1] for series in values)
    start = max(series[0] for series in values)
    top = min(start, lowest + 4 * max(highest - lowest, 0.02))
    axes.set_ylim(lowest - 0.06 * (top - lowest), top + 0.03 * (top - lowest))


def _label_ends(axes: Axes, curves: Sequence[Curve], ends: Sequence[float]) -> None:
    """Write each name at the right edge, level with the end of its curve, moved apart where they would touch."""
    axes.figure.canvas.draw()
    low, high = axes.get_ylim()
    to_axes = axes.transData + axes.transAxes.inverted()
    level = [min(max(float(to_axes.transform((1, min(max(end, low), high)))[1]), 0.0), 1.0) for end in ends]
    right = max(curve.rounds[-1] for curve in curves)
    order = sorted(range(len(level)), key=level.__getitem__)
    for below, above in itertools.pairwise(order):
        level[above] = max(level[above], level[below] + 0.085)
    for curve, height in zip(curves, level, strict=True):
        color = STYLES.get(curve.label, OTHER)["color"]
        axes.text(1.015, height, curve.label, transform=axes.transAxes, color=color, fontsize=10, va="center",
                  fontweight="bold")  # fmt: skip
    axes.set_xlim(1, right)
