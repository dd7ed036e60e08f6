"""What may be given as ``routine=...``: a routine, or an optimiser of ``torch.optim`` as people write it.

>>> import torch
>>> as_routine(torch.optim.AdamW)
TorchOptimizer(optimizer='AdamW', options={}, schedule='constant')
>>> as_routine(torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1, momentum=0.9))
TorchOptimizer(optimizer='SGD', options={'lr': 0.1, 'momentum': 0.9}, schedule='constant')
>>> as_routine(lambda parameters: torch.optim.Adam(parameters, betas=(0.9, 0.99)))
TorchOptimizer(optimizer='Adam', options={'betas': (0.9, 0.99)}, schedule='constant')
"""

import inspect
import sys
from typing import Any

from ..errors import InvalidArgument
from .base import Routine
from .torch_optim import TorchOptimizer


def as_routine(given: Any) -> Routine:
    """Return the routine: as it is, or the steps of a class, a factory or an instance of a PyTorch optimiser."""
    if isinstance(given, Routine):
        return given
    if "torch" in sys.modules and not (isinstance(given, type) and issubclass(given, Routine)):
        from torch.optim import Optimizer

        if isinstance(given, type) and issubclass(given, Optimizer):
            return TorchOptimizer(given)
        made = given if isinstance(given, Optimizer) or not callable(given) else _built(given)
        if isinstance(made, Optimizer):
            return _like(made)
    raise InvalidArgument(
        "expected routine to be a diff2.Routine such as GradientDescent(learning_rate=0.1), or an optimiser of PyTorch "
        f"such as TorchOptimizer(torch.optim.SGD, {{'lr': 0.1}}), got routine={given!r}"
    )


def _built(factory: Any) -> Any:
    import torch

    try:
        return factory([torch.zeros(1, dtype=torch.float64)])
    except Exception:  # it is no factory of an optimiser
        return None


def _like(optimizer: Any) -> TorchOptimizer:
    """Return the routine with the options of an optimiser that has not moved anything yet."""
    import torch

    kind = type(optimizer)
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    defaults = {name: one.default for name, one in inspect.signature(kind).parameters.items()}
    options = {key: value for key, value in groups[0].items() if key in defaults and value != defaults[key]}
    fresh = kind([torch.zeros(1, dtype=torch.float64)], **options)
    again = {key: value for key, value in fresh.param_groups[0].items() if key != "params"}
    used = bool(optimizer.state) and not fresh.state
    reason = ""
    if any(group != groups[0] for group in groups):
        reason = "its groups have different options, and to a routine all parameters are one vector"
    elif used or any(float(state.get("step", 0)) > 0 for state in optimizer.state.values()):
        reason = "it has taken steps, which are not carried over"
    elif "initial_lr" in groups[0]:
        reason = "a scheduler changes its learning rate; a routine has schedule='cosine' or 'inverse_root' for that"
    elif again != groups[0]:
        reason = "its options were changed after it was made"
    if reason:
        raise InvalidArgument(
            f"routine={kind.__name__}(...) cannot be used as it is: {reason}. Write "
            f"routine=TorchOptimizer(torch.optim.{kind.__name__}, {{'lr': ...}}, schedule=...)"
        )
    return TorchOptimizer(kind, options)
