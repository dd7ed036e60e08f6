"""Clipped sums of per-record gradients, and of their differences between two iterates."""

from .flat import FlatModule
from .ghost import GhostEngine
from .inspection import Engine, build_engine
from .per_record import LoopEngine, VmapEngine
from .records import FeatureCache, Records
from .stochastic import Masks
from .sums import rounding_allowance

__all__ = [
    "Engine",
    "FeatureCache",
    "FlatModule",
    "GhostEngine",
    "LoopEngine",
    "Masks",
    "Records",
    "VmapEngine",
    "build_engine",
    "rounding_allowance",
]
