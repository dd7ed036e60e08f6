"""The engine for fully connected networks: records as columns, derivatives by hand.

The passes are in ``column_passes.py``, the norms and sums in ``column_terms.py``.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from .._vectors import Loss
from .column_passes import Pass, Passes
from .column_terms import ColumnTerms, Fixed
from .flat import FlatModule
from .network import Network, NetworkEngine
from .records import Records
from .sums import Total, chunk_size

CHUNK_NUMBERS = 1 << 20  # numbers in a chunk, records included: 4 MB in single precision


class ColumnsEngine(NetworkEngine):
    """Clipped sums for modules that are a sequence of linear layers and known functions between them."""

    name = "columns"
    _without_graph = True

    def __init__(self, module: nn.Module, loss: Loss, **options: Any):
        super().__init__(module, loss, **options)
        self._passes = Passes(self._network)
        self._terms = ColumnTerms(self._passes)
        numbers = self._passes.rows + self._passes.kept_inputs + self._network.layers[0].weight.shape[1]
        self._bytes_per_row = numbers * self.flat.vector.element_size()
        self.chunk_rows = self.chunk_rows or chunk_size(max(1, CHUNK_NUMBERS // numbers))

    @staticmethod
    def unsuited(flat: FlatModule, loss: Loss) -> str | None:
        return Network.unsuited(flat.module)

    def _arranged(self, chunk: Records) -> Fixed:
        return self._terms.fixed(chunk)

    def _run(self, prepared: tuple[Fixed, Records]) -> Pass:
        fixed, chunk = prepared
        return self._passes.run(fixed.x, chunk.targets, fixed.targets)

    def _add(self, out: Total, prepared: tuple[Fixed, Records], radius: float, now: Pass, before: Pass | None) -> None:
        fixed, chunk = prepared
        self._terms.add(out, fixed, chunk.weights, radius, now, before)

    def _free(self, done: Pass) -> None:
        self._passes.take_back(done)

    def _outputs(self, out: Total, prepared: tuple[Fixed, Records], gradient: bool) -> Tensor:
        if not gradient:
            return self._passes.outputs(prepared[0].x)
        done = self._run(prepared)
        self._add(out, prepared, math.inf, done, None)
        self._free(done)
        return done.outputs
