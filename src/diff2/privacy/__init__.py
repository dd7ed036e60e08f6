"""What is released, how it is noised, what it costs. Nothing here needs PyTorch."""

from .accounting import epsilon_of, gdp_delta, gdp_epsilon, gdp_mu
from .budget import Budget
from .calibration import calibrate
from .composition import total_epsilon
from .guarantee import Guarantee
from .ledger import Ledger
from .mechanism import BoundedMean, Mechanism, Released, combined
from .noise import NoiseSource
from .release import Release
