"""What a scaling experiment found: a table of exponents, a table of points, and a figure on logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from diff2._progress import progress_bar
from diff2.cli.console import command, ending, show_line, show_rows

from .exponents import Fit, Point, fit_exponent
from .figures import STYLES, new_figure, save_figure
from .files import find_file
from .formatting import write_csv
from .scaling_law import METHODS, Experiment, Row, read_experiment, scaling_law
from .theory import DIFF2_EXPONENT, DPGD_EXPONENT

LABELS = {"dpgd": "DP-GD", "diff2": "DIFF2-GD"}
THEORY = {"dpgd": DPGD_EXPONENT, "diff2": DIFF2_EXPONENT}
QUANTITIES = {"mean": "mean over rounds", "smallest": "smallest"}
TITLES = {
    "robust_mean": "robust mean",
    "sigmoid_regression": "sigmoid regression",
    "covertype_softmax": "Cover Type, softmax regression",
    "covertype": "Cover Type, the paper's network",
}


class Found(NamedTuple):
    """An experiment and its runs."""

    name: str
    experiment: Experiment
    rows: Sequence[Row]


def _n_epsilon(row: Row) -> float:
    return float(row["records"] * row["epsilon"])


def _n_mu(row: Row) -> float:
    return float(row["records"] * row["mu"])


def points_of(rows: Sequence[Row], quantity: str, at: Callable[[Row], float]) -> list[Point]:
    """Return the values of the seeds at each N and epsilon; runs that diverged are left out."""
    found: dict[tuple[int, float], list[Row]] = {}
    for row in rows:
        if row[quantity] is not None and row[quantity] > 0:
            found.setdefault((row["records"], row["epsilon"]), []).append(row)
    points = [Point(at(group[0]), tuple(row[quantity] for row in group)) for group in found.values()]
    return sorted(points)


def exponent_rows(found: Found) -> list[dict[str, Any]]:
    """Return one line for each variant, method, quantity and part of the range."""
    table = []
    for variant in ("theorem", "tuned"):
        for method in METHODS:
            rows = [row for row in found.rows if (row["variant"], row["method"]) == (variant, method)]
            if not rows:
                continue
            for quantity in QUANTITIES:
                everywhere, by_mu = (points_of(rows, quantity, at) for at in (_n_epsilon, _n_mu))
                upper = by_mu[min(len(by_mu) // 2, len(by_mu) - 2) :]
                line: dict[str, Any] = {
                    "problem": found.name,
                    "variant": variant,
                    "method": method,
                    "quantity": quantity,
                }
                fits = {"n_epsilon": everywhere, "n_mu": by_mu, "n_mu_upper_half": upper}
                for name, points in fits.items():
                    fit = fit_exponent(points)
                    line |= {name: fit.exponent, f"{name}_low": fit.low, f"{name}_high": fit.high}
                table.append({**line, "theory": THEORY[method]})
    return table


def point_rows(found: Found) -> list[dict[str, Any]]:
    """Return one line for each variant, method, N and epsilon: the settings, and the means over seeds."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in found.rows:
        if row["variant"] != "tried":
            groups.setdefault((row["variant"], row["method"], row["records"], row["epsilon"]), []).append(row)
    table = []
    for (variant, method, records, epsilon), rows in sorted(groups.items()):
        first = rows[0]
        kept = ("rounds", "restart_interval", "learning_rate", "bound", "mu", "dimension")
        table.append(
            {
                "problem": found.name,
                "variant": variant,
                "method": method,
                "records": records,
                "epsilon": epsilon,
                **{name: first[name] for name in kept},
                "seeds": len(rows),
                **{name: _mean([row[name] for row in rows]) for name in ("mean", "smallest", "clipping", "seconds")},
            }
        )
    return table


