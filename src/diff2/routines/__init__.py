"""How parameters move along a private gradient estimate."""

from .base import Routine
from .gradient_descent import GradientDescent

ROUTINES: dict[str, type] = {GradientDescent.name: GradientDescent}

__all__ = ["ROUTINES", "GradientDescent", "Routine"]
