"""Time of exact noise against rounded Box-Muller: ``python -m benchmarks.noise``; ratios of one run, in turns.

101 values for each of 2,000 releases, and 1,000,000 for each of ten. OpenDP's sampler of the discrete Gaussian takes
part where it is installed, without the key that makes a release repeatable. It draws a hundredth as many values.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

from diff2.privacy import NoiseSource
from diff2.privacy.discrete import SCALE
from diff2.privacy.discrete_gaussian import discrete_gaussian

from .measure import interleaved

SOURCE = NoiseSource.from_seed(1)
CASES = {"101 x 2,000": (101, 2_000), "1,000,000 x 10": (1_000_000, 10)}  # values, releases
FEWER = {"101 x 2,000": (101, 20), "1,000,000 x 10": (100_000, 1)}


def rounded(count: int, release: int) -> np.ndarray:
    """Box-Muller in double precision from 53-bit uniforms, rounded to the grid: not exact, and a common choice."""
    pairs = (count + 1) // 2
    words = np.frombuffer(SOURCE.bytes(16 * pairs, "noise", release, "gradient", 0), dtype="<u8")
    uniform = ((words >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53
    radius, angle = np.sqrt(-2.0 * np.log(uniform[:pairs])), (2.0 * math.pi) * uniform[pairs:]
    normal = np.empty(2 * pairs)
    np.multiply(radius, np.cos(angle), out=normal[:pairs])
    np.multiply(radius, np.sin(angle), out=normal[pairs:])
    return np.rint(SCALE * normal[:count])


def exact(count: int, release: int) -> np.ndarray:
    """Our sampler of the discrete Gaussian."""
    return discrete_gaussian(SOURCE, count, "noise", release, "gradient", 0)


def opendp() -> Callable[[int, int], object] | None:
    """OpenDP's sampler of the same distribution, or nothing."""
    try:
        import opendp.prelude as dp
    except ImportError:
        return None
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="i64")
    mechanism = dp.m.make_gaussian(*space, scale=SCALE)
    return lambda count, release: mechanism([0] * count)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.noise", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="time for each contestant and case")
    parser.add_argument("--cpu", action="store_true", help="time of the processor, not of the wall: on a busy machine")
    parser.add_argument("--quantile", type=float, default=0.5, help="of the times; 0.1 on a busy machine")
    options = parser.parse_args()
    theirs = opendp()
    contestants = {"rounded Box-Muller": rounded, "exact": exact, **({"OpenDP": theirs} if theirs else {})}
    table = Table(title="Noise: nanoseconds a value, and ratio to rounded Box-Muller")
    for title in ("values x releases", *contestants, "exact, ratio", *(["OpenDP, ratio"] if theirs else [])):
        table.add_column(title, justify="right")
    for case in CASES:
        sizes = {name: (FEWER if name == "OpenDP" else CASES)[case] for name in contestants}
        turns = {name: _turn(draw, *sizes[name]) for name, draw in contestants.items()}
        clock = time.process_time if options.cpu else time.perf_counter
        times = interleaved(turns, options.seconds, options.quantile, clock)
        each = {name: 1e9 * seconds / math.prod(sizes[name]) for name, seconds in times.items()}
        ratios = [each[name] / each["rounded Box-Muller"] for name in contestants][1:]
        table.add_row(case, *(f"{value:,.0f}" for value in each.values()), *(f"{ratio:.2f}" for ratio in ratios))
    Console(width=120).print(table)


def _turn(draw: Callable[[int, int], object], count: int, releases: int) -> Callable[[], None]:
    def turn() -> None:
        for release in range(releases):
            draw(count, release)

    return turn


if __name__ == "__main__":
    main()
