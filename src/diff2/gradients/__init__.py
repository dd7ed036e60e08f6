"""Clipped sums of per-record gradients, and of their differences between two iterates."""

from . import layers as _layers  # registers the rules of PyTorch's own layers
from .choose import ENGINES, build_engine
from .engine import Engine, Evaluation
from .flat import FlatModule
from .probe import Shapes
from .records import FeatureCache, Records, row_by_row
from .rules import Feature, Rule, Term, joined, register_rule
from .stochastic import Masks
from .sums import rounding_allowance
from .transform import Factors, Transform, from_probes
