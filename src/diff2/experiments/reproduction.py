"""The paper's experiments: tune every method on a data set as its appendix does, and take the best.

For each budget, accounting and seed, and for each method, the settings with the least train loss and those with the
least squared gradient norm are taken, each least over the rounds that were measured. Only runs that survived the
learning-rate ladder count. None of this is private.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from .._validate import at_least, one_of
from ..data import BuiltinSettings
from ..data.catalogue import CATALOGUE
from ..errors import Diff2Error, InvalidArgument
from ..figures import require_matplotlib
from ..privacy import Budget
from ..privacy.calibration import ACCOUNTINGS
from ..runfile import TuneFile
from .comparison import load_public
from .grids import FULL, GRIDS, HALVED, Grid, read_grids
from .halving import halved, least
from .reproduced import Reproduced, Tuned
from .store import Run, RunStore
from .trials import Setup, digest_of
from .tuning import Climb, Report, climb_all, climbs_of, ended

Place = tuple[str, float, int, str]  # accounting, epsilon, seed, method


def reproduce(
    file: TuneFile,
    directory: Path,
    *,
    names: Sequence[str] | None = None,
    epsilons: Sequence[float] | None = None,
    accountings: Sequence[str] | None = None,
    seeds: int = 5,
    grid: str = FULL,
    jobs: int = 1,
    command: str = "",
    report: Report = lambda done, total: None,
) -> tuple[Reproduced, list[Run]]:
    """Tune and train whatever ``directory`` does not hold yet; return the best runs, and all of them.

    Args:
        file: the experiment.
        directory: of the store.
        names: of the methods; by default all ``[tune.NAME]`` tables of the file.
        epsilons: budgets; by default the one of ``[privacy]``.
        accountings: ``"paper"``, ``"exact"`` or both; by default the one of ``[privacy]``.
        seeds: how many; they are 0, 1, ...
        grid: ``"full"``, ``"reduced"``, or ``"halved"``: the full one, of which ``[halving]`` leaves a few settings.
        jobs: settings tried at the same time, one thread each.
        command: the command line that does this, for those who read the results.
        report: told before the first setting and after each.
    """
    at_least("seeds", seeds, 1)
    one_of("grid", grid, GRIDS)
    rules = list(dict.fromkeys(accountings or [file.privacy.accounting]))
    for accounting in rules:
        one_of("accounting", accounting, ACCOUNTINGS)
    budgets = [Budget(epsilon, file.privacy.delta).epsilon for epsilon in epsilons or [file.privacy.epsilon]]
    budgets = list(dict.fromkeys(budgets))
    grids = read_grids(file, names, grid)
    require_matplotlib()
    began, before = time.monotonic(), len(RunStore(directory).runs())
    tables = load_public(file, "A REPRODUCTION")
    digest, setup = digest_of(tables), Setup(file.model, file.privacy, file.run)

    def climbs(method: Grid, place: Place, until: int | None = None) -> list[Climb]:
        accounting, epsilon, seed, _ = place
        return climbs_of(
            method, setup, file.ladder, digest, epsilon=epsilon, accounting=accounting, seed=seed, until=until
        )

    def finalists(method: Grid, accounting: str, epsilon: float) -> Grid:
        if grid != HALVED:
            return method
        first = (accounting, epsilon, 0, method.name)
        return halved(
            method, file.halving, lambda some, until: climbs(some, first, until), tables, directory, jobs=jobs,
            report=report,
        )  # fmt: skip

    chosen = {
        (accounting, epsilon, method.name): finalists(method, accounting, epsilon)
        for epsilon in budgets
        for accounting in rules
        for method in grids
    }
    # Seed by seed, so that what is cut short has something of everything.
    places: dict[Place, list[Climb]] = {
        (accounting, epsilon, seed, method.name): climbs(
            chosen[accounting, epsilon, method.name], (accounting, epsilon, seed, method.name)
        )
        for seed in range(seeds)
        for epsilon in budgets
        for accounting in rules
        for method in grids
    }
    wanted = {climb.rungs[0].key: climb for climbs in places.values() for climb in climbs}
    runs, _ = climb_all(list(wanted.values()), tables, directory, jobs=jobs, report=report)
    by_name = {method.name: method for method in grids}
    found = Reproduced(
        name=_name(file),
        title=_title(_name(file)),
        task="classification" if tables.encoding.classes is not None else "regression",
        delta=file.privacy.delta,
        grid=grid,
        rounds=max(point.algorithm.rounds for method in grids for point in method.points),
        seeds=seeds,
        epsilons=budgets,
        accountings=rules,
        methods=[(method.name, method.label) for method in grids],
        tuned=[_tuned(by_name[place[3]], place, climbs, runs) for place, climbs in places.items()],
        leaks=tables.leaks,
        records=sum(len(inputs) for inputs, _ in tables.clients),
        clients=len(tables.clients),
        held_out=0 if tables.holdout is None else len(tables.holdout[0]),
        directory=directory,
        command=command,
        seconds=time.monotonic() - began,
        trained=len(runs) - before,
        published=file.published,
        rule=f"Of the full grid, {file.halving}, with seed 0 for all seeds." if grid == HALVED else "",
    )
    keys = {rung.key for climbs in places.values() for climb in climbs for rung in climb.rungs}
    return found, [run for key, run in runs.items() if key in keys]


def _tuned(grid: Grid, place: Place, climbs: Sequence[Climb], runs: dict[str, Run]) -> Tuned:
    accounting, epsilon, seed, method = place
    tried = [run for climb in climbs for run in ended(climb, runs) or ()]
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
        len(climbs),
    )


def _best(runs: Iterable[Run], name: str) -> Run:
    return min(runs, key=lambda run: least(run, name))


def _name(file: TuneFile) -> str:
    data = file.data
    if isinstance(data, BuiltinSettings):
        return data.builtin
    return getattr(data, "dataset", None) or file.path.stem


def _title(name: str) -> str:
    return CATALOGUE[name].provenance.title if name in CATALOGUE else name.replace("_", " ")


def find_experiment(dataset: str) -> Path:
    """Return the file of an experiment: a path, or a name in experiments/paper, here or beside the sources."""
    if dataset.endswith(".toml"):
        return Path(dataset)
    folders = [Path("experiments") / "paper", Path(__file__).parents[3] / "experiments" / "paper"]
    for folder in folders:
        if (folder / f"{dataset}.toml").is_file():
            return folder / f"{dataset}.toml"
    known = sorted({path.stem for folder in folders if folder.is_dir() for path in folder.glob("*.toml")})
    raise InvalidArgument(
        f"there is no experiments/paper/{dataset}.toml; give the path of an experiment, or one of: {', '.join(known)}"
    )
