r"""The loop: ask the estimator for :math:`\tilde v_r`, let the routine move, write down what happened.

``Training`` is a run that is ready, with ``init``, ``step`` and ``run``; its state is explicit and holds released
values only. ``diff2.prepare`` builds it, ``diff2.train`` builds and runs it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .._progress import progress_bar
from .._types import Vector
from ..cohorts.pooled import Cohort
from ..gradients import Engine
from ..planning.plan import Plan
from ..privacy import Mechanism
from ..questions.round import Round
from . import directory as checkpoints
from .directory import Checkpoint
from .metrics import ExactMetrics
from .result import TrainResult, history_table

CHECKPOINT_SECONDS = 2.0


class TrainState(NamedTuple):
    """What one round hands to the next. Released values only."""

    round: int  # rounds done
    params: Vector  # x_r
    estimator: dict[str, Any]
    routine: dict[str, Any]
    output: Vector  # what the run would return if it ended here


class RoundInfo(NamedTuple):
    """What happened in a round; a row of ``result.history``."""

    round: int
    purpose: str  # of the first release of the round, as all up to ``multiplier``
    mechanism: str
    clip: float
    sensitivity: float
    noise_std: float
    multiplier: float
    releases: int  # made in this round
    estimate_norm: float  # of v_r
    estimate_std: float  # of the noise in each coordinate of v_r, known exactly
    step_norm: float  # of x_r - x_{r-1}
    seconds: float
    metrics: dict[str, float]  # exact values; empty unless asked for


Callback = Callable[[TrainState, RoundInfo], bool | None]


@dataclass(frozen=True)
class Training:
    """A run that is ready to start. Build it with :func:`prepare`."""

    plan: Plan
    cohort: Cohort
    mechanism: Mechanism
    engine: Engine
    start: Vector  # x_0
    output_round: int  # x of this round is returned
    output_step: int  # or, if not 0, the local iterate after so many steps of the next
    metrics: ExactMetrics | None
    directory: Path | None
    settings: dict[str, Any]
    records_tag: bytes
    resumed: Checkpoint | None

    def init(self) -> TrainState:
        """Return the state before the first round, or the one that was resumed."""
        if self.resumed is not None:
            return TrainState(**self.resumed.state)
        algorithm, start = self.plan.algorithm, self.start
        return TrainState(
            0, start, algorithm.init(start, self.plan.population), algorithm.routine.init(start), start
        )  # fmt: skip

    def step(self, state: TrainState) -> tuple[TrainState, RoundInfo]:
        """Do one round."""
        began = time.perf_counter()
        r, algorithm = state.round + 1, self.plan.algorithm
        round = Round(
            r, algorithm.rounds, state.params, self.cohort, self.mechanism, self.plan.multipliers, self._allowance,
            self.output_step,
        )  # fmt: skip
        estimate, estimator = algorithm.estimate(state.estimator, round)
        params, routine = algorithm.routine.step(state.routine, state.params, estimate, round)
        output = state.output
        if r <= self.output_round:
            output = algorithm.routine.output(routine, params)
        elif r == self.output_round + 1 and self.output_step > 0 and round.visited is not None:
            output = round.visited
        entry, seconds = round.entries[0], time.perf_counter() - began
        info = RoundInfo(
            r,
            entry.purpose,
            entry.mechanism,
            entry.clip,
            entry.sensitivity,
            entry.noise_std,
            entry.multiplier,
            len(round.entries),
            float(torch.linalg.vector_norm(estimate.value)),
            estimate.variance**0.5,
            float(torch.linalg.vector_norm(params.double() - state.params.double())),
            seconds,
            {} if self.metrics is None else self.metrics(r, algorithm.routine.output(routine, params)),
        )
        return TrainState(r, params, estimator, routine, output), info

    @cached_property
    def _allowance(self) -> float:
        # Asked for by algorithms that choose noise on the way, and by nobody else.
        return self.plan.allowance if self.plan.algorithm.adaptive else math.inf

    def run(self, *, callbacks: Sequence[Callback] = (), progress: bool | None = None) -> TrainResult:
        """Do all rounds that are left, and close the books. A callback that returns True ends the run early."""
        state = self.init()
        ledger, rounds = self.mechanism.ledger, self.plan.algorithm.rounds
        history = list(self.resumed.history) if self.resumed is not None else []
        if self.resumed is None or not self.resumed.complete:
            ledger.rewind(state.round)
            if self.resumed is None:
                self._save(state, history)
            saved = time.monotonic()
            with progress_bar(rounds, start=state.round, show=progress, label=self.plan.algorithm.name) as report:
                while state.round < rounds:
                    state, info = self.step(state)
                    history.append(_row(info))
                    report(state.round, ledger)
                    if True in [callback(state, info) for callback in callbacks]:
                        break
                    if time.monotonic() - saved > CHECKPOINT_SECONDS:
                        self._save(state, history)
                        saved = time.monotonic()
            ledger.close()
            self._save(state, history, complete=True)
        return TrainResult(
            model=self.engine.flat.trained_module(state.output),
            params=state.output.clone(),
            history=history_table(history, ledger),
            ledger=ledger,
            plan=self.plan,
            engine=self.engine.name,
        )

    def _save(self, state: TrainState, history: list[dict[str, Any]], *, complete: bool = False) -> None:
        if self.directory is None:
            return
        self.mechanism.ledger.sync()
        noise = self.mechanism.noise
        key = b"" if complete else noise.key
        content = Checkpoint(
            state._asdict(), history, self.settings, key, noise.private, self.records_tag, complete
        )  # fmt: skip
        checkpoints.save(checkpoint_path(self.directory), content)


def checkpoint_path(directory: Path) -> Path:
    return directory / "checkpoint.pt"


def ledger_path(directory: Path) -> Path:
    return directory / "ledger.jsonl"


def _row(info: RoundInfo) -> dict[str, Any]:
    row = info._asdict()
    metrics = row.pop("metrics")
    return {**row, **metrics}