def draw(found: Sequence[Found], path: Path) -> Path:
    """Draw the theorem's variant: one panel per experiment, both methods with their fits, the theory as a guide."""
    columns = min(2, len(found))
    lines = math.ceil(len(found) / columns)
    width, height = max(7.2, 0.3 + 4.4 * columns), 0.8 + 3.5 * lines
    figure = new_figure(width, height)
    places = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, part in zip(places, found, strict=False):
        drawn = []
        for method in METHODS:
            rows = [row for row in part.rows if (row["variant"], row["method"]) == ("theorem", method)]
            drawn += (points := points_of(rows, "mean", _n_mu))
            _draw_method(axes, method, points)
        values = [value for point in drawn for value in point.values]
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(min(values) / 1.6, max(values) * 5)  # room for the legend; guides may leave the picture
        axes.set_title(TITLES[part.experiment.problem], loc="left", fontsize=11)
        axes.set_xlabel(r"$N \mu$  ($\mu$: the budget as Gaussian DP)", fontsize=9.5)
        axes.grid(color="#E4E4E4", linewidth=0.7)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=9)
        axes.legend(frameon=False, fontsize=8.5, loc="upper right", handlelength=2.4)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    for axes in places[len(found) :]:
        axes.remove()
    figure.suptitle(
        "Squared gradient norm, mean over rounds, with the theorem's R, T and rate",
        x=0.13 / width, y=1 - 0.1 / height, ha="left", va="top", fontsize=12.5, fontweight="bold",
    )  # fmt: skip
    figure.text(
        0.13 / width, 1 - 0.47 / height,
        "points: means over seeds, bars from least to largest; lines: fits; dashes: the slopes of the theory",
        ha="left", va="center", fontsize=9.5, color="#444444",
    )  # fmt: skip
    figure.subplots_adjust(left=0.6 / width, right=1 - 0.15 / width, top=1 - 0.95 / height, bottom=0.5 / height,
                           wspace=0.2, hspace=0.38)  # fmt: skip
    return save_figure(figure, path)


def _draw_method(axes: Any, method: str, points: Sequence[Point]) -> None:
    fit, style = fit_exponent(points), STYLES[LABELS[method]]
    places, means = [point.at for point in points], [_mean(point.values) for point in points]
    bars = [
        [mean - min(point.values) for mean, point in zip(means, points, strict=True)],
        [max(point.values) - mean for mean, point in zip(means, points, strict=True)],
    ]
    marker = {"dpgd": "s", "diff2": "o"}[method]
    axes.errorbar(places, means, bars, fmt=marker, color=style["color"], markersize=5, linewidth=1.2)
    ends = [places[0], places[-1]]
    label = f"{LABELS[method]}: {_interval(fit)}"
    axes.plot(ends, [fit(at) for at in ends], color=style["color"], linewidth=1.6, label=label)
    last = fit(ends[1])
    guide = [last * (at / ends[1]) ** THEORY[method] for at in ends]
    name = {"dpgd": "theory: -1", "diff2": "theory: -4/3"}[method]
    axes.plot(ends, guide, color=style["color"], linewidth=1.2, linestyle=(0, (4, 3)), alpha=0.75, label=name)


def _interval(fit: Fit) -> str:
    return f"{fit.exponent:.2f} [{fit.low:.2f}, {fit.high:.2f}]"


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else math.nan


def _show(rows: Sequence[Mapping[str, Any]]) -> None:
    def cell(row: Mapping[str, Any], name: str) -> str:
        return f"{row[name]:.2f} [{row[f'{name}_low']:.2f}, {row[f'{name}_high']:.2f}]"

    show_rows(
        "exponents, with 95 % intervals over seeds",
        [
            [
                f"{row['problem']}, {row['variant']}, {LABELS[row['method']]}, {QUANTITIES[row['quantity']]}",
                cell(row, "n_epsilon"),
                cell(row, "n_mu"),
                cell(row, "n_mu_upper_half"),
                f"{row['theory']:.2f}",
            ]
            for row in rows
        ],
        ["", "against N epsilon", "against N mu", "N mu, upper half", "theory"],
        width=150,
    )


def report(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME|FILE.toml...",
            help="robust_mean, sigmoid_regression, covertype_softmax, covertype, or your own; a panel each.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where runs and tables go, a folder for each experiment.")],
    figure: Annotated[Path | None, typer.Option(help="By default DIR/scaling-law.png.")] = None,
    data_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Look there for tables.")] = None,
) -> None:
    """Fit the exponent of the squared gradient norm against N epsilon, for DP-GD and DIFF2-GD."""
    again = command("python", "-m", "diff2_experiments.scaling_law", *files, "--out", out)
    with ending(f"finished runs are kept; resume with: {again}"):
        paths = [find_file("scaling", name) for name in files]
        experiments = {path.stem: read_experiment(path) for path in paths}
        found = []
        for name, experiment in experiments.items():
            with progress_bar(label=name, unit="runs", show=None) as progress:
                rows = scaling_law(experiment, out / name, data_dir=data_dir, report=progress)
            found.append(Found(name, experiment, rows))
        exponents = [row for part in found for row in exponent_rows(part)]
        write_csv(out / "exponents.csv", exponents, digits=6)
        write_csv(out / "points.csv", [row for part in found for row in point_rows(part)], digits=6)
        _show(exponents)
        show_line(f"figure: {draw(found, figure or out / 'scaling-law.png')}")


def main() -> None:
    """Entry point of ``python -m diff2_experiments.scaling_law``."""
    typer.run(report)
