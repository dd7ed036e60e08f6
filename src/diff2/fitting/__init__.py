"""One call from a table to a private model, with nothing to tune."""

from .fit import fit
from .model import FittedModel

__all__ = ["FittedModel", "fit"]
