"""What a whole round costs, and what looking at it costs: ``python -m benchmarks.loop``.

Rounds of DP-GD and DIFF2 from the estimator to the moved parameters, with noise and ledger, by the compiled engine, by
the one for fully connected networks and by the ghost engine, against the plain gradient; all in one run, in turns. Then
the share of the time of a DIFF2 run that goes into exact metrics every 20 rounds.
"""

from __future__ import annotations

import argparse
import time
import warnings

import torch
from rich.console import Console
from rich.table import Table

import diff2
from diff2.gradients import FlatModule
from diff2.gradients.choose import ENGINES
from diff2.models.losses import resolve_loss

from .cases import CASES, Case
from .contestants import Round, plain
from .measure import interleaved

EVERY = 20  # rounds between two looks
NETWORKS = ("california", "blog", "covertype")


def engines(case: Case) -> tuple[str, ...]:
    """Return the engines that are timed; the compiled one where it would be chosen."""
    flat, loss = FlatModule(case.model), resolve_loss(case.loss)[1]
    return tuple(name for name in ("ghost", "columns", "compiled") if ENGINES[name].unsuited(flat, loss) is None)


def algorithms() -> dict[str, diff2.Algorithm]:
    routine, rounds = diff2.GradientDescent(learning_rate=1e-3), 1_000_000
    return {
        "DP-GD": diff2.DPGD(rounds=rounds, clip_gradient=1.0, routine=routine),
        # One restart, which is done before the clock starts.
        "DIFF2": diff2.Diff2(
            rounds=rounds, restart_interval=rounds, clip_gradient=1.0, clip_smoothness=1.0, routine=routine
        ),
    }


def rounds_of(case: Case, name: str) -> dict[str, Round]:
    """Return a round of each algorithm by this engine, and a look at the exact metrics."""
    made: dict[str, Round] = {}
    holdout = tuple(part[: len(part) // 4] for part in (case.inputs, case.targets))
    for algorithm, settings in algorithms().items():
        run = diff2.prepare(
            case.model,
            case.loss,
            (case.inputs, case.targets),
            settings,
            diff2.Budget(epsilon=3.0, delta=1e-7),
            metrics_every=EVERY,
            holdout=holdout,
            engine=name,
        )
        made[algorithm] = _round(run)
        made["look"] = lambda run=run: run.metrics(EVERY, run.start)  # type: ignore[misc]
    return made


def _round(run: diff2.Training) -> Round:
    state, _ = run.step(run.init())

    def one_round() -> None:
        nonlocal state
        # The number of the round says whether it is one for a look: here it never is.
        state, _ = run.step(state._replace(round=state.round + (state.round + 1) % EVERY // (EVERY - 1)))

    return one_round


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="time for each contestant and case")
    parser.add_argument("--cases", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quantile", type=float, default=0.5, help="of the times; on a busy machine a small one")
    parser.add_argument("--cpu", action="store_true", help="time of the processor, not of the wall: on a busy machine")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore", diff2.PrivacyLeakWarning)
    titles = ["records", "engine", "plain, ms", "DP-GD, ms", "DIFF2, ms", "DIFF2 / plain", "ghost / this"]
    table = Table(title=f"One round; {options.threads} thread(s), quantile {options.quantile} of the times")
    for title in [*titles, "million record gradients/s", f"share of a look every {EVERY} rounds"]:
        table.add_column(title, justify="left" if title in titles[:2] else "right")
    for name in options.cases:
        case = CASES[name]()
        contestants = {(kind, what): one for kind in engines(case) for what, one in rounds_of(case, kind).items()}
        everyone = {("", "plain"): plain(case), **contestants}
        clock = time.process_time if options.cpu else time.perf_counter
        times = interleaved(everyone, options.seconds, options.quantile, clock)
        for kind in engines(case):
            dpgd, ours, look = (times[kind, what] for what in ("DP-GD", "DIFF2", "look"))
            basis = times["", "plain"]
            table.add_row(
                case.name.removeprefix("network "),
                kind,
                *(f"{1e3 * value:.2f}" for value in (basis, dpgd, ours)),
                f"{ours / basis:.2f}",
                f"{times['ghost', 'DIFF2'] / ours:.2f}",
                f"{len(case.inputs) / ours / 1e6:.1f}",
                f"{look / (look + EVERY * ours):.1%}",
            )
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
