"""Callbacks that follow a whole run, and two that log it: to MLflow and to TensorBoard.

What they log is released: settings, noise, norms of the estimates, how much of them is noise, epsilon, the guarantee.
No timing, no parameters, no model. Exact metrics only of a run that was asked for them with ``metrics_every``, which
warns of the leak; their names begin with ``exact/``. Where logging fails, the run, which has spent budget, goes on.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .._files import AnyPath
from ..planning import Plan
from .result import TrainResult

if TYPE_CHECKING:
    from .loop import RoundInfo, TrainState

LOG = logging.getLogger("diff2")
RELEASED = ("clip", "sensitivity", "noise_std", "multiplier", "estimate_norm", "estimate_std", "step_norm")
POINTS = 200  # of the curve of epsilon, at most


class RunCallback:
    """A callback that is also called at the start and the end of a run."""

    def begin(self, plan: Plan) -> None:
        """Called before the first round, or the first one after resuming."""

    def __call__(self, state: TrainState, info: RoundInfo) -> bool | None:
        """Is called after each round; True ends the run."""
        return None

    def end(self, result: TrainResult) -> None:
        """Called with what the run returns; not called if the run fails."""


class _Tracker(RunCallback):
    """Gives released values to ``_texts`` and ``_numbers``, under names that begin with ``diff2/``."""

    _failed = False

    def begin(self, plan: Plan) -> None:
        settings = {
            "algorithm": plan.algorithm.name,
            "rounds": plan.algorithm.rounds,
            "routine": plan.algorithm.routine,
            "epsilon": plan.budget.epsilon,
            "delta": plan.budget.delta,
            "unit": plan.population.unit,
            "weighting": plan.population.weighting,
            "adjacency": plan.population.adjacency,
            "accounting": plan.accounting,
        }
        self._tried(self._settings, {f"diff2/{name}": str(value) for name, value in settings.items()})

    def __call__(self, state: TrainState, info: RoundInfo) -> bool | None:
        released = {f"diff2/{name}": float(getattr(info, name)) for name in RELEASED}
        if info.estimate_norm > 0:
            released["diff2/noise_share"] = min(
                1.0, state.params.numel() * (info.estimate_std / info.estimate_norm) ** 2
            )
        exact = {f"exact/{name}": value for name, value in info.metrics.items()}
        self._tried(self._numbers, {**released, **exact}, info.round)
        return None

    def end(self, result: TrainResult) -> None:
        rounds = [int(number) for number in result.history.get("round", [])]
        for row in range(len(rounds) - 1, -1, -max(1, len(rounds) // POINTS)):  # the last one, in any case
            spent = {"diff2/released_epsilon": float(result.history["released_epsilon"][row])}
            self._tried(self._numbers, spent, rounds[row])
        texts = {"guarantee": result.guarantee, "health": "; ".join(result.health), "engine": result.engine}
        self._tried(self._texts, {f"diff2/{name}": text for name, text in texts.items()})
        self._tried(self._close)

    def _tried(self, log: Callable[..., None], *values: Any) -> None:
        try:
            if not self._failed:
                log(*values)
        except Exception as error:
            self._failed = True
            LOG.warning("%s has stopped logging, the run continues: %s", type(self).__name__, error)

    def _settings(self, values: Mapping[str, str]) -> None:
        self._texts(values)

    def _texts(self, values: Mapping[str, str]) -> None:
        raise NotImplementedError

    def _numbers(self, values: Mapping[str, float], step: int) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError


class MLflowCallback(_Tracker):
    """Logs released values of a run to MLflow: to the active run, or to one that is started and ended with it.

    Needs ``pip install 'diff2[mlflow]'``.
    """

    def __init__(self) -> None:
        try:
            import mlflow
        except ImportError:
            raise ImportError("MLflowCallback needs MLflow; install it: pip install 'diff2[mlflow]'") from None
        self._mlflow: Any = mlflow
        self._own = False

    def _settings(self, values: Mapping[str, str]) -> None:
        self._own = self._mlflow.active_run() is None
        self._mlflow.log_params(dict(values))

    def _texts(self, values: Mapping[str, str]) -> None:
        self._mlflow.set_tags(dict(values))

    def _numbers(self, values: Mapping[str, float], step: int) -> None:
        self._mlflow.log_metrics(dict(values), step=step)

    def _close(self) -> None:
        if self._own:
            self._mlflow.end_run()


class TensorBoardCallback(_Tracker):
    """Logs released values of a run for TensorBoard.

    Needs ``pip install 'diff2[tensorboard]'``.

    Args:
        where: a directory, or your own ``torch.utils.tensorboard.SummaryWriter``, which stays open.
    """

    def __init__(self, where: AnyPath | Any):
        self._writer: Any = where
        self._own = isinstance(where, str | os.PathLike)
        if self._own:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                text = "TensorBoardCallback needs TensorBoard; install it: pip install 'diff2[tensorboard]'"
                raise ImportError(text) from None
            self._writer = SummaryWriter(os.fspath(where))

    def _texts(self, values: Mapping[str, str]) -> None:
        for name, text in values.items():
            self._writer.add_text(name, text)

    def _numbers(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def _close(self) -> None:
        self._writer.close() if self._own else self._writer.flush()
