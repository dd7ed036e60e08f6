"""Algorithms: what to ask the cohort in round r, and how to combine the answers."""

from .base import DIFFERENCE, GRADIENT, Algorithm, Request
from .diff2 import Diff2
from .gradient import DPGD, GD

ALGORITHMS: dict[str, type] = {algorithm.name: algorithm for algorithm in (Diff2, DPGD, GD)}

__all__ = ["ALGORITHMS", "DIFFERENCE", "DPGD", "GD", "GRADIENT", "Algorithm", "Diff2", "Request"]
