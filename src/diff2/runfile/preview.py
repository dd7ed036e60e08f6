"""A plan and what to expect of it, from a run file or from options; tables are counted where no sizes are given."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from typing import Any

from ..algorithms import DPGD, Algorithm, Diff2
from ..algorithms.interval import AUTO, Interval
from ..errors import InvalidArgument, PrivacyLeakWarning, WeakDeltaWarning, WeakEpsilonWarning
from ..planning import Plan, plan
from ..planning.prediction import TYPICAL_RHO, NoisePrediction, cycle_growth, predict_noise
from ..privacy import Budget
from ..questions import Protection
from ..routines import GradientDescent
from .data_table import AT_SITES
from .reader import RunFile


@dataclass(frozen=True)
class AlikeReleases:
    """Releases that have purpose, sampling and noise in common."""

    purpose: str
    sampling: str  # "full", "fixed" or "poisson"
    rate: float  # largest probability of a unit to be in the batch
    count: int  # of all clients together
    multiplier: float  # noise deviation / sensitivity


@dataclass(frozen=True)
class Preview:
    """The plan, and the predicted noise: for the step length that was given, or for several."""

    plan: Plan
    dimension: int | None  # None: errors are those of one parameter
    predictions: tuple[NoisePrediction, ...]  # one where a step length was given; none where the formula does not apply
    step_length: float | None
    cycle_growth: float | None  # by the noise of the differences; None where learning rate or dimension is not known
    interval: Interval | None  # what restart_interval='auto' chose, and what to expect of it

    @property
    def kinds(self) -> list[AlikeReleases]:
        """What will be released, by purpose and by how the records are drawn."""
        found: dict[tuple[str, str, float, float], int] = {}
        for release in self.plan.releases:
            key = (release.purpose, release.sampling, release.rate, release.multiplier)
            found[key] = found.get(key, 0) + 1
        return [AlikeReleases(*key[:3], count, key[3]) for key, count in found.items()]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        noise, population = self.plan, self.plan.population
        counts: dict[str, int] = {}
        for kind in self.kinds:
            counts[kind.purpose] = counts.get(kind.purpose, 0) + kind.count
        return {
            "epsilon": noise.epsilon,
            "delta": noise.budget.delta,
            "budget_epsilon": noise.budget.epsilon,
            "algorithm": noise.algorithm.name,
            "rounds": noise.algorithm.rounds,
            "restart_interval": getattr(noise.algorithm, "restart_interval", None),
            "early_restarts": getattr(noise.algorithm, "early_restarts", None),
            "client_sizes": list(noise.client_sizes),
            "weighting": population.weighting,
            "unit": population.unit,
            "adjacency": population.adjacency,
            "clients_per_round": population.clients_per_round,
            "client_order": population.client_order,
            "accounting": noise.accounting,
            **noise.sigmas,
            "releases": counts,
            "kinds": [asdict(kind) for kind in self.kinds],
            "multipliers": dict(noise.multipliers),
            "dimension": self.dimension,
            "step_length": self.step_length,
            "cycle_growth": self.cycle_growth,
            "predictions": [prediction.to_json() for prediction in self.predictions],
        }


def preview(
    client_sizes: Sequence[int],
    run: RunFile | None,
    options: Mapping[str, Any],
    *,
    step_length: float | None = None,
    dimension: int | None = None,
) -> Preview:
    """Return the plan for a run file, for options, or for a run file changed by options, and what to expect of it.

    Args:
        options: ``epsilon``, ``delta``, fields of :class:`Protection` and of the algorithm; None: not given.
        step_length: typical distance of two iterates; None predicts for a range of them.
        dimension: the number of parameters; None takes it from the run file where that names all columns.
    """
    given = {name: value for name, value in options.items() if value is not None}
    names = {field.name for field in fields(Protection)}
    changed = {name: given.pop(name) for name in list(given) if name in names}
    protection = replace(Protection() if run is None else run.protection, **changed)
    opening_share = None
    if run is not None:
        given = {"epsilon": run.privacy.epsilon, "delta": run.privacy.delta, **given}
        opening_share = None if run.data is None else run.data.opening_share
    budget = Budget(given.pop("epsilon"), given.pop("delta"))
    planned, algorithm = _algorithms(run, given)
    if dimension is None and run is not None:
        dimension = _dimension(run)
    noise = plan(planned, budget, client_sizes, protection, dimension=dimension, opening_share=opening_share)
    interval = _interval(planned, noise, protection, dimension)
    if algorithm is planned:
        algorithm = noise.algorithm
    predictions: tuple[NoisePrediction, ...] = ()
    if isinstance(algorithm, Diff2) and predictable(algorithm, noise):
        lengths = [step_length] if step_length is not None else _typical_lengths(algorithm)
        predictions = tuple(
            predict_noise(algorithm, budget, client_sizes, protection, step_length=length, dimension=dimension or 1)
            for length in lengths
        )
    growth = None
    if isinstance(algorithm, Diff2) and run is not None and dimension is not None:
        growth = cycle_growth(algorithm, noise.sigma_2 or 0.0, dimension) if _descends(algorithm) else None
    return Preview(noise, dimension, predictions, step_length, growth, interval)


def _interval(planned: Algorithm, noise: Plan, protection: Protection, dimension: int | None) -> Interval | None:
    if not isinstance(planned, Diff2) or planned.restart_interval != AUTO or dimension is None:
        return None
    dpgd = DPGD(planned.rounds, planned.clip_gradient, planned.routine)
    with warnings.catch_warnings():
        for category in (WeakDeltaWarning, WeakEpsilonWarning):  # said with the plan
            warnings.simplefilter("ignore", category)
        sigma = plan(dpgd, noise.budget, noise.client_sizes, protection, opening_share=noise.opening_share).sigma_1
    return planned.interval(sigma or 0.0, dimension)


def predictable(algorithm: Diff2, noise: Plan) -> bool:
    """Whether the formula of the prediction holds: all records in every round."""
    return algorithm.routine.local_steps == 1 and noise.population.everyone and noise.population.unit == "record"


def _descends(algorithm: Diff2) -> bool:
    return isinstance(algorithm.routine, GradientDescent) and algorithm.routine.schedule == "constant"


def sizes_of(run: RunFile) -> list[int]:
    """Return how many records each client of a run file has to train on: a public number. Nothing else is kept."""
    if run.data is None or getattr(run.data, "file", None) == AT_SITES:
        raise InvalidArgument(f"{run.path} names no tables that could be counted here; give --sizes, such as 1651x10")
    from ..data.loading import load_clients  # a plan needs no tables

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)  # what the encoding takes from the data stays here
        counted = [len(targets) for _, targets in load_clients(run.data, pending=True).clients]
    public = run.privacy.public_sizes
    if public is None:
        return counted
    return [public] * len(counted) if isinstance(public, int) else list(public)


def _algorithms(run: RunFile | None, options: Mapping[str, Any]) -> tuple[Algorithm, Algorithm]:
    """Return the algorithm to plan for, and the one to predict for: for DP-GD, DIFF2 that restarts in every round.

    That is the same algorithm, bit for bit; so DIFF2 can be compared with it, and suggested.
    """
    options = dict(options)
    rate = options.pop("learning_rate", None)
    if run is None:
        if options.get("restart_interval") == AUTO and rate is None:
            raise InvalidArgument("restart_interval='auto' depends on the learning rate; give learning_rate")
        defaults: dict[str, Any] = {"restart_interval": 1, "clip_gradient": 1.0, "clip_smoothness": 1.0}
        chosen = Diff2(**{**defaults, **options}, routine=GradientDescent(learning_rate=1.0 if rate is None else rate))
        return chosen, chosen
    algorithm = run.algorithm
    if rate is not None:
        algorithm = replace(algorithm, routine=replace(algorithm.routine, learning_rate=rate))  # type: ignore[type-var]
    if not isinstance(algorithm, DPGD):
        changed = _changed(algorithm, options)
        return changed, changed
    alike = _changed(Diff2(algorithm.rounds, 1, algorithm.clip_gradient, 1.0, algorithm.routine), options)
    own = {field.name for field in fields(algorithm)}
    return (_changed(algorithm, options) if set(options) <= own else alike), alike


def _changed(algorithm: Algorithm, options: Mapping[str, Any]) -> Algorithm:
    known = {field.name for field in fields(algorithm)}  # type: ignore[arg-type]
    for name, value in options.items():
        if name not in known:
            raise InvalidArgument(f"{algorithm.name} has no {name}, got {name}={value!r}; leave it out")
    changed: Algorithm = replace(algorithm, **options)  # type: ignore[type-var]
    return changed


def _typical_lengths(algorithm: Diff2) -> list[float]:
    return [rho * algorithm.clip_gradient / algorithm.clip_smoothness for rho in TYPICAL_RHO]


def _dimension(run: RunFile) -> int | None:
    """Return the number of parameters of the run's model, where the file fixes its numbers of inputs and outputs."""
    data = run.data
    if data is None or data.inputs is None or data.outputs is None:
        return None
    widths = [data.inputs, *run.model.hidden, data.outputs]
    return sum((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(widths))
