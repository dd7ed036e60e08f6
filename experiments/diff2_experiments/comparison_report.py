"""What a comparison found: tables for people and machines, and a figure for each epsilon."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diff2.cli.console import show_facts, show_line, show_rows

from .comparison import Comparison
from .figures import Band, Panel, draw_panels
from .formatting import counted, markdown_line, spread, spread_text, write_csv
from .store import Run

NOT_PRIVATE = "Not private: exact metrics, tuned settings"
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
            values = [_values(found, run) for run in runs]
            rows.append(
                {
                    "budget": epsilon,
                    "method": method.name,
                    "label": method.label,
                    "algorithm": runs[0]["algorithm"],
                    "seeds": len(runs),
                    "epsilon": max(math.inf if run["epsilon"] is None else run["epsilon"] for run in runs),
                    "metrics": {name: spread([run[name] for run in values]) for name in values[0]},
                }
            )
    return rows


def notes(found: Comparison) -> list[str]:
    """Say what the numbers mean, and what they do not."""
    encoding, held = found.tables.encoding, 0 if found.tables.holdout is None else len(found.tables.holdout[0])
    lines = [
        f"{', '.join([f'{NOT_PRIVATE}, seeded noise', *found.tables.leaks])}. For public data only.",
        f"Mean ± deviation over {counted(found.seeds, 'seed')} of noise and starting point; "
        f"epsilon from the ledgers, the largest, at delta {found.file.privacy.delta:g}; seconds of one run.",
        f"{size_text(found)}, {held:,} held out.",
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
    """Return header and cells of a table for people: one line per method."""
    names, titles = list(rows[0]["metrics"]), {**TITLES, **SHORT} if short else TITLES
    header = ["method", *(titles[name] for name in names if name != "seconds"), "epsilon", "seconds"]
    cells = []
    for row in rows:
        metrics = [spread_text(row["metrics"][name]) for name in names if name != "seconds"]
        seconds = f"{row['metrics']['seconds']['mean']:.3g}"
        cells.append([row["label"], *metrics, f"{row['epsilon']:.4g}", seconds])
    return header, cells


def write_tables(found: Comparison, rows: Sequence[Run], command: str) -> list[Path]:
    """Write table.csv and table.md."""
    plain = write_csv(found.directory / "table.csv", map(_csv_row, rows))
    header, cells = table_cells(rows)
    title = f"# {found.file.name}: {', '.join(method.label for method in found.methods)}"
    lines = [title, "", "```", command, "```", "", markdown_line(["budget", *header])]
    lines += ["| ---: | --- |" + " ---: |" * (len(header) - 1)]
    lines += [markdown_line([f"{row['budget']:g}", *line]) for row, line in zip(rows, cells, strict=True)]
    lines += ["", *(f"- {note}" for note in notes(found))]
    markdown = found.directory / "table.md"
    markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [plain, markdown]


def draw_figures(found: Comparison) -> list[Path]:
    """Draw a figure for each epsilon: every metric against rounds, the mean over the seeds and their range."""
    paths = []
    for epsilon in found.epsilons:
        runs = {method.label: found.runs[method.name, epsilon] for method in found.methods}
        panels = [
            Panel(
                *PANELS[name],
                [band_of(label, runs_of, name) for label, runs_of in runs.items()],
                log=name == "squared_gradient_norm",
            )
            for name in PANELS
            if name in next(iter(runs.values()))[0]
        ]
        path = draw_panels(
            panels,
            found.directory / f"figure-epsilon-{epsilon:g}.png",
            title=f"{found.file.name}, epsilon {epsilon:g}",
            subtitle=f"delta {found.file.privacy.delta:g}, {size_text(found)}. "
            f"Lines: mean over {counted(found.seeds, 'seed')}; bands: from the smallest to the largest.",
            warning=NOT_PRIVATE,
        )
        paths.append(path)
    return paths


def band_of(label: str, runs: Sequence[Run], name: str, *, seeds: bool = False) -> Band:
    """Return the curve of a metric over the seeds: mean and range, with ``seeds`` every one of them."""
    values = np.array([[math.nan if value is None else value for value in run[name]] for run in runs], dtype=float)
    each = values.tolist() if seeds else ()
    return Band(label, runs[0]["rounds"], values.mean(0), values.min(0), values.max(0), each)


def size_text(found: Comparison) -> str:
    """Return how many records there are, of how many clients."""
    sizes = [len(inputs) for inputs, _ in found.tables.clients]
    return f"{sum(sizes):,} records of {counted(len(sizes), 'client')}"


def document(found: Comparison, rows: Sequence[Run], figures: Sequence[Path]) -> dict[str, Any]:
    """Return everything as plain values."""
    return {
        "private": False,
        "notes": notes(found),
        "data": found.file.name,
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


def show(found: Comparison, rows: Sequence[Run], figures: Sequence[Path]) -> None:
    """Print a table for each epsilon, what the numbers mean, and where the files are."""
    for epsilon in found.epsilons:
        header, cells = table_cells([row for row in rows if row["budget"] == epsilon], short=True)
        show_rows(f"{found.file.name}, epsilon {epsilon:g}", cells, header, width=150)
    first, *others = notes(found)
    show_line(first, style="bold red", wrap=True)
    for note in others:
        show_line(f"- {note}", wrap=True)
    show_facts(
        f"in {found.directory}",
        {
            "runs.jsonl": f"every run with its curves; {found.trained} trained now",
            "table.csv": "the table, for machines",
            "table.md": "the table, for a report",
            **{path.name: "mean and band over the seeds" for path in figures},
        },
    )


def _values(found: Comparison, run: Run) -> dict[str, float]:
    """Return the metrics of one run, in the order of the table."""
    final = {name: math.nan if value is None else value for name, value in run["final"].items()}
    final["seconds"] = run["seconds"]
    scaling = found.tables.encoding.target_scaling
    if scaling is not None:
        final["rmse"] = math.sqrt(final.get("test_loss", final["train_loss"])) * scaling.scale
    return {name: final[name] for name in TITLES if name in final}


def _csv_row(row: Run) -> dict[str, Any]:
    names = {"budget": "budget_epsilon", "method": "method", "label": "label", "seeds": "seeds", "epsilon": "epsilon"}
    metrics = {f"{name}_{kind}": found[kind] for name, found in row["metrics"].items() for kind in ("mean", "sd")}
    return {title: row[name] for name, title in names.items()} | metrics
