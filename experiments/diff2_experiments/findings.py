"""What a reproduction found: statistics over seeds, and p-values.

As in the paper's appendix: for each seed, losses and accuracies are those of the settings with the least train loss,
and the squared gradient norm is that of the settings with the least norm, each the least over rounds and settings. The
p-value is of a one-sided t-test over the seeds: that the least value over the rounds (of an accuracy: the largest) is
better than DP-GD's.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtr

from .formatting import counted, spread
from .reproduced import Reproduced, Run, Tuned

BASELINE = "dpgd"  # what the others are tested against
ADVOCATED = "diff2"  # whose p-values the paper prints

Row = dict[str, Any]


class Metric(NamedTuple):
    """Something measured every few rounds."""

    name: str
    title: str
    unit: str
    by: str = "by_loss"  # which of the tuned runs it is taken from
    sign: int = 1  # 1: less is better; -1: more is better
    log: bool = False  # whether it is drawn on a logarithmic axis

    @property
    def extreme(self) -> str:
        """What its best value over the rounds is called."""
        return "least" if self.sign > 0 else "largest"


METRICS = (
    Metric("train_loss", "train loss", "of the records trained on"),
    Metric("squared_gradient_norm", "squared gradient norm", "of the train loss", "by_gradient", log=True),
    Metric("test_loss", "test loss", "of held-out records"),
    Metric("train_accuracy", "train accuracy", "share of the records trained on", sign=-1),
    Metric("test_accuracy", "test accuracy", "share of held-out records", sign=-1),
)


class Condition(NamedTuple):
    """What methods are compared under: one accounting and one epsilon."""

    accounting: str
    epsilon: float

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:g}, {self.accounting} accounting"

    @property
    def slug(self) -> str:
        """For names of files."""
        return f"{self.accounting}-epsilon-{self.epsilon:g}"


def conditions(found: Reproduced) -> list[Condition]:
    """Return every accounting and epsilon, in the order of tables and figures."""
    return [Condition(accounting, epsilon) for accounting in found.accountings for epsilon in found.epsilons]


def metrics_of(found: Reproduced) -> list[Metric]:
    """Return what was measured."""
    return [metric for metric in METRICS if all(metric.name in getattr(tuned, metric.by) for tuned in found.tuned)]


def tuned_at(found: Reproduced, condition: Condition, method: str) -> list[Tuned]:
    """Return the best runs of a method, by seed; a method without privacy is the same under every condition."""
    by_seed = {
        tuned.seed: tuned
        for tuned in found.tuned
        if tuned.method == method and (tuned.budget is None or (tuned.accounting, tuned.budget) == condition)
    }
    return [by_seed[seed] for seed in sorted(by_seed)]


def distinct(found: Reproduced) -> list[Tuned]:
    """Return the best runs without repetition: a method without privacy may be named again under every condition."""
    once = {
        (one.method, one.budget, one.accounting if one.budget is not None else None, one.seed): one
        for one in found.tuned
    }
    return list(once.values())


def summaries(found: Reproduced) -> list[Row]:
    """Return a row for each accounting, epsilon and method, with statistics of every metric."""
    return [
        _summary(found, condition, method, label)
        for condition in conditions(found)
        for method, label in found.methods
        if tuned_at(found, condition, method)
    ]


def rows_at(rows: Sequence[Row], condition: Condition) -> list[Row]:
    """Return the rows of one accounting and epsilon."""
    return [row for row in rows if (row["accounting"], row["budget"]) == condition]


def _summary(found: Reproduced, condition: Condition, method: str, label: str) -> Row:
    tuned = tuned_at(found, condition, method)
    chosen = {by: [dict(getattr(one, by)["settings"]) for one in tuned] for by in ("by_loss", "by_gradient")}
    spent = [run["epsilon"] for one in tuned for run in (one.by_loss, one.by_gradient)]
    private = any(one.budget is not None for one in tuned)
    return {
        "accounting": condition.accounting,
        "budget": condition.epsilon,
        "method": method,
        "label": label,
        "private": private,
        "seeds": [one.seed for one in tuned],
        "epsilon": max(spent) if private and None not in spent else None,
        "tried": sum(one.tried for one in tuned),
        "grid_points": max(one.settings for one in tuned),
        "seconds": float(np.mean([one.by_loss["seconds"] for one in tuned])),
        "algorithms": {by: [algorithm_text(getattr(one, by)) for one in tuned] for by in chosen},
        "settings": chosen,
        "usual": {by: usual(settings) for by, settings in chosen.items()},
        "metrics": {metric.name: _statistics(found, condition, method, metric) for metric in metrics_of(found)},
    }


def _statistics(found: Reproduced, condition: Condition, method: str, metric: Metric) -> Row:
    tuned = tuned_at(found, condition, method)
    published = found.published.get(f"epsilon_{condition.epsilon:g}", {})
    p_values = published.get("p_values", {}).get(metric.name, {})
    return {
        "final": spread([final_value(getattr(one, metric.by), metric) for one in tuned]),
        "best": spread([best_value(getattr(one, metric.by), metric) for one in tuned]),
        "p_value": p_value(tuned, tuned_at(found, condition, BASELINE), metric),
        "published": published.get(metric.name, {}).get(method),
        "published_p_value": p_values.get(method) if isinstance(p_values, Mapping) else _only(p_values, method),
    }


def _only(p_value: float, method: str) -> float | None:
    """A single published p-value is that of DIFF2."""
    return p_value if method == ADVOCATED else None


def final_value(run: Run, metric: Metric) -> float:
    """Return the last value of a run that survived, or NaN."""
    last = run[metric.name][-1] if run["survived"] and run[metric.name] else None
    return math.nan if last is None else float(last)


def best_value(run: Run, metric: Metric) -> float:
    """Return the least value over the rounds (of an accuracy: the largest), or NaN where none is finite.

    >>> best_value({"train_loss": [0.5, 0.2, 0.3, None]}, METRICS[0])
    0.2
    """
    finite = [metric.sign * value for value in run[metric.name] if value is not None and math.isfinite(value)]
    return metric.sign * min(finite, default=math.nan)


def p_value(tuned: Sequence[Tuned], baseline: Sequence[Tuned], metric: Metric) -> float | None:
    """Return the chance of a mean difference to the baseline at least as good as this one, if there were none.

    A one-sided t-test of one sample, the differences of the seeds that both have. There is none of a single seed, of
    differences that are all the same, of diverged runs, of the baseline itself, and of a method without privacy.
    """
    theirs = {one.seed: best_value(getattr(one, metric.by), metric) for one in baseline}
    if any(one.budget is None or one.method == BASELINE for one in tuned):
        return None
    pairs = [(best_value(getattr(one, metric.by), metric), theirs[one.seed]) for one in tuned if one.seed in theirs]
    differences = metric.sign * np.array([ours - other for ours, other in pairs])
    if len(pairs) < 2 or not np.isfinite(differences).all() or np.ptp(differences) == 0:
        return None
    return float(stdtr(len(pairs) - 1, differences.mean() / (differences.std(ddof=1) / math.sqrt(len(pairs)))))


def usual(settings: Sequence[Mapping[str, Any]]) -> Row:
    """Return the settings that most seeds chose (the first of them, if several), and how many did.

    >>> usual([{"clip_gradient": 1}, {"clip_gradient": 3}, {"clip_gradient": 3}])
    {'settings': {'clip_gradient': 3}, 'seeds': 2}
    """
    (text, count), *_ = Counter(json.dumps(one) for one in settings).most_common()
    return {"settings": json.loads(text), "seeds": count}


def algorithm_text(run: Run) -> str:
    """Return all settings of a run's algorithm in one line, as its ledger has them."""
    described = run["algorithm"]
    return described if isinstance(described, str) else json.dumps(described)


