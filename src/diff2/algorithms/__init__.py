"""Algorithms: what to ask the cohort in round r, and how to combine the answers."""

from .._registry import Registry
from .base import Algorithm, check_algorithm
from .diff2 import Diff2
from .dpgd import DPGD, GD
from .dpsgd import DPSGD, rounds_for
from .dpsrm import DPSRM
from .federated import DPFedAvg, DPScaffold
from .recursive import RecursiveDiff2
from .srnsgd import SRNSGD

ALGORITHMS: Registry[type[Algorithm]] = Registry(
    "diff2.algorithms",
    (Diff2, RecursiveDiff2, DPGD, GD, DPSGD, DPSRM, SRNSGD, DPFedAvg, DPScaffold),
    check_algorithm,
)
