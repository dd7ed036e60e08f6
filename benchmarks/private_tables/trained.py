"""The contestants of this library: ``fit``, and ``train`` with the settings of its README for all tables."""

from __future__ import annotations

import numpy as np
import torch

import diff2

from .problem import Problem

DELTA = 1e-5
ROUNDS, RATE, CLIP = 200, 0.1, 1.0
NETWORK = "numbers min-max scaled to [-1, 1] by their bounds, categories one-hot; mlp with one hidden layer of 10 units"
GIVEN = {
    "dpgd": f"{NETWORK}; {ROUNDS} rounds, clip_gradient {CLIP:g}, rate {RATE:g}",
    "diff2": f"{NETWORK}; the README's settings: {ROUNDS} rounds, restart_interval 20, clip_gradient {CLIP:g}, "
    f"clip_smoothness 1, rate {RATE:g}",
    "adam": f"{NETWORK}; {ROUNDS} rounds, clip_gradient {CLIP:g}, Adam with rate 0.03 and a cosine schedule",
}


def fit(problem: Problem, epsilon: float, seed: int) -> np.ndarray:
    model = diff2.fit(problem.train, problem.schema, epsilon=epsilon, delta=DELTA, seed=seed)
    found = model.predict_proba(problem.test) if problem.task == "classes" else model.predict(problem.test)
    return np.asarray(found, dtype=float)


def dpgd(problem: Problem, epsilon: float, seed: int) -> np.ndarray:
    return _trained(problem, diff2.DPGD(ROUNDS, CLIP, diff2.GradientDescent(learning_rate=RATE)), epsilon, seed)


def diff2_gd(problem: Problem, epsilon: float, seed: int) -> np.ndarray:
    descent = diff2.GradientDescent(learning_rate=RATE)
    return _trained(problem, diff2.Diff2(ROUNDS, 20, CLIP, 1.0, descent), epsilon, seed)


def dpgd_adam(problem: Problem, epsilon: float, seed: int) -> np.ndarray:
    adam = diff2.Adam(learning_rate=0.03, schedule="cosine")
    return _trained(problem, diff2.DPGD(ROUNDS, CLIP, adam), epsilon, seed)


def poisson(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return exp(z) - y z of each record."""
    return (outputs.exp() - targets * outputs).flatten(1).sum(1)


def tensors(problem: Problem) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return inputs and targets to train on, and inputs to predict for."""
    train, test = (torch.from_numpy(part.astype(np.float32)) for part in problem.inputs)
    target = torch.from_numpy(problem.target)
    return train, target.long() if problem.task == "classes" else target.float().reshape(-1, 1), test


def predicted(outputs: torch.Tensor, problem: Problem) -> np.ndarray:
    """Return what a network's outputs predict."""
    if problem.task == "classes":
        return outputs.softmax(1).double().numpy()
    values = outputs.double().reshape(-1).numpy()
    if problem.task == "counts":
        return np.exp(np.clip(values, -20, np.log(problem.target_bounds[1])))
    return problem.unscaled(values)


def _trained(problem: Problem, algorithm: diff2.Algorithm, epsilon: float, seed: int) -> np.ndarray:
    inputs, targets, test = tensors(problem)
    loss = {"regression": "squared", "counts": poisson, "classes": "cross_entropy"}[problem.task]
    model = diff2.mlp(inputs.shape[1], problem.classes or 1, seed=seed)
    budget = diff2.Budget(epsilon, DELTA)
    result = diff2.train(model, loss, (inputs, targets), algorithm, budget, seed=seed, progress=False)
    with torch.no_grad():
        return predicted(result.model(test), problem)
