"""Figures: drawn on their own canvas, without a display and without touching matplotlib's global state."""

from __future__ import annotations

import importlib.util
import io
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from diff2.errors import Diff2Error

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito: told apart by colour-blind readers, and in grey by their lightness and dashes.
STYLES: dict[str, dict[str, Any]] = {
    "GD": {"color": "#555555", "linestyle": (0, (4, 2))},
    "DP-GD": {"color": "#D55E00", "linestyle": (0, (1.2, 1))},
    "DIFF2-GD": {"color": "#0072B2", "linestyle": "-"},
}
OTHERS: list[dict[str, Any]] = [
    {"color": "#009E73", "linestyle": "-."},
    {"color": "#CC79A7", "linestyle": "-"},
    {"color": "#E69F00", "linestyle": (0, (5, 1.5))},
    {"color": "#56B4E9", "linestyle": (0, (3, 1, 1, 1, 1, 1))},
    {"color": "#000000", "linestyle": "-"},
    {"color": "#882255", "linestyle": (0, (8, 2))},
    {"color": "#8C7A00", "linestyle": (0, (2, 1.5))},
    {"color": "#332288", "linestyle": (0, (6, 1.5, 1.5, 1.5))},
    {"color": "#661100", "linestyle": "-"},
    {"color": "#117733", "linestyle": (0, (1, 1))},
    {"color": "#AA4499", "linestyle": (0, (4, 1, 1, 1))},
]
ASTRAY = 1e30
DPI = 160


class Band(NamedTuple):
    """How one method went over several seeds; values that are not finite are left out."""

    label: str
    rounds: Sequence[float]  # or whatever else the axis of its panel shows
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    seeds: Sequence[Sequence[float]] = ()  # drawn as thin lines, in the place of the band
    published: float | None = None  # somebody else's value, marked at the right edge


class Panel(NamedTuple):
    """One metric against rounds, or against what they cost."""

    title: str
    unit: str
    bands: Sequence[Band]
    log: bool  # whether the axis of the values is logarithmic
    rising: bool = False  # whether more is better, as of an accuracy
    axis: str = "round"


def draw_panels(panels: Sequence[Panel], path: Path, *, title: str, subtitle: str, warning: str) -> Path:
    """Draw metrics side by side, a line and a band a method, and write them to ``path``."""
    panels = [panel._replace(bands=[_drawable(band) for band in panel.bands]) for panel in panels]
    styles = choose_styles([band.label for band in panels[0].bands])
    figure = new_figure(1.0 + 5.4 * len(panels), 4.9)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw_bands(axes, panel, styles)
        axes.set_xlim(min(band.rounds[0] for band in panel.bands), max(band.rounds[-1] for band in panel.bands))
        _label_ends(axes, {band.label: band.mean[-1] for band in panel.bands}, styles, fontsize=9, sample=0.09)
    _head(figure, title, subtitle, warning)
    width = figure.get_figwidth()
    figure.subplots_adjust(left=0.75 / width, right=1 - 1.75 / width, top=0.745, bottom=0.105, wspace=0.8)
    return save_figure(figure, path)


def draw_grid(
    panels: Sequence[Panel], paths: Sequence[Path], *, title: str, subtitle: str, warning: str, columns: int = 3
) -> Sequence[Path]:
    """Draw metrics against rounds in rows and columns, under one legend, and write them to all ``paths``.

    Unlike in :func:`draw_panels`, the axis of the rounds is linear, and a curve that ends outside
    of the picture is named in it.
    """
    panels = [panel._replace(bands=[_drawable(band) for band in panel.bands]) for panel in panels]
    styles = choose_styles([band.label for band in panels[0].bands])
    columns = min(columns, len(panels))
    lines, names = math.ceil(len(panels) / columns), math.ceil(len(styles) / 6)
    top = 1.35 + 0.25 * names
    width, height = max(0.3 + 3.45 * columns, 7.0), top + 2.75 * lines + 0.85 * (lines - 1)
    figure = new_figure(width, height)
    places = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, panel in zip(places, panels, strict=False):
        _draw_bands(axes, panel, styles, log_rounds=False, linewidth=1.4)
        axes.set_xlim(0, max(band.rounds[-1] for band in panel.bands))
        axes.locator_params(axis="x", nbins=4)
        _name_absent(axes, panel, styles)
    for axes in places[len(panels) :]:
        axes.remove()
    _head(figure, title, subtitle, warning)
    figure.legend(
        places[0].lines[: len(styles)], list(styles), loc="upper left", ncols=math.ceil(len(styles) / names),
        bbox_to_anchor=(0.05 / width, 1 - 0.8 / height), frameon=False, fontsize=9.5, handlelength=2.6,
    )  # fmt: skip
    figure.subplots_adjust(left=0.72 / width, right=1 - 0.3 / width, top=1 - top / height, bottom=0.5 / height,
                           wspace=0.3, hspace=0.42)  # fmt: skip
    return [save_figure(figure, path) for path in paths]


