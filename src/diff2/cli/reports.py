"""What each command shows to a person."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._numbers import epsilon_text
from .console import show_facts, show_guarantee, show_line, show_rows

if TYPE_CHECKING:
    from ..fitting.rehearsal import Rehearsal
    from ..planning.plan import Plan
    from ..planning.prediction import Choice, NoisePrediction
    from ..privacy import Budget, Ledger
    from ..questions.population import Population
    from ..runfile.preview import AlikeReleases, Preview
    from ..runfile.run import FinishedRun


NOUNS = {"local": "local step"}
BATCHES = {"fixed": "batches drawn without replacement", "poisson": "Poisson batches"}
GROWTH_LIMIT = 2.0  # of the estimate in a cycle, by noise; beyond, the preview says so


def show_run(run: FinishedRun) -> None:
    """Print what was trained, what it cost, and where it is."""
    result, document = run.result, run.document
    model, clients, algorithm = document["model"], document["clients"], dict(document["algorithm"])
    routine = dict(algorithm.pop("routine"))
    widths = "-".join(str(width) for width in (model["inputs"], *model["hidden"], model["outputs"]))
    records = sum(client["records"] for client in clients)
    show_facts(
        "the run",
        {
            "algorithm": _settings(algorithm),
            "routine": _settings(routine),
            "model": f"{widths}, {model['activation']}, {document['parameters']} parameters, {model['dtype']}",
            "clients": f"{len(clients)} with {records:,} records (equal weight per {document['weighting'][:-1]})",
            "rounds": f"{document['rounds']:,} in {document['seconds']:.1f} s, {document['engine']} gradients",
            "noise": _noise(result.plan),
            "epsilon": _cost(result.epsilon, result.plan.budget),
        },
    )
    for line in result.health:
        show_line(line, wrap=True)
    show_guarantee(result.guarantee)
    show_facts(
        f"in {run.directory}",
        {
            "model.safetensors": "the trained parameters; the guarantee is in the metadata",
            "result.json": "what was trained, and how to use it",
            "ledger.jsonl": "every release; diff2 account recomputes the guarantee from it",
            "history.csv": "what happened in each round",
        },
    )


def show_preview(found: Preview) -> None:
    """Print noise, cost and predicted error of a plan."""
    from ..privacy.guarantee import PROTECTED

    noise = found.plan
    show_facts(
        "the plan",
        {
            "algorithm": f"{noise.algorithm.name}, {noise.algorithm.rounds:,} rounds",
            "clients": _clients(noise.population),
            "protected": PROTECTED[noise.population.unit, noise.population.adjacency],
            "releases": ", ".join(_alike(kind) for kind in found.kinds),
            "noise": _noise(noise),
            "epsilon": f"{_cost(noise.epsilon, noise.budget)}, {noise.accounting} accounting",
        },
    )
    if found.interval is not None and found.interval.restart_interval > 1:  # otherwise a warning has said so
        show_line(found.interval.reason, wrap=True)
    if found.cycle_growth is not None and found.cycle_growth > GROWTH_LIMIT:
        show_line(
            f"unstable: from one restart to the next the noise of the differences alone makes the estimate "
            f"{found.cycle_growth:.3g} times as long. Lower learning_rate, clip_smoothness or restart_interval.",
            style="yellow",
            wrap=True,
        )
    if found.step_length is None:
        _show_predictions(found)
    else:
        for view in found.predictions:
            _show_prediction(view, found.dimension)


def count_of_releases(made: int, planned: int | None) -> str:
    """Say how many releases were made, and of how many, where their number was fixed beforehand."""
    return f"{made:,} releases" if planned is None else f"{made:,} of {planned:,} planned releases"


def account_document(ledger: Ledger, delta: float) -> dict[str, Any]:
    """Return what a ledger says, as plain values."""
    from ..reporting.facts import purposes

    return {
        "epsilon": ledger.epsilon(delta),
        "delta": delta,
        "budget": ledger.header["budget"],
        "complete": ledger.complete,
        "releases": len(ledger),
        "released_epsilon": ledger.released_epsilon(delta),
        "purposes": purposes(ledger, delta),
        "guarantee": ledger.guarantee(delta).to_json(),
    }


def show_account(ledger: Ledger, path: Path, delta: float) -> None:
    """Print what a ledger says."""
    from ..reporting.page import purpose_cells

    budget, stated, released = ledger.header["budget"], ledger.epsilon(delta), ledger.released_epsilon(delta)
    less = released < stated * (1 - 1e-9)
    show_facts(
        "the ledger",
        {
            "file": str(path),
            "state": "complete" if ledger.complete else "not complete: the run is in progress, or was interrupted",
            "releases": count_of_releases(len(ledger), ledger.header["planned"]["releases"]).removesuffix(" releases"),
            "epsilon": f"{epsilon_text(stated)} at delta {delta:g}",
            **({"released so far": f"epsilon {epsilon_text(released)}, not a guarantee"} if less else {}),
            "budget": f"{budget['epsilon']} at delta {budget['delta']:g}",
        },
    )
    cells = [purpose_cells(row, digits=6) for row in account_document(ledger, delta)["purposes"]]
    show_rows("releases by purpose", cells, ["purpose", "count", "noise multiplier", "epsilon alone"])
    show_guarantee(str(ledger.guarantee(delta)))


def _show_prediction(view: NoisePrediction, dimension: int | None) -> None:
    def row(name: str, choice: Choice) -> list[str]:
        return [name, *_choice(choice), f"{choice.error:.4g}", f"{choice.relative_error:.3f}"]

    show_rows(
        f"predicted noise in the gradient estimate (rho = {view.rho:.3g})",
        [
            row("DP-GD", view.dpgd),
            row("as given", view.given),
            row("best T, same split", view.best_interval),
            row("best T and split", view.best),
        ],
        ["", "T", "budget split", _error_title(dimension), "DP-GD = 1"],
    )
    if view.best.relative_error < 0.99 * view.given.relative_error and view.best.budget_split is not None:
        T, split = _choice(view.best)
        show_line(f"suggestion: restart_interval = {T}, budget_split = {split}", style="bold")


def _show_predictions(found: Preview) -> None:
    if not found.predictions:
        return
    algorithm = found.plan.algorithm
    unit = getattr(algorithm, "clip_gradient", 1.0) / getattr(algorithm, "clip_smoothness", 1.0)
    rows = [
        [
            f"{view.rho:g}",
            f"{view.rho * unit:.3g}",
            f"{view.given.relative_error:.3f}",
            f"{view.best_interval.relative_error:.3f} (T={view.best_interval.restart_interval})",
            f"{view.best.relative_error:.3f} ({_named_choice(view.best)})",
        ]
        for view in found.predictions
    ]
    header = ["rho", "step length", "as given", "best T", "best T and split u"]
    show_rows("predicted noise in the gradient estimate, DP-GD = 1", rows, header)
    error = found.predictions[0].dpgd.error
    show_line(f"DP-GD: {_error_title(found.dimension)} {error:.4g}. Give --step-length for one line of this table.")


def show_rehearsal(found: Rehearsal) -> None:
    """Print what a fit would spend its budget on, and what to expect of it."""
    rows = [
        [
            one.purpose,
            f"{one.releases:,}",
            f"{one.share:.1%}",
            f"{one.multiplier:.4g}",
            "a choice" if one.noise is None else f"{one.noise:.2g}",
        ]
        for one in found.purposes
    ]
    title = f"{found.task} on {found.records:,} records, epsilon {found.epsilon:g} at delta {found.delta:g}"
    show_rows(
        title, rows, ["purpose", "releases", "share of the budget", "noise / sensitivity", "noise / largest value"]
    )
    show_line(str(found.expected), wrap=True)
    show_line(
        "Rehearsed on made-up records within the bounds: rounds may differ on yours. No data was touched.", wrap=True
    )


def _choice(choice: Choice) -> tuple[str, str]:
    return str(choice.restart_interval), "-" if choice.budget_split is None else f"{choice.budget_split:.3g}"


def _named_choice(choice: Choice) -> str:
    T, split = _choice(choice)
    return f"T={T}" if choice.budget_split is None else f"T={T}, u={split}"


def _error_title(dimension: int | None) -> str:
    return "squared error per parameter" if dimension is None else f"squared error, {dimension} parameters"


def _clients(population: Population) -> str:
    sizes, m = population.sizes, population.clients_per_round
    weights = f"{len(sizes)} with {sum(sizes):,} records (equal weight per {population.weighting[:-1]})"
    if m is None:
        return weights
    order = "round-robin" if population.client_order == "round_robin" else "drawn in secret"
    return f"{weights}, {m} per round, {order}"


def _alike(kind: AlikeReleases) -> str:
    purpose = NOUNS.get(kind.purpose, kind.purpose) + ("s" if kind.count > 1 else "")
    rate = "" if kind.sampling == "full" else f" ({BATCHES[kind.sampling]}, rate {kind.rate:.3g})"
    return f"{kind.count:,} {purpose}{rate}"


def _noise(noise: Plan) -> str:
    return ", ".join(f"{name} = {value:.6g}" for name, value in noise.sigmas.items() if value is not None)


def _cost(epsilon: float, budget: Budget) -> str:
    return f"{epsilon_text(epsilon)} of {budget.epsilon:g} at delta {budget.delta:g}"


def _settings(fields: Mapping[str, Any]) -> str:
    rest = [
        f"{name}=({_settings(value)})" if isinstance(value, Mapping) and "name" in value else f"{name}={value}"
        for name, value in fields.items()
        if name != "name"
    ]
    return ", ".join([str(fields["name"]), *rest])
