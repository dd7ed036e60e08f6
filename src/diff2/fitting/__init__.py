"""One call from a table to a private model, with nothing to tune."""

from .evaluate import Evaluation, evaluate
from .fit import fit
from .model import FittedModel
from .rehearsal import rehearse
from .select import Selected, select
