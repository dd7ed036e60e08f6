"""Any optimiser of ``torch.optim`` as a routine.

>>> import torch
>>> routine = TorchOptimizer(torch.optim.AdamW, {"lr": 0.01, "betas": [0.9, 0.99]}, schedule="cosine")
>>> routine
TorchOptimizer(optimizer='AdamW', options={'lr': 0.01, 'betas': (0.9, 0.99)}, schedule='cosine')
"""

from __future__ import annotations

import copy
import inspect
import io
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from .._validate import nearest, one_of
from .._vectors import State, Vector
from ..errors import InvalidArgument
from ..questions import Estimate, Round
from .base import SCHEDULES, PostProcessing, scheduled

if TYPE_CHECKING:
    from torch.optim import Optimizer

KNOWN = (
    "Adam",
    "AdamW",
    "NAdam",
    "RAdam",
    "Adamax",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "ASGD",
    "RMSprop",
    "Rprop",
    "SGD",
)


class Options(Mapping[str, Any]):
    """Options that do not change: hashable, and a plain dict to ``dataclasses.asdict``."""

    def __init__(self, options: Mapping[str, Any]):
        self._values = {key: _plain(key, value) for key, value in options.items()}

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return repr(self._values)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        # This is how asdict copies a field. Lists and not tuples, so that the dict equals itself read back from JSON.
        return {key: list(value) if isinstance(value, tuple) else value for key, value in self._values.items()}


@dataclass(frozen=True)
class TorchOptimizer(PostProcessing):
    """Steps of a PyTorch optimiser along the estimate.

    To the optimiser the parameters of the model are one vector in double precision, so options for single layers do not
    apply, and neither do optimisers that depend on the shape of a weight. Nor does it know about the noise: see
    ``diff2.Adam`` for one that does.

    Args:
        optimizer: a class (``torch.optim.AdamW``) or its name there (``"AdamW"``). A class from elsewhere is kept by
            its full name, and must be defined at the top level of a module.
        options: what the class takes besides the parameters, such as ``{"lr": 0.01}``: numbers, text and lists of them.
        schedule: how ``lr`` changes over the rounds: ``"constant"``, ``"cosine"`` or ``"inverse_root"``.

    Raises:
        InvalidArgument: where the optimiser needs a closure (LBFGS), cannot move one dense vector (SparseAdam, Muon),
            refuses its options, or does not resume exactly once its state was stored and read back.
    """

    optimizer: str | type
    options: Mapping[str, Any] | None = None
    schedule: str = "constant"
    name: ClassVar[str] = "torch_optim"

    def __post_init__(self) -> None:
        one_of("schedule", self.schedule, SCHEDULES)
        if not isinstance(self.options, Mapping | None):
            raise InvalidArgument(f"expected options to be a mapping such as {{'lr': 0.01}}, got {self.options!r}")
        object.__setattr__(self, "optimizer", _name_of(self.optimizer))
        object.__setattr__(self, "options", Options(self.options or {}))
        self._try()

    def __deepcopy__(self, memo: dict[int, Any]) -> TorchOptimizer:
        return self  # nothing in it can change; the copy of the options would be a plain dict

    def init(self, params: Vector) -> State:
        return _state_of(self._build(params.detach().double().clone()))

    def step(self, state: State, params: Vector, estimate: Estimate, round: Round) -> tuple[Vector, State]:
        return self._move(state, params, estimate.value, None if self.schedule == "constant" else round)

    def _move(self, state: State, params: Vector, gradient: Vector, round: Round | None) -> tuple[Vector, State]:
        point = params.detach().double().clone()  # optimisers move in place
        optimizer = self._build(point)
        group = optimizer.param_groups[0]
        # Not load_state_dict: it would convert what some optimisers keep in single precision.
        optimizer.state[point] = copy.deepcopy(state["state"])
        group.update(copy.deepcopy(state["group"]))
        if round is not None:
            group["lr"] = scheduled(optimizer.defaults["lr"], self.schedule, round.number, round.total)
        point.grad = gradient.clone()
        optimizer.step()
        return point.detach().to(params.dtype), _state_of(optimizer)

    def _build(self, point: Vector) -> Optimizer:
        make: Any = _class_of(self.optimizer)
        return make([point], **(self.options or {}))

    def _try(self) -> None:
        """Take a few steps, once without a break and once stored and read back in between; refuse what goes wrong."""
        import torch

        called = f"optimizer={self.optimizer!r} with options={self.options!r}"
        straight = torch.tensor([0.5, -0.25], dtype=torch.float64)
        params = straight.clone()
        try:
            optimizer, state = self._build(straight), self.init(params)
            for gradient in torch.tensor([[1.0, -2.0], [-0.5, 0.25], [0.125, 3.0]], dtype=torch.float64):
                straight.grad = gradient.clone()
                optimizer.step()
                params, state = self._move(_stored(state), params, gradient, None)
        except Exception as error:
            raise InvalidArgument(
                f"{called} cannot move one dense vector of parameters: {error}. Correct the options, or choose another"
            ) from error
        if self.schedule != "constant" and "lr" not in optimizer.defaults:
            raise InvalidArgument(f"{called} has no learning rate 'lr' to change; use schedule='constant'")
        if not torch.isfinite(params).all():
            raise InvalidArgument(f"{called} makes steps that are not finite; choose a smaller 'lr'")
        if not torch.equal(params, straight):
            raise InvalidArgument(
                f"{called} takes other steps once its state was stored: it draws random numbers, or keeps numbers "
                "outside of its state_dict. Choose another"
            )


