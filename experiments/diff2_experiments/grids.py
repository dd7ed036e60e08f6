"""The grids of a tuning file: from ``[tune.NAME]`` tables to the settings that are tried.

``[tune.NAME]`` is a method as in a comparison (``methods.py``); its table ``grid`` holds lists of values, and every
combination of them is tried, each with the learning-rate search. A key ``"routine.KEY"`` is one of the routine. With
``rate_search = false``, the learning rate is what the file says, and may itself be in the grid; a run then ends early
only where its loss is no longer a number. ``[tune.NAME.reduced]`` is a smaller grid for those who have less time. A
halved grid is that one, or the full one where there is no smaller one, thinned out on the way (``halving.py``);
"halved-full" thins out the full one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from diff2.algorithms import GD, Algorithm
from diff2.errors import InvalidArgument

from .files import TuneFile
from .methods import build_algorithm, choose_names, split_table

FULL, REDUCED, HALVED, HALVED_FULL = "full", "reduced", "halved", "halved-full"
GRIDS = (FULL, REDUCED, HALVED, HALVED_FULL)


class Point(NamedTuple):
    """One combination of settings, before a learning rate is chosen."""

    settings: Mapping[str, Any]
    algorithm: Algorithm

    def at(self, rate: float) -> Algorithm:
        """Return the algorithm with another learning rate."""
        algorithm: Any = self.algorithm
        changed: Algorithm = replace(algorithm, routine=_at(algorithm.routine, rate))
        return changed


@dataclass(frozen=True)
class Grid:
    """A method and the settings tried for it."""

    name: str
    label: str
    points: Sequence[Point]
    rate_search: bool

    @property
    def private(self) -> bool:
        """Whether it takes a budget."""
        return not isinstance(self.points[0].algorithm, GD)


def read_grids(file: TuneFile, names: Sequence[str] | None, grid: str) -> list[Grid]:
    """Return the grids of these methods, or of all ``[tune.NAME]`` tables, with everything checked."""
    try:
        return [_grid(file, name, grid) for name in choose_names("tune", names, file.methods)]
    except InvalidArgument as error:
        raise type(error)(f"{file.path}: {error}") from None


def _grid(file: TuneFile, name: str, grid: str) -> Grid:
    where = f"tune.{name}"
    algorithm, label, table = split_table(where, name, file.methods[name])
    rate_search, full, reduced = table.pop("rate_search", True), table.pop("grid", {}), table.pop("reduced", None)
    if not isinstance(rate_search, bool):
        raise InvalidArgument(f"[{where}] expected rate_search = true or false, got {rate_search!r}")
    values = reduced if grid in (REDUCED, HALVED) and reduced is not None else full
    points = [
        Point(settings, _built(file, where, algorithm, table, settings)) for settings in _combinations(where, values)
    ]
    if rate_search and "learning_rate" not in {field.name for field in fields(_mover(points[0].algorithm.routine))}:
        raise InvalidArgument(f"[{where}] its routine has no learning_rate to try; set rate_search = false")
    return Grid(name, label, points, rate_search)


def _mover(routine: Any) -> Any:
    """Return the routine that moves the parameters: the one inside, where another averages what it reaches."""
    return _mover(routine.routine) if hasattr(routine, "routine") else routine


def _at(routine: Any, rate: float) -> Any:
    if hasattr(routine, "routine"):
        return replace(routine, routine=_at(routine.routine, rate))
    return replace(routine, learning_rate=rate)


def _built(file: TuneFile, where: str, name: str, table: Mapping[str, Any], settings: Mapping[str, Any]) -> Algorithm:
    own = {key: value for key, value in settings.items() if "." not in key}
    routine = {key.removeprefix("routine."): value for key, value in settings.items() if "." in key}
    inner = {"routine": {**table.get("routine", {}), **routine}} if routine else {}
    return build_algorithm(file, where, name, {**table, **own, **inner})


def _combinations(where: str, values: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(values, dict):
        raise InvalidArgument(f"[{where}] expected a table of lists as its grid, got {values!r}")
    for key, choices in values.items():
        if not isinstance(choices, list) or not choices:
            raise InvalidArgument(f"[{where}.grid] {key}: expected a list of values, got {choices!r}")
        if "." in key and not key.startswith("routine."):
            raise InvalidArgument(f"[{where}.grid] {key!r}: expected a field, or 'routine.' and a field of the routine")
    for combination in itertools.product(*values.values()):
        yield dict(zip(values, combination, strict=True))
