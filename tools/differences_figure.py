"""Draw why differences help: ``python tools/differences_figure.py`` writes docs/images/differences.png.

Two runs on the same made-up records with the same budget and routine: DP-GD, and DIFF2 with a restart every 20 rounds.
Both curves are released values: the clipping radius of each round, and the noise that its estimate carries.
"""

from pathlib import Path

import torch

import diff2
from diff2_experiments.figures import new_figure, save_figure

ROUNDS, INTERVAL = 120, 20
COLORS = {"DP-GD": "#D55E00", "DIFF2": "#009E73"}


def histories():
    """Return the history of both runs."""
    torch.manual_seed(0)
    inputs = torch.randn(20_000, 8)
    targets = torch.tanh(inputs[:, :1] - inputs[:, 1:2]) + 0.1 * torch.randn(20_000, 1)
    step = diff2.GradientDescent(learning_rate=0.1)
    algorithms = {
        "DP-GD": diff2.DPGD(rounds=ROUNDS, clip_gradient=1.0, routine=step),
        "DIFF2": diff2.Diff2(
            rounds=ROUNDS, restart_interval=INTERVAL, clip_gradient=1.0, clip_smoothness=2.0, routine=step
        ),
    }
    model, budget = diff2.mlp(8, 1), diff2.Budget(epsilon=1.0, delta=1e-6)
    return {
        name: diff2.train(model, "squared", (inputs, targets), algorithm, budget, seed=0).history
        for name, algorithm in algorithms.items()
    }


def main() -> None:
    """Draw both panels and write the picture."""
    figure = new_figure(7.2, 5.0)
    radius, noise = figure.subplots(2, 1, sharex=True)
    found = histories()
    for name, color in COLORS.items():
        rounds = range(1, ROUNDS + 1)
        radius.plot(rounds, found[name]["clip"], color=color, linewidth=1.8, label=name)
        noise.plot(rounds, 1000 * found[name]["estimate_std"], color=color, linewidth=1.8, label=name)
    radius.set_title("how far one record may pull: the clipping radius", fontsize=10.5, loc="left")
    noise.set_title("noise in the gradient estimate, per coordinate, x 1000", fontsize=10.5, loc="left")
    for axes in (radius, noise):
        axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=9)
        axes.grid(axis="y", color="#DDDDDD", linewidth=0.7)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    noise.set_xlabel("round", fontsize=10)
    noise.legend(frameon=False, fontsize=10, loc="center right")
    figure.tight_layout()
    print(save_figure(figure, Path(__file__).parent.parent / "docs" / "images" / "differences.png"))


if __name__ == "__main__":
    main()