def notes(found: Reproduced) -> list[str]:
    """Say what the numbers mean, and what they do not; the first line is the one to say loudest."""
    named = ["settings tuned on exact losses, which no epsilon counts", "exact metrics", "seeded noise", *found.leaks]
    size = max((tuned.settings for tuned in found.tuned), default=0)
    lines = [
        f"NOT PRIVATE: {', '.join(named)}. For public data only. Epsilon is that of one run, "
        "as if its settings had been known beforehand.",
        f"{found.records:,} records of {counted(found.clients, 'client')}, {found.held_out:,} held out; "
        f"{found.rounds:,} rounds, delta {found.delta:g}; {found.grid} grid, "
        f"up to {counted(size, 'setting')} per method.",
        "For each seed, losses and accuracies are of the settings with the least train loss, the squared gradient norm "
        "of those with the least norm: the least over all rounds and settings, as in the paper.",
        f"Mean ± deviation over {counted(found.seeds, 'seed')} of noise and starting point; records and their split "
        "are the same for all. p: one-sided t-test over the seeds, on the best value over the rounds, against DP-GD; "
        "each test by itself, not corrected for their number.",
    ]
    if found.rule:
        lines.append(f"{found.rule} The number of settings is of those that were trained to the end.")
    if found.published:
        lines.append("Published values are read off the figures of the paper, whose noise is that of paper accounting.")
    return lines


def document(found: Reproduced, rows: Sequence[Row], files: Sequence[Path]) -> dict[str, Any]:
    """Return everything but the curves as plain values."""
    kept = ("title", "task", "delta", "grid", "rounds", "seeds", "trained", "seconds", "command")
    return {
        "private": False,
        "notes": notes(found),
        "data": found.name,
        **{name: getattr(found, name) for name in kept},
        "epsilons": list(found.epsilons),
        "accountings": list(found.accountings),
        "rows": list(rows),
        "directory": str(found.directory),
        "files": [str(path) for path in files],
    }
