"""How parameters move along a private gradient estimate."""

from .adam import Adam
from .averaging import Averaging
from .base import PostProcessing, Routine
from .bvr import BVRLocalSGD
from .descent import GradientDescent
from .momentum import Momentum
from .nesterov import Nesterov
from .normalized import NormalizedDescent
from .schedule import SCHEDULES, scheduled
from .torch_optim import TorchOptimizer

ROUTINES: dict[str, type] = {
    routine.name: routine
    for routine in (
        GradientDescent,
        BVRLocalSGD,
        Momentum,
        Nesterov,
        Adam,
        NormalizedDescent,
        TorchOptimizer,
        Averaging,
    )
}

__all__ = [
    "ROUTINES",
    "SCHEDULES",
    "Adam",
    "Averaging",
    "BVRLocalSGD",
    "GradientDescent",
    "Momentum",
    "Nesterov",
    "NormalizedDescent",
    "PostProcessing",
    "Routine",
    "TorchOptimizer",
    "scheduled",
]
