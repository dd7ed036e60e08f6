"""Fit and train models on private records under differential privacy, with DIFF2 and other algorithms.

The names below are found on first use, so that ``diff2 --help`` does not wait for PyTorch.

>>> import diff2
>>> sorted(name for name in diff2.__all__ if name[0].islower())
['check', 'evaluate', 'fit', 'mlp', 'plan', 'prepare', 'rehearse', 'rounds_for', 'select', 'train']
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__ as __version__

if TYPE_CHECKING:
    from .algorithms import ALGORITHMS as ALGORITHMS
    from .algorithms import DPGD as DPGD
    from .algorithms import DPSGD as DPSGD
    from .algorithms import DPSRM as DPSRM
    from .algorithms import GD as GD
    from .algorithms import SRNSGD as SRNSGD
    from .algorithms import Algorithm as Algorithm
    from .algorithms import Diff2 as Diff2
    from .algorithms import DPFedAvg as DPFedAvg
    from .algorithms import DPScaffold as DPScaffold
    from .algorithms import RecursiveDiff2 as RecursiveDiff2
    from .algorithms import rounds_for as rounds_for
    from .cohorts import LocalCohort as LocalCohort
    from .errors import BudgetExceeded as BudgetExceeded
    from .errors import CheckpointError as CheckpointError
    from .errors import CompositionWarning as CompositionWarning
    from .errors import Diff2Error as Diff2Error
    from .errors import GradientFallbackWarning as GradientFallbackWarning
    from .errors import InvalidArgument as InvalidArgument
    from .errors import LedgerError as LedgerError
    from .errors import NoGainWarning as NoGainWarning
    from .errors import PrivacyLeakError as PrivacyLeakError
    from .errors import PrivacyLeakWarning as PrivacyLeakWarning
    from .errors import UnsupportedModel as UnsupportedModel
    from .errors import WeakDeltaWarning as WeakDeltaWarning
    from .errors import WeakEpsilonWarning as WeakEpsilonWarning
    from .errors import WeakModelWarning as WeakModelWarning
    from .fitting import Evaluation as Evaluation
    from .fitting import FittedModel as FittedModel
    from .fitting import Selected as Selected
    from .fitting import evaluate as evaluate
    from .fitting import fit as fit
    from .fitting import rehearse as rehearse
    from .fitting import select as select
    from .models.mlp import mlp as mlp
    from .planning import Plan as Plan
    from .planning import plan as plan
    from .privacy import Budget as Budget
    from .privacy import Guarantee as Guarantee
    from .privacy import Ledger as Ledger
    from .privacy import Release as Release
    from .questions import Batch as Batch
    from .questions import Cohort as Cohort
    from .questions import Estimate as Estimate
    from .questions import Population as Population
    from .questions import Protection as Protection
    from .questions import Question as Question
    from .questions import Round as Round
    from .questions import Smoothness as Smoothness
    from .routines import ROUTINES as ROUTINES
    from .routines import Adam as Adam
    from .routines import Averaging as Averaging
    from .routines import BVRLocalSGD as BVRLocalSGD
    from .routines import GradientDescent as GradientDescent
    from .routines import Momentum as Momentum
    from .routines import Nesterov as Nesterov
    from .routines import NormalizedDescent as NormalizedDescent
    from .routines import PostProcessing as PostProcessing
    from .routines import Routine as Routine
    from .routines import TorchOptimizer as TorchOptimizer
    from .training.arguments import Compute as Compute
    from .training.build import prepare as prepare
    from .training.build import train as train
    from .training.callbacks import MLflowCallback as MLflowCallback
    from .training.callbacks import RunCallback as RunCallback
    from .training.callbacks import TensorBoardCallback as TensorBoardCallback
    from .training.check import ModelCheck as ModelCheck
    from .training.check import check as check
    from .training.loop import RoundInfo as RoundInfo
    from .training.loop import Training as Training
    from .training.loop import TrainState as TrainState
    from .training.result import TrainResult as TrainResult

_HOMES = {  # by module
    "algorithms": "ALGORITHMS DPGD DPSGD DPSRM GD SRNSGD Algorithm DPFedAvg DPScaffold Diff2 RecursiveDiff2 rounds_for",
    "cohorts": "LocalCohort",
    "errors": (
        "BudgetExceeded CheckpointError CompositionWarning Diff2Error GradientFallbackWarning InvalidArgument "
        "LedgerError NoGainWarning PrivacyLeakError PrivacyLeakWarning UnsupportedModel WeakDeltaWarning "
        "WeakEpsilonWarning WeakModelWarning"
    ),
    "fitting": "Evaluation FittedModel Selected evaluate fit rehearse select",
    "models.mlp": "mlp",
    "planning": "Plan plan",
    "privacy": "Budget Guarantee Ledger Release",
    "questions": "Batch Cohort Estimate Population Protection Question Round Smoothness",
    "routines": (
        "ROUTINES Adam Averaging BVRLocalSGD GradientDescent Momentum Nesterov NormalizedDescent PostProcessing "
        "Routine TorchOptimizer"
    ),
    "training.arguments": "Compute",
    "training.build": "prepare train",
    "training.callbacks": "MLflowCallback RunCallback TensorBoardCallback",
    "training.check": "ModelCheck check",
    "training.loop": "RoundInfo TrainState Training",
    "training.result": "TrainResult",
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [*_MODULE_OF, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'diff2' has no attribute {name!r}")
    try:
        value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"diff2.{name} needs PyTorch; install it: pip install 'diff2[torch]'") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
