r"""What all engines share: records in chunks, sums in double precision, passes kept from one round to the next.

An engine is asked a :class:`~diff2.questions.question.Question` and returns, for :math:`v_i` the gradient of record i
at ``params``, or the difference of its gradients at ``params`` and ``previous``,

.. math::
    \sum_i w_i \min(1, C / \lVert v_i \rVert)\, v_i .

With a transform in the question (``transform.py``), :math:`v_i` is the transformed gradient or difference.

Formal guarantee, of every engine: a record alone contributes a vector of norm at most :math:`w_i C`, replacing one
record moves the sum by at most :math:`2 w_i C (1 + \rho)`, and giving it the weight zero by :math:`w_i C (1 + 2 \rho)`,
with :math:`\rho` from ``sums.py``. For that, no number computed for a record depends on what another record holds:
shapes, places, layouts and choices follow from the numbers of records and from the record itself. A record without a
finite gradient counts as zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from .._vectors import Loss, Vector
from ..errors import InvalidArgument
from ..questions.question import Question, Smoothness
from .flat import FlatModule
from .records import FeatureCache, Records
from .stochastic import Masks, seeded
from .sums import Total
from .transform import Place, Transform

T = TypeVar("T")

CACHE_BYTES = 4 << 30  # memory that the passes of one set of records may take between rounds


Chunks = Sequence[tuple[int, Records]]  # with their numbers


class Evaluation(NamedTuple):
    """Exact losses, hits and gradient of a model, without clipping and noise."""

    losses: Tensor  # one per record
    hits: Tensor  # one per record: whether its class has the largest output; empty unless the loss is the cross entropy
    gradient: Vector  # weighted sum


class Engine:
    """Clipped sums of per-record gradients, and of their differences between two iterates.

    A chunk of records is prepared, a forward and a backward pass at each iterate are run over it unless the cache holds
    them, and its clipped sum is added up. Engines differ in what a pass is: that is what they implement.

    Args:
        module: the model; it is copied.
        loss: (outputs, targets) -> one loss per record.
        dtype: type of the parameters; None: as they are.
        device: where to compute; None: where the parameters are.
        chunk_rows: records that go through together; None: as many as suit the processor's cache.
        cache_bytes: memory that the passes over one set of records may take between rounds.
        grouped: a record is a group of several rows (``records.py``), as many as the inputs of a call have.
    """

    name: ClassVar[str]
    any_threads: ClassVar[bool] = False  # whether no bit of a clipped sum depends on how many threads there are
    _without_graph: ClassVar[bool] = False  # no autograd: less overhead in each of many small operations

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        chunk_rows: int | None = None,
        cache_bytes: int = CACHE_BYTES,
        grouped: bool = False,
    ):
        self.flat = FlatModule(module, dtype=dtype, device=device)  # for everyone else: no iterate is loaded here
        self._own = FlatModule(module, dtype=dtype, device=device)
        self._loaded: Vector | None = None  # the iterate in it
        self._loss = loss
        self._grouped = grouped
        self._transform: Transform | None = None  # of the question that is being answered
        self._places: dict[int, Place] = {}  # its layers
        self._bytes_per_row = 0  # of what is kept between rounds
        self._cache_bytes = cache_bytes
        self.chunk_rows = chunk_rows or 0  # 0: for the engine to choose

    @property
    def threads(self) -> int | None:
        """The number of threads, where last bits depend on it: products and exponentials of a pass are shared out."""
        return None if self.any_threads else torch.get_num_threads()

    @staticmethod
    def unsuited(flat: FlatModule, loss: Loss) -> str | None:
        """Return why the engine cannot run a model, judged by its layers, or None."""
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
        """Return the weighted sum of the clipped vectors that the question asks for, in double precision.

        Args:
            question: asked at its iterates, so that its radius is a number. With ``remember``, and for every
                difference, the passes at ``params`` are kept in the cache.
            records: the records to sum over, with their weights.
            cache: what was kept of these very records. The result has the same bytes with and without it.
            masks: where the random masks of this round come from, for a model that draws random numbers.
            count: how many records there are in all the sums that will be added up; None: in this one. With one number
                for all of them they lie on one grid (``sums.py``), and their sum is exact.
        """
        params, previous, radius = asked(question)
        self._use(question.transform, cache)
        held = params if previous is None else previous  # the iterate whose passes the cache may hold
        count = records.size if count is None else count
        cache, out = self._usable(cache, records), self._total(radius, count)
        # Passes with one mask do not serve a round with another.
        kept = cache if masks is None and self._may_keep(records) else None
        known = kept.chunks if kept is not None and kept.holds(held) else {}
        remembers = kept is not None and (question.remember or previous is not None)
        if cache is not None:
            if not known:
                for old in cache.chunks.values():
                    self._free(old)
                cache.forget()
            cache.params = None  # until the sum is complete, the passes may belong to two iterates

        def add(lane: Engine, chunks: Chunks) -> Total:
            total = out if lane is self else lane._total(radius, count)
            for index, chunk in chunks:
                prepared = lane._prepare(chunk, index, cache)
                now, before = known.get(index), None
                if now is None:
                    now = lane._run_at(held, prepared, index, masks)
                if previous is not None:
                    now, before = lane._run_at(params, prepared, index, masks), now
                lane._add(total, prepared, radius, now, before)
                if kept is not None and remembers:
                    kept.chunks[index] = now
                elif index not in known:
                    lane._free(now)
                if before is not None:
                    lane._free(before)
            return total

        for total in self._each_lane(records, add)[1:]:
            out.join(total)
        if kept is not None and (remembers or known):
            kept.params = params.clone()
        return out.value

    def norms(self, params: Vector, records: Records, transform: Transform | None = None) -> Tensor:
        """Return the norm of each record's gradient before it is clipped; infinite where there is none.

        **Leaks**: for histograms that are released with noise.
        """
        self._use(transform, None)

        def measure(lane: Engine, chunks: Chunks) -> dict[int, Tensor]:
            found = {}
            for index, chunk in chunks:
                prepared = lane._prepare(chunk, index, None)
                now = lane._run_at(params, prepared, index, None)
                found[index] = lane._squared_norms(prepared, now).sqrt()
                lane._free(now)
            return found

        return torch.cat(in_order(self._each_lane(records, measure))).nan_to_num(nan=torch.inf)

    def evaluate(
        self, params: Vector, records: Records, *, cache: FeatureCache | None = None, gradient: bool = True
    ) -> Evaluation | None:
        """Return exact losses, hits and gradient from one pass, or None where this engine cannot do better than that.

        **Leaks**: for exact metrics only.
        """
        return None

    def _each_lane(self, records: Records, work: Callable[[Engine, Chunks], T]) -> list[T]:
        """Return what every lane makes of its share of the chunks. Here there is one lane, the engine itself."""
        self._loaded = None
        with torch.inference_mode(self._without_graph):
            return [work(self, list(enumerate(records.chunks(self._rows_per_chunk(records)))))]

    def _use(self, transform: Transform | None, cache: FeatureCache | None) -> None:
        """Take up a transform, or none; what a cache holds in other coordinates is dropped."""
        if transform is not self._transform:
            self._places = {} if transform is None else transform.places(self._own)
            self._transform = transform
            self._take_up()
        if cache is not None:
            cache.use(transform)

    def _take_up(self) -> None:
        """Get ready for ``self._places``."""

    def _run_at(self, point: Vector, prepared: Any, index: int, masks: Masks | None) -> Any:
        if self._loaded is not point:
            self._own.load(point)
            self._loaded = point
        if masks is None:
            return self._run(prepared)
        with seeded(masks, index):
            return self._run(prepared)

    def _total(self, radius: float, count: int) -> Total:
        return Total(len(self.flat), radius, count, self.flat.device)

    def _usable(self, cache: FeatureCache | None, records: Records) -> FeatureCache | None:
        """Return the cache, or None where even prepared chunks would take too much memory."""
        return cache

    def _rows_per_chunk(self, records: Records) -> int:
        return self.chunk_rows

    def _may_keep(self, records: Records) -> bool:
        """Whether the passes over these records fit into the memory for them."""
        return self._bytes_per_row * records.size <= self._cache_bytes

    def _prepare(self, chunk: Records, index: int, cache: FeatureCache | None) -> Any:
        """Return the chunk in the form that passes need, with what the cache holds of it."""
        return chunk

    def _run(self, prepared: Any) -> Any:
        """Return one forward and backward pass over a chunk, with the parameters in ``self._own``."""
        raise NotImplementedError

    def _add(self, out: Total, prepared: Any, radius: float, now: Any, before: Any | None) -> None:
        """Add the clipped sum of gradients, or of their differences to ``before``, which may be overwritten."""
        raise NotImplementedError

    def _squared_norms(self, prepared: Any, now: Any) -> Tensor:
        """Return the squared norms of a pass's gradients, one per record."""
        raise NotImplementedError

    def _free(self, done: Any) -> None:
        """Take the memory of a pass that will not be read again."""


def asked(question: Question) -> tuple[Vector, Vector | None, float]:
    """Return the iterates and the radius of a question; refuse one that is only declared."""
    if question.params is None or isinstance(question.radius, Smoothness):
        raise InvalidArgument("expected a question that is asked at iterates: question.at(round, params, ...)")
    return question.params, question.previous, question.radius


def in_order(found: Iterable[Mapping[int, T]]) -> list[T]:
    """Return what several lanes found for chunks, in the order of the chunks.

    >>> in_order([{0: "a", 2: "c"}, {1: "b"}])
    ['a', 'b', 'c']
    """
    return [value for _, value in sorted((index, value) for one in found for index, value in one.items())]
