"""The demo's three methods over many seeds of the noise: mean and deviation on the test part, for docs/demo.md.

python benchmarks/demo_table.py [--seeds 10] [--epsilon 1.0]
"""

from __future__ import annotations

import argparse
import math
import statistics
import warnings

import torch

import diff2
from diff2.data.randhie import load
from diff2_experiments.demo import METHODS, Judge, start_model

COLUMNS = ("test_loss", "r2", "squared_gradient_norm")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epsilon", type=float, default=1.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = load()
    judge = Judge(data.clients, data.test)
    runs: dict[str, list[dict[str, float]]] = {}
    print("| method | test loss | R^2 | squared gradient norm |\n| --- | --- | --- | --- |")
    for method, algorithm in METHODS.items():
        private = not isinstance(algorithm, diff2.GD)
        budget = diff2.Budget(options.epsilon if private else math.inf, 1e-5)
        runs[method] = []
        for seed in range(options.seeds if private else 1):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", diff2.PrivacyLeakWarning)
                result = diff2.train(
                    start_model(len(data.features)), "squared", data.clients, algorithm, budget,
                    weighting="records", seed=seed, progress=False,
                )  # fmt: skip
            runs[method].append(judge.scores(result.params))
        cells = (_spread([run[column] for run in runs[method]]) for column in COLUMNS)
        print(f"| {method} | " + " | ".join(cells) + " |", flush=True)
    for column, sign in (("r2", 1), ("squared_gradient_norm", -1)):
        pairs = zip(runs["DIFF2-GD"], runs["DP-GD"], strict=True)
        better = [sign * ours[column] > sign * theirs[column] for ours, theirs in pairs]
        print(f"\nDIFF2-GD has the better {column} for {sum(better)} of {len(better)} seeds")


def _spread(values: list[float]) -> str:
    mean = f"{statistics.fmean(values):.4f}"
    return f"{mean} ± {statistics.stdev(values):.4f}" if len(values) > 1 else mean


if __name__ == "__main__":
    main()
