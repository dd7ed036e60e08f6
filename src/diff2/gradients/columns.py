"""The engine for fully connected networks: records as columns, derivatives by hand.

The passes are in ``column_passes.py``, the norms and sums in ``column_terms.py``.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .._vectors import Loss
from .column_passes import Pass
from .column_transform import PlainColumns, Prepared, TransformedColumns
from .engine import Chunks, Engine
from .flat import FlatModule
from .lanes import share_out
from .network import Network, NetworkEngine
from .records import Records
from .sums import TILE, Total, chunk_size

CHUNK_NUMBERS = 1 << 20  # numbers in a chunk, records included: 4 MB in single precision
LEAST_NUMBERS = 1 << 19  # of a thread: with fewer, one is as fast alone

T = TypeVar("T")


class ColumnsEngine(NetworkEngine):
    """Clipped sums for modules that are a sequence of linear layers and known functions between them."""

    name = "columns"
    any_threads = True
    _without_graph = True

    def __init__(self, module: nn.Module, loss: Loss, **options: Any):
        super().__init__(module, loss, **options)
        self._threads = torch.get_num_threads() if self.flat.device.type == "cpu" else 1
        self._lanes: list[Engine] = [self]
        self._another_lane = partial(ColumnsEngine, copy.deepcopy(module), loss, **options)
        self._plain = self._columns = PlainColumns(self._network)
        passes = self._plain.passes
        numbers = passes.rows + passes.kept_inputs + self._network.layers[0].weight.shape[1]
        self._bytes_per_row = numbers * self.flat.vector.element_size()
        self._least_rows = -(-LEAST_NUMBERS // numbers)
        self.chunk_rows = self.chunk_rows or chunk_size(max(1, CHUNK_NUMBERS // numbers))

    @staticmethod
    def unsuited(flat: FlatModule, loss: Loss) -> str | None:
        return Network.unsuited(flat.module)

    def _rows_per_chunk(self, records: Records) -> int:
        """Return the rows of a chunk: as suits the processor's cache, and fewer where threads would be idle."""
        parts = max(1, min(self._threads, records.size // self._least_rows))
        return min(self.chunk_rows, -(-records.size // (parts * TILE)) * TILE)

    def _each_lane(self, records: Records, work: Callable[[Engine, Chunks], T]) -> list[T]:
        chunks = list(enumerate(records.chunks(self._rows_per_chunk(records))))
        count = max(1, min(self._threads, len(chunks)))
        while len(self._lanes) < count:
            self._lanes.append(self._another_lane())

        def run(number: int) -> T:
            lane = self._lanes[number]
            lane._use(self._transform, None)
            lane._loaded = None
            with torch.inference_mode():
                return work(lane, chunks[number::count])

        return share_out(run, count)

    def _take_up(self) -> None:
        self._columns = TransformedColumns(self._plain, self._places) if self._places else self._plain

    def _arranged(self, chunk: Records) -> Prepared:
        return self._columns.fixed(chunk)

    def _run(self, prepared: tuple[Prepared, Records]) -> Pass:
        fixed, chunk = prepared
        return self._columns.run(fixed, chunk.targets)

    def _add(
        self, out: Total, prepared: tuple[Prepared, Records], radius: float, now: Pass, before: Pass | None
    ) -> None:
        fixed, chunk = prepared
        self._columns.add(out, fixed, chunk.weights, radius, now, before)

    def _squared_norms(self, prepared: tuple[Prepared, Records], now: Pass) -> Tensor:
        return self._columns.squared_norms(prepared[0], now)

    def _free(self, done: Pass) -> None:
        done.free()

    def _outputs(self, out: Total, prepared: tuple[Prepared, Records], gradient: bool) -> Tensor:
        if not gradient:
            return self._plain.passes.outputs(prepared[0].plain.x)
        done = self._run(prepared)
        self._add(out, prepared, math.inf, done, None)
        self._free(done)
        return done.outputs
