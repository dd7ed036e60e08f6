r"""Sums over records whose rounding is bounded, so that it can be paid for in noise.

A matrix product in single precision adds up all records in one long chain. On records that all point the same way its
rounding error reaches a tenth of a record's contribution (measured: 0.15 for 50,000 records), and replacing one record
changes how the rest of the chain is rounded: the sensitivity would exceed :math:`2C` by that much.

So records are added in blocks of 64 in the precision of the run, then eight blocks in the same way, and the rest in
double precision. Replacing a record changes one block, in one bundle of eight. A record is a sum of products whose
lengths add up to at most :math:`4 C` (records whose products cancel more are added in double precision). So, with
:math:`u` the unit of rounding, a block is off by at most :math:`64 u \cdot 64 \cdot 4 C` and its bundle by
:math:`8 u \cdot 512 C` more, and the sum moves by at most :math:`2 C (1 + 5 \cdot 64^2 u)`: 0.12 % more than in exact
arithmetic in single precision, nothing in double. The mechanism scales the noise by this.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 64  # records added up in one chain
BUNDLE = 8  # blocks added up before switching to double precision
SMALL = 1 << 16  # with fewer numbers, blocks are added in double precision right away


def rounding_allowance(dtype: torch.dtype) -> float:
    """Return by which fraction rounding may increase the sensitivity of a sum of records."""
    unit = torch.finfo(dtype).eps / 2
    return (4 * BLOCK**2 + BUNDLE * BUNDLE * BLOCK) * unit


def product_sum(left: Tensor, right: Tensor) -> Tensor:
    """Return sum over rows of left_i (x) right_i in double precision, for (rows, q) and (rows, p)."""
    whole = whole_blocks(left.shape[0])
    blocks = torch.bmm(_blocks(left, whole).transpose(1, 2), _blocks(right, whole))
    total = _sum_blocks(blocks)
    return total if whole == left.shape[0] else total + left[whole:].t() @ right[whole:]


def row_sum(values: Tensor) -> Tensor:
    """Return the sum of the rows in double precision."""
    whole = whole_blocks(values.shape[0])
    total = _sum_blocks(_blocks(values, whole).sum(1))
    return total if whole == values.shape[0] else total + values[whole:].sum(0)


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
    """Return sum over columns of left_i (x) right_i in double precision, for (q, columns) and (p, columns)."""
    total = _sum_blocks(torch.bmm(left.whole, right.whole.mT))
    return total if left.rest is None or right.rest is None else total + left.rest @ right.rest.mT


def whole_blocks(rows: int) -> int:
    """Return how many of the rows make up whole blocks."""
    return rows - rows % BLOCK


def chunk_size(rows: int) -> int:
    """Return at most this many rows, in whole bundles where possible: then no bit of a sum depends on the chunks."""
    return rows - rows % (BLOCK * BUNDLE) or max(1, rows)


def _blocks(values: Tensor, whole: int) -> Tensor:
    part = values if whole == values.shape[0] else values[:whole]
    return part.reshape(-1, BLOCK, values.shape[1])


def _sum_blocks(blocks: Tensor) -> Tensor:
    """Return the sum over the first dimension: bundles in the precision given, then in double precision."""
    if blocks.numel() < SMALL:
        return blocks.sum(0, dtype=torch.float64)
    whole = blocks.shape[0] - blocks.shape[0] % BUNDLE
    bundles = blocks[:whole].view(-1, BUNDLE, *blocks.shape[1:]).sum(1)
    total = bundles.sum(0, dtype=torch.float64)
    return total if whole == blocks.shape[0] else total + blocks[whole:].sum(0)
