"""Run the benchmarks and print their tables: ``python -m benchmarks [speed] [memory] [growth]``."""

from __future__ import annotations

import argparse

import torch
from rich.console import Console
from rich.table import Table

from .cases import CASES, network
from .contestants import CONTESTANTS, dpgd_round, plain
from .contestants import diff2_round as difference_round
from .measure import interleaved, peak_memory

console = Console(width=120)


def speed(seconds: float, names: list[str]) -> None:
    """(a) to (c): one round of each, in turns; ratios to the plain gradient and to the other libraries."""
    table = Table(title="One round, ms (median; taken in turns), and ratios")
    for column in (
        "case",
        *CONTESTANTS,
        "DIFF2 / plain",
        "DP-GD / Opacus per-sample",
        "DP-GD / Opacus ghost",
        "vmap / DIFF2",
    ):
        table.add_column(column, justify="left" if column == "case" else "right", overflow="fold")
    for name in names:
        case = CASES[name]()
        times = interleaved({name: make(case) for name, make in CONTESTANTS.items()}, seconds)
        difference, gradient = times["DIFF2 difference round"], times["DP-GD round"]
        ratios = (
            difference / times["plain autograd"],
            gradient / times["Opacus per-sample"],
            gradient / times["Opacus ghost"],
            times["double vmap"] / difference,
        )
        table.add_row(case.name, *(f"{1e3 * value:.2f}" for value in times.values()), *(f"{r:.2f}" for r in ratios))
        console.print(f"{case.name}: DIFF2 / plain {ratios[0]:.2f}")
    console.print(table)


def memory(names: list[str]) -> None:
    """(d): peak resident memory above that of the set-up alone (interpreter, libraries, records)."""
    table = Table(title="Peak memory of three rounds above the set-up, MB (a process of its own each)")
    for column in ("case", "set-up", *CONTESTANTS):
        table.add_column(column, justify="left" if column == "case" else "right")
    for name in names:
        base = peak_memory(name, None)
        peaks = [peak_memory(name, contestant) - base for contestant in CONTESTANTS]
        table.add_row(name, f"{base:.0f}", *(f"{peak:.0f}" for peak in peaks))
    console.print(table)


def growth(seconds: float) -> None:
    """(e): twice the records, at most 2.1 times the time."""
    table = Table(title="Growth with the number of records: time of a round, ms, and ratio to half the records")
    for column in ("inputs", "records", "plain", "DP-GD", "DIFF2", "DP-GD ratio", "DIFF2 ratio"):
        table.add_column(column, justify="right")
    for inputs in (8, 54, 280):
        sizes = [16_384, 32_768, 65_536, 131_072]
        rounds = {}
        for records in sizes:
            case = network(records, inputs)
            rounds.update({(records, "plain"): plain(case), (records, "DP-GD"): dpgd_round(case)})
            rounds[records, "DIFF2"] = difference_round(case)
        times = interleaved(rounds, seconds / 4)
        for i, records in enumerate(sizes):
            mine = [times[records, method] for method in ("plain", "DP-GD", "DIFF2")]
            ratios = ["", ""]
            if i:
                ratios = [f"{times[records, m] / times[sizes[i - 1], m]:.2f}" for m in ("DP-GD", "DIFF2")]
            table.add_row(str(inputs), f"{records:,}", *(f"{1e3 * value:.2f}" for value in mine), *ratios)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", default=[], help="speed, memory, growth; default: all")
    parser.add_argument("--seconds", type=float, default=4.0, help="time for each contestant and case")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES), help="for speed and memory")
    arguments = parser.parse_args()
    parts = arguments.parts or ["speed", "memory", "growth"]
    console.print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads")
    if "speed" in parts:
        speed(arguments.seconds, arguments.cases)
    if "memory" in parts:
        memory(arguments.cases)
    if "growth" in parts:
        growth(arguments.seconds)


if __name__ == "__main__":
    main()
