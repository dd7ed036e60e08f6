"""Random layers: the same masks at both iterates.

A difference of gradients makes sense only if dropout drops the same units at both iterates. PyTorch's dropout draws
from the global generator, so each pass over a chunk runs with that generator seeded for (round, chunk) and restored
afterwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Masks:
    """The secret from which the masks of one round are drawn."""

    key: bytes

    def seed(self, chunk: int) -> int:
        """Return the seed of a chunk's masks."""
        return int.from_bytes(hashlib.sha256(self.key + chunk.to_bytes(8, "big")).digest()[:8], "big") >> 1


@contextmanager
def seeded(masks: Masks, chunk: int) -> Iterator[None]:
    """Run the block with the masks of this chunk."""
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(masks.seed(chunk))
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(masks.seed(chunk))
        yield
