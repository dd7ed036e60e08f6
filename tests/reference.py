"""The algorithms written again in NumPy: double precision, one record after the other.

Independent of the library on purpose: nothing here imports it. ``noise(round, purpose, step, radius)`` is what the
mechanism adds; without it, nothing is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import numpy as np

Noise = Callable[[int, str, int, float], "np.ndarray | float"]


def no_noise(round: int, purpose: str, step: int, radius: float) -> float:
    return 0.0


def network_gradients(params: np.ndarray, x: np.ndarray, y: np.ndarray, hidden: int) -> np.ndarray:
    """Per-record gradients of (f(x) - y)^2 for Linear-softplus-Linear, one output, parameters in PyTorch's order."""
    inputs = x.shape[1]
    w1 = params[: hidden * inputs].reshape(hidden, inputs)
    b1 = params[hidden * inputs : hidden * inputs + hidden]
    w2 = params[hidden * inputs + hidden : hidden * inputs + 2 * hidden]
    b2 = params[-1]
    rows = []
    for record, target in zip(x, y, strict=True):
        z = w1 @ record + b1
        a = np.logaddexp(0.0, z)
        error = 2 * (w2 @ a + b2 - target)
        back = error * w2 / (1 + np.exp(-z))
        rows.append(np.concatenate([np.outer(back, record).ravel(), back, error * a, [error]]))
    return np.array(rows)


def clipped(vectors: np.ndarray, radius: float) -> np.ndarray:
    """Each row, no longer than the radius."""
    lengths = np.linalg.norm(vectors, axis=1)
    factors = np.minimum(1.0, np.divide(radius, lengths, out=np.ones_like(lengths), where=lengths > 0))
    return factors[:, None] * vectors


