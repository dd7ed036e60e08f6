r"""Sums over records whose rounding is bounded, so that it can be paid for in noise.

A matrix product in single precision adds up all records in one long chain. On records that all point the same way its
rounding error reaches a tenth of a record's contribution (measured: 0.15 for 50,000 records), and replacing one record
changes how the rest of the chain is rounded: the sensitivity would exceed :math:`2C` by that much. So:

* **Tiles.** Records are added in blocks of 64 in the precision of the run, then eight blocks in the same way: a tile,
  512 consecutive records. (Of records with t positions, as many whole ones as have 64 positions together make a block;
  a longer one fills blocks of its own.) Where a record stands depends on its number alone. ``kernel_products.py``
  adds a tile in another order, of less rounding.
* **A grid.** The sum of every tile is rounded to whole steps of one grid, a power of two that follows from the radius
  and the number of records. The whole sum is less than :math:`2^{50}` steps long, and the sum of one of two products
  that make up each record, at most four times as long, less than :math:`2^{52}`. So tiles are added *exactly*, in any
  order: no bit of the sum depends on chunks, on who adds them or on what the other tiles hold.

Replacing a record changes one block, in one tile. A record is a sum of products whose lengths add up to at most
:math:`4 C`, or, with t > 4 positions, :math:`\min(t, 64)\, C`; records whose products cancel more are written out
alone, in double precision, and rounded to the grid by themselves. So, with :math:`u` the unit of rounding, the block is
off by at most :math:`64 u \cdot 64 \cdot 4 C`, its tile by :math:`7 u \cdot 512 C` more, and a record exceeds its
radius by at most :math:`16 u C`, for its factor is rounded a few times. A coordinate is rounded to the grid at most 32
times for one record, by half a step, and the sum once more where it is multiplied by a weight. With d coordinates, N
records and steps of at most :math:`2^{-48} N C`, replacing a record moves the sum by at most :math:`2 C (1 + \rho)`,
and removing one by :math:`C (1 + 2 \rho)`, where

.. math::
    \rho = 5 \cdot 64^2 u + 2^{-44} N \sqrt d :

0.12 % in single precision, next to nothing in double. The mechanism scales the noise by this.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._vectors import Vector

BLOCK = 64  # records added up in one chain
BUNDLE = 8  # blocks added up before the sum is rounded to the grid
TILE = BLOCK * BUNDLE
SMALL = 256  # numbers in the sum of a block, with which more rounding costs less time than bundles
ROUNDINGS = 32  # of a coordinate to the grid, for one record
ALONE = 1 << 20  # numbers of records that are written out at a time


def rounding_allowance(dtype: torch.dtype, *, dimension: int = 0, count: int = 0, change: float = 2.0) -> float:
    """Return by which fraction rounding may increase the sensitivity of a sum of ``count`` records.

    Args:
        change: the sensitivity in units of the radius: 2 for replacing a record, 1 for adding or removing one.
    """
    unit = torch.finfo(dtype).eps / 2
    rho = (4 * BLOCK**2 + BUNDLE * TILE) * unit + ROUNDINGS * 2.0**-49 * count * math.sqrt(dimension)
    return 2 / change * rho


def grid_step(radius: float, count: int) -> float:
    """Return the power of two of which 2^50 hold the sum of this many vectors of length at most ``radius``."""
    return math.ldexp(1.0, math.frexp(1.01 * radius * max(1, count))[1] - 50)


class Total:
    """The sum over all tiles, one number per parameter. With an infinite radius there is no grid.

    ``count`` bounds the records of this sum and of all others on the same grid together.
    """

    def __init__(self, size: int, radius: float, count: int, device: torch.device | None = None):
        self._steps = torch.zeros(size, dtype=torch.float64, device=device)
        self.step = 1.0 if math.isinf(radius) else grid_step(radius, count)
        self._rounds = not math.isinf(radius)

    @property
    def value(self) -> Vector:
        """The sum, in double precision."""
        return self._steps * self.step

    def add(self, part: slice, tiles: Tensor) -> None:
        """Add (tiles, ...) to a part of the parameters; each tile is rounded to the grid."""
        self._steps[part].add_(self._rounded(tiles).sum(0).view(-1))

    def another(self) -> Total:
        """Return a sum on the same grid that is still zero."""
        other = copy.copy(self)
        other._steps = torch.zeros_like(self._steps)
        return other

    def join(self, other: Total) -> None:
        """Add another sum on the same grid."""
        self._steps.add_(other._steps)

    def add_rows(self, part: slice, shape: torch.Size, index: Tensor, rows: Tensor) -> None:
        """Add rows, each rounded to the grid, at these places of a part of this shape."""
        self._steps[part].view(shape).index_add_(0, index, self._rounded(rows))

    def _rounded(self, values: Tensor) -> Tensor:
        values = values.double()
        return torch.mul(values, 1 / self.step).round_() if self._rounds else values


def product_sum(left: Tensor, right: Tensor) -> Tensor:
    """Return the sums over the tiles of left_i (x) right_i, for (rows, q) and (rows, p): (tiles, q, p)."""
    whole = whole_blocks(left.shape[0])
    blocks = torch.bmm(_blocks(left, whole).transpose(1, 2), _blocks(right, whole))
    return _tiles(blocks, None if whole == left.shape[0] else left[whole:].t() @ right[whole:])


def position_sum(left: Tensor, right: Tensor) -> Tensor:
    """Return the same for records with positions, (records, t, q) and (records, t, p), where no block cuts a record."""
    positions = left.shape[1]
    if positions > BLOCK:
        more = -positions % BLOCK
        blocks = (positions + more) // BLOCK  # of one record
        left, right = (pad(part, (0, 0, 0, more)).reshape(-1, BLOCK, part.shape[2]) for part in (left, right))
        return _tiles(torch.bmm(left.transpose(1, 2), right), None, max(1, BUNDLE // blocks) * blocks)
    together = 1 << (BLOCK // positions).bit_length() - 1  # records in a block
    whole = left.shape[0] - left.shape[0] % together
    parts = [part[:whole].reshape(-1, together * positions, part.shape[2]) for part in (left, right)]
    rest = None
    if whole < left.shape[0]:
        rest = left[whole:].flatten(0, 1).t() @ right[whole:].flatten(0, 1)
    return _tiles(torch.bmm(parts[0].transpose(1, 2), parts[1]), rest)


def row_sum(values: Tensor) -> Tensor:
    """Return the sums of the rows over the tiles: (tiles, width)."""
    whole = whole_blocks(values.shape[0])
    return _tiles(_blocks(values, whole).sum(1), None if whole == values.shape[0] else values[whole:].sum(0))


def written_alone(pairs: list[tuple[Tensor, Tensor]], weights: Tensor, rows: Tensor) -> Iterable[Tensor]:
    """Yield the weighted sums of the products left (x) right of some records, each by itself, in double precision.

    Number by number: what comes out for a record does not depend on which other records are written out.
    """
    size = pairs[0][0].shape[1] * pairs[0][1].shape[1]
    for some in rows.split(max(1, ALONE // size)):
        vectors = torch.zeros(1, dtype=torch.float64, device=weights.device)
        for left, right in pairs:
            vectors = vectors + left[some].double().unsqueeze(2) * right[some].double().unsqueeze(1)
        yield vectors * weights[some].double().view(-1, 1, 1)


class Columns(NamedTuple):
    """Numbers of records as columns, (q, columns), cut into blocks: views, made once for many sums."""

    whole: Tensor  # (blocks, q, 64)
    rest: Tensor | None  # (q, fewer than 64)

    @classmethod
    def of(cls, values: Tensor) -> Columns:
        rows, columns = values.shape
        whole = whole_blocks(columns)
        blocks = values[:, :whole].view(rows, whole // BLOCK, BLOCK).transpose(0, 1)
        return cls(blocks, None if whole == columns else values[:, whole:])


def column_sum(left: Columns, right: Columns) -> Tensor:
    """Return the sums over the tiles of left_i (x) right_i, for (q, columns) and (p, columns): (tiles, q, p)."""
    rest = None if left.rest is None or right.rest is None else left.rest @ right.rest.mT
    return _tiles(torch.bmm(left.whole, right.whole.mT), rest)


def whole_blocks(rows: int) -> int:
    """Return how many of the rows make up whole blocks."""
    return rows - rows % BLOCK


def chunk_size(rows: int) -> int:
    """Return at most this many rows, in whole tiles where possible: then no bit of a sum depends on the chunks."""
    return rows - rows % TILE or 1 << max(1, rows).bit_length() - 1


def _blocks(values: Tensor, whole: int) -> Tensor:
    part = values if whole == values.shape[0] else values[:whole]
    return part.reshape(-1, BLOCK, values.shape[1])


def _tiles(blocks: Tensor, rest: Tensor | None, bundle: int = BUNDLE) -> Tensor:
    """Return the sums of whole bundles of blocks, of the blocks that are left, and the rest.

    Small blocks are left as they are, each a tile of its own; bundles of more than eight are added in double precision.
    """
    if blocks[:1].numel() <= SMALL and bundle == BUNDLE:
        return blocks if rest is None else torch.cat([blocks, rest.unsqueeze(0)])
    whole = blocks.shape[0] - blocks.shape[0] % bundle
    dtype = torch.float64 if bundle > BUNDLE else None
    tiles = [blocks[:whole].unflatten(0, (-1, bundle)).sum(1, dtype=dtype)] if whole else []
    tiles += [] if whole == blocks.shape[0] else [blocks[whole:].sum(0, keepdim=True, dtype=dtype)]
    tiles += [] if rest is None else [rest.unsqueeze(0)]
    return tiles[0] if len(tiles) == 1 else torch.cat(tiles)
