"""Algorithms: what to ask the cohort in round r, and how to combine the answers."""

from .base import Algorithm, Estimator
from .diff2 import Diff2
from .dpgd import DPGD, GD
from .dpsgd import DPSGD
from .dpsrm import DPSRM
from .drift import DriftDiff2
from .federated import DPFedAvg, DPScaffold
from .fused import FusedDiff2
from .recursive import RecursiveDiff2
from .srnsgd import SRNSGD

ALGORITHMS: dict[str, type] = {
    algorithm.name: algorithm
    for algorithm in (
        Diff2, FusedDiff2, RecursiveDiff2, DriftDiff2, DPGD, GD, DPSGD, DPSRM, SRNSGD, DPFedAvg, DPScaffold
    )
}  # fmt: skip

__all__ = [
    "ALGORITHMS",
    "DPGD",
    "DPSGD",
    "DPSRM",
    "GD",
    "SRNSGD",
    "Algorithm",
    "DPFedAvg",
    "DPScaffold",
    "Diff2",
    "DriftDiff2",
    "Estimator",
    "FusedDiff2",
    "RecursiveDiff2",
]