def _name_of(optimizer: Any) -> str:
    """Return the name under which the class is found again, and refuse what is no usable class."""
    from torch.optim import Optimizer

    name = optimizer
    if isinstance(optimizer, type) and issubclass(optimizer, Optimizer):
        name = optimizer.__name__
        if _find(name) is not optimizer:
            name = f"{optimizer.__module__}.{optimizer.__qualname__}"
        if _find(name) is not optimizer:
            raise InvalidArgument(
                f"expected optimizer to stand at the top level of a module, got {optimizer!r}; move it there"
            )
    closure = inspect.signature(_class_of(name).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise InvalidArgument(
            f"optimizer={name!r} evaluates the loss several times in a step (it needs a closure), and there is one "
            "private estimate per round; choose another, such as 'AdamW'"
        )
    return str(name)


def _class_of(name: Any) -> type[Optimizer]:
    found = _find(name)
    if found is None:
        raise InvalidArgument(
            f"expected optimizer to be a class of torch.optim or its name, one of {', '.join(KNOWN)}; got "
            f"optimizer={name!r}{nearest(name, KNOWN)}"
        )
    return found


def _find(name: Any) -> type[Optimizer] | None:
    """Return the class of this name, in torch.optim or in a module that is loaded already: nothing is imported."""
    from torch.optim import Optimizer

    if not isinstance(name, str):
        return None
    module, _, last = name.rpartition(".")
    found = getattr(sys.modules.get(module or "torch.optim"), last, None)
    usable = isinstance(found, type) and issubclass(found, Optimizer) and found is not Optimizer
    return found if usable else None


def _state_of(optimizer: Optimizer) -> State:
    """Return what ``state_dict`` holds of the one parameter and its group."""
    group = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    return {"state": dict(optimizer.state[optimizer.param_groups[0]["params"][0]]), "group": group}


def _stored(state: State) -> State:
    """Return the state as a checkpoint gives it back."""
    import torch

    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    read: State = torch.load(file, weights_only=True)
    return read


def _plain(key: Any, value: Any) -> Any:
    items = value if isinstance(value, list | tuple) else [value]
    if not isinstance(key, str) or not all(isinstance(item, bool | int | float | str | None) for item in items):
        raise InvalidArgument(f"expected options[{key!r}] to be a number, text or a list of them, got {value!r}")
    return tuple(value) if isinstance(value, list | tuple) else value
