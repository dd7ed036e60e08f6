r"""The engine for small networks with one hidden layer: all of a round in one compiled pass over tiles of records.

What it computes is what the columns engine computes; the passes, norms and sums are in ``fused_kernels.py``. It needs
``numba`` (the extra ``fast``), single precision on a processor, one hidden layer of softplus units with all parameters
trained, and the squared loss or the cross entropy. Every other network is left to the columns engine.

Formal guarantee: that of the columns engine. A record alone contributes a vector of norm at most ``radius`` to the sum,
and replacing one moves the sum by at most ``2 radius (1 + sums.rounding_allowance)``, times its weight: 64 records are
added in single precision, in whatever order, and everything else in double. With ``inner``, a difference is that of two
clipped gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .._types import Loss, Vector
from ..models.losses import cross_entropy, squared
from .columns import CACHE_BYTES, ColumnsEngine, Evaluation, _hits
from .network import Network, _steps
from .records import FeatureCache, Records
from .rules import SLACK

CHUNK_TILES = 256  # tiles of 512 records that are looked at together
PART_TILES = 32  # that are worth a thread
MOST_FEATURES = 128  # with more, matrix products are faster
MOST_UNITS, MOST_OUTPUTS = 32, 12  # a norm is a chain of so many squares, whose rounding the slack covers
EPS, TINY = (np.float32(getattr(torch.finfo(torch.float32), name)) for name in ("eps", "tiny"))


class Tiles(NamedTuple):
    """What depends on the records of a chunk alone, cut into tiles."""

    inputs: Any  # (tiles, features, 512)
    targets: Any  # (tiles, outputs, 512); ones where the class is
    gain: Any  # (tiles, 512): squared norm of the first layer's gradient in units of |g|^2, raised
    floor: Any  # (tiles, 512): what may have underflowed in a squared norm


class FusedEngine(ColumnsEngine):
    """Clipped sums for small networks with one hidden layer of softplus units."""

    name = "fused"

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        chunk_rows: int | None = None,
        cache_bytes: int = CACHE_BYTES,
    ):
        from . import kernels as fused_kernels  # compiled when first called

        self._kernels, tile = fused_kernels, fused_kernels.TILE
        super().__init__(
            module,
            loss,
            dtype=dtype,
            device=device,
            chunk_rows=chunk_rows or CHUNK_TILES * tile,
            cache_bytes=cache_bytes,
        )
        (self._units, self._features), self._outputs = (
            self._network.layers[0].weight.shape,
            self._network.layers[1].width,
        )
        units, features, outputs = self._units, self._features, self._outputs
        self._rows = 2 * units + outputs  # of a pass
        self._limits = np.array([1 + SLACK * EPS, max(units, outputs) * TINY], np.float32)
        self._work_rows = 6 + units + self._rows + units + outputs + units * outputs + 2 * (units + outputs) + features
        self._works: list[Any] = []  # one a thread

    @staticmethod
    def suits(module: nn.Module, loss: Loss, dtype: torch.dtype | None, device: torch.device | None) -> bool:
        """Whether the engine can run the model, and faster than the columns engine."""
        if loss not in (squared, cross_entropy) or not Network.fits(module) or not _installed():
            return False
        steps, parameters = _steps(module) or [], list(module.parameters())
        if [type(step) for step in steps] != [nn.Linear, nn.Softplus, nn.Linear]:
            return False
        widths = [tuple(step.weight.shape) for step in steps if isinstance(step, nn.Linear)]
        (units, features), (outputs, _) = widths
        return (
            len(parameters) == 4  # both layers have a bias
            and all(parameter.requires_grad for parameter in parameters)
            and (dtype or parameters[0].dtype) == torch.float32
            and (device or parameters[0].device).type == "cpu"
            and features <= MOST_FEATURES
            and units <= MOST_UNITS
            and outputs <= MOST_OUTPUTS
        )

    def evaluate(
        self, params: Vector, records: Records, *, cache: FeatureCache | None = None, gradient: bool = True
    ) -> Evaluation:
        """Return losses, hits and the gradient at ``params``, from one pass. **Leaks**: for exact metrics only."""
        out, losses, hits = self._zero_sum(), [], 0
        kept = self._kept(cache, records)
        for index, chunk in enumerate(records.chunks(self.chunk_rows)):
            tiles = self._tiles(chunk, index, kept)
            outputs = np.empty(tiles.targets.shape, np.float32)
            self._add(out, params, chunk, tiles, math.inf, outputs=outputs)
            columns = torch.from_numpy(outputs).transpose(0, 1).flatten(1)[:, : chunk.size]
            losses.append(self._network.loss(columns.t().contiguous(), chunk.targets))
            if self._network.loss is cross_entropy:
                hits += _hits(columns, chunk.targets)
        return Evaluation(torch.cat(losses), hits, out)

    def _add_gradients(
        self, out: Vector, params: Vector, records: Records, radius: float, cache: FeatureCache | None, remember: bool
    ) -> None:
        known = cache is not None and cache.holds(params)
        if cache is not None and not known:
            cache.params = None
        for index, chunk in enumerate(records.chunks(self.chunk_rows)):
            tiles = self._tiles(chunk, index, cache)
            passes = self._passes(tiles, index, cache if known or remember else None)
            self._add(out, params, chunk, tiles, radius, passes, known)
        if remember and cache is not None:
            cache.params = params.clone()

    def _add_differences(
        self,
        out: Vector,
        params: Vector,
        previous: Vector,
        records: Records,
        radius: float,
        cache: FeatureCache | None,
        inner: float,
    ) -> None:
        known = cache is not None and cache.holds(previous)
        points = torch.stack([params, previous]).to(torch.float32).numpy()
        options = self._limits, self._network.loss is cross_entropy, known
        radii = _rounded_down(radius), _rounded_down(inner)

        def add(rows: Any, tiles: Any, kept: Any, part: slice, work: Any) -> None:
            self._kernels.add_differences(rows, points, tiles, options, radii, kept, work)

        if cache is not None:
            cache.params = None  # until the pass is complete, the tiles belong to two iterates
        for index, chunk in enumerate(records.chunks(self.chunk_rows)):
            tiles = self._tiles(chunk, index, cache)
            self._in_parts(out, chunk, tiles, self._passes(tiles, index, cache), add)
        if cache is not None:
            cache.params = params.clone()

    def _add(
        self,
        out: Vector,
        params: Vector,
        chunk: Records,
        tiles: Tiles,
        radius: float,
        passes: Any = None,
        known: bool = False,
        outputs: Any = None,
    ) -> None:
        point, limit = _numbers(params), _rounded_down(radius)
        options = self._limits, self._network.loss is cross_entropy, known
        nowhere = np.empty((1, 0, 0), np.float32)

        def add(rows: Any, tiles: Any, kept: Any, part: slice, work: Any) -> None:
            written = nowhere if outputs is None else outputs[part]
            self._kernels.add_gradients(rows, point, tiles, options, limit, kept, written, work)

        self._in_parts(out, chunk, tiles, passes, add)

    def _in_parts(
        self, out: Vector, chunk: Records, tiles: Tiles, passes: Any, add: Callable[[Any, Any, Any, slice, Any], None]
    ) -> None:
        """Add the sum of every tile to ``out``, in their order: no bit depends on how many threads compute them."""
        size, weights = len(tiles.inputs), np.zeros(tiles.gain.shape, np.float32)
        weights.reshape(-1)[: chunk.size] = _numbers(chunk.weights)
        everything = (*tiles, weights)
        rows = np.zeros((1 + size, len(self.flat)))
        rows[0] = out.numpy()
        count = max(1, min(torch.get_num_threads(), size // PART_TILES))
        while len(self._works) < count:
            self._works.append(np.empty((self._rows + self._work_rows, self._kernels.TILE), np.float32))
        edges = [size * part // count for part in range(count + 1)]

        def run(index: int) -> None:
            part, work = slice(edges[index], edges[index + 1]), self._works[index]
            kept = work[None, : self._rows] if passes is None else passes[part]
            add(rows[1:][part], tuple(values[part] for values in everything), kept, part, work[self._rows :])

        if count == 1:
            run(0)
        else:
            with ThreadPoolExecutor(count) as pool:
                list(pool.map(run, range(count)))
        out.copy_(torch.from_numpy(np.add.reduce(rows, axis=0)))

    def _passes(self, tiles: Tiles, index: int, cache: FeatureCache | None) -> Any:
        """Return the passes over a chunk: those in the cache, or memory for them; None without a cache."""
        if cache is None:
            return None
        if index not in cache.chunks:
            cache.chunks[index] = np.empty((len(tiles.inputs), self._rows, self._kernels.TILE), np.float32)
        return cache.chunks[index]

    def _tiles(self, chunk: Records, index: int, cache: FeatureCache | None) -> Tiles:
        """Return the records of a chunk as tiles; once for all rounds where they may be kept."""
        known: Tiles | None = None if cache is None else cache.statics.get((index, 0))
        if known is None:
            known = self._cut(chunk)
            if cache is not None:
                cache.statics[index, 0] = known
        return known

    def _cut(self, chunk: Records) -> Tiles:
        shape, targets = (chunk.size, self._outputs), chunk.targets
        if self._network.loss is cross_entropy:
            targets = torch.zeros(shape).scatter_(1, targets.unsqueeze(1), 1.0)
        elif targets.shape != shape:
            raise ValueError(f"expected targets of shape {shape}, got {tuple(targets.shape)}")
        inputs = self._tile(chunk.inputs)
        squares = torch.stack([tile.double().square_().sum(0) for tile in torch.from_numpy(inputs)])
        gain = ((squares + self._features * float(TINY) + 1) * (1 + SLACK * float(EPS))).float().numpy()
        rows = self._units + self._outputs + self._units * self._outputs
        return Tiles(inputs, self._tile(targets), gain, (gain + 1) * np.float32(rows * TINY))

    def _tile(self, rows: Tensor) -> Any:
        """Return (tiles, numbers a record, 512) from (records, numbers a record); zeros fill the last tile."""
        size = self._kernels.TILE
        count = -(-rows.shape[0] // size)
        padded = torch.zeros(count * size, rows.shape[1])
        padded[: rows.shape[0]] = rows
        return padded.view(count, size, -1).transpose(1, 2).contiguous().numpy()


def _installed() -> bool:
    """Whether there is a compiler, and one that goes with the other packages."""
    try:
        from . import kernels as fused_kernels  # noqa: F401
    except ImportError:
        return False
    return True


def _numbers(values: Tensor) -> Any:
    return values.detach().to(torch.float32).contiguous().numpy()


def _rounded_down(radius: float) -> Any:
    """Return the radius in single precision, never larger."""
    rounded = np.float32(radius if math.isinf(radius) else min(radius, float(np.finfo(np.float32).max)))
    return rounded if rounded <= radius else np.nextafter(rounded, np.float32(0))
