"""What is released, how it is noised, what it costs."""

from .accounting import epsilon_of, gdp_delta, gdp_epsilon, gdp_mu
from .budget import Budget
from .calibration import Kind, calibrate
from .composition import Spend, total_epsilon
from .guarantee import Guarantee
from .ledger import Ledger, ReleaseEntry
from .mechanism import BoundedMean, Mechanism, Release, combined
from .noise import NoiseSource

__all__ = [
    "BoundedMean",
    "Budget",
    "Guarantee",
    "Kind",
    "Ledger",
    "Mechanism",
    "NoiseSource",
    "Release",
    "ReleaseEntry",
    "Spend",
    "calibrate",
    "combined",
    "epsilon_of",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_mu",
    "total_epsilon",
]
