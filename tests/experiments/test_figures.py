"""Figures: a style for each method, labels that can be read, and limits that a diverged run does not move."""

import math

import numpy as np
import pytest

from diff2_experiments.figures import OTHERS, STYLES, Band, Panel, apart, choose_styles, draw_grid, draw_panels, focus

ASTRAY = (math.nan, math.inf, 1e300, 0.0)


def test_a_dozen_methods_have_a_style_each():
    labels = ["GD", "DP-GD", "DIFF2-GD", *(f"method {i}" for i in range(11))]
    styles = choose_styles(labels)
    assert len({style["color"] for style in styles.values()}) == len(labels) == len(STYLES) + len(OTHERS)


def test_labels_are_apart_and_inside():
    levels = apart([0.99, 1.0, 1.0, 0.2, 0.2, 0.0, 1.3], 0.1)
    assert max(levels) <= 1
    assert np.diff(sorted(levels)).min() >= 0.1 - 1e-12


@pytest.mark.parametrize("draw", [draw_panels, draw_grid])
def test_a_figure_survives_values_that_are_not_finite(tmp_path, draw):
    fine = [3.0, 2.0, 1.0]
    bands = [Band("DP-GD", [1, 2, 3], fine, fine, fine)]
    bands += [Band(f"at {bad}", [1, 2, 3], *[[3.0, bad, bad]] * 3) for bad in ASTRAY]
    panels = [Panel("loss", "unit", bands, log=log) for log in (False, True)]
    path = tmp_path / "figure.svg"
    draw(panels, [path] if draw is draw_grid else path, title="title", subtitle="subtitle", warning="warning")
    assert path.stat().st_size > 10_000


def test_the_first_rounds_do_not_squash_the_end():
    rounds = np.arange(20, 2001, 20)
    falling = (0.02 + 0.3 / (1 + rounds / 30) ** 1.5).tolist()
    low, high = focus(Panel("", "", [Band("x", rounds.tolist(), *[falling] * 3)], log=False))
    assert low < falling[-1] < high < falling[0] / 3
    rising = [0.76 - value for value in falling]
    low, high = focus(Panel("", "", [Band("x", rounds.tolist(), *[rising] * 3)], log=False, rising=True))
    assert rising[0] < low < rising[-1] < high
    assert focus(Panel("", "", [Band("x", [1], *[[math.nan]] * 3)], log=True)) is None
