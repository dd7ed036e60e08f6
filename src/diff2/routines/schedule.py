r"""Learning rates that change from round to round, known before the run starts.

================  ===========================================
``schedule``      :math:`\eta_r`, for r = 1, ..., R
================  ===========================================
``constant``      :math:`\eta`
``cosine``        :math:`\eta (1 + \cos(\pi (r - 1) / R)) / 2`
``inverse_root``  :math:`\eta / \sqrt r`
================  ===========================================
"""

import math
from typing import Any

from .._validate import one_of, positive

SCHEDULES = ("constant", "cosine", "inverse_root")


def check_schedule(learning_rate: Any, schedule: Any) -> None:
    """Refuse a learning rate that is not above zero, or a schedule that does not exist."""
    positive("learning_rate", learning_rate)
    one_of("schedule", schedule, SCHEDULES)


def scheduled(learning_rate: float, schedule: str, number: int, total: int) -> float:
    """Return the learning rate of round ``number`` of ``total``; in the first, ``learning_rate`` itself."""
    one_of("schedule", schedule, SCHEDULES)
    if schedule == "cosine":
        return learning_rate * (1 + math.cos(math.pi * (number - 1) / total)) / 2
    if schedule == "inverse_root":
        return learning_rate / math.sqrt(number)
    return learning_rate
