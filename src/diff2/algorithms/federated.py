r"""DP-FedAvg and DP-SCAFFOLD (Noble, Bellet & Dieuleveut, AISTATS 2022), with accounting that holds for records.

In a round every client makes K steps from x on batches of b of its records, drawn without replacement, with
:math:`H = \text{clipped batch mean} + \text{noise}`:

.. math::
    y &\leftarrow y - \eta_l H             & \text{(FedAvg)} \\
    y &\leftarrow y - \eta_l (H - c_p + c) & \text{(SCAFFOLD)}

the server moves by the mean of the :math:`y - x`, which is the (negative) estimate handed to the routine:
``GradientDescent(learning_rate=eta_g)`` is the paper's server. SCAFFOLD's control variate :math:`c_p` becomes the mean
of the client's noisy H of the round, and c the mean of all. Means over clients weigh them as ``weighting`` says: alike,
or by their records.

Against the published code: the radius is fixed, not the median of the batch's norms, which would be a leak; and every
local step counts as a release of its own, protected by its own noise alone. A record then pays for the K R steps of its
client, each amplified by :math:`b/n_p`, and for nothing else. That other clients' noise is added before anyone looks,
or that clients are sampled, does not lower what the theorems available can promise.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from .._validate import at_least, positive
from .._vectors import State, Vector, moved, zeros
from ..errors import InvalidArgument
from ..questions import LOCAL, Batch, Estimate, Population, Question, Round
from ..routines import Routine
from .base import Algorithm


@dataclass(frozen=True)
class DPFedAvg(Algorithm):
    """Federated averaging with noisy local steps.

    Args:
        local_steps: K.
        batch_size: b, at each client.
        clip_gradient: the radius for a record's gradient.
        local_learning_rate: eta_l.
        routine: the server's step along the mean of the clients' moves; ``GradientDescent(1.0)`` takes their mean.
    """

    rounds: int
    local_steps: int
    batch_size: int
    clip_gradient: float
    local_learning_rate: float
    routine: Routine
    name: ClassVar[str] = "dpfedavg"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("local_steps", self.local_steps, 1)
        at_least("batch_size", self.batch_size, 1)
        positive("local_learning_rate", self.local_learning_rate)

    def questions(self, round: int, population: Population) -> Iterable[Question]:
        for p in population.participants(round):
            batch = Batch(clients=(p,), size=self.batch_size)
            for k in range(self.local_steps):  # each with a batch and noise of its own
                yield Question.gradient(self.clip_gradient, LOCAL, batch=batch, step=p * self.local_steps + k)

    def shares(self) -> Mapping[str, float]:
        return {LOCAL: 1.0}

    def check(self, population: Population, private: bool) -> None:
        super().check(population, private)
        if self.routine.local_steps > 1:
            raise InvalidArgument(
                f"{self.name} makes local steps at every client itself; use a routine without local steps, for example "
                "GradientDescent(learning_rate=1.0)"
            )
        for p in range(len(population.sizes)):
            population.check(Batch(clients=(p,), size=self.batch_size))

    def estimate(self, state: State, round: Round) -> tuple[Estimate, State]:
        clients = round.population.participants(round.number)
        moves = [self._local(p, round, None) for p in clients]
        shares = _shares(round.population, clients)
        return self._estimate(shares, [move for move, _, _ in moves], [variance for _, _, variance in moves]), state

    def _local(self, client: int, round: Round, correction: Vector | None) -> tuple[Vector, Vector, float]:
        """Return x - y after K local steps, the mean of the noisy gradients, and the noise variance of x - y."""
        point, variance = round.params, 0.0
        displacement, total = zeros(point), zeros(point)
        for question in round.questions:
            if question.batch.clients != (client,):
                continue
            released = round.release(round.ask(question, point))
            total = total + released.value
            variance += self.local_learning_rate**2 * released.variance
            direction = released.value if correction is None else released.value + correction
            displacement = displacement + self.local_learning_rate * direction
            point = moved(round.params, displacement)
        return displacement, total / self.local_steps, variance

    def _estimate(self, shares: list[float], moves: list[Vector], variances: list[float]) -> Estimate:
        variance = sum(share**2 * variance for share, variance in zip(shares, variances, strict=True))
        return Estimate(_mean(shares, moves), variance)


@dataclass(frozen=True)
class DPScaffold(DPFedAvg):
    """Federated averaging with control variates against the drift of differing clients. Settings as ``DPFedAvg``."""

    name: ClassVar[str] = "dpscaffold"

    def init(self, params: Vector, population: Population) -> State:
        return {"control": zeros(params), "controls": zeros(params).repeat(len(population.sizes), 1)}

    def estimate(self, state: State, round: Round) -> tuple[Estimate, State]:
        population = round.population
        clients = population.participants(round.number)
        control, controls = state["control"], state["controls"].clone()
        moves, variances = [], []
        for p in clients:
            moved, mean, variance = self._local(p, round, control - controls[p])
            moves.append(moved)
            variances.append(variance)
            controls[p] = mean
        everyone = _shares(population, range(len(population.sizes)))
        estimate = self._estimate(_shares(population, clients), moves, variances)
        return estimate, {"control": _mean(everyone, list(controls)), "controls": controls}


def _shares(population: Population, clients: Sequence[int]) -> list[float]:
    """Return what each of the clients counts in a mean over them."""
    return [w * population.sizes[p] for w, p in zip(population.weights(clients), clients, strict=True)]


def _mean(shares: list[float], vectors: Sequence[Vector]) -> Vector:
    import torch

    weights = torch.tensor(shares, dtype=torch.float64, device=vectors[0].device)
    return weights @ torch.stack(list(vectors))
