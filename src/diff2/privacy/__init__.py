"""What is released, how it is noised, what it costs."""

from .accounting import epsilon_of, gdp_delta, gdp_epsilon, gdp_mu
from .budget import Budget
from .calibration import ReleaseGroup, calibrate
from .guarantee import Guarantee
from .ledger import Ledger, ReleaseEntry
from .mechanism import BoundedMean, Mechanism, Release
from .noise import NoiseSource

__all__ = [
    "BoundedMean",
    "Budget",
    "Guarantee",
    "Ledger",
    "Mechanism",
    "NoiseSource",
    "Release",
    "ReleaseEntry",
    "ReleaseGroup",
    "calibrate",
    "epsilon_of",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_mu",
]
