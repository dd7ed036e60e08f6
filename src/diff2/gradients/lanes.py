"""Chunks of records shared out over threads, each of which computes alone.

torch shares a product or an exponential out over its threads, at places that depend on how many there are, and the last
bits depend on the places. Here a thread takes whole chunks and computes each as if it were the only thread: no bit
depends on how many there are. Nor do threads wait for each other within a chunk, which on a busy machine can take
longer than the work.

Subnormal numbers are taken for zero. A processor needs a hundred cycles for each, so a model whose outputs saturate
took ten times as long, and the time told of the records. Norms and sums allow for what is lost (``kernels.py``,
``column_terms.py``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from threading import Barrier
from typing import TypeVar

import torch

T = TypeVar("T")


def share_out(work: Callable[[int], T], lanes: int) -> list[T]:
    """Return ``work(0), work(1), ...`` of all lanes, each computed by a thread of its own, on one thread of torch."""
    if lanes == 1:
        with _one_thread(), _without_subnormals():
            return [work(0)]
    return list(_pool(os.getpid(), lanes).map(work, range(lanes)))


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _without_subnormals() -> Iterator[None]:
    """In this thread; afterwards it is as the caller had it. Where a processor cannot, nothing changes."""
    before = sys.float_info.min / 2 == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@lru_cache(maxsize=4)
def _pool(process: int, lanes: int) -> ThreadPoolExecutor:
    """Return threads that compute with one thread of torch each; a forked process has none of its parent's."""
    threads, ready = torch.get_num_threads(), Barrier(lanes + 1)

    def begin() -> None:
        torch.get_num_threads()  # gives a new thread the number of all, which would undo the next line
        torch.set_num_threads(1)  # of this thread, and of all that begin later
        torch.set_flush_denormal(True)
        ready.wait()

    pool = ThreadPoolExecutor(lanes, "diff2-lane", begin)
    for _ in range(lanes):
        pool.submit(int)
    ready.wait()
    torch.set_num_threads(threads)
    return pool
