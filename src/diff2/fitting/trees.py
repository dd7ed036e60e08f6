r"""Trees on the residual of a linear model, each chosen whole.

An *oblivious* tree asks six yes-or-no questions, the same of every record, and adds the value of one of 64 leaves; for
few records four, and 16 leaves, so that each shows more than noise. Its structure is chosen by the exponential
mechanism (``privacy/exponential.py``) among thousands of public candidates, by

.. math::
    \sum_{\text{leaves}} \Big| \sum_{i \in \text{leaf}} w_i r_i \Big|, \qquad |r_i| \le C.

Replacing a record of weight w takes :math:`w |r|` from one leaf and adds :math:`w |r'|` to one, so it changes the score
by at most 2 C w, however many candidates there are and however deep they are. Then the sums of the clipped residuals in
the leaves are released (two records in one leaf, with opposite signs, are 2 C apart) and the leaves' weights
(:math:`\sqrt 2` apart).

**Classes.** A record's residual is a vector, one for the class that came less the probabilities, no longer than C. The
score takes its product with a public random contrast of length one, which is within C; the leaves release all of it.

A candidate is a pair of *halves*, two or three questions each, so that the scores of all pairs come from one matrix
product. Residuals are rounded to whole numbers, at most 511 of them to the radius: scores are exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from ..tables.rows import Rows
from .asking import Answer, Ask, Choose
from .linear import LinearModel, half_octaves, radius_from
from .second_moment import ROOT, length_limited
from .tree_model import BINS, LEVELS, QUESTIONS, Binning, Half, Tree, TreeModel

MOST_TREES, TREE_SHARE = 15, 0.02  # of the budget, for each
TREES_FROM, LARGE_TREES_FROM = 500, 8000  # records times mu
HALVES = 55  # on either side: 3,025 candidates
SHARES = {"structure": 0.40, "leaves": 0.52, "leaf weights": 0.05, "residuals": 0.03}
LOOKS = (0, 2, 5, 10, 15, 20)  # trees before which the radius is found again
RADIUS_BINS = 40


@dataclass(frozen=True)
class ResidualSizes:
    """How many residuals have which size: bins between public edges."""

    model: TreeModel
    bounds: tuple[float, float]
    edges: np.ndarray
    purpose: str = "residuals"
    longest: float = 1.0
    diameter: float = ROOT

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        sizes = np.abs(self.model.residual(rows, self.bounds, cache))
        return np.bincount(np.searchsorted(self.edges, sizes), weights=weights, minlength=len(self.edges) + 1)


@dataclass(frozen=True)
class PairScores:
    """The score of every pair of halves, in whole numbers."""

    model: TreeModel
    first: tuple[Half, ...]
    second: tuple[Half, ...]
    radius: float
    bounds: tuple[float, float]
    contrast: np.ndarray | None = None  # of classes, of length one
    purpose: str = "structure"
    sensitivity: int = 2 * LEVELS  # for a record of weight one

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        """Return the sums of the leaves of all pairs; ``weights`` are in units of the heaviest."""
        bins = self.model.bins(rows, cache)
        # Towards zero: a unit of many records, each a share of it, is then no longer than its residuals.
        whole = np.trunc(weights * self.model.clipped(rows, self.radius, self.bounds, cache, self.contrast))
        left, right = (_indicators(halves, bins) for halves in (self.first, self.second))
        right *= whole[:, None].astype(np.float32)
        return (left.T @ right).astype(np.float64).ravel()  # whole numbers below 2^24: exact in single precision

    def scores(self, total: np.ndarray) -> np.ndarray:
        """Return one score per pair from the sums over all records."""
        sums = np.abs(total).reshape(len(self.first), 2 ** len(self.first[0].columns), len(self.second), -1)
        return sums.sum(axis=(1, 3)).ravel().astype(np.int64)


@dataclass(frozen=True)
class LeafSums:
    """The sum of the clipped residuals in each leaf."""

    model: TreeModel
    tree: Tree
    radius: float
    bounds: tuple[float, float]
    purpose: str = "leaves"

    @property
    def longest(self) -> float:
        return self.radius

    @property
    def diameter(self) -> float:
        return 2 * self.radius

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        leaves, values = self.tree.leaves(self.model.bins(rows, cache)), self.tree.values
        if values.ndim == 1:
            residual = self.model.clipped(rows, self.radius, self.bounds, cache) * (self.radius / LEVELS)
            return np.bincount(leaves, weights * residual, len(values))
        residual = length_limited(self.model.residual(rows, self.bounds, cache), self.radius)
        return np.stack([np.bincount(leaves, weights * one, len(values)) for one in residual.T], axis=1).ravel()


@dataclass(frozen=True)
class LeafWeights:
    """The weight of the records in each leaf."""

    model: TreeModel
    tree: Tree
    purpose: str = "leaf weights"
    longest: float = 1.0
    diameter: float = ROOT

    def total(self, rows: Rows, weights: np.ndarray, cache: dict[Any, Any]) -> np.ndarray:
        return np.bincount(self.tree.leaves(self.model.bins(rows, cache)), weights, len(self.tree.values))


@dataclass
class Candidates:
    """Draws halves: public numbers, and the halves that were chosen before."""

    weights: np.ndarray  # of the columns
    questions: int  # of a half
    rng: np.random.Generator
    chosen: list[Half] = field(default_factory=list)

    def draw(self) -> Half:
        """Return columns with random thresholds; now and then a question of a half that was chosen."""
        weights = self.weights / self.weights.sum()
        if self.chosen:
            used = np.bincount(np.concatenate([half.columns for half in self.chosen]), minlength=len(weights))
            weights = (weights + used / used.sum()) / 2
        columns = np.resize(
            self.rng.choice(len(weights), size=int(self.rng.integers(1, self.questions + 1)), p=weights), self.questions
        )
        thresholds = self.rng.integers(0, BINS - 1, self.questions)
        if self.chosen and self.rng.random() < 0.3:
            for k in np.flatnonzero(self.rng.random(self.questions) < 0.5):
                half, place = self.chosen[self.rng.integers(len(self.chosen))], self.rng.integers(self.questions)
                columns[k], thresholds[k] = half.columns[place], half.thresholds[place]
        return Half(columns, thresholds)


def tree_count(signal: float) -> int:
    """Return how many trees are worth their noise, from records times mu; each gets 2 % of the budget.

    >>> [tree_count(signal) for signal in (400, 1000, 3000, 20_000)]
    [0, 7, 15, 15]
    """
    return min(MOST_TREES, int(MOST_TREES * signal / 2000)) if signal > TREES_FROM else 0


def questions_of(signal: float) -> int:
    """Return how many questions a half of a tree asks, from records times mu."""
    return QUESTIONS[signal > LARGE_TREES_FROM]


class Leafing(NamedTuple):
    """What trees of a kind of target need: the radius, if it is public, and what a leaf's mean residual is worth."""

    questions: int  # of a half
    bounds: tuple[float, float] = (-math.inf, math.inf)
    radius: float | None = None
    step: float = 1.0
    classes: int = 0
    largest: float = math.inf  # radius


