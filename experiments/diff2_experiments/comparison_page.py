"""What docs/comparison.md shows of finished comparisons: its tables, every seed's values, and loss against costs.

python -m diff2_experiments.comparison_page compared --out page --data-dir DIR

Below ``compared`` are the stores of ``diff2 compare NAME --out compared/NAME``; a run that is missing is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from diff2.runfile.reader import protection_of

from .comparison import Comparison, compare
from .comparison_report import NOT_PRIVATE, band_of, size_text, summaries
from .costs import Cost, total_costs
from .figures import Panel, draw_panels
from .files import find_file, read_compare_file
from .formatting import counted, markdown_line, write_csv
from .store import Run
from .trials import model_of

TABLES = ("randhie", "california", "gas")
EPSILONS = (1.0, 3.0)
FACTORS = {"gas": 1000.0}  # its losses are small
TABLE_1 = ("dpgd", "dpsgd", "srnsgd", "dpsrm", "diff2", "diff2_bvr", "dpfedavg", "dpscaffold")  # Noble et al.: the text
METRICS = ("train_loss", "test_loss", "smallest_squared_gradient_norm")
MILLION = 1e6


def costs_of(found: Comparison, name: str, epsilon: float) -> list[Cost]:
    """Return what the runs of a method have cost after each round."""
    algorithm = next(method.algorithms[epsilon] for method in found.methods if method.name == name)
    setup, sizes = found.file.setup, [len(inputs) for inputs, _ in found.tables.clients]
    protection = protection_of(setup.privacy, setup.run, grouped=found.tables.groups is not None)
    dimension = sum(part.numel() for part in model_of(setup, found.tables, 0).parameters())
    itemsize = getattr(torch, setup.run.dtype).itemsize
    return total_costs(algorithm, protection.population(sizes, algorithm.adjacency), dimension, itemsize)


def draw_costs(found: Comparison, epsilon: float, path: Path, names: Sequence[str] = TABLE_1) -> Path:
    """Draw the train loss against rounds, bytes and gradient evaluations: mean and seeds of each method."""
    axes = {
        "rounds": ("rounds", "each is one question to the clients, or several", "round", 1.0),
        "bytes": ("bytes", "of vectors, down and up, all clients", "megabytes", MILLION),
        "gradients": ("gradient evaluations", "records times iterates", "millions", MILLION),
    }
    methods = [method for method in found.methods if method.name in names]
    bands = {
        method.name: band_of(method.label, found.runs[method.name, epsilon], "train_loss", seeds=True)
        for method in methods
    }
    spent = {name: costs_of(found, name, epsilon) for name in bands}
    panels = []
    for field, (title, what, axis, unit) in axes.items():
        moved = [
            band._replace(rounds=[getattr(spent[name][int(r) - 1], field) / unit for r in band.rounds])
            for name, band in bands.items()
        ]
        panels.append(Panel(f"train loss against {title}", what, moved, log=False, axis=axis))
    return draw_panels(
        panels, path, title=f"{found.file.name}, epsilon {epsilon:g}: loss against what it costs",
        subtitle=f"delta {found.file.privacy.delta:g}, {size_text(found)}. Thick: mean over "
        f"{counted(found.seeds, 'seed')}; thin: the seeds.", warning=NOT_PRIVATE,
    )  # fmt: skip


def loss_table(found: Comparison, factor: float = 1.0) -> str:
    """Return losses and gradient norms as Markdown: a line for each method, the least private values in bold."""
    rows = {(row["method"], row["budget"]): row["metrics"] for row in summaries(found)}
    private = [method.name for method in found.methods if method.private]
    places = [(epsilon, name) for epsilon in found.epsilons for name in METRICS]
    means = {place: [rows[name, place[0]][place[1]]["mean"] for name in private] for place in places}
    best = {place: min((mean for mean in means[place] if mean is not None), default=None) for place in places}
    titles = {"train_loss": "train", "test_loss": "test", METRICS[2]: "gradient"}
    lines = [markdown_line(["method", *(f"{titles[name]}, eps {epsilon:g}" for epsilon, name in places)])]
    lines += ["| --- |" + " ---: |" * len(places)]
    for method in found.methods:
        cells = []
        for epsilon, name in places:
            value = rows[method.name, epsilon][name]
            text = _text(value, name, factor)
            bold = method.private and value["mean"] is not None and value["mean"] == best[epsilon, name]
            cells.append(f"**{text}**" if bold else text)
        lines.append(markdown_line([method.label, *cells]))
    return "\n".join(lines)


def cost_table(found: Comparison, epsilon: float, names: Sequence[str] = TABLE_1) -> str:
    """Return what whole runs cost as Markdown."""
    clients = len(found.tables.clients)
    titles = ["method", "rounds", "questions", "answers of a client", "MB of a client", "gradient evaluations"]
    lines = [markdown_line(titles), "| --- |" + " ---: |" * 5]
    for method in found.methods:
        if method.name in names:
            cost = costs_of(found, method.name, epsilon)[-1]
            numbers = [f"{cost.rounds:,}", f"{cost.questions:,}", f"{cost.answers / clients:,.0f}"]
            numbers += [f"{cost.bytes / clients / MILLION:.2f}", f"{cost.gradients / MILLION:.1f} M"]
            lines.append(markdown_line([method.label, *numbers]))
    return "\n".join(lines)


def seed_rows(found: Comparison) -> Iterator[dict[str, Any]]:
    """Yield a row for each run: what it reached, and what it cost."""
    for epsilon in found.epsilons:
        for method in found.methods:
            cost = costs_of(found, method.name, epsilon)[-1]
            for run in found.runs[method.name, epsilon]:
                place = {"table": found.file.path.stem, "epsilon": epsilon, "method": method.name, "seed": run["seed"]}
                yield {**place, **{name: run["final"][name] for name in METRICS}, **cost._asdict()}


def _text(value: Run, name: str, factor: float) -> str:
    if value["mean"] is None:
        return f"diverged ({value['diverged']} of {len(value['values'])})"
    if name == METRICS[2]:
        return f"{value['mean']:.1e}"
    digits = 4 if factor == 1 else 3
    return f"{factor * value['mean']:.{digits}f} ± {factor * value['sd']:.{digits}f}"


def main(
    stores: Annotated[Path, typer.Argument(help="The folder that holds the store of each table.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where tables and figures go.")],
    tables: Annotated[str, typer.Option(help="Separated by commas.")] = ",".join(TABLES),
    seeds: Annotated[int, typer.Option(min=2)] = 5,
    data_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Look there for tables.")] = None,
) -> None:
    """Write comparison.csv, comparison.md, and a figure of loss against costs for each table."""
    rows, text = [], []
    for name in tables.split(","):
        file = read_compare_file(find_file("compare", name), data_dir)
        found = compare(file, stores / file.path.stem, epsilons=EPSILONS, seeds=seeds)
        rows += list(seed_rows(found))
        text += [f"## {file.path.stem}", loss_table(found, FACTORS.get(name, 1.0)), cost_table(found, EPSILONS[-1])]
        draw_costs(found, EPSILONS[-1], out / f"costs-{file.path.stem}.png")
    write_csv(out / "comparison.csv", rows)
    (out / "comparison.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
