"""Whether outputs that saturate slow a sum down, as subnormal numbers would: ``python -m benchmarks.saturated``.

The last layer of a network is multiplied until probabilities of 1e-40 are common, as at a learning rate that is too
large. Times are those of the same sums with the weights as they were drawn.
"""

from __future__ import annotations

import argparse
import time

import torch
from rich.console import Console
from rich.table import Table

from diff2.gradients import Records
from diff2.gradients.choose import ENGINES
from diff2.models.losses import resolve_loss

from .cases import network
from .engines import COMPARED, SUMS
from .measure import interleaved

FACTORS = (1.0, 30.0, 100.0)  # of the last layer


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.saturated", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each contestant")
    options = parser.parse_args()
    torch.set_num_threads(1)
    contestants = {}
    for factor in FACTORS:
        case = network(10_000, 54, 7)
        with torch.no_grad():
            case.model[-1].weight.mul_(factor)  # type: ignore[index, operator, union-attr]
        records, loss = Records.of(case.inputs, case.targets), resolve_loss(case.loss)[1]
        for name in COMPARED:
            for what, build in SUMS.items():
                contestants[name, what, factor] = build(ENGINES[name](case.model, loss), records, None)
    times = interleaved(contestants, options.seconds, clock=time.process_time)
    table = Table(title="One sum over 10,000 x 54 records of seven classes; one thread, processor time")
    for title in ("engine", "sum", "ms", *(f"last layer x {factor:g}" for factor in FACTORS[1:])):
        table.add_column(title, justify="left" if title in ("engine", "sum") else "right")
    for name in COMPARED:
        for what in SUMS:
            first, *others = (times[name, what, factor] for factor in FACTORS)
            table.add_row(name, what, f"{1e3 * first:.2f}", *(f"{other / first:.2f} x" for other in others))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
