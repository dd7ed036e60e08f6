"""Who takes part: each a function of a problem, epsilon and seed that returns predictions for the test rows.

Every contestant gets the same rows and the same schema, and is used near what its documentation recommends. Settings
are fixed for all tables.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import diff2

from . import libraries, references, trained
from .problem import Problem
from .trained import DELTA as DELTA

ALL = ("regression", "counts", "classes")


@dataclass(frozen=True)
class Contestant:
    """A way to predict.

    Args:
        predict: (problem, epsilon, seed) -> values, means, or probabilities (rows, classes) of the test rows.
        given: what it was given, for the report.
        guarantee: how its guarantee compares with replace-one at (epsilon, delta).
        tasks: the kinds of targets that it takes.
        most_classes: how many classes it takes.
        modules: that it needs.
    """

    name: str
    predict: Callable[[Problem, float, int], np.ndarray]
    given: str
    guarantee: str = "none; not private"
    tasks: tuple[str, ...] = ALL
    most_classes: int | None = None
    modules: tuple[str, ...] = ()
    private: bool = True

    def refuses(self, problem: Problem) -> str | None:
        """Return why it cannot take part."""
        if problem.task not in self.tasks:
            return f"does not predict {problem.task}"
        if self.most_classes is not None and problem.classes > self.most_classes:
            return f"takes {self.most_classes} classes at most"
        return None

    def absent(self) -> str | None:
        """Return why it cannot run here."""
        missing = [module for module in self.modules if not _there(module)]
        return f"{missing[0]} is not installed; pip install 'diff2[benchmark]'" if missing else None


def _there(module: str) -> bool:
    if module == "diff2.fit":
        return callable(getattr(diff2, "fit", None))
    return importlib.util.find_spec(module) is not None


OURS = "replace-one at (epsilon, delta), by its ledger"
CONVERTED = "its own is add/remove; it runs at the epsilon of half the mu, as Gaussian mechanisms convert"
SAMPLED = f"{CONVERTED} (exact in the limit of many small steps)"
BASELINE, LINEAR, BOOSTING = "mean or prior", "linear", "boosting"
FIT = "diff2 fit"

CONTESTANTS: dict[str, Contestant] = {
    one.name: one
    for one in (
        Contestant(
            FIT,
            trained.fit,
            "the schema, epsilon and delta; no settings",
            OURS,
            modules=("diff2.fit",),
        ),
        Contestant("DP-GD", trained.dpgd, trained.GIVEN["dpgd"], OURS),
        Contestant("DIFF2-GD", trained.diff2_gd, trained.GIVEN["diff2"], OURS),
        Contestant("DP-GD + Adam", trained.dpgd_adam, trained.GIVEN["adam"], OURS),
        Contestant("Opacus SGD", libraries.opacus_sgd, libraries.GIVEN["sgd"], SAMPLED, modules=("opacus",)),
        Contestant(
            "Opacus RMSprop", libraries.opacus_rmsprop, libraries.GIVEN["rmsprop"], SAMPLED, modules=("opacus",)
        ),
        Contestant(
            "diffprivlib linear",
            libraries.diffprivlib_linear,
            libraries.GIVEN["linear"],
            "replace-one at (epsilon, 0), which is stronger; but version 0.6 computes the sensitivity of squares from "
            "the lower bound alone",
            tasks=("regression", "counts"),
            modules=("diffprivlib",),
        ),
        Contestant(
            "diffprivlib logistic",
            libraries.diffprivlib_logistic,
            libraries.GIVEN["logistic"],
            "replace-one at (epsilon, 0), which is stronger",
            tasks=("classes",),
            modules=("diffprivlib",),
        ),
        Contestant(
            "diffprivlib forest",
            libraries.diffprivlib_forest,
            libraries.GIVEN["forest"],
            "its own is add/remove at (epsilon, 0); it runs at half the epsilon. Delta 0 is stronger",
            tasks=("classes",),
            modules=("diffprivlib",),
        ),
        Contestant(
            "DP-EBM",
            libraries.dp_ebm,
            libraries.GIVEN["ebm"],
            CONVERTED,
            most_classes=2,
            modules=("interpret",),
        ),
        Contestant(BASELINE, references.mean_or_prior, "the target alone", private=False),
        Contestant(
            LINEAR,
            references.linear,
            "scikit-learn's Ridge, PoissonRegressor or LogisticRegression on standardised columns and categories "
            "one-hot, alpha = 1 (Poisson: 1e-3; C = 1)",
            modules=("sklearn",),
            private=False,
        ),
        Contestant(
            BOOSTING,
            references.boosting,
            "scikit-learn's HistGradientBoosting with its defaults, categories named as such",
            modules=("sklearn",),
            private=False,
        ),
    )
}
