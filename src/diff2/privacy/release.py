"""A release: one value computed from records that leaves with noise. One type from the plan to the ledger.

It is described before it is priced, and priced before it is made:

* *planned*: round, purpose, whose units are in it and how they were drawn, with the sensitivity for the radius one;
* *priced*: with the noise multiplier that the budget leaves for it;
* *recorded*: with the radius, the noise and the dimension it really had, as a line of the ledger.
"""

from __future__ import annotations

from typing import NamedTuple

FULL, FIXED, POISSON = "full", "fixed", "poisson"  # how the units of a release were drawn
GAUSSIAN, EXPONENTIAL, ZERO, NONE = "gaussian", "exponential", "zero", "none"  # mechanisms
REPLACE_ONE, ADD_OR_REMOVE_ONE = "replace-one", "add-or-remove-one"  # adjacency: which data sets are neighbours


class Release(NamedTuple):
    """One release, described so that it can be priced without the data."""

    round: int
    purpose: str  # "gradient", "difference", "local", "scaling"; each purpose has a share of the budget
    step: int = 0  # distinguishes several releases of one purpose in a round; of a tree: which leaf
    sensitivity: float = 0.0  # how far one unit can move the value, in Euclidean length
    clip: float = 1.0  # the radius that the sensitivity is for
    sampling: str = FULL  # "fixed": on a batch drawn without replacement; "poisson"
    rate: float = 1.0  # largest probability of a unit to be in the batch
    members: tuple[int, ...] | None = None  # the clients, or parts, whose units are in it; None: all
    leaves: int = 0  # of the binary tree that the release is a leaf of; 0: of none
    multiplier: float = 0.0  # what is priced: noise_std / (sensitivity + rounding) / sqrt(nodes); 0 costs infinity
    mechanism: str = GAUSSIAN  # or "exponential": a choice; "zero": identically zero, free; "none": no noise
    noise_std: float = 0.0  # of a choice: the rate at which scores count
    rounding: float = 0.0  # share by which floating-point sums may exceed the sensitivity; the noise covers it
    dimension: int = 0
    parties: int = 1  # whose noise together is ``noise_std``: each adds noise_std / sqrt(parties)
    sha256: str = ""  # of the released value; empty where sites add the noise, which answer a request but once

    @property
    def label(self) -> tuple[int, str, int]:
        """What distinguishes a release, and its noise, from all others of its run."""
        return self.round, self.purpose, self.step

    def again(self) -> Release:
        """Return it as it is priced where the same label was released before, with another value.

        The units of the first one are not enough: a later node of a tree holds the units of earlier leaves as well.
        """
        return self._replace(sampling=FULL, rate=1.0, members=None)

    @property
    def nodes(self) -> int:
        """Noisy values that the released one shows in: 1, or the levels of the tree it is a leaf of."""
        return tree_levels(self.leaves) if self.leaves else 1


def tree_levels(leaves: int) -> int:
    """Return D, the number of nodes above and including a leaf.

    >>> [tree_levels(leaves) for leaves in (1, 2, 3, 4, 5)]
    [1, 2, 3, 3, 4]
    """
    return (leaves - 1).bit_length() + 1


def tree_nodes(count: int) -> list[tuple[int, int]]:
    """Return the (level, index) of the nodes that make up the first ``count`` leaves.

    >>> tree_nodes(6)
    [(2, 0), (1, 2)]
    """
    nodes, start = [], 0
    for level in reversed(range(count.bit_length())):
        if count >> level & 1:
            nodes.append((level, start >> level))
            start += 1 << level
    return nodes
