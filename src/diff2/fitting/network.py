r"""Net-K: a network on whitened inputs, its gradients transformed by public probes before they are clipped.

Every ten rounds 1,000 made-up records go through the network: normal numbers, any category, targets drawn from the
network itself. Per layer the second moments of their inputs and errors make the transform (``gradients/transform.py``).
They hold no record: that costs no privacy. In its coordinates the loss curves about alike in all directions. The second
moments are damped, as little as leaves 0.02 effective coordinates for each record and unit of mu: more would be noise.

Shares of the budget (of mu^2): mean of the target and columns as in ``regression.py`` (of counts as in ``counts.py``),
scale of the target .01, radii .02, descent the rest. The radius is a quantile of the released histogram of the
gradients' lengths; where noise hides that, of the lengths of the probes.

*Steps cannot diverge.* A step moves the outputs on the probes by at most ``REACH`` deviations of the target (or units
of log odds), as root mean square; it is shortened to that. So after r rounds the outputs on the probes are within r
``REACH`` of the first ones, whatever the records are: they grow at most linearly, never geometrically.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..gradients import FlatModule, Records, Transform, build_engine, from_probes
from ..tables.kinds import Classes, Counts, Target
from ..tables.rows import Rows
from .asking import Answer, Ask
from .linear import half_octaves, radius_from
from .network_records import (
    Learner,
    NetworkGradients,
    NetworkNorms,
    Task,
    class_task,
    count_task,
    regression_task,
    shapes_of,
)
from .perceptron import ModuleModel, NetworkModel, Perceptron
from .preparation import MAX_WHITENED, Preparation
from .regression import prepared

NORMS_SHARE = 0.02
ROUNDS, RATE = 200, 0.15
PROBES, PROBES_EVERY = 1000, 10
LOOKS = (0, 1, 2, 4, 8, 16, 32, 64, 128)  # rounds at which the radius is found again
NORM_BINS = 30
PUBLIC_QUANTILE = 0.9  # of the probes' lengths
REACH = 0.15  # deviations of the target, or log odds, that outputs may move in a round
DAMPING = tuple(0.01 * 10 ** (step / 4) for step in range(13))  # 0.01 to 10, of the largest second moment
COORDINATES = 0.02  # effective ones, per record and mu
HIDDEN = (8, 64)  # units of the default network
WORTH = 0.06  # parameters per record and mu


def default_module(inputs: int, outputs: int, signal: float, generator: torch.Generator) -> nn.Sequential:
    """Return a network with one hidden layer of tanh units, as many as noise allows: by records times mu."""
    units = int(np.clip(WORTH * signal / (inputs + 1 + outputs), *HIDDEN))
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise((inputs, units, outputs)):
        linear = nn.Linear(fan_in, fan_out, dtype=torch.float64)
        with torch.no_grad():
            for parameter in linear.parameters():
                parameter.uniform_(-1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in), generator=generator)
        layers += [linear, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def network_of(
    ask: Ask,
    mu: float,
    weight: float,
    preparation: Preparation,
    bounds: np.ndarray,
    target: Target,
    limits: tuple[float, float],
    rng: np.random.Generator,
    module: nn.Module | None = None,
) -> tuple[NetworkModel, Any, tuple[float, float]]:
    """Return a network for this target, the constant that predicts best, and bounds of predictions.

    ``limits``: bounds of the target of a regression, where they were not known.
    """
    if isinstance(target, Classes):
        task, spent = class_task(ask, mu, weight, len(target.values))
    elif isinstance(target, Counts):
        task, spent, high = count_task(ask, mu, float(target.high))
        limits = (0.0, high)
    else:
        limits = limits if math.isfinite(limits[0]) else (float(target.low), float(target.high))  # type: ignore[arg-type]
        task, spent = regression_task(ask, mu, weight, limits)
    constant = math.exp(float(task.offset)) if isinstance(target, Counts) else task.offset
    return fit_network(ask, mu, weight, preparation, bounds, (task, spent), rng, module), constant, limits


def fit_network(
    ask: Ask,
    mu: float,
    weight: float,
    preparation: Preparation,
    bounds: np.ndarray,
    task: tuple[Task, float],
    rng: np.random.Generator,
    module: nn.Module | None = None,
) -> NetworkModel:
    """Fit by releases that cost ``mu`` together, those of the task included; ``weight``: of the heaviest unit."""
    what, spent = task
    nullable = preparation.nullable  # all of them: the width of the inputs is public
    preparation, share = prepared(ask, mu, weight, preparation, bounds)
    preparation = replace(preparation, nullable=nullable)
    left = mu * math.sqrt(1 - spent - share - NORMS_SHARE)
    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
    own = default_module(preparation.width, what.outputs, mu / weight, generator) if module is None else module
    engine, _ = build_engine(own, what.loss, shapes_of(preparation.width, what.outputs))
    learner = Learner(preparation, what, engine, weight)
    params = Descent(learner, generator).run(ask, left, mu * math.sqrt(NORMS_SHARE))
    trained = FlatModule(own).trained_module(params)  # not the engine's module, which may keep what it has seen
    if module is None:
        weights, biases = (
            tuple(
                getattr(layer, name).detach().numpy().copy()
                for layer in trained.modules()
                if isinstance(layer, nn.Linear)
            )
            for name in ("weight", "bias")
        )
        return Perceptron(preparation, weights, biases, what.scale, what.offset)
    state = tuple(_as_saved(value) for value in trained.state_dict().values())
    return ModuleModel(preparation, state, what.scale, what.offset, trained.eval())


class Descent:
    """Descent in the coordinates of probes, with steps that cannot diverge."""

    def __init__(self, learner: Learner, generator: torch.Generator):
        self._learner = learner
        self._generator = generator
        self._flat: FlatModule = learner.engine.flat
        self._inputs = torch.from_numpy(made_up_inputs(learner.preparation, generator))

    def run(self, ask: Ask, mu: float, mu_norms: float) -> Tensor:
        """Return the mean of the last half of the iterates, from releases that cost these two together."""
        params = self._flat.vector.clone()
        total, averaged, radius = torch.zeros_like(params), 0, math.inf
        for round in range(ROUNDS):
            if round % PROBES_EVERY == 0:
                transform, public = self._transform(params, COORDINATES * mu / self._learner.heaviest)
            if round in LOOKS:
                edges = half_octaves(8 * public, NORM_BINS)
                answer = ask(NetworkNorms(self._learner, params, transform, edges), mu_norms / math.sqrt(len(LOOKS)))
                seen = bool((answer.value >= 2 * answer.noise_std).any())
                radius = radius_from(answer.value, edges, answer.noise_std) if seen else public
            asked = NetworkGradients(self._learner, params, transform, radius)
            answer = ask(asked, mu / math.sqrt(ROUNDS))
            params = params - self._step(params, transform, answer, round)
            if round >= ROUNDS // 2:
                total, averaged = total + params, averaged + 1
        return total / averaged

    def _transform(self, params: Tensor, most: float) -> tuple[Transform, float]:
        """Return the transform with the least damping that leaves this many effective coordinates, and a public radius.

        Targets are drawn from the network itself, so the mean square of the probes' lengths is that number.
        """
        probes, loss = self._probes(params), self._learner.task.loss
        for damping in DAMPING:
            transform = from_probes(self._flat, loss, probes, params, damping=damping)
            sizes = self._learner.engine.norms(params, probes, transform).numpy()
            if float(np.mean(sizes**2)) <= most:
                break
        return transform, float(np.quantile(sizes, PUBLIC_QUANTILE))

    def _probes(self, params: Tensor) -> Records:
        """Return made-up records: normal inputs, targets from the network itself."""
        return Records.of(self._inputs, self._learner.task.drawn(self._outputs(params), self._generator))

    def _outputs(self, params: Tensor) -> Tensor:
        with torch.no_grad():
            self._flat.load(params)
            return self._flat.module(self._inputs)

    def _step(self, params: Tensor, transform: Transform, answer: Answer, round: int) -> Tensor:
        """Return a step that moves the outputs on the probes by at most ``REACH``."""
        rate = RATE * 0.5 * (1 + math.cos(math.pi * round / ROUNDS))
        step = transform.back(self._flat, torch.from_numpy(answer.value)) * rate
        moved = float((self._outputs(params - step) - self._outputs(params)).square().sum(1).mean().sqrt())
        return step * min(1.0, REACH / moved) if moved > 0 else step


def made_up_inputs(preparation: Preparation, generator: torch.Generator) -> np.ndarray:
    """Return inputs of made-up records: normal numbers within 3, any category, one value of ten missing."""
    rng = np.random.default_rng(generator.initial_seed())
    numbers = np.clip(rng.standard_normal((PROBES, len(preparation.columns))), -MAX_WHITENED, MAX_WHITENED)
    codes = [rng.integers(count, size=PROBES) for count in preparation.categories]
    missing = np.where(rng.random(numbers.shape) < 0.1, np.nan, 0.0)
    rows = Rows(missing, np.array(codes, dtype=np.int64).reshape(-1, PROBES).T, np.zeros(PROBES))
    return np.concatenate([numbers, preparation.encoded(rows)], axis=1)


def _as_saved(value: Tensor) -> np.ndarray:
    array = value.detach().cpu().numpy()
    return array.astype(np.float64) if array.dtype.kind == "f" else array.astype(np.int64)
