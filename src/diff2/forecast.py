"""A plan and what to expect of it, from a run file or from options; no table is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

from .errors import InvalidArgument
from .estimators import DPGD, Algorithm, Diff2
from .planner import TYPICAL_RHO, Outlook, cycle_growth, outlook
from .plans import Plan, plan
from .privacy import Budget
from .routines import GradientDescent
from .runfile import RunFile


@dataclass(frozen=True)
class Forecast:
    """The plan, and the predicted noise: for the step length that was given, or for several."""

    plan: Plan
    dimension: int | None  # None: errors are those of one parameter
    outlooks: tuple[Outlook, ...]  # one where a step length was given; none for other algorithms than DIFF2 and DP-GD
    step_length: float | None
    cycle_growth: float | None  # by the noise of the differences; None where learning rate or dimension is not known

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        noise = self.plan
        counts: dict[str, int] = {}
        for release in noise.releases:
            counts[release.purpose] = counts.get(release.purpose, 0) + 1
        return {
            "epsilon": noise.epsilon,
            "delta": noise.budget.delta,
            "budget_epsilon": noise.budget.epsilon,
            "algorithm": noise.algorithm.name,
            "rounds": noise.algorithm.rounds,
            "client_sizes": list(noise.client_sizes),
            "weighting": noise.weighting,
            "accounting": noise.accounting,
            "sigma_1": noise.sigma_1,
            "sigma_2": noise.sigma_2,
            "sigma_3": noise.sigma_3,
            "releases": counts,
            "multipliers": dict(noise.multipliers),
            "dimension": self.dimension,
            "step_length": self.step_length,
            "cycle_growth": self.cycle_growth,
            "predictions": [view.to_json() for view in self.outlooks],
        }


def forecast(
    client_sizes: Sequence[int],
    run: RunFile | None,
    options: Mapping[str, Any],
    *,
    step_length: float | None = None,
    dimension: int | None = None,
) -> Forecast:
    """Return the forecast for a run file, for options, or for a run file changed by options.

    Args:
        options: ``epsilon``, ``delta``, ``weighting``, ``accounting``, fields of the algorithm; None: not given.
        step_length: typical distance of two iterates; None predicts for a range of them.
        dimension: the number of parameters; None takes it from the run file where that names all columns.
    """
    given = {name: value for name, value in options.items() if value is not None}
    weighting = given.pop("weighting", "clients" if run is None else run.run.weighting)
    accounting = given.pop("accounting", "exact" if run is None else run.privacy.accounting)
    if run is not None:
        given = {"epsilon": run.privacy.epsilon, "delta": run.privacy.delta, **given}
    budget = Budget(given.pop("epsilon"), given.pop("delta"))
    algorithm = _algorithm(run, given)
    noise = plan(algorithm, budget, client_sizes, weighting=weighting, accounting=accounting)
    if dimension is None and run is not None:
        dimension = _dimension(run)
    outlooks: tuple[Outlook, ...] = ()
    if isinstance(algorithm, Diff2):
        lengths = [step_length] if step_length is not None else _typical_lengths(algorithm)
        outlooks = tuple(
            outlook(
                algorithm,
                budget,
                client_sizes,
                step_length=length,
                dimension=dimension or 1,
                weighting=weighting,
                accounting=accounting,
            )
            for length in lengths
        )
    growth = None
    if isinstance(algorithm, Diff2) and run is not None and dimension is not None:
        growth = cycle_growth(algorithm, noise.sigma_2 or 0.0, dimension)
    return Forecast(noise, dimension, outlooks, step_length, growth)


def _algorithm(run: RunFile | None, options: Mapping[str, Any]) -> Algorithm:
    if run is None:
        # What is planned does not depend on the learning rate.
        defaults: dict[str, Any] = {"restart_interval": 1, "clip_gradient": 1.0, "clip_smoothness": 1.0}
        return Diff2(**{**defaults, **options}, routine=GradientDescent(learning_rate=1.0))
    algorithm = run.algorithm
    if isinstance(algorithm, DPGD):
        # The same algorithm, bit for bit; so DIFF2 can be compared with it, and suggested.
        algorithm = Diff2(algorithm.rounds, 1, algorithm.clip_gradient, 1.0, algorithm.routine)
    known = {field.name for field in fields(algorithm)}  # type: ignore[arg-type]
    for name, value in options.items():
        if name not in known:
            raise InvalidArgument(f"{algorithm.name} has no {name}, got {name}={value!r}; leave it out")
    changed: Algorithm = replace(algorithm, **options)  # type: ignore[type-var]
    return changed


def _typical_lengths(algorithm: Diff2) -> list[float]:
    return [rho * algorithm.clip_gradient / algorithm.clip_smoothness for rho in TYPICAL_RHO]


def _dimension(run: RunFile) -> int | None:
    """Return the number of parameters of the run's model, where the file says how many inputs and outputs there are."""
    data = run.data
    if data is None or data.columns is None or (data.task == "classification" and data.classes is None):
        return None
    widths = [len(data.columns), *run.model.hidden, 1 if data.classes is None else len(data.classes)]
    return sum((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(widths))
