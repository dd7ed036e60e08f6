"""Runs without a record: ledgers in memory, bounded means from thin air, and a cohort that answers for a quadratic."""

from __future__ import annotations

import json
import warnings
from typing import NamedTuple

import numpy as np
import scipy.stats
import torch

import diff2
from diff2.cohorts.bounds import bounded
from diff2.privacy import BoundedMean, Ledger, Mechanism, NoiseSource, Release
from diff2.privacy.discrete_gaussian import discrete_gaussian
from diff2.privacy.lines import HEADER_FIELDS, chained
from diff2.training.loop import Training

DELTA = 1e-5


def ledger_header(*, delta=DELTA, seeded=False, **fields):
    """Return what a run writes into the first line of its ledger."""
    return {
        **dict.fromkeys(sorted(HEADER_FIELDS)),
        "adjacency": "replace-one",
        "unit": "record",
        "client_sizes": [30, 70],
        "budget": {"epsilon": 3.0, "delta": delta},
        "algorithm": {"name": "diff2"},
        "planned": {"releases": 3, "exposure": []},
        "leaks": [],
        "seeded": seeded,
        **fields,
    }


def in_memory_ledger(**fields):
    return Ledger(ledger_header(**fields))


def untimed(path):
    """The lines of a ledger as plain values, without what tells two runs of one seed apart."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in ("time", "chain")} for line in lines]


def rechained(lines):
    """The lines of a ledger as their author would write them: chained anew."""
    found, chain = [], ""
    for line in lines:
        fields = {name: value for name, value in json.loads(line).items() if name != "chain"}
        text, chain = chained(fields, chain)
        found.append(text)
    return found


def mean_of(
    value, sensitivity=0.25, *, rounding=0.0, adjacency="replace-one", round=1, purpose="gradient", asked=b"", **fields
):
    """Return a bounded mean, of zeros where only their number is said."""
    value = np.zeros(value) if isinstance(value, int) else np.asarray(value, dtype=np.float64)
    release = Release(round, purpose, sensitivity=sensitivity, dimension=value.size, **fields)
    return BoundedMean(value, release, rounding, adjacency, asked=asked)


class Untouchable(NoiseSource):
    """Noise that must not be drawn: nothing is on the books yet, or nothing may be released."""

    def __init__(self):
        super().__init__(b"", private=False)

    def bytes(self, *arguments):
        raise AssertionError("noise was drawn")


def is_normal(draws, scale):
    """Whether numbers pass for normal ones of this deviation, by their distribution and by their length."""
    draws = np.ravel(draws) / scale
    length = scipy.stats.chi2(draws.size).cdf((draws**2).sum())
    return scipy.stats.kstest(draws, scipy.stats.norm.cdf).pvalue > 0.001 and 0.0005 < length < 0.9995


LABEL_PARTS = {"noise": 4, "tree": 5}


class DrawnNoise:
    """All noise that mechanisms draw from here on, by its label: what a reference needs to follow a run."""

    def __init__(self, monkeypatch):
        self.steps = {}

        def recorded(source, count, *label):
            self.steps[label[: LABEL_PARTS[label[0]]]] = drawn = discrete_gaussian(source, count, *label)
            return drawn

        monkeypatch.setattr("diff2.privacy.discrete_gaussian.discrete_gaussian", recorded)

    def __call__(self, *label):
        """Return noise of deviation one."""
        return self.steps[label] / 2.0**32


class StubCohort:
    """A cohort without any record: the gradient of a quadratic, clipped, as a release that the population states."""

    def __init__(self, population, curvature=1.0):
        self.population = population
        self.curvature = curvature
        self.asked = []

    def answer(self, question):
        self.asked.append(question)
        point = question.params.double()
        vector = self.curvature * (point if question.previous is None else point - question.previous.double())
        length = float(vector.norm())
        value = vector * min(1.0, question.radius / length) if length > 0 else vector
        return bounded(self.population, question, value, 0.0)


def quiet_plan(algorithm, budget, sizes, **options):
    """Plan without the warning that delta is large for so few records."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", diff2.WeakDeltaWarning)
        return diff2.plan(algorithm, budget, sizes, **options)


class StubRun(NamedTuple):
    states: list
    ledger: Ledger
    asked: list  # questions to the cohort


def stub_run(plan, *, dimension=3, curvature=1.0, seed=1, start=1.0, between=lambda state: state):
    """Run on a stub: nothing but algorithm, routine and mechanism; keep what ``between`` makes of states."""
    budget = {"epsilon": plan.budget.epsilon, "delta": plan.budget.delta}
    training = Training(
        plan=plan,
        untouched=None,
        cohort=StubCohort(plan.population, curvature),
        mechanism=Mechanism(
            in_memory_ledger(adjacency=plan.population.adjacency, budget=budget), NoiseSource.from_seed(seed)
        ),
        engine=None,
        directory=diff2.training.directory.RunDirectory(None, header={}, settings={}, seed=seed),
        start=torch.full((dimension,), start, dtype=torch.float64),
        output_round=plan.algorithm.rounds,
        output_step=0,
    )
    state = training.init()
    states = [between(state)]
    for _ in range(plan.algorithm.rounds):
        state, _ = training.step(state)
        states.append(between(state))
    return StubRun(states, training.mechanism.ledger, training.cohort.asked)