class Problem:
    """Clients with their records, and what may be asked of them."""

    def __init__(self, clients: list[tuple[np.ndarray, np.ndarray]], hidden: int, by_records: bool = False):
        self.clients, self.hidden, self.by_records = clients, hidden, by_records
        self.sizes = [len(x) for x, _ in clients]

    def gradient(self, x: np.ndarray, radius: float, **whose) -> np.ndarray:
        """ClippedMean of gradients (Algorithm 2), over the clients."""
        return self._mean(lambda client: clipped(self._rows(x, client), radius), **whose)

    def difference(self, x: np.ndarray, before: np.ndarray, radius: float, **whose) -> np.ndarray:
        """ClippedMean of differences."""
        return self._mean(lambda client: clipped(self._rows(x, client) - self._rows(before, client), radius), **whose)

    def _rows(self, x: np.ndarray, client: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        return network_gradients(x, *client, self.hidden)

    def _mean(self, vectors: Callable, clients: list[int] | None = None, part: tuple[int, int] | None = None):
        chosen = range(len(self.clients)) if clients is None else clients
        means, weights = [], []
        for p in chosen:
            x, y = self.clients[p]
            if part is not None:
                length = len(x) // part[1]
                assert length * part[1] == len(x)
                x, y = (values[part[0] * length : (part[0] + 1) * length] for values in (x, y))
            means.append(vectors((x, y)).mean(axis=0))
            weights.append(self.sizes[p] if self.by_records else 1)
        return np.average(means, axis=0, weights=weights)


def diff2(
    problem: Problem,
    start: np.ndarray,
    *,
    rounds: int,
    restart_interval: int,
    clip_gradient: float,
    clip_smoothness: float,
    learning_rate: float,
    cap: bool = False,
    restarts: Collection[int] | None = None,
    local_steps: int = 1,
    local_clip_smoothness: float = math.inf,
    noise: Noise = no_noise,
) -> list[list[np.ndarray]]:
    """DIFF2-GD, and with more local steps DIFF2-BVR-L-SGD with b = n_p.

    Returns x_0, x_1, ... of every round: row r - 1 is where round r starts, and its K - 1 local steps; the last row is
    where the run ends.
    """
    path: list[list[np.ndarray]] = []
    x, before, estimate = start, start, np.zeros_like(start)
    for r in range(1, rounds + 1):
        if r in restarts if restarts is not None else (r - 1) % restart_interval == 0:
            estimate = problem.gradient(x, clip_gradient) + noise(r, "gradient", 0, clip_gradient)
        else:
            radius = clip_smoothness * np.linalg.norm(x - before)
            radius = min(radius, 2 * clip_gradient) if cap else radius
            estimate = estimate + problem.difference(x, before, radius) + noise(r, "difference", 0, radius)
        before = x
        # BVR-L-SGD-Routine: v_1 is the estimate, the rest are differences at client 1 + r mod P (counted from 1).
        visited, v, p = [x], estimate, r % len(problem.clients)
        visited.append(x - learning_rate * v)
        for k in range(2, local_steps + 1):
            radius = local_clip_smoothness * np.linalg.norm(visited[-1] - visited[-2])
            v = v + problem.difference(visited[-1], visited[-2], radius, clients=[p]) + noise(r, "local", k, radius)
            visited.append(visited[-1] - learning_rate * v)
        x = visited.pop()
        path.append(visited)
    return [*path, [x]]


def recursive_diff2(
    problem: Problem,
    start: np.ndarray,
    *,
    rounds: int,
    clip_gradient: float,
    clip_smoothness: float,
    learning_rate: float,
    noise: Noise = no_noise,
    deviation: Callable[[int, float], float],
) -> tuple[np.ndarray, list[float], list[float]]:
    """Recursive momentum. Returns x_R, and the gain and the variance of every round.

    The gain is the one that leaves the least variance, a parabola in the gain: its lowest point, from three values.
    """
    x, before, value, P, gains, variances = start, start, np.zeros_like(start), math.inf, [], []
    for r in range(1, rounds + 1):
        if r == 1:
            a, radius = 1.0, 0.0
        else:
            radius = min(clip_smoothness * np.linalg.norm(x - before), 2 * clip_gradient)
            at = np.array([0.0, 0.5, 1.0])
            left = (1 - at) ** 2 * P + (deviation(r, 1.0) * (at * clip_gradient + (1 - at) * radius)) ** 2
            square, slope, _ = np.polyfit(at, left / left[2], 2)
            a = min(max(-slope / (2 * square), 0.0), 1.0) if radius < clip_gradient else 1.0
        length = a * clip_gradient + (1 - a) * radius
        mean = a * problem.gradient(x, clip_gradient)
        if a < 1:
            mean = mean + (1 - a) * problem.difference(x, before, radius)
        value = (1 - a) * value + mean + noise(r, "gradient", 0, length)
        P = (0.0 if a == 1 else (1 - a) ** 2 * P) + deviation(r, length) ** 2
        gains.append(a)
        variances.append(P)
        before, x = x, x - learning_rate * value
    return x, gains, variances


def dpsrm(
    problem: Problem,
    start: np.ndarray,
    *,
    rounds: int,
    clip_gradient: float,
    clip_difference: float,
    gain: float,
    learning_rate: float,
    max_step_norm: float,
    noise: Noise = no_noise,
) -> np.ndarray:
    """DP-SRM with b = n and its step rule: at most ``max_step_norm`` long."""
    x, before, v = start, start, np.zeros_like(start)
    for r in range(1, rounds + 1):
        gradient = problem.gradient(x, clip_gradient)
        if r == 1:
            v = gradient + noise(r, "gradient", 0, clip_gradient)
        else:
            length = gain * clip_gradient + (1 - gain) * clip_difference
            fresh = gain * gradient + (1 - gain) * problem.difference(x, before, clip_difference)
            v = fresh + (1 - gain) * v + noise(r, "difference", 0, length)
        before, x = x, x - min(max_step_norm / np.linalg.norm(v), learning_rate) * v
    return x


def srnsgd(
    problem: Problem,
    start: np.ndarray,
    *,
    lengths: list[float],
    batches: int,
    restart_epochs: int,
    clip_gradient: float,
    clip_smoothness: float,
    noise: Callable[[int, int, str, float], np.ndarray | float] = lambda epoch, count, purpose, radius: 0.0,
) -> tuple[np.ndarray, list[float]]:
    """SRN-SGD as reconstructed; ``lengths`` are those of the steps, ``noise`` that of the first so many leaves.

    Returns x_R and the length of the estimate of every round.
    """
    points, norms, M = [start], [], batches
    base = exact = total = np.zeros_like(start)
    for r in range(1, len(lengths) + 1):
        epoch, j = divmod(r - 1, M)
        restart = epoch % restart_epochs == 0
        if j == 0:
            base, exact = (np.zeros_like(start) if restart else total), np.zeros_like(start)
            first = epoch * M  # steps made before this epoch
            longest = max((sum(lengths[first - M + i : first + i]) for i in range(M)), default=0.0) if epoch else 0.0
        if restart:
            purpose, radius = "gradient", clip_gradient
            exact = exact + problem.gradient(points[-1], radius, part=(j, M))
        else:
            purpose, radius = "difference", clip_smoothness * longest
            exact = exact + problem.difference(points[-1], points[r - 1 - M], radius, part=(j, M))
        total = base + exact + noise(epoch, j + 1, purpose, radius)
        g = total / (j + 1 if restart else M)
        norms.append(float(np.linalg.norm(g)))
        points.append(points[-1] - lengths[r - 1] * g / norms[-1])
    return points[-1], norms


def federated(
    problem: Problem,
    start: np.ndarray,
    *,
    rounds: int,
    local_steps: int,
    clip_gradient: float,
    local_learning_rate: float,
    server_rate: float,
    scaffold: bool,
    noise: Noise = no_noise,
) -> np.ndarray:
    """DP-FedAvg and DP-SCAFFOLD with b = n_p, as Noble et al. print them."""
    x, clients = start, range(len(problem.clients))
    c, controls = np.zeros_like(start), [np.zeros_like(start) for _ in clients]
    for r in range(1, rounds + 1):
        moves, changes = [], []
        for p in clients:
            y = x
            for k in range(local_steps):
                h = problem.gradient(y, clip_gradient, clients=[p]) + noise(
                    r, "local", p * local_steps + k, clip_gradient
                )
                y = y - local_learning_rate * (h - controls[p] + c if scaffold else h)
            moves.append(y - x)
            fresh = controls[p] - c + (x - y) / (local_steps * local_learning_rate)
            changes.append(fresh - controls[p])
            if scaffold:
                controls[p] = fresh
        x = x + server_rate * np.mean(moves, axis=0)
        if scaffold:
            c = c + np.mean(changes, axis=0)
    return x


def binary_parts(count: int) -> list[tuple[int, int]]:
    """The first ``count`` leaves of a binary tree as runs of whole nodes, the longest first: (start, length)."""
    parts, start = [], 0
    while start < count:
        length = 1
        while start % (2 * length) == 0 and start + 2 * length <= count:
            length *= 2
        parts.append((start, length))
        start += length
    return parts
