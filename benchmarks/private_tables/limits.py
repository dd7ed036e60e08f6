"""What limits ``fit`` on a table: noise, clipping, or features and rounds.

The recipe is run as it is, then with the noise left out (its decisions still follow from the noise that there would
be), then with the clipping left out, too. What is still missing to boosting is for features, ridge and rounds. Nothing
of this is private; the library itself has no such switch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

from diff2.fitting import classification, descent, trees
from diff2.fitting.asking import Answer
from diff2.fitting.session import Session
from diff2.fitting.statistics import ClippedDescent

from .contestants import BASELINE, BOOSTING, CONTESTANTS, FIT, LINEAR
from .measures import measured, share
from .problem import Problem
from .tables import TABLES, frame_of

UNCLIPPED = 1e3  # times the usual radius of the gradients of classes
ALL = 2**0.5  # no residual of classes is longer


@contextmanager
def without_noise(unclipped: tuple[str, ...] = ()) -> Iterator[None]:
    """Answer exactly, and say that there is the noise that the price means; none where nothing is clipped."""

    def ask(self: Any, statistic: Any, mu: float) -> Answer:
        mean = self._cohort.answer(statistic, self._filter.releases)
        return Answer(mean.value, 0.0 if statistic.purpose in unclipped else mean.release.sensitivity / mu)

    def choose(self: Any, scores: Any, mu: float) -> int:
        return int(self._cohort.scores(scores, self._filter.releases, 1 / mu).argmax())

    with patch.multiple(Session, ask=ask, choose=choose):
        yield


@contextmanager
def without_clipping() -> Iterator[None]:
    """Take radii that no gradient and no residual reaches, without noise."""

    def largest(counts: Any, edges: Any, noise_std: float) -> float:
        return float(edges[-1])

    with (
        without_noise(("descent", "leaves")),
        patch.object(descent, "quiet_radius", lambda counts, edges, *_: (float(edges[-1]), 1.0)),
        patch.object(trees, "radius_from", largest),
        patch.object(classification, "ClippedDescent", lambda of, radius: ClippedDescent(of, UNCLIPPED * radius)),
        patch.object(
            classification, "Leafing", lambda questions, radius, **rest: trees.Leafing(questions, radius=ALL, **rest)
        ),
    ):
        yield


STAGES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "as it is": nullcontext,
    "no noise": without_noise,
    "no noise, no clipping": without_clipping,
}


def limits(tables: Sequence[str], epsilon: float, seeds: Sequence[int], most_rows: int) -> Iterator[str]:
    """Yield the lines of a table: the share of what boosting explains, at each stage."""
    yield f"| table, epsilon {epsilon:g} | {' | '.join(STAGES)} | linear, not private |"
    yield "| --- " * (len(STAGES) + 2) + "|"
    for table in tables:
        found: dict[str, list[float]] = {}
        for seed in seeds:
            problem = Problem.split(frame_of(table, most_rows), TABLES[table].schema, seed)
            for name in (BASELINE, LINEAR, BOOSTING):
                found.setdefault(name, []).append(_deviance(problem, name, epsilon, seed))
            for stage, changed in STAGES.items():
                with changed():
                    found.setdefault(stage, []).append(_deviance(problem, FIT, epsilon, seed))
        values = (share(found[BASELINE], found[name], found[BOOSTING]) for name in (*STAGES, LINEAR))
        yield f"| {table} | {' | '.join('' if one is None else f'{one:.2f}' for one in values)} |"


def _deviance(problem: Problem, name: str, epsilon: float, seed: int) -> float:
    predicted = CONTESTANTS[name].predict(problem, epsilon, seed)
    return measured(problem.task, problem.test_rows.target, predicted)["deviance"]
