"""The demo over many seeds of the noise: mean and deviation of R^2 on the test part, for docs/demo.md.

python -m benchmarks.demo_table [--seeds 10] [--figure demo.png]
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path

import torch

from diff2_experiments.demo import BOOSTING, EPSILONS, FIT, NETWORK, PLAIN, REFERENCE, TUNED, Data
from diff2_experiments.demo_figure import draw

PEOPLE = "fit, protecting people"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--figure", type=Path, help="draw the means, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data, rows = Data.load(), []
    whole = data.boosted()

    def found(method: str, at: float, seed: int) -> float:
        if method in (FIT, PEOPLE):
            return data.r2(data.fitted(at, seed, people=method == PEOPLE).predict(data.test))
        return data.trained({**PLAIN, **TUNED}[method], at, seed)

    print("| method | " + " | ".join(f"epsilon {at:g}" for at in EPSILONS) + " |\n" + "| --- " * 5 + "|")
    for method in (FIT, PEOPLE, *PLAIN, *TUNED):
        cells = []
        for at in EPSILONS:
            runs = [found(method, at, seed) for seed in range(options.seeds)]
            mean, spread = statistics.fmean(runs), statistics.stdev(runs) if len(runs) > 1 else math.nan
            cells.append(f"{mean:.3f} ± {spread:.3f} ({mean / whole:.0%})")
            rows.append({"method": method, "epsilon": at, "share": mean / whole})
        print(f"| {method} | {' | '.join(cells)} |", flush=True)
    network = data.trained(REFERENCE, math.inf, 0)
    print(f"\n{NETWORK} {network:.4f}, {BOOSTING} {whole:.4f}")
    if options.figure is not None:
        subtitle = f"{data.records:,} records of six sites, scored on people held out; mean of {options.seeds} runs."
        draw(rows, options.figure, subtitle)


if __name__ == "__main__":
    main()