def _draw_bands(
    axes: Axes,
    panel: Panel,
    styles: Mapping[str, Mapping[str, Any]],
    *,
    log_rounds: bool = True,
    linewidth: float = 1.8,
) -> None:
    for band in panel.bands:
        style = styles[band.label]
        if not band.seeds:
            axes.fill_between(band.rounds, band.low, band.high, color=style["color"], alpha=0.15, linewidth=0)
        ends: dict[str, Any] = {"marker": "o", "markevery": [-1], "markersize": 5} if band.seeds else {}
        axes.plot(band.rounds, band.mean, linewidth=linewidth, **style, **ends)
    for band in panel.bands:  # after the means, whose lines a legend takes
        for seed in band.seeds:
            axes.plot(band.rounds, seed, color=styles[band.label]["color"], alpha=0.3, linewidth=0.5, zorder=1)
        if band.published is not None:
            axes.plot(1.0, band.published, marker="<", markersize=8, color=styles[band.label]["color"], clip_on=False,
                      markeredgecolor="white", transform=axes.get_yaxis_transform(), zorder=4)  # fmt: skip
    _dress(axes, panel, log_rounds=log_rounds)
    if panel.log and any(math.isfinite(value) and value > 0 for band in panel.bands for value in band.mean):
        axes.set_yscale("log")
    limits = focus(panel)
    if limits is not None:
        published = [band.published for band in panel.bands if band.published is not None]
        axes.set_ylim(min(limits[0], *published, limits[1]), max(limits[1], *published, limits[0]))


def _head(figure: Figure, title: str, subtitle: str, warning: str) -> None:
    width, height = figure.get_size_inches()
    left = 0.13 / width
    figure.suptitle(title, x=left, y=1 - 0.1 / height, ha="left", va="top", fontsize=13, fontweight="bold")
    figure.text(left, 1 - 0.43 / height, subtitle, ha="left", va="center", fontsize=9.5, color="#444444")
    figure.text(left, 1 - 0.65 / height, warning, ha="left", va="center", fontsize=9.5, color="#B00000",
                fontweight="bold")  # fmt: skip


