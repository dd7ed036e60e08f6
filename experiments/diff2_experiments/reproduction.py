"""The paper's experiments: tune every method on a data set as its appendix does, and take the best.

For each budget, accounting and seed, and for each method, the settings with the least train loss and those with the
least squared gradient norm are taken, each least over the rounds that were measured. Only runs that survived the
learning-rate search count. None of this is private.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from diff2._validate import at_least, one_of
from diff2.data.catalogue import CATALOGUE
from diff2.errors import Diff2Error
from diff2.privacy.calibration import ACCOUNTINGS

from .comparison import budgets_of
from .figures import require_matplotlib
from .files import TuneFile, load_public
from .grids import FULL, GRIDS, HALVED, HALVED_FULL, Grid, read_grids
from .halving import halved, least
from .reproduced import Reproduced, Tuned
from .store import Run, RunStore
from .trials import Report, digest_of, unreported
from .tuning import Candidate, attempts_made, candidates_of, tune

Case = tuple[str, float, int, str]  # accounting, epsilon, seed, method


def reproduce(
    file: TuneFile,
    directory: Path,
    *,
    names: Sequence[str] | None = None,
    epsilons: Sequence[float] | None = None,
    accountings: Sequence[str] | None = None,
    seeds: int = 5,
    first_seed: int = 0,
    grid: str = FULL,
    jobs: int = 1,
    command: str = "",
    report: Report = unreported,
) -> tuple[Reproduced, list[Run]]:
    """Tune and train whatever ``directory`` does not hold yet; return the best runs, and all of them.

    Args:
        file: the experiment.
        directory: of the store.
        names: of the methods; by default all ``[tune.NAME]`` tables of the file.
        epsilons: budgets; by default the one of ``[privacy]``.
        accountings: ``"paper"``, ``"exact"`` or both; by default the one of ``[privacy]``.
        seeds: how many; they are ``first_seed``, ``first_seed + 1``, ...
        first_seed: the least of them.
        grid: ``"full"``, ``"reduced"``, ``"halved"``: the reduced one, of which ``[halving]`` leaves a few settings, or
            ``"halved-full"``: the full one, so halved.
        jobs: settings tried at the same time, one thread each.
        command: the command line that does this, for those who read the results.
        report: called before the first setting and after each.
    """
    at_least("seeds", seeds, 1)
    at_least("first_seed", first_seed, 0)
    one_of("grid", grid, GRIDS)
    rules = list(dict.fromkeys(accountings or [file.privacy.accounting]))
    for accounting in rules:
        one_of("accounting", accounting, ACCOUNTINGS)
    budgets = budgets_of(file, epsilons)
    grids = read_grids(file, names, grid)
    require_matplotlib()
    thinned = grid in (HALVED, HALVED_FULL)
    began, before = time.monotonic(), len(RunStore(directory).runs())
    tables = load_public(file, "A REPRODUCTION")
    digest = digest_of(tables)

    def candidates(case: Case, method: Grid, until: int | None = None) -> list[Candidate]:
        accounting, epsilon, seed, _ = case
        return candidates_of(
            method, file.setup, file.search, digest, epsilon=epsilon, accounting=accounting, seed=seed, until=until
        )

    def for_each(some_seeds: Iterable[int]) -> dict[Case, Grid]:
        # Seed by seed, so that what is cut short has something of everything.
        return {
            (accounting, epsilon, seed, method.name): method
            for seed in some_seeds
            for epsilon in budgets
            for accounting in rules
            for method in grids
        }

    each_seed = file.halving.each_seed
    all_seeds = range(first_seed, first_seed + seeds)
    chosen = for_each(all_seeds if each_seed else [first_seed])
    if thinned:
        chosen = halved(chosen, file.halving, candidates, tables, directory, jobs=jobs, report=report)
    cases: dict[Case, list[Candidate]] = {}
    for case in for_each(all_seeds):
        accounting, epsilon, seed, name = case
        cases[case] = candidates(case, chosen[accounting, epsilon, seed if each_seed else first_seed, name])
    wanted = {one.attempts[0].key: one for some in cases.values() for one in some}
    runs, _ = tune(list(wanted.values()), tables, directory, jobs=jobs, report=report)
    by_name = {method.name: method for method in grids}
    found = Reproduced(
        name=file.name,
        title=_title(file),
        task="classification" if tables.encoding.classes is not None else "regression",
        delta=file.privacy.delta,
        grid=grid,
        rounds=max(point.algorithm.rounds for method in grids for point in method.points),
        seeds=seeds,
        epsilons=budgets,
        accountings=rules,
        methods=[(method.name, method.label) for method in grids],
        tuned=[_tuned(by_name[case[3]], case, some, runs) for case, some in cases.items()],
        leaks=tables.leaks,
        records=sum(len(inputs) for inputs, _ in tables.clients),
        clients=len(tables.clients),
        held_out=0 if tables.holdout is None else len(tables.holdout[0]),
        directory=directory,
        command=command,
        seconds=time.monotonic() - began,
        trained=len(runs) - before,
        rule=f"Of the settings tried, {file.halving}." if thinned else "",
        published=file.published,
    )
    keys = {attempt.key for some in cases.values() for one in some for attempt in one.attempts}
    return found, [run for key, run in runs.items() if key in keys]


def _tuned(grid: Grid, case: Case, candidates: Sequence[Candidate], runs: dict[str, Run]) -> Tuned:
    accounting, epsilon, seed, method = case
    tried = [run for candidate in candidates for run in attempts_made(candidate, runs) or ()]
    survivors = [run for run in tried if run["survived"]]
    if not survivors:
        raise Diff2Error(
            f"no setting of {method} survived at epsilon {epsilon:g}, seed {seed}; add smaller learning rates "
            "to [tune] (rates = ...), or smaller clipping radii to its grid"
        )
    return Tuned(
        method,
        grid.label,
        accounting,
        epsilon if grid.private else None,
        seed,
        _best(survivors, "train_loss"),
        _best(survivors, "squared_gradient_norm"),
        len(tried),
        len(candidates),
    )


def _best(runs: Iterable[Run], name: str) -> Run:
    return min(runs, key=lambda run: least(run, name))


def _title(file: TuneFile) -> str:
    dataset = getattr(file.data, "dataset", None)
    return CATALOGUE[dataset].provenance.title if dataset in CATALOGUE else file.name.replace("_", " ")
