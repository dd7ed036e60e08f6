"""A run that is to be killed: ``python killed_run.py DIRECTORY`` starts it, or takes it up again."""

import sys

import torch

import diff2
import diff2.training.loop


def main(directory):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 3, generator=generator)
    algorithm = diff2.Diff2(300, 20, 1.0, 2.0, routine=diff2.GradientDescent(0.1))
    clients, budget = (x, x.sum(1, keepdim=True)), diff2.Budget(1.0, 1e-5)
    model = torch.nn.Linear(3, 1)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    return diff2.train(model, "squared", clients, algorithm, budget, seed=1, directory=directory, resume=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    diff2.training.loop.CHECKPOINT_SECONDS = 0.02
    main(sys.argv[1])
