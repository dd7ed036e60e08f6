"""The engine for small networks with one hidden layer: a whole round in one compiled pass over tiles of records.

It computes what the columns engine computes; the passes, norms and sums are in ``kernels.py``. It needs numba (the
extra ``fast``). The records of a tile are added in single precision (``kernel_products.py``), tiles in double: the
guarantee of ``engine.py`` holds with the same allowance for rounding.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._vectors import Loss, Vector
from ..errors import InvalidArgument
from ..models.losses import cross_entropy, squared
from ..questions.question import Question
from .engine import asked
from .flat import FlatModule
from .lanes import share_out
from .network import NetworkEngine, steps_of
from .records import FeatureCache, Records
from .rules import SLACK
from .stochastic import Masks
from .sums import TILE, Total
from .transform import Factors, Transform

CHUNK_TILES = 256  # tiles of 512 records in a chunk
PART_NUMBERS = 1 << 22  # of a thread: numbers that its records and passes have at least
MAX_FEATURES = 1024  # up to which it was measured to be the faster engine
MAX_UNITS, MAX_CHAIN = 32, 44  # units, and units with outputs: a norm is a chain of additions, and the slack covers it
EPS, TINY = (np.float32(getattr(torch.finfo(torch.float32), name)) for name in ("eps", "tiny"))


class Tiles(NamedTuple):
    """What depends on the records of a chunk alone, cut into tiles."""

    inputs: Any  # (tiles, features, 512)
    targets: Any  # (tiles, outputs, 512); classes in one-hot form
    gain: Any  # (tiles, 512): squared norm of the first layer's gradient in units of |g|^2, rounded up
    floor: Any  # (tiles, 512): at least what may have underflowed in a squared norm
    moved: Any = None  # (tiles, features + 1, 512): inputs with a row of ones, transformed


class CompiledEngine(NetworkEngine):
    """Clipped sums for small networks with one hidden layer of softplus units."""

    name = "compiled"
    any_threads = True

    def __init__(self, module: nn.Module, loss: Loss, **options: Any):
        from . import kernels, kernels_transformed  # imports numba; compiled when first called

        super().__init__(module, loss, **options)
        self._kernels, self._kernels_transformed = kernels, kernels_transformed
        hidden, last = self._network.layers
        (units, features), outputs = hidden.weight.shape, last.width
        self._units, self._features, self._width = units, features, outputs
        self._factors: Any = None  # of a transform: for errors, errors of the outputs, hidden units; a row of zeros
        self._work_rows = 6 + 2 * (2 * units + outputs + 1) + 3 * units + (units + 1) * outputs + outputs + features + 2
        self._limits = np.array([1 + SLACK * EPS, max(units, outputs) * TINY], np.float32)
        self._works: list[Any] = []  # one per thread
        self._bytes_per_row = (self._rows + features) * self.flat.vector.element_size()
        self.chunk_rows = self.chunk_rows or CHUNK_TILES * TILE

    @property
    def _rows(self) -> int:
        """Rows of a pass; transformed hidden units have one for the bias."""
        return 2 * self._units + self._width + (self._factors is not None)

    def _take_up(self) -> None:
        self._factors = None
        if self._places:
            hidden, last = (self._factors_of(layer.weight_part.start) for layer in self._network.layers)  # type: ignore[union-attr]
            matrices = hidden.errors, last.errors, last.inputs, torch.zeros(max(self._units, self._width))
            self._factors = tuple(map(_numbers, matrices))
            self._of_inputs = hidden.inputs

    def _factors_of(self, start: int) -> Factors:
        if start in self._places:
            return self._places[start].factors
        outputs, inputs = ((self._units, self._features), (self._width, self._units))[start > 0]
        return Factors(torch.eye(inputs + 1), torch.eye(outputs))

    @staticmethod
    def unsuited(flat: FlatModule, loss: Loss) -> str | None:
        if loss not in (squared, cross_entropy):
            return "the loss is neither 'squared' nor 'cross_entropy'"
        if flat.dtype != torch.float32 or flat.device.type != "cpu":
            return f"it computes in torch.float32 on a CPU, not in {flat.dtype} on {flat.device.type!r}"
        steps = steps_of(flat.module) or []
        if [type(step) for step in steps] != [nn.Linear, nn.Softplus, nn.Linear]:
            return "the model is not an nn.Sequential of nn.Linear, nn.Softplus and nn.Linear, without hooks"
        if len(flat.slices) != 4:
            return "a bias is missing or a parameter is frozen"
        shapes = [layer.weight.shape for layer in steps if isinstance(layer, nn.Linear)]
        found = shapes[0][1], shapes[0][0], sum(shapes[1])
        most = MAX_FEATURES, MAX_UNITS, MAX_CHAIN
        if any(one > limit for one, limit in zip(found, most, strict=True)):
            return f"it takes at most {most} features, units, and units with outputs, and the model has {found}"
        if not _installed():
            return "numba is not installed, or cannot be imported: pip install 'diff2[fast]'"
        return None

    def clipped_sum(
        self,
        question: Question,
        records: Records,
        *,
        cache: FeatureCache | None = None,
        masks: Masks | None = None,
        count: int | None = None,
    ) -> Vector:
        params, previous, radius = asked(question)
        self._use(question.transform, cache)
        cache = self._usable(cache, records)
        known = cache is not None and cache.holds(params if previous is None else previous)
        keeps = known or question.remember or previous is not None
        if cache is not None and not (known and previous is None):
            cache.params = None  # until the sum is complete, the passes may belong to two iterates
        out = self._total(radius, records.size if count is None else count)
        point = params if previous is None else torch.stack([params, previous])
        for index, chunk in enumerate(records.chunks(self.chunk_rows)):
            prepared = self._prepare(chunk, index, cache)
            passes = self._memory(prepared[0], index, cache if keeps else None)
            self._add_tiles(out, prepared, point, radius, passes, known)
        if cache is not None and keeps:
            cache.params = params.clone()
        return out.value

    def norms(self, params: Vector, records: Records, transform: Transform | None = None) -> Tensor:
        raise InvalidArgument("the 'compiled' engine returns no norms; build another one, say 'columns'")

    def _outputs(self, out: Total, prepared: tuple[Tiles, Records], gradient: bool) -> Tensor:
        outputs = np.empty(prepared[0].targets.shape, np.float32)
        self._add_tiles(out, prepared, self._own.vector, math.inf, outputs=outputs)
        return torch.from_numpy(outputs).transpose(0, 1).flatten(1)[:, : prepared[1].size]

    def _add_tiles(
        self,
        out: Total,
        prepared: tuple[Tiles, Records],
        point: Tensor,  # one iterate, or two for a difference
        radius: float,
        passes: Any = None,
        known: bool = False,
        outputs: Any = None,
    ) -> None:
        """Add the sum of every tile to ``out``: no bit depends on how many threads compute them."""
        (tiles, chunk), at, limit = prepared, _numbers(point), _rounded_down(radius)
        more = np.array([1, 1 if self._factors is None else 2], np.float32)  # transformed units have a row more
        options = self._limits * more, self._loss is cross_entropy, known
        size, weights = len(tiles.inputs), np.zeros(tiles.gain.shape, np.float32)
        weights.reshape(-1)[: chunk.size] = _numbers(chunk.weights)
        sums = np.zeros((size, len(self.flat)))
        numbers = size * TILE * (self._rows + self._features)
        count = max(1, min(torch.get_num_threads(), size, numbers // PART_NUMBERS))
        count = 1 if math.isinf(radius) else count  # without a grid, the order of the additions matters
        while len(self._works) < count:
            self._works.append(np.empty((2 * self._units + self._width + 1 + self._work_rows, TILE), np.float32))
        edges = [size * part // count for part in range(count + 1)]

        def run(index: int) -> Total:
            part, work = slice(edges[index], edges[index + 1]), self._works[index]
            kept = work[None, : self._rows] if passes is None else passes[part]
            some = tuple(values[part] for values in (*tiles[:4], weights))
            arguments = sums[part], at, some, options, limit, kept
            if self._factors is not None:
                moved = self._kernels_transformed
                add = moved.add_gradients if point.dim() == 1 else moved.add_differences
                add(*arguments[:3], tiles.moved[part], self._factors, *arguments[3:], work[self._rows :])
            elif point.dim() == 2:
                self._kernels.add_differences(*arguments, work[self._rows :])
            else:
                written = np.empty((1, 0, 0), np.float32) if outputs is None else outputs[part]
                self._kernels.add_gradients(*arguments, written, work[self._rows :])

            for layer in self._network.layers if self._places else ():
                if layer.weight_part.start not in self._places:  # type: ignore[union-attr]  # left: weight, then bias
                    place = slice(layer.weight_part.start, layer.bias_part.stop)  # type: ignore[union-attr]
                    rows = sums[part, place].reshape(edges[index + 1] - edges[index], layer.width, -1)
                    flat = rows[:, :, :-1].reshape(len(rows), -1)
                    sums[part, place] = np.concatenate([flat, rows[:, :, -1]], axis=1)
            total = out.another()
            total.add(slice(None), torch.from_numpy(sums[part]))
            return total

        for total in share_out(run, count):
            out.join(total)

    def _memory(self, tiles: Tiles, index: int, cache: FeatureCache | None) -> Any:
        """Return the passes over a chunk: those in the cache, or memory for them; None without a cache."""
        if cache is None:
            return None
        if index not in cache.chunks:
            cache.chunks[index] = np.empty((len(tiles.inputs), self._rows, TILE), np.float32)
        return cache.chunks[index]

    def _arranged(self, chunk: Records) -> Tiles:
        shape, targets = (chunk.size, self._width), chunk.targets
        if self._loss is cross_entropy:
            targets = torch.zeros(shape).scatter_(1, targets.unsqueeze(1), 1.0)
        elif targets.shape != shape:
            raise ValueError(f"expected targets of shape {shape}, got {tuple(targets.shape)}")
        inputs, moved, more = self._tile(chunk.inputs), None, 1.0  # the constant of the bias
        if self._factors is not None:
            moved, more = self._tile(F.linear(chunk.inputs, self._of_inputs[:, :-1], self._of_inputs[:, -1])), 0.0
        read = inputs if moved is None else moved
        squares = torch.stack([tile.double().square_().sum(0) for tile in torch.from_numpy(read)])
        gain = ((squares + read.shape[1] * float(TINY) + more) * (1 + SLACK * float(EPS))).float().numpy()
        rows = self._units + self._width + (self._units + (moved is not None)) * self._width
        return Tiles(inputs, self._tile(targets), gain, (gain + 1) * np.float32(rows * TINY), moved)

    def _tile(self, rows: Tensor) -> Any:
        """Return (tiles, numbers per record, 512) from (records, numbers per record); zeros fill the last tile."""
        count = -(-rows.shape[0] // TILE)
        padded = torch.zeros(count * TILE, rows.shape[1])
        padded[: rows.shape[0]] = rows
        return padded.view(count, TILE, -1).transpose(1, 2).contiguous().numpy()


def _installed() -> bool:
    """Whether there is a compiler, and one that works with the other packages."""
    try:
        from . import kernels  # noqa: F401
    except ImportError:
        return False
    return True


def _numbers(values: Tensor) -> Any:
    return values.detach().to(torch.float32).contiguous().numpy()


def _rounded_down(radius: float) -> Any:
    """Return the radius in single precision, never larger."""
    rounded = np.float32(radius if math.isinf(radius) else min(radius, float(np.finfo(np.float32).max)))
    return rounded if rounded <= radius else np.nextafter(rounded, np.float32(0))
