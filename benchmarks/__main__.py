"""Run the benchmarks and print their tables: ``python -m benchmarks [speed] [memory] [growth]``."""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from .cases import CASES, network
from .contestants import CONTESTANTS, dpgd_round, plain
from .contestants import diff2_round as difference_round
from .measure import interleaved, peak_memory

console = Console(width=120)


RATIOS = {
    "DIFF2 / plain": ("DIFF2 difference round", "plain autograd"),
    "DP-GD / plain": ("DP-GD round", "plain autograd"),
    "DP-GD / Opacus per-sample": ("DP-GD round", "Opacus per-sample"),
    "DP-GD / Opacus ghost": ("DP-GD round", "Opacus ghost"),
    "DIFF2 / Opacus ghost": ("DIFF2 difference round", "Opacus ghost"),
    "double vmap / DIFF2": ("double vmap", "DIFF2 difference round"),
}


def speed(seconds: float, names: list[str], clock: Callable[[], float]) -> None:
    """(a) to (c): one round of each, in turns; ratios to the plain gradient and to the other libraries."""
    times_table = _table("One round, ms (median; taken in turns)", "case", *CONTESTANTS)
    ratio_table = _table("Ratios of these", "case", *RATIOS)
    for name in names:
        case = CASES[name]()
        times = interleaved({name: make(case) for name, make in CONTESTANTS.items()}, seconds, clock=clock)
        times_table.add_row(case.name, *(f"{1e3 * value:.2f}" for value in times.values()))
        ratio_table.add_row(case.name, *(f"{times[one] / times[other]:.2f}" for one, other in RATIOS.values()))
        console.print(f"{case.name}: done", style="dim")
    console.print(times_table)
    console.print(ratio_table)


def memory(names: list[str]) -> None:
    """(d): peak resident memory above that of the set-up alone (interpreter, libraries, records)."""
    title = "Peak memory of three rounds above the set-up, MB (a process of its own each)"
    table = _table(title, "case", "set-up", *CONTESTANTS)
    for name in names:
        base = peak_memory(name, None)
        peaks = [peak_memory(name, contestant) - base for contestant in CONTESTANTS]
        table.add_row(name, f"{base:.0f}", *(f"{peak:.0f}" for peak in peaks))
    console.print(table)


def growth(seconds: float, clock: Callable[[], float]) -> None:
    """(e): twice the records, at most 2.1 times the time."""
    title = "Growth with the number of records: time of a round, ms, and ratio to half the records"
    table = _table(title, "inputs", "records", "plain", "DP-GD", "DIFF2", "plain ratio", "DP-GD ratio", "DIFF2 ratio")
    for inputs in (8, 54, 280):
        sizes = [16_384, 32_768, 65_536, 131_072]
        rounds = {}
        for records in sizes:
            case = network(records, inputs)
            rounds.update({(records, "plain"): plain(case), (records, "DP-GD"): dpgd_round(case)})
            rounds[records, "DIFF2"] = difference_round(case)
        times = interleaved(rounds, seconds / 4, clock=clock)
        for i, records in enumerate(sizes):
            mine = [times[records, method] for method in ("plain", "DP-GD", "DIFF2")]
            ratios = ["", "", ""]
            if i:
                ratios = [f"{times[records, m] / times[sizes[i - 1], m]:.2f}" for m in ("plain", "DP-GD", "DIFF2")]
            table.add_row(str(inputs), f"{records:,}", *(f"{1e3 * value:.2f}" for value in mine), *ratios)
    console.print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", default=[], help="speed, memory, growth; default: all")
    parser.add_argument("--seconds", type=float, default=4.0, help="time for each contestant and case")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES), help="for speed and memory")
    parser.add_argument("--cpu", action="store_true", help="time of the processor, not of the wall: on a busy machine")
    arguments = parser.parse_args()
    clock = time.process_time if arguments.cpu else time.perf_counter
    parts = arguments.parts or ["speed", "memory", "growth"]
    console.print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads; load {os.getloadavg()[0]:.1f}")
    warnings.filterwarnings("ignore", "There is a performance drop")  # vmap with attention
    if "speed" in parts:
        speed(arguments.seconds, arguments.cases, clock)
    if "memory" in parts:
        memory(arguments.cases)
    if "growth" in parts:
        growth(arguments.seconds, clock)


if __name__ == "__main__":
    main()
