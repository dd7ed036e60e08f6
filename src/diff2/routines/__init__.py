"""How parameters move along a private gradient estimate."""

from .._registry import Registry
from .adam import Adam
from .averaging import Averaging
from .base import SCHEDULES, PostProcessing, Routine, check_routine, scheduled
from .bvr import BVRLocalSGD
from .descent import GradientDescent, Momentum, Nesterov, NormalizedDescent
from .torch_optim import TorchOptimizer

ROUTINES: Registry[type[Routine]] = Registry(
    "diff2.routines",
    (GradientDescent, BVRLocalSGD, Momentum, Nesterov, Adam, NormalizedDescent, TorchOptimizer, Averaging),
    check_routine,
)
