"""Run what is missing: every contestant on every table, at every epsilon, for every seed; one JSON line for each.

Lines go to a store to which they are only added, so the same command takes up where it was stopped. A contestant that
fails is stored with its error, and tried again only under ``retry``. What is not installed is noted and skipped.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diff2_experiments.store import RunStore

from .contestants import CONTESTANTS, Contestant
from .measures import measured
from .problem import Problem
from .tables import MOST_ROWS, TABLES, Absent, frame_of

EPSILONS = (0.5, 1.0, 3.0, 8.0)


@dataclass(frozen=True)
class Suite:
    """What is to be run."""

    tables: Sequence[str] = tuple(TABLES)
    contestants: Sequence[str] = tuple(CONTESTANTS)
    epsilons: Sequence[float] = EPSILONS
    seeds: int = 5
    first_seed: int = 0  # those of development are from 100 on, so that the reported ones are fresh
    most_rows: int = MOST_ROWS
    retry: bool = False

    def pairs(self, contestant: Contestant) -> Iterator[float | None]:
        """Yield the epsilons of a contestant: None for one that is not private."""
        yield from self.epsilons if contestant.private else [None]


def run(suite: Suite, store: Path, jobs: int = 1) -> None:
    """Fill the store; a table and a seed are one job."""
    import joblib

    seeds = range(suite.first_seed, suite.first_seed + suite.seeds)
    parts = [(name, seed) for name in suite.tables for seed in seeds]
    with joblib.parallel_config(backend="loky", inner_max_num_threads=1):
        joblib.Parallel(n_jobs=jobs, batch_size=1)(joblib.delayed(run_part)(suite, store, *part) for part in parts)


def run_part(suite: Suite, directory: Path, table: str, seed: int) -> None:
    """Run all that is missing on one split of one table."""
    store = RunStore(directory)
    known = store.runs()
    todo = []
    for name in suite.contestants:
        for epsilon in suite.pairs(CONTESTANTS[name]):
            key = f"{table}|{name}|{epsilon}|{seed}|{suite.most_rows}"
            failures = sum(one.startswith(f"{key}|failed") for one in known)
            if key not in known and (suite.retry or not failures):
                todo.append((key, failures, CONTESTANTS[name], epsilon))
    if not todo:
        return
    try:
        problem = Problem.split(frame_of(table, suite.most_rows), TABLES[table].schema, seed)
    except Absent as reason:
        store.add({"key": f"skipped|{table}", "table": table, "skipped": str(reason)})
        return
    for key, failures, contestant, epsilon in todo:
        absent = contestant.absent()
        if absent:
            store.add({"key": f"absent|{contestant.name}", "contestant": contestant.name, "absent": absent})
            continue
        line = {"key": key, "table": table, "contestant": contestant.name, "epsilon": epsilon, "seed": seed}
        line |= {"rows": len(problem.train), "columns": len(problem.schema.columns), "most_rows": suite.most_rows}
        found = run_one(problem, contestant, epsilon, seed)
        if "error" in found:
            found["key"] = f"{key}|failed|{failures}"
        store.add(line | found)
        print(_said(line | found), flush=True)


def run_one(problem: Problem, contestant: Contestant, epsilon: float | None, seed: int) -> dict[str, Any]:
    """Return measures and seconds of one run, or why it failed or did not take part."""
    reason = contestant.refuses(problem)
    if reason:
        return {"refused": reason}
    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            predicted = contestant.predict(problem, epsilon or float("inf"), seed)
        found = measured(problem.task, problem.test_rows.target, predicted)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:500], "seconds": time.perf_counter() - began}
    return {**found, "seconds": time.perf_counter() - began}


def _said(line: dict[str, Any]) -> str:
    told = line.get("error") or line.get("refused") or f"deviance {line['deviance']:.4g}"
    return f"{line['table']}, seed {line['seed']}, {line['contestant']}, epsilon {line['epsilon']}: {told}"
