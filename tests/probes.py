"""Worlds that differ in one record, one group of them or one client, and how far apart the answers are."""

import numpy as np
import torch

from diff2.cohorts import Client, LocalCohort
from diff2.gradients import Records
from diff2.models.losses import squared
from diff2.privacy import NoiseSource
from diff2.questions import ALL, Population, Question
from helpers import make_engine, paper_network, start_of, step_from

SOURCE = NoiseSource.from_seed(3)
SIZES = (9, 4, 13)  # the smallest client in the middle


def make_clients(dtype, sizes=SIZES, inputs=8):
    generator = torch.Generator().manual_seed(0)
    return [
        Client(
            torch.randn(size, inputs, generator=generator, dtype=torch.float64).to(dtype),
            3 * torch.randn(size, 1, generator=generator, dtype=torch.float64).to(dtype),
        )
        for size in sizes
    ]


def replaced(clients, place, inputs, target):
    """Return the clients with one record exchanged."""
    client, row = place
    changed = list(clients)
    changed[client] = Client(clients[client].inputs.clone(), clients[client].targets.clone())
    changed[client].inputs[row] = inputs
    changed[client].targets[row] = target
    return changed


def adversaries(dtype):
    """Records meant to break something: nothing, much, the opposite, what overflows in the loss or in the norm."""
    ones = torch.ones(8, dtype=dtype)
    top = torch.finfo(dtype).max
    return {
        "zero": (0 * ones, 0.0),
        "huge input": (1e6 * ones, 0.0),
        "huge target": (ones, 1e7),
        "huge opposite target": (ones, -1e7),
        "infinite loss": (ones, top / 2),
        "infinite norm": (ones * top**0.75, 1.0),
        "not a number": (ones * top * torch.tensor([1.0, -1.0] * 4, dtype=dtype), 0.0),
    }


def movement(one, two):
    """Return how far the mean moved, in units of its sensitivity."""
    assert one.release == two.release
    return float(np.linalg.norm(one.value - two.value)) / one.release.sensitivity


def engine_of(kind, model, records, loss=squared, **options):
    """Return an engine by its name."""
    return make_engine(kind, model, loss, records, **options)


def plain_sum(engine, params, client, radius=float("inf")):
    """Return the sum of the clipped gradients of a client's records, each of weight one."""
    return engine.clipped_sum(Question.gradient(radius).at(0, params), Records.of(*client))


class Asked:
    """One question, a gradient or a difference of two points near each other, asked of any clients in any round."""

    def __init__(
        self,
        kind,
        population=None,
        batch=ALL,
        *,
        radius=0.02,
        dtype=torch.float64,
        model=None,
        engine="ghost",
        cohort=LocalCohort,
        distance=0.01,
        chunk_rows=5,  # leaves a last chunk of a single record
        **options,
    ):
        self.model = paper_network(dtype=dtype) if model is None else model
        self.kind, self.population, self.batch, self.radius = kind, population, batch, radius
        self.engine, self.cohort, self.chunk_rows, self.options = engine, cohort, chunk_rows, options
        self.previous = start_of(self.model)
        self.params = step_from(self.previous, distance)

    def __call__(self, clients, round=1):
        if isinstance(self.engine, str):  # one engine for all the questions
            self.engine = engine_of(self.engine, self.model, Records.of(*clients[0]), chunk_rows=self.chunk_rows)
        population = self.population or Population(tuple(client.size for client in clients))
        cohort = self.cohort(self.engine, clients, population, source=SOURCE, **self.options)
        question = getattr(Question, self.kind)(self.radius, batch=self.batch, step=2)
        return cohort.answer(question.at(round, self.params, self.previous if self.kind == "difference" else None))
