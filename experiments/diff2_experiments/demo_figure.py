"""The figure of the demo: how much of the accuracy survives privacy, against epsilon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .figures import apart, new_figure, save_figure

STYLES: dict[str, dict[str, Any]] = {
    "fit": {"color": "#0072B2", "linewidth": 3.2, "marker": "o", "markersize": 7},
    "DP-GD": {"color": "#D55E00", "linewidth": 1.8, "marker": "s", "markersize": 4.5},
    "DIFF2-GD": {"color": "#009E73", "linewidth": 1.8, "marker": "^", "markersize": 5},
    "DP-GD, tuned": {"color": "#D55E00", "linewidth": 1.1, "linestyle": ":"},
    "DIFF2-GD, tuned": {"color": "#009E73", "linewidth": 1.1, "linestyle": ":"},
}
WORDS = {
    "fit": "fit, nothing to tune",
    "DP-GD": "DP-GD, untuned",
    "DIFF2-GD": "DIFF2-GD, untuned",
    "DP-GD, tuned": "DP-GD, tuned on these records*",
    "DIFF2-GD, tuned": "DIFF2-GD, tuned on these records*",
}
NAME = 10.5  # size of the names at the right


def draw(rows: Sequence[Mapping[str, Any]], path: Path, subtitle: str) -> Path:
    """Draw the share of what boosting explains, a line a method, and write it to ``path``."""
    figure = new_figure(8.6, 4.4)
    axes = figure.subplots()
    axes.axhline(100, color="#555555", linestyle=(0, (4, 2)), linewidth=1.4)
    budgets = sorted({row["epsilon"] for row in rows if row["epsilon"] is not None})
    lines = {
        name: [100 * row["share"] for row in rows if row["method"] == name and row["epsilon"] is not None]
        for name in STYLES
    }
    for name, shares in lines.items():
        axes.plot(budgets, shares, **STYLES[name], zorder=3 if name == "fit" else 2)
    low = min(0.0, *(share for shares in lines.values() for share in shares))
    axes.set_ylim(max(low, -100), 108)
    axes.set_xscale("log")
    axes.set_xticks(budgets, [f"{at:g}" for at in budgets])
    axes.minorticks_off()
    axes.set_xlabel("epsilon: more privacy on the left, less on the right", fontsize=10)
    axes.yaxis.set_major_formatter("{x:.0f} %")
    axes.tick_params(labelsize=9.5)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    names = {"no privacy: gradient boosting": (100.0, "#555555")} | {
        WORDS.get(name, name): (shares[-1], STYLES[name]["color"]) for name, shares in lines.items()
    }
    bottom, top = axes.get_ylim()
    levels = apart([(level - bottom) / (top - bottom) for level, _ in names.values()], 0.068)
    for (name, (_, color)), level in zip(names.items(), levels, strict=True):
        axes.text(1.02, level, name, transform=axes.transAxes, color=color, fontsize=NAME, va="center",
                  fontweight="bold" if name == WORDS["fit"] else "normal")  # fmt: skip
    title = "Doctor visits: how much of the accuracy survives privacy"
    figure.suptitle(title, x=0.012, ha="left", fontsize=13.5, fontweight="bold")
    figure.text(0.012, 0.885, f"Share of what is explained without privacy. {subtitle}", fontsize=9.5, color="#444444")
    note = "* by looking at exact losses, which is not private: nobody may do that with private records"
    figure.text(0.012, 0.015, note, fontsize=8.5, color="#444444")
    figure.subplots_adjust(left=0.075, right=0.665, top=0.84, bottom=0.165)
    return save_figure(figure, path)
