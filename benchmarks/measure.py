"""Timing and memory, as robust as a busy machine allows."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import TypeVar

BURST = 4
K = TypeVar("K", bound=Hashable)


def interleaved(
    rounds: Mapping[K, Callable[[], object]],
    seconds: float = 4.0,
    quantile: float = 0.5,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[K, float]:
    """Return the median time of each, or another quantile, in seconds of the clock.

    They take turns, so that a slow moment hits all alike. A turn is a burst of rounds of which the first is not
    counted: in training, a round finds in the processor's cache what the same round left there, and nothing else.
    """
    times: dict[K, list[float]] = {name: [] for name in rounds}
    end = time.perf_counter() + seconds * len(rounds)
    while time.perf_counter() < end or len(next(iter(times.values()))) < 2 * BURST:
        for name, one_round in rounds.items():
            one_round()
            for _ in range(BURST):
                began = clock()
                one_round()
                times[name].append(clock() - began)
    return {name: sorted(values)[int(quantile * (len(values) - 1))] for name, values in times.items()}


def peak_memory(case: str, contestant: str | None) -> float:
    """Return the peak resident memory of three rounds in a process of their own, in MB; without one, of the set-up."""
    command = [sys.executable, "-m", "benchmarks.measure", case, contestant or ""]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.strip().splitlines()[-1])


def _main(case_name: str, contestant: str) -> None:
    from .cases import CASES
    from .contestants import CONTESTANTS

    case = CASES[case_name]()
    if contestant:
        one_round = CONTESTANTS[contestant](case)
        for _ in range(3):
            one_round()
    status = Path("/proc/self/status").read_text(encoding="utf-8")  # unlike getrusage, not that of the parent
    print(int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024)


if __name__ == "__main__":
    _main(*sys.argv[1:3])
