"""Train models on private records spread over several owners, under differential privacy, with DIFF2.

>>> import diff2
>>> sorted(name for name in diff2.__all__ if name[0].islower())
['mlp', 'plan', 'prepare', 'train']
"""

from ._version import __version__
from .cohort import Cohort, LocalCohort
from .errors import (
    BudgetExceeded,
    CheckpointError,
    Diff2Error,
    GradientFallbackWarning,
    InvalidArgument,
    LedgerError,
    PrivacyLeakError,
    PrivacyLeakWarning,
    UnsupportedModel,
    WeakDeltaWarning,
)
from .estimators import DPGD, GD, Algorithm, Diff2
from .models import mlp
from .plan import Plan, plan
from .preparation import prepare, train
from .privacy import Budget, Guarantee, Ledger
from .result import TrainResult
from .routines import GradientDescent, Routine
from .training import RoundInfo, Training, TrainState

__all__ = [
    "DPGD",
    "GD",
    "Algorithm",
    "Budget",
    "BudgetExceeded",
    "CheckpointError",
    "Cohort",
    "Diff2",
    "Diff2Error",
    "GradientDescent",
    "GradientFallbackWarning",
    "Guarantee",
    "InvalidArgument",
    "Ledger",
    "LedgerError",
    "LocalCohort",
    "Plan",
    "PrivacyLeakError",
    "PrivacyLeakWarning",
    "RoundInfo",
    "Routine",
    "TrainResult",
    "TrainState",
    "Training",
    "UnsupportedModel",
    "WeakDeltaWarning",
    "__version__",
    "mlp",
    "plan",
    "prepare",
    "train",
]
