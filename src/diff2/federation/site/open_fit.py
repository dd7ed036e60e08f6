"""An open fit at a site: which statistics it answers, and how.

It answers every statistic that is listed and fits the agreed columns, in the order of their numbers, as long as the
prices of all of them, as the site's own ledger has them, add up to no more than the agreed budget.
"""

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np

from ...errors import BudgetExceeded, InvalidArgument
from ...fitting.cohort import Census
from ...fitting.travelling import Unpacked
from ...planning.filter import Filter
from ...privacy import NoiseSource, Release
from ...privacy.release import NONE
from ..faults import BadMessage, Refusal
from ..fit_agreement import FitAgreement, FitPlan
from ..own_noise.statistic import max_part_norm, noisy_part, statistic_scale
from ..wire.messages import Message
from ..wire.request import ANSWER, StatisticRequest, read_statistic_request, request_digest, whole_number
from .ledger import Answer
from .table_records import TableRecords

ENGINE = "table"


class OpenFit:
    """What a site has prepared for one fit."""

    engine = ENGINE
    threads = None  # sums in double precision, rounded by no more than is paid for

    def __init__(
        self,
        agreement: FitAgreement,
        plan: FitPlan,
        client: int,
        records: TableRecords,
        source: NoiseSource,
        stated: Any,
    ):
        """Take part as ``client``; ``stated``: how many records each site has, as the server says."""
        if not isinstance(stated, list) or len(stated) != len(plan.client_sizes):
            raise BadMessage("expected records to be a list as long as sizes")
        counts = tuple(whole_number({"records": count}, "records") for count in stated)
        if counts[client] != records.records or any(
            count < size for count, size in zip(counts, plan.client_sizes, strict=True)
        ):
            raise Refusal("the numbers of records stated for the sites cannot be right")
        self.agreement = agreement
        self._census = Census(plan.client_sizes, counts, agreement.settings.weighting)
        self._client = client
        self._table = records.table
        self._source = source
        self._unpacked = Unpacked(agreement.schema)
        self._filter = Filter(agreement.privacy.budget)
        self._honest = agreement.trust.honest_of(len(counts)) if agreement.trust.noise == "sites" else None

    def read(self, message: Message, *, sealed: bool) -> StatisticRequest:
        """Return the request in a message; refuse one that does not belong to the agreement."""
        if sealed:
            raise Refusal("in this run requests must not be sealed")
        request = read_statistic_request(message, self._unpacked)
        if request.is_choice and self._honest is not None:
            raise Refusal(f"{request} is not answered: where sites add the noise, nobody sees exact scores")
        return request

    def identity(self, message: Message, payload: bytes) -> str:
        """Return the digest by which a request is known."""
        return request_digest(message)

    def answer(
        self, request: StatisticRequest, sent: str, sites: Sequence[str], answers: Sequence[Answer]
    ) -> tuple[Message, Release, str]:
        """Answer as :meth:`OpenRun.answer` does; there is no digest of a leaf, for a fit has no trees of noise."""
        if all(answer.label != request.label for answer in answers):
            self._require_affordable(request, answers)
        with np.errstate(all="ignore"):
            if self._honest is not None:
                return self._noisy(request, sent, sites, self._honest)
            return self._exact(request, sent)

    def _require_affordable(self, request: StatisticRequest, answers: Sequence[Answer]) -> None:
        """Refuse a statistic out of order, or beyond what is left of the budget."""
        if request.number != len(answers) + 1:
            raise Refusal(f"{request} is out of order: this site has answered {len(answers)}, each of them once")
        left = copy(self._filter)
        try:
            for answer in answers:
                left.spend(1 / answer.multiplier, answer.release.purpose)
            left.spend(1 / request.multiplier, request.statistic.purpose)
        except (BudgetExceeded, ArithmeticError):
            raise Refusal(f"{request} would cost more than is left of the agreed budget") from None

    def _exact(self, request: StatisticRequest, sent: str) -> tuple[Message, Release, str]:
        """Answer with the exact sum; the server adds the noise, or chooses."""
        statistic, census = request.statistic, self._census
        weights = census.in_heaviest if request.is_choice else census.weights
        value = self._table.total(statistic, weights[self._client])
        if request.is_choice:
            release = Release(
                request.number, statistic.purpose, sensitivity=float(statistic.sensitivity), dimension=request.dimension
            )
        else:
            release = census.bounded(statistic, request.number, None, request.dimension).release
        return Message(ANSWER, {"request": sent}, {"value": value}), release._replace(mechanism=NONE), ""

    def _noisy(
        self, request: StatisticRequest, sent: str, sites: Sequence[str], honest: int
    ) -> tuple[Message, Release, str]:
        """Answer with this site's part of the release and its noise."""
        try:
            scale = statistic_scale(self._census, request, honest)
            max_part_norm(self._census, self._client, request, scale)
        except InvalidArgument as error:
            raise Refusal(str(error)) from None
        part = self._table.total(request.statistic, self._census.weights[self._client])
        found = noisy_part(part, self._census, self._client, request, sent, scale, self._source)
        return found.message(sent, sites), found.release, found.leaf
