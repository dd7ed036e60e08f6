"""The numbers that docs/fit-health.md states of fit, measured.

python -m benchmarks.fit_numbers expectation [--fits 200]   # what is expected beforehand, against what came out
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
from typing import Any, NamedTuple

import numpy as np

import diff2
from diff2.data.randhie import PERSON, RANGES, TARGET, fifth_of, read_table
from diff2.fitting.expectation import EXPLAINABLE, LITTLE, expected_share
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


class Drawn(NamedTuple):
    """A synthetic table of few factors, and the probabilities of the classes that its target is drawn from."""

    table: dict[str, np.ndarray]
    schema: Schema
    chances: np.ndarray | None  # of a number: None


def drawn(rng: np.random.Generator, rows: int, columns: int, classes: int | None, *, bent: bool) -> Drawn:
    """Return columns that depend on 1 to all factors and noise; half of a number can be explained."""
    factors, width = int(rng.integers(1, columns + 1)), classes if classes is not None and classes > 2 else 1
    inputs = rng.standard_normal((rows, factors)) @ rng.standard_normal((factors, columns))
    inputs = inputs / inputs.std(axis=0) + rng.uniform(0, 1) * rng.standard_normal((rows, columns))
    inputs /= inputs.std(axis=0)
    signal = inputs @ rng.standard_normal((columns, width))
    if bent:
        extra = 2 * np.sin(2 * inputs[:, 0]) + inputs[:, 0] * inputs[:, -1]
        signal = signal + extra[:, None] * rng.standard_normal(width)
    signal = (signal - signal.mean(axis=0)) / signal.std(axis=0)
    names = [f"x{j}" for j in range(columns)]
    table, bounds = dict(zip(names, inputs.T, strict=True)), [(-5, 5)] * columns
    if classes is None:
        table["y"] = signal[:, 0] + rng.standard_normal(rows)
        return Drawn(table, Schema.from_arguments(names, bounds=bounds, target_bounds=(-6, 6), target="y"), None)
    logits = (np.column_stack([0 * signal[:, 0], signal[:, 0]]) if classes == 2 else signal) * rng.uniform(1, 4)
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    table["y"] = (chances.cumsum(axis=1) < rng.uniform(size=(rows, 1))).sum(axis=1).clip(0, classes - 1)
    schema = Schema.from_arguments(names, bounds=bounds, classes=list(range(classes)), target="y")
    return Drawn(table, schema, chances)


def share_found(drawn: Drawn, rows: int, epsilon: float, seed: int) -> float:
    """Return the share of what can be explained that a fit explains of other records."""
    train, test = ({n: v[part] for n, v in drawn.table.items()} for part in (slice(rows), slice(rows, None)))
    model = diff2.fit(train, drawn.schema, epsilon=epsilon, delta=1e-5, seed=seed, score=False)
    target = test["y"]
    if drawn.chances is None:
        return explained(target, model.predict(test)) / EXPLAINABLE

    def loss(chances: np.ndarray) -> float:
        return -float(np.mean(np.log(np.maximum(chances[np.arange(len(target)), target], 1e-12))))

    counts = np.bincount(train["y"], minlength=drawn.chances.shape[1]) + 0.5
    prior = loss(np.tile(counts / counts.sum(), (len(target), 1)))
    return (prior - loss(np.asarray(model.predict_proba(test)))) / (prior - loss(drawn.chances[rows:]))


def expectation(fits: int) -> None:
    """Compare what is expected with what synthetic tables give, on records of their own, and fit the rule anew."""
    from scipy.optimize import least_squares

    for number, task in enumerate(("regression", "classification")):
        cases, found = [], []
        for seed in range(fits):
            rng = np.random.default_rng([seed, number])
            rows, columns = int(np.exp(rng.uniform(math.log(80), math.log(6000)))), int(rng.integers(2, 31))
            epsilon = float(np.exp(rng.uniform(math.log(0.3), math.log(8))))
            classes = int(rng.choice([2, 2, 3, 5, 10])) if number else None
            table = drawn(rng, rows + 4000, columns, classes, bent=seed % 2 == 1)
            cases.append((rows, gdp_mu(epsilon, 1e-5), columns, classes))
            found.append(min(max(share_found(table, rows, epsilon, seed), 0.0), 1.0))  # worse than a constant: nothing
        share, said = np.array(found), np.array([expected_share(*case) for case in cases])
        units, mu, columns_, classes_ = (np.array(part, dtype=float) for part in zip(*cases, strict=True))
        others = np.nan_to_num(classes_ - 1, nan=1.0)

        def error(t: np.ndarray, units=units, mu=mu, p=columns_, others=others, share=share) -> np.ndarray:  # type: ignore[no-untyped-def]
            return np.asarray(0.9 / (1 + (np.exp(t[0]) * p ** t[1] * others ** t[2] / (units * mu)) ** t[3]) - share)

        scale, *powers = least_squares(error, [3.0, 0.5, 0.5 * number, 1.5]).x
        print(
            f"{task}: {fits} fits, root mean square {math.sqrt(np.mean((said - share) ** 2)):.2f}; "
            f"warned of {int(np.sum(said < LITTLE))}, of which {int(np.sum((said < LITTLE) & (share > 0.3)))} explain "
            f"more than .3; {int(np.sum((said > 0.3) & (share < 0.05)))} explain nothing where more than .3 was said; "
            f"least squares: scale {np.exp(scale):.1f}, powers {', '.join(f'{power:.2f}' for power in powers)}",
            flush=True,
        )


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
    parser.add_argument("--fits", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore", diff2.WeakModelWarning)
    measures[options.what](options.fits if options.what == "expectation" else options.seeds)


if __name__ == "__main__":
    main()
