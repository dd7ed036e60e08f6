"""What a comparison found: tables for people and machines, and a figure for each epsilon."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diff2.figures import Band, Panel, draw_panels

from .comparison import NOT_PRIVATE, Comparison
from .store import Run

TITLES = {
    "train_loss": "train loss",
    "test_loss": "test loss",
    "train_accuracy": "train accuracy",
    "test_accuracy": "test accuracy",
    "rmse": "RMSE",
    "smallest_squared_gradient_norm": "smallest squared gradient norm",
    "squared_gradient_norm": "final squared gradient norm",
    "seconds": "seconds",
}
SHORT = {"smallest_squared_gradient_norm": "smallest |grad|²", "squared_gradient_norm": "final |grad|²"}
PANELS = {
    "train_loss": ("train loss", "of the records trained on"),
    "test_loss": ("test loss", "of held-out records"),
    "squared_gradient_norm": ("squared gradient norm", "of the training loss"),
}


def summaries(found: Comparison) -> list[Run]:
    """Return a row for each epsilon and method: mean and deviation over the seeds of every metric."""
    rows = []
    for epsilon in found.epsilons:
        for method in found.methods:
            runs = found.runs[method.name, epsilon]
            spent = [math.inf if run["epsilon"] is None else run["epsilon"] for run in runs]
            values = [_values(found, run) for run in runs]
            rows.append(
                {
                    "budget": epsilon,
                    "method": method.name,
                    "label": method.label,
                    "algorithm": runs[0]["algorithm"],
                    "seeds": len(runs),
                    "epsilon": max(spent),
                    "metrics": {name: _statistics([run[name] for run in values]) for name in values[0]},
                }
            )
    return rows


def notes(found: Comparison) -> list[str]:
    """Say what the numbers mean, and what they do not."""
    encoding, sizes = found.tables.encoding, [len(inputs) for inputs, _ in found.tables.clients]
    held = 0 if found.tables.holdout is None else len(found.tables.holdout[0])
    lines = [
        f"{NOT_PRIVATE[0].upper()}{NOT_PRIVATE[1:]}, seeded noise"
        + "".join(f", {name}" for name in found.tables.leaks)
        + ". For public data only.",
        f"Mean ± deviation over {counted(found.seeds, 'seed')} of noise and starting point; "
        f"epsilon from the ledgers, the largest, at delta {found.file.privacy.delta:g}; seconds of one run.",
        f"{sum(sizes):,} records of {counted(len(sizes), 'client')}, {held:,} held out.",
    ]
    if encoding.target_scaling is not None:
        scale, offset = encoding.target_scaling.scale, encoding.target_scaling.offset
        scaled = encoding.target if offset == 0 else f"({encoding.target} - {offset:.6g})"
        scaled = f"the scaled target, {scaled} / {scale:.6g}" if scale != 1 else scaled
        root = "test" if held else "train"
        lines.append(
            f"Losses are mean squared errors of {scaled}; RMSE is the root of the {root} loss in its own unit."
        )
    return lines


def table_cells(rows: Sequence[Run], *, short: bool = False) -> tuple[list[str], list[list[str]]]:
    """Return header and cells of a table for people: one line a method."""
    names, titles = list(rows[0]["metrics"]), {**TITLES, **SHORT} if short else TITLES
    header = ["method", *(titles[name] for name in names if name != "seconds"), "epsilon", "seconds"]
    cells = []
    for row in rows:
        metrics = [_cell(row["metrics"][name], row["seeds"]) for name in names if name != "seconds"]
        seconds = f"{row['metrics']['seconds']['mean']:.3g}"
        cells.append([row["label"], *metrics, f"{row['epsilon']:.4g}", seconds])
    return header, cells


def write_tables(found: Comparison, rows: Sequence[Run], command: str) -> list[Path]:
    """Write table.csv and table.md."""
    plain, markdown = found.directory / "table.csv", found.directory / "table.md"
    names = list(rows[0]["metrics"])
    with plain.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            [
                "budget_epsilon",
                "method",
                "label",
                "seeds",
                "epsilon",
                *(f"{n}_{k}" for n in names for k in ("mean", "sd")),
            ]
        )
        for row in rows:
            statistics = [row["metrics"][name][kind] for name in names for kind in ("mean", "sd")]
            writer.writerow([row["budget"], row["method"], row["label"], row["seeds"], row["epsilon"], *statistics])
    header, cells = table_cells(rows)
    lines = [f"# {found.name}: {', '.join(method.label for method in found.methods)}", "", "```", command, "```", ""]
    lines += ["| budget | " + " | ".join(header) + " |", "| ---: | --- |" + " ---: |" * (len(header) - 1)]
    lines += [f"| {row['budget']:g} | " + " | ".join(line) + " |" for row, line in zip(rows, cells, strict=True)]
    lines += ["", *(f"- {note}" for note in notes(found))]
    markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [plain, markdown]


def draw_figures(found: Comparison) -> list[Path]:
    """Draw a figure for each epsilon: every metric against rounds, the mean over the seeds and their range."""
    paths = []
    sizes = [len(inputs) for inputs, _ in found.tables.clients]
    for epsilon in found.epsilons:
        names = [name for name in PANELS if name in found.runs[found.methods[0].name, epsilon][0]]
        panels = [
            Panel(
                *PANELS[name],
                [_band(method.label, found.runs[method.name, epsilon], name) for method in found.methods],
                log=name == "squared_gradient_norm",
            )
            for name in names
        ]
        path = draw_panels(
            panels,
            found.directory / f"figure-epsilon-{epsilon:g}.png",
            title=f"{found.name}, epsilon {epsilon:g}",
            subtitle=f"delta {found.file.privacy.delta:g}, {sum(sizes):,} records, {counted(len(sizes), 'client')}. "
            f"Lines: mean over {counted(found.seeds, 'seed')}; bands: from the smallest to the largest.",
            warning=NOT_PRIVATE[0].upper() + NOT_PRIVATE[1:],
        )
        paths.append(path)
    return paths


def document(found: Comparison, rows: Sequence[Run], figures: Sequence[Path]) -> dict[str, Any]:
    """Return everything as plain values."""
    return {
        "private": False,
        "notes": notes(found),
        "data": found.name,
        "delta": found.file.privacy.delta,
        "seeds": found.seeds,
        "rows": list(rows),
        "trained": found.trained,
        "directory": str(found.directory),
        "files": {
            "runs": str(found.directory / "runs.jsonl"),
            "table": str(found.directory / "table.csv"),
            "markdown": str(found.directory / "table.md"),
            "figures": [str(path) for path in figures],
        },
    }


def _values(found: Comparison, run: Run) -> dict[str, float]:
    """Return the metrics of one run, in the order of the table."""
    final = {name: math.nan if value is None else value for name, value in run["final"].items()}
    final["seconds"] = run["seconds"]
    scaling = found.tables.encoding.target_scaling
    if scaling is not None:
        loss = final.get("test_loss", final["train_loss"])
        final["rmse"] = math.sqrt(loss) * scaling.scale
    return {name: final[name] for name in TITLES if name in final}


def _statistics(values: Sequence[float]) -> dict[str, float | int | None]:
    finite = int(np.isfinite(values).sum())
    mean = float(np.mean(values)) if finite == len(values) else math.nan
    sd = float(np.std(values, ddof=1)) if finite == len(values) > 1 else None
    return {"mean": mean, "sd": sd, "diverged": len(values) - finite}


def _cell(statistics: dict[str, Any], seeds: int) -> str:
    if statistics["diverged"]:
        return f"diverged ({statistics['diverged']} of {seeds})"
    return plus_minus(statistics["mean"], statistics["sd"])


def plus_minus(mean: float, sd: float | None) -> str:
    """Return mean and deviation with as many decimals as two digits of the deviation need.

    >>> plus_minus(0.0183472, 0.000123), plus_minus(68531.2, 487.0), plus_minus(4.234e-5, 1.1e-6), plus_minus(0.5, None)
    ('0.01835 ± 0.00012', '68,531 ± 487', '4.23e-05 ± 1.1e-06', '0.5')
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


def counted(count: int, noun: str) -> str:
    """Return ``"1 seed"``, ``"5 seeds"``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _band(label: str, runs: Sequence[Run], name: str) -> Band:
    values = np.array([[math.nan if value is None else value for value in run[name]] for run in runs], dtype=float)
    return Band(label, runs[0]["rounds"], values.mean(0), values.min(0), values.max(0))