def choose_styles(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return a colour and a dash for each method; those that have their own keep them.

    >>> choose_styles(["DIFF2-GD", "DP-SGD"])["DP-SGD"]
    {'color': '#009E73', 'linestyle': '-.'}
    """
    others = itertools.cycle(OTHERS)
    return {label: STYLES[label] if label in STYLES else next(others) for label in labels}


def require_matplotlib() -> None:
    """Raise where figures could not be drawn, so that a long run need not find out at its end."""
    if importlib.util.find_spec("matplotlib") is None:
        raise Diff2Error("figures need matplotlib, which is not installed; pip install 'diff2[plots]'")


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure on a canvas of its own, in inches."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _dress(axes: Axes, panel: Panel, *, log_rounds: bool = True) -> None:
    axes.set_title(panel.title, loc="left", fontsize=11, pad=18)
    axes.text(0, 1.025, panel.unit, transform=axes.transAxes, fontsize=8.5, color="#444444")
    if log_rounds:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter("")
    axes.xaxis.set_major_formatter("{x:,.9g}")
    axes.set_xlabel(panel.axis, fontsize=10)
    axes.tick_params(labelsize=9)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _drawable(band: Band) -> Band:
    """Leave out what is not finite, or so large that it might as well not be."""
    mean, low, high, *seeds = (
        [value if abs(value) < ASTRAY else math.nan for value in part] for part in (*band[2:5], *band.seeds)
    )
    return band._replace(mean=mean, low=low, high=high, seeds=seeds)


def focus(panel: Panel) -> tuple[float, float] | None:
    """Return the limits of the values to look at, or None where nothing is finite.

    Where most methods are for most of their rounds; what went astray, or is far off in the first rounds, is left out.
    """
    sign = -1 if panel.rising else 1
    curves = [sorted(sign * value for value in band.mean if math.isfinite(value)) for band in panel.bands]
    edges = [
        sign * value
        for band in panel.bands
        for value in (band.high if panel.rising else band.low)
        if math.isfinite(value) and (value > 0 or not panel.log)
    ]
    ends = sorted(sign * band.mean[-1] for band in panel.bands if math.isfinite(band.mean[-1]))
    reached = sorted(curve[int(0.85 * (len(curve) - 1))] for curve in curves if curve)
    if not edges or not ends:
        return None
    best, worst = min(edges), max(curve[-1] for curve in curves if curve)
    most, reach = ends[3 * len(ends) // 4], reached[3 * len(reached) // 4]  # three of four are nearer to the best
    if panel.log and not panel.rising:
        return best / 1.5, 1.5 * min(worst, 1e3 * max(most, best))
    gap = max(most - best, 0.01 * abs(best))
    far = min(worst, best + max(3 * gap, min(reach - best, max(8 * gap, 0.25 * abs(best)))))
    if far <= best:
        return None
    limits = sorted((sign * (best - 0.06 * (far - best)), sign * (far + 0.03 * (far - best))))
    return limits[0], limits[1]


def _name_absent(axes: Axes, panel: Panel, styles: Mapping[str, Mapping[str, Any]]) -> None:
    """Name the methods whose curve ends above or below the picture, with the value, or diverged."""
    low, high = axes.get_ylim()
    absent = [band for band in panel.bands if not low <= band.mean[-1] <= high]
    for number, band in enumerate(absent):
        end = band.mean[-1]
        text = f"{band.label} {'↓' if end < low else '↑'} {end:.2g}" if math.isfinite(end) else f"{band.label} diverged"
        axes.text(0.99, 0.97 - 0.07 * number, text, transform=axes.transAxes, color=styles[band.label]["color"],
                  fontsize=8.5, ha="right", va="top", fontweight="bold")  # fmt: skip


def _label_ends(
    axes: Axes,
    ends: Mapping[str, float],
    styles: Mapping[str, Mapping[str, Any]],
    *,
    fontsize: float = 10,
    sample: float = 0.0,
) -> None:
    """Write each name at the right edge, level with the end of its curve, moved apart where they would touch.

    An arrow tells of a curve that ends above or below the picture. ``sample`` is the length of a piece of the line in
    front of the name, as a share of the axis.
    """
    axes.figure.canvas.draw()
    low, high = axes.get_ylim()
    to_axes = axes.transData + axes.transAxes.inverted()
    inside = {label: min(max(end, low), high) if math.isfinite(end) else high for label, end in ends.items()}
    levels = [float(to_axes.transform((axes.get_xlim()[1], level))[1]) for level in inside.values()]
    gap = 1.35 * fontsize * axes.figure.dpi / 72 / axes.bbox.height
    for (label, end), height in zip(ends.items(), apart(levels, gap), strict=True):
        text = label if low <= end <= high else f"{label} {'↓' if end < low else '↑'}"
        style, where = styles[label], axes.transAxes
        if sample:
            axes.plot([1.02, 1.02 + sample], [height, height], linewidth=1.8, transform=where, clip_on=False, **style)
        left = 1.035 + sample if sample else 1.015
        axes.text(left, height, text, transform=where, color=style["color"], fontsize=fontsize, va="center",
                  fontweight="bold")  # fmt: skip


def apart(levels: Sequence[float], gap: float) -> list[float]:
    """Move levels apart until neighbours are ``gap`` from each other, up first, then down from the top at 1.

    >>> [round(level, 2) for level in apart([0.5, 0.5, 0.98, 1.0], 0.1)]
    [0.5, 0.6, 0.9, 1.0]
    """
    order = sorted(range(len(levels)), key=levels.__getitem__)
    moved = [min(max(level, 0.0), 1.0) for level in levels]
    for below, above in itertools.pairwise(order):
        moved[above] = max(moved[above], moved[below] + gap)
    if order:
        moved[order[-1]] = min(moved[order[-1]], 1.0)
    for above, below in itertools.pairwise(reversed(order)):
        moved[below] = min(moved[below], moved[above] - gap)
    return moved


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure; the same picture is the same file."""
    from matplotlib import rc_context
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".png":
        with io.BytesIO() as drawn:
            figure.savefig(drawn, dpi=DPI)
            # A palette: fewer bytes, and nobody sees it. With 128 colours two of ten methods had the same.
            Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
        return path
    with rc_context({"svg.hashsalt": "diff2"}):
        figure.savefig(path, metadata={"Date": None, "Creator": None})
    return path
