"""A network against random features, and against DP-GD with Adam: ``python -m benchmarks.networks --store FILE``.

Tables, schemas and splits of ``private_tables``, at most 10,000 rows of each. The share of the deviance (squared error,
log loss, Poisson deviance) of held-out rows that a model explains, mean over seeds with its standard error. What the
store holds already is not run again.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import numpy as np
import torch

import diff2

from .private_tables import references, trained
from .private_tables.measures import measured
from .private_tables.problem import Problem
from .private_tables.tables import TABLES, frame_of

NAMES = ("california", "gas_co", "gas_nox", "randhie", "randhie_visits", "covertype", "digits")
METHODS = ("features", "network", "DP-GD + Adam")


def predicted(problem: Problem, method: str, epsilon: float, seed: int) -> np.ndarray:
    """Return what a method predicts for the test rows."""
    if method == "DP-GD + Adam":
        return trained.dpgd_adam(problem, epsilon, seed)
    fitted = diff2.fit(problem.train, problem.schema, epsilon=epsilon, delta=trained.DELTA, seed=seed, method=method)
    return np.asarray(fitted.predict_proba(problem.test) if problem.classes else fitted.predict(problem.test), float)


def explained(problem: Problem, found: np.ndarray, seed: int) -> float:
    """Return the share of the deviance of the test rows that is explained."""
    target, constant = problem.test_rows.target, references.mean_or_prior(problem, 1.0, seed)
    return 1 - measured(problem.task, target, found)["deviance"] / measured(problem.task, target, constant)["deviance"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.networks", description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", default=list(NAMES), choices=list(TABLES), metavar="TABLE")
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 3.0], dest="epsilons")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=10_000, help="of a table, at most")
    parser.add_argument("--store", type=Path, required=True, help="a file of JSON lines")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    lines = options.store.read_text(encoding="utf-8").splitlines() if options.store.exists() else []
    known = {(one["table"], one["method"], one["epsilon"], one["seed"]): one["share"] for one in map(json.loads, lines)}
    for table in options.tables:
        for seed in range(options.seeds):
            problem = Problem.split(frame_of(table, options.rows), TABLES[table].schema, seed)
            for method in options.methods:
                for epsilon in options.epsilons:
                    key = table, method, epsilon, seed
                    if key not in known:
                        known[key] = explained(problem, predicted(problem, method, epsilon, seed), seed)
                        line = dict(zip(("table", "method", "epsilon", "seed"), key, strict=True), share=known[key])
                        with options.store.open("a", encoding="utf-8") as file:
                            file.write(json.dumps(line) + "\n")
    print(
        "| table | "
        + " | ".join(f"{method}, epsilon {e:g}" for e in options.epsilons for method in options.methods)
        + " |"
    )
    print("| --- " * (1 + len(options.methods) * len(options.epsilons)) + "|")
    for table in options.tables:
        cells = []
        for epsilon in options.epsilons:
            for method in options.methods:
                found = [known[table, method, epsilon, seed] for seed in range(options.seeds)]
                error = np.std(found, ddof=1) / np.sqrt(len(found)) if len(found) > 1 else np.nan
                cells.append(f"{np.mean(found):.3f} ± {error:.3f}")
        print(f"| {table} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