def with_trees(
    ask: Ask, choose: Choose, mu: float, count: int, model: LinearModel, leafing: Leafing, rng: np.random.Generator
) -> TreeModel:
    """Add trees to a linear model by releases that cost ``mu`` together."""
    preparation, bounds, classes = model.design.preparation, leafing.bounds, leafing.classes
    columns, oblique = len(preparation.columns), 2 * len(preparation.columns)
    # In the coordinates of theta the second moment of the features is about the identity.
    spread = max(float(np.linalg.norm(model.theta)) / math.sqrt(max(1, classes)), 1e-6)
    binning = Binning(
        _directions(columns, oblique, rng),
        tuple(rng.permutation(count) for count in preparation.categories),
        min(spread, (bounds[1] - bounds[0]) / 2),
    )
    found = TreeModel(model, binning)
    p, own = preparation.original, classes if classes > 2 else 1
    shares = np.full(columns + oblique + len(preparation.categories) + own, 1 / p)
    shares[columns : columns + oblique] = 1 / max(1, oblique)
    shares[-own:] = 2 / p / own
    candidates, leaves = Candidates(shares, leafing.questions, rng), 4**leafing.questions
    edges = half_octaves(bounds[1] - bounds[0] if leafing.radius is None else leafing.radius, RADIUS_BINS)
    looks = [number for number in LOOKS if number < count] if leafing.radius is None else []
    radius = min(float(edges[-1]), leafing.largest)
    each = {name: mu * math.sqrt(share / count) for name, share in SHARES.items()}
    for number in range(count):
        if number in looks:
            sizes = ask(ResidualSizes(found, bounds, edges), mu * math.sqrt(SHARES["residuals"] / len(looks)))
            radius = min(radius, radius_from(sizes.value, edges, sizes.noise_std))
        first, second = (tuple(candidates.draw() for _ in range(HALVES)) for _ in range(2))
        contrast = random_contrast(classes, rng) if classes else None
        place = choose(PairScores(found, first, second, radius, bounds, contrast), each["structure"])
        tree = Tree(first[place // HALVES], second[place % HALVES], np.zeros((leaves, classes) if classes else leaves))
        candidates.chosen += [tree.first, tree.second]
        sums = ask(LeafSums(found, tree, radius, bounds), each["leaves"])
        counts = ask(LeafWeights(found, tree), each["leaf weights"])
        values = leaf_values(sums.value.reshape(tree.values.shape), counts, sums.noise_std, radius)
        found = replace(found, trees=(*found.trees, tree._replace(values=leafing.step * values)))
    return found


def random_contrast(classes: int, rng: np.random.Generator) -> np.ndarray:
    """Return public numbers for the classes, of sum zero and length one: two groups of classes against each other.

    >>> abs(random_contrast(2, np.random.default_rng(0))).round(3)
    array([0.707, 0.707])
    """
    signs = np.where(rng.permutation(classes) < classes / 2, 1.0, -1.0)
    signs -= signs.mean()
    return signs / np.linalg.norm(signs)


def leaf_values(sums: np.ndarray, weights: Answer, noise_std: float, radius: float) -> np.ndarray:
    """Return the mean residual of each leaf, drawn towards zero where noise or few records make it uncertain."""
    free, leaves = 1, len(sums)
    counts = likely_weights(weights)
    if sums.ndim == 2:  # residuals of classes add up to zero
        sums, counts, free = sums - sums.mean(axis=1, keepdims=True), counts[:, None], sums.shape[1] - 1
    signal = float(np.sum(np.square(sums))) - leaves * free * noise_std**2
    spread = max(signal / free / float(np.sum(np.square(counts))), 1e-12)
    denominator = counts**2 + noise_std**2 / spread + (0.1 / leaves) ** 2
    return np.clip(sums * counts / denominator, -radius, radius)


def likely_weights(weights: Answer) -> np.ndarray:
    """Return positive weights of leaves: drawn towards equal ones, as far as noise explains that they differ.

    >>> likely_weights(Answer(np.array([0.7, 0.3, 0.1, -0.1]), 0.01)).round(2)
    array([0.7 , 0.3 , 0.1 , 0.02])
    >>> likely_weights(Answer(np.array([0.7, 0.3, 0.1, -0.1]), 1.0)).round(2)
    array([0.25, 0.25, 0.25, 0.25])
    """
    equal, noise = 1 / len(weights.value), weights.noise_std**2
    apart = max(float(np.mean((weights.value - equal) ** 2)) - noise, (equal / 4) ** 2)
    return np.maximum(equal + (weights.value - equal) * apart / (apart + noise), equal / 10)


def _directions(columns: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return public directions of two or three columns of scores, of length one."""
    found = np.zeros((columns, count))
    for j in range(count):
        chosen = rng.choice(columns, size=min(columns, 2 if rng.random() < 0.7 else 3), replace=False)
        found[chosen, j] = rng.standard_normal(len(chosen))
    return found / np.maximum(np.linalg.norm(found, axis=0), 1e-12)


def _indicators(halves: tuple[Half, ...], bins: np.ndarray) -> np.ndarray:
    leaves, rows = 2 ** len(halves[0].columns), np.arange(len(bins))
    found = np.zeros((len(bins), leaves * len(halves)), dtype=np.float32)
    for j, half in enumerate(halves):
        found[rows, leaves * j + half.leaves(bins)] = 1.0
    return found
