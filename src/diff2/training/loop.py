r"""The loop: ask the algorithm for :math:`\tilde v_r`, let the routine move, write down what happened.

``Training`` is a run that is ready, with ``init``, ``step`` and ``run``; its state is explicit and holds released
values only. ``diff2.prepare`` builds it, ``diff2.train`` builds and runs it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from .._numbers import epsilon_text
from .._progress import Show, progress_bar
from .._vectors import State, Vector, distance, norm
from ..errors import Diff2Error
from ..gradients import Engine, FlatModule
from ..planning import Plan
from ..privacy import Mechanism
from ..questions import Cohort, Round
from .callbacks import RunCallback
from .directory import RunDirectory
from .metrics import ExactMetrics
from .model_file import model_digest
from .result import TrainResult, history_table

CHECKPOINT_SECONDS = 2.0


class TrainState(NamedTuple):
    """What one round passes to the next. Released values only."""

    round: int  # rounds done
    params: Vector  # x_r
    estimator: State
    routine: State
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
    """A run that is ready to start. Build it with :func:`diff2.prepare`."""

    plan: Plan
    untouched: nn.Module  # the caller's model; it sees no record, and becomes the model that is returned
    cohort: Cohort
    mechanism: Mechanism
    engine: Engine
    directory: RunDirectory
    start: Vector  # x_0
    output_round: int  # x of this round is returned
    output_step: int  # or, if not 0, the local iterate after this many steps of the next
    metrics: ExactMetrics | None = None
    strict: bool = False  # errors of a model or an algorithm, which may quote records, are not passed on

    def init(self) -> TrainState:
        """Return the state before the first round, or the one that was resumed."""
        resumed = self.directory.resumed
        if resumed is not None and resumed.state is not None:
            return TrainState(**resumed.state)
        algorithm, start = self.plan.algorithm, self.start
        estimator, routine = algorithm.init(start, self.plan.population), algorithm.routine.init(start)
        return TrainState(0, start, estimator, routine, start)

    def step(self, state: TrainState) -> tuple[TrainState, RoundInfo]:
        """Do one round."""
        if not self.strict:
            return self._step(state)
        try:
            return self._step(state)
        except (Diff2Error, OSError, MemoryError):
            raise
        except Exception:  # not chained either: a traceback would show it
            pass
        raise Diff2Error(
            f"round {state.round + 1} failed; the reason is withheld, because it may quote records "
            "(strict=True). Try model, loss and algorithm on made-up records, without strict"
        )

    def _step(self, state: TrainState) -> tuple[TrainState, RoundInfo]:
        began = time.perf_counter()
        r, algorithm, population = state.round + 1, self.plan.algorithm, self.plan.population
        round = Round(
            r, algorithm.rounds, state.params, self.cohort, self.mechanism, self.plan.multipliers,
            tuple(algorithm.questions(r, population)), tuple(algorithm.routine.questions(r, population)),
            self.output_step,
        )  # fmt: skip
        estimate, estimator = algorithm.estimate(state.estimator, round)
        params, routine = algorithm.routine.step(state.routine, state.params, estimate, round)
        output = state.output
        if r <= self.output_round:
            output = algorithm.routine.output(routine, params)
        elif r == self.output_round + 1 and self.output_step > 0 and round.visited is not None:
            output = round.visited
        release, seconds = round.releases[0], time.perf_counter() - began
        info = RoundInfo(
            r,
            release.purpose,
            release.mechanism,
            release.clip,
            release.sensitivity,
            release.noise_std,
            release.multiplier,
            len(round.releases),
            norm(estimate.value),
            estimate.variance**0.5,
            distance(params, state.params),
            seconds,
            {} if self.metrics is None else self.metrics(r, algorithm.routine.output(routine, params)),
        )
        return TrainState(r, params, estimator, routine, output), info

    def run(self, *, callbacks: Sequence[Callback] = (), progress: Show = None) -> TrainResult:
        """Do all remaining rounds, and close the ledger. A callback that returns True ends the run early."""
        state, resumed = self.init(), self.directory.resumed
        ledger, rounds = self.mechanism.ledger, self.plan.algorithm.rounds
        history = [] if resumed is None else list(resumed.history)
        followers = [one for one in callbacks if isinstance(one, RunCallback) and not self.directory.complete]
        for follower in followers:
            follower.begin(self.plan)
        if not self.directory.complete:
            ledger.rewind(state.round)
            saved = time.monotonic()
            with progress_bar(rounds, start=state.round, show=progress, label=self.plan.algorithm.name) as report:
                while state.round < rounds:
                    state, info = self.step(state)
                    history.append(_row(info))
                    report(state.round, note=lambda: f"epsilon {epsilon_text(ledger.released_epsilon())} so far")
                    if True in [callback(state, info) for callback in callbacks]:
                        break
                    if time.monotonic() - saved > CHECKPOINT_SECONDS:
                        ledger.sync()
                        self.directory.save(state._asdict(), history)
                        saved = time.monotonic()
        flat = FlatModule(self.untouched, dtype=self.engine.flat.dtype, device=self.engine.flat.device)
        model = flat.trained_module(state.output)
        ledger.close(model_digest(model))
        self.directory.sign(ledger)
        if not self.directory.complete:
            self.directory.save(state._asdict(), history, complete=True)
        table = history_table(history, ledger)
        result = TrainResult(model, state.output.clone(), table, ledger, self.plan, self.engine.name)
        for follower in followers:
            follower.end(result)
        return result


def _row(info: RoundInfo) -> dict[str, Any]:
    row = info._asdict()
    metrics = row.pop("metrics")
    return {**row, **metrics}
