"""One call from a table to a private model, with nothing to tune."""

from .evaluate import Evaluation, evaluate
from .fit import fit
from .model import FittedModel

__all__ = ["Evaluation", "FittedModel", "evaluate", "fit"]
