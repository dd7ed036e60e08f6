"""The numbers that docs/fit-health.md states of fit, measured.

python -m benchmarks.fit_numbers expectation [--fits 100]   # what is expected beforehand, against what came out
python -m benchmarks.fit_numbers optimism [--seeds 5]       # R^2 on the records of a fit, and on other people
python -m benchmarks.fit_numbers counts [--seeds 3]         # share of the Poisson deviance, by splits of the people
python -m benchmarks.fit_numbers few [--seeds 10]           # R^2 on few records
python -m benchmarks.fit_numbers speed [--seeds 3]          # seconds of a fit: 16,512 x 8, and 500,000 x 54 once
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from dataclasses import replace
from typing import Any

import numpy as np

import diff2
from diff2.data.randhie import PERSON, RANGES, TARGET, fifth_of, read_table
from diff2.fitting.expectation import EXPLAINABLE, expected_share
from diff2.fitting.scoring import poisson_deviance
from diff2.privacy.accounting import gdp_mu
from diff2.tables.kinds import Counts
from diff2.tables.schema import Schema
from diff2_experiments.demo import VISITS, Data


def explained(target: np.ndarray, predicted: np.ndarray) -> float:
    """Return R^2."""
    return float(1 - np.mean((target - predicted) ** 2) / target.var())


def synthetic(rng: np.random.Generator, rows: int, columns: int, *, bent: bool) -> tuple[dict[str, np.ndarray], Schema]:
    """Return a table of correlated normal columns, half of whose target can be explained, and its schema."""
    inputs = rng.standard_normal((rows, columns)) @ (np.eye(columns) + 0.3 * rng.standard_normal((columns, columns)))
    inputs /= inputs.std(axis=0)
    signal = inputs @ rng.standard_normal(columns)
    if bent:
        signal = signal + 2 * np.sin(2 * inputs[:, 0]) + inputs[:, 0] * inputs[:, -1]
    target = signal / signal.std() + rng.standard_normal(rows)
    names = [f"x{j}" for j in range(columns)]
    schema = Schema.from_arguments(names, bounds=[(-5, 5)] * columns, target_bounds=(-6, 6), target="y")
    return {**dict(zip(names, inputs.T, strict=True)), "y": target}, schema


def expectation(fits: int) -> None:
    """Compare what is expected with what synthetic tables give, on records of their own."""
    errors = []
    for seed in range(fits):
        rng = np.random.default_rng(seed)
        rows, columns = int(np.exp(rng.uniform(math.log(80), math.log(6000)))), int(rng.integers(2, 31))
        epsilon = float(np.exp(rng.uniform(math.log(0.3), math.log(8))))
        table, schema = synthetic(rng, rows + 2000, columns, bent=seed % 2 == 1)
        model = diff2.fit({n: v[:rows] for n, v in table.items()}, schema, epsilon=epsilon, delta=1e-5, seed=seed)
        held_out = {name: values[rows:] for name, values in table.items()}
        # Worse than a constant counts as nothing.
        found = max(explained(held_out["y"], model.predict(held_out)), 0.0) / EXPLAINABLE
        errors.append(found - expected_share(rows, gdp_mu(epsilon, 1e-5), columns))
        print(
            f"{rows:>5} records {columns:>3} columns epsilon {epsilon:4.1f}: {found:6.2f} ({-errors[-1]:+.2f})",
            flush=True,
        )
    print(f"root mean square {math.sqrt(np.mean(np.square(errors))):.2f} over {fits} regressions")


def optimism(seeds: int) -> None:
    """Compare R^2 on the records of a fit with that on other people, on the RAND table at epsilon 1."""
    data = Data.load()
    for seed in range(seeds):
        model = data.fitted(1.0, seed)
        own = explained(np.asarray(data.train[VISITS]), model.predict(data.train))
        assert model.health is not None
        print(
            f"own {own:.3f}, others {data.r2(model.predict(data.test)):.3f}, private score {model.health.score}",
            flush=True,
        )


def counts(seeds: int) -> None:
    """Return the share of the Poisson deviance that is explained for people held out, and without privacy."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import PoissonRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    table, schema = read_table(), replace(Data.load().schema, target_name=TARGET, target=Counts(100), clients=None)
    found: dict[str, list[float]] = {}
    for split in range(seeds):
        held_out = fifth_of(table[PERSON], salt=f"counts {split}") == 0
        train, test = table[~held_out], table[held_out]
        mean, target = np.full(len(test), train[TARGET].mean()), test[TARGET].to_numpy(float)

        def share(predicted: Any, target: np.ndarray = target, mean: np.ndarray = mean) -> float:
            deviance = [poisson_deviance(target, np.asarray(one)).mean() for one in (predicted, mean)]
            return float(1 - deviance[0] / deviance[1])

        for at in (1.0, 3.0):
            model = diff2.fit(train, schema, epsilon=at, delta=1e-5, seed=split)
            found.setdefault(f"fit, epsilon {at:g}", []).append(share(model.predict(test)))
        inputs = [part[list(RANGES)].fillna(12.0) for part in (train, test)]
        boosting = HistGradientBoostingRegressor(loss="poisson", random_state=0).fit(inputs[0], train[TARGET])
        linear = make_pipeline(StandardScaler(), PoissonRegressor(alpha=1e-3, max_iter=1000)).fit(
            inputs[0], train[TARGET]
        )
        for name, reference in (("boosting", boosting), ("Poisson regression", linear)):
            found.setdefault(f"{name}, not private", []).append(share(reference.predict(inputs[1])))
    for name, shares in found.items():
        print(f"{name}: {statistics.fmean(shares):.3f} ({', '.join(f'{one:.3f}' for one in shares)})")


def few(seeds: int) -> None:
    """Print R^2 on other records for few records at epsilon 1, eight columns."""
    for rows in (100, 250, 1000):
        shares = []
        for seed in range(seeds):
            table, schema = synthetic(np.random.default_rng(seed), rows + 2000, 8, bent=False)
            model = diff2.fit({n: v[:rows] for n, v in table.items()}, schema, epsilon=1.0, delta=1e-5, seed=seed)
            held_out = {name: values[rows:] for name, values in table.items()}
            shares.append(explained(held_out["y"], model.predict(held_out)))
        print(
            f"{rows} records: R^2 {statistics.fmean(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})", flush=True
        )


def speed(seeds: int) -> None:
    """Print the seconds of fits at epsilon 1, with as many threads as there are."""
    for rows, columns, repeats in ((16_512, 8, seeds), (500_000, 54, 1)):
        table, schema = synthetic(np.random.default_rng(0), rows, columns, bent=True)
        for seed in range(repeats):
            wall, processor = time.perf_counter(), time.process_time()
            diff2.fit(table, schema, epsilon=1.0, delta=1e-8, seed=seed)
            wall, processor = time.perf_counter() - wall, time.process_time() - processor
            print(f"{rows:,} x {columns}: {wall:.1f} s, {processor:.1f} s of processors", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measures = {"expectation": expectation, "optimism": optimism, "counts": counts, "few": few, "speed": speed}
    parser.add_argument("what", choices=list(measures))
    parser.add_argument("--fits", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore", diff2.WeakModelWarning)
    measures[options.what](options.fits if options.what == "expectation" else options.seeds)


if __name__ == "__main__":
    main()
