"""Clipped sums of per-record gradients, and of their differences between two iterates."""

from .choose import Engine, build_engine
from .columns import ColumnsEngine, Evaluation
from .compiled import FusedEngine
from .flat import FlatModule
from .ghost import GhostEngine
from .groups import Grouped, grouped_loss, row_by_row
from .per_record import LoopEngine, VmapEngine
from .records import FeatureCache, Records
from .stochastic import Masks
from .sums import rounding_allowance

__all__ = [
    "ColumnsEngine",
    "Engine",
    "Evaluation",
    "FeatureCache",
    "FlatModule",
    "FusedEngine",
    "GhostEngine",
    "Grouped",
    "LoopEngine",
    "Masks",
    "Records",
    "VmapEngine",
    "build_engine",
    "grouped_loss",
    "rounding_allowance",
    "row_by_row",
]
