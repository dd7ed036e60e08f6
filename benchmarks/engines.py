"""What one sum over all records costs by each engine for fully connected networks: ``python -m benchmarks.engines``.

No noise, no ledger, no step: what ``benchmarks.loop`` has around it. "x transformed": what
a transform before clipping multiplies the time of a sum by.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from rich.console import Console
from rich.table import Table

from diff2.gradients import Engine, FeatureCache, Records, Transform, from_probes
from diff2.gradients.choose import ENGINES
from diff2.models.losses import resolve_loss
from diff2.questions.question import Question

from .cases import Case, network
from .contestants import Round
from .measure import interleaved

SHAPES = ((16_512, 8, 0), (29_386, 9, 0), (100_000, 54, 7), (41_917, 120, 0), (41_917, 280, 0), (20_000, 1024, 0))
COMPARED = ("columns", "compiled")
RADIUS = 1e-3  # most records are clipped


def gradient(engine: Engine, records: Records, transform: Transform | None) -> Round:
    """A sum of clipped gradients, as every round of DP-GD asks for."""
    cache = FeatureCache()
    question = replace(Question.gradient(RADIUS).at(1, engine.flat.vector), transform=transform)
    return lambda: engine.clipped_sum(question, records, cache=cache)


def difference(engine: Engine, records: Records, transform: Transform | None) -> Round:
    """A sum of clipped differences from one iterate to the next, as most rounds of DIFF2 ask for."""
    cache, here = FeatureCache(), engine.flat.vector.clone()
    points = [here, here + 1e-3 * torch.randn(here.shape, generator=torch.Generator().manual_seed(1))]

    def one_sum() -> None:
        points.reverse()  # what was the iterate is now the one before
        question = replace(Question.difference(RADIUS).at(2, *points), transform=transform)
        engine.clipped_sum(question, records, cache=cache)

    return one_sum


SUMS: dict[str, Callable[[Engine, Records, Transform | None], Round]] = {"gradient": gradient, "difference": difference}


def times_of(
    case: Case, seconds: float, quantile: float, clock: Callable[[], float]
) -> dict[tuple[str, str, bool], float]:
    """Return the time of each sum by each engine, plain and transformed, all in turns."""
    records, loss = Records.of(case.inputs, case.targets), resolve_loss(case.loss)[1]
    flat = ENGINES["columns"](case.model, loss).flat
    transform = from_probes(flat, loss, Records(*(part[:1000] for part in records)), flat.vector.clone())
    contestants = {
        (name, what, moved): build(ENGINES[name](case.model, loss), records, transform if moved else None)
        for name in COMPARED
        for what, build in SUMS.items()
        for moved in (False, True)
    }
    return interleaved(contestants, seconds, quantile, clock)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="time for each contestant and case")
    parser.add_argument("--cases", type=int, default=len(SHAPES), help="how many of the sizes")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quantile", type=float, default=0.5, help="of the times; on a busy machine a small one")
    parser.add_argument("--cpu", action="store_true", help="time of the processor, not of the wall: on a busy machine")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.cpu else time.perf_counter
    table = Table(title=f"One sum; {options.threads} thread(s), quantile {options.quantile} of the times")
    titles = "columns, ms", "x transformed", "compiled, ms", "x transformed", "columns / compiled"
    for title in ("records", "sum", *titles):
        table.add_column(title, justify="left" if title in ("records", "sum") else "right")
    for records, inputs, classes in SHAPES[: options.cases]:
        case = network(records, inputs, classes)
        times = times_of(case, options.seconds, options.quantile, clock)
        for what in SUMS:
            cells = []
            for name in COMPARED:
                plain, moved = (times[name, what, which] for which in (False, True))
                cells += [f"{1e3 * plain:.2f}", f"{moved / plain:.2f}"]
            ratio = times["columns", what, False] / times["compiled", what, False]
            table.add_row(case.name.removeprefix("network "), what, *cells, f"{ratio:.2f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
