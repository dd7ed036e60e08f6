"""Models and losses written for a purpose: those that mix records, and those that only a slower engine can run."""

import torch
from torch import nn
from torch.nn import functional as F

from diff2.models.losses import cross_entropy, squared
from helpers import Case


def vectors(model, *shape, count=7, outputs=1, loss=squared, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    return Case(model.double(), inputs, torch.randn(count, outputs, generator=generator, dtype=torch.float64), loss)


def tokens(model, *, count=7, length=5, words=6, classes=3):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, words, (count, length), generator=generator)
    return Case(model.double(), inputs, torch.randint(0, classes, (count,), generator=generator), cross_entropy)


def from_function(forward, **layers):
    """Return a module with these layers and this forward(self, x)."""
    torch.manual_seed(0)
    module = type("Written", (nn.Module,), {"forward": forward})()
    for name, layer in layers.items():
        setattr(module, name, layer)
    return module


MIXING = {
    "centred by the batch": lambda self, x: self.out(torch.tanh(self.first(x) - self.first(x).mean(0))),
    "softmax over the batch": lambda self, x: self.out(torch.softmax(self.first(x), dim=0)),
    "shifted to the next record": lambda self, x: self.out(self.first(x).roll(1, 0)),
    "cumulative": lambda self, x: self.out(torch.tanh(self.first(x).cumsum(0))),
    "attention over the batch": lambda self, x: self.out(torch.softmax(x @ x.T, dim=1) @ self.first(x)),
}


def mixing(forward):
    return from_function(forward, first=nn.Linear(3, 4), out=nn.Linear(4, 1))


def tied(first, second):
    model = from_function(
        lambda self, x: self.out(torch.tanh(self.second(torch.tanh(self.first(x))))),
        first=first,
        second=second,
        out=nn.Linear(3, 1),
    )
    model.second.weight = model.first.weight
    return model


def with_parameter(forward, *shape, **layers):
    model = from_function(forward, **layers)
    model.extra = nn.Parameter(torch.randn(shape))
    return model


FALLBACKS = {
    "tied norms": lambda: vectors(tied(nn.LayerNorm(3), nn.LayerNorm(3)), 3),
    "a layer called twice": lambda: vectors(
        from_function(
            lambda self, x: self.out(torch.tanh(self.twice(torch.tanh(self.twice(x))))),
            twice=nn.Linear(3, 3),
            out=nn.Linear(3, 1),
        ),
        3,
    ),
    "a weight used functionally": lambda: vectors(
        from_function(
            lambda self, x: self.out(torch.tanh(F.linear(x, self.first.weight))),
            first=nn.Linear(3, 4, bias=False),
            out=nn.Linear(4, 1),
        ),
        3,
    ),
    "a weight used both ways": lambda: vectors(
        from_function(
            lambda self, x: self.out(torch.tanh(self.first(x)) + F.linear(x, self.first.weight)),
            first=nn.Linear(3, 4),
            out=nn.Linear(4, 1),
        ),
        3,
    ),
    "a weight penalty in the forward pass": lambda: vectors(
        from_function(lambda self, x: self.out(x) + self.out.weight.square().sum(), out=nn.Linear(3, 1)), 3
    ),
    "positions without a batch dimension": lambda: tokens(
        from_function(
            lambda self, x: self.out(torch.tanh(self.words(x) + self.places(torch.arange(x.shape[1]))).mean(1)),
            words=nn.Embedding(6, 4),
            places=nn.Embedding(9, 4),
            out=nn.Linear(4, 3),
        )
    ),
    "as many positions as records are tried": lambda: tokens(
        from_function(
            lambda self, x: self.out(torch.tanh(self.words(x) + self.places(torch.arange(x.shape[1]))).mean(1)),
            words=nn.Embedding(6, 4),
            places=nn.Embedding(9, 4),
            out=nn.Linear(4, 3),
        ),
        length=3,
    ),
    "records folded into positions": lambda: vectors(
        from_function(
            lambda self, x: self.out(torch.tanh(self.first(x.reshape(-1, 3))).reshape(x.shape[0], -1)),
            first=nn.Linear(3, 4),
            out=nn.Linear(8, 1),
        ),
        2,
        3,
    ),
    "a parameter that is cut along the records": lambda: vectors(
        with_parameter(lambda self, x: self.out((x + self.extra[: len(x[0])]).prod(1)), 5, 3, out=nn.Linear(3, 1)),
        5,
        3,
    ),
    "a parameter in a product of matrices": lambda: vectors(
        with_parameter(lambda self, x: self.out(torch.tanh(x @ self.extra)), 3, 3, out=nn.Linear(3, 1)), 3
    ),
    "a parameter with a penalty": lambda: vectors(
        with_parameter(lambda self, x: self.out(x + self.extra) + self.extra.mean(), 3, out=nn.Linear(3, 1)), 3
    ),
    "a parameter that is not used": lambda: vectors(
        with_parameter(lambda self, x: self.out(x), 3, out=nn.Linear(3, 1)), 3
    ),
    "custom convolution": lambda: vectors(
        nn.Sequential(nn.ConvTranspose1d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(14, 1)), 1, 5
    ),
    "in place, functionally, in the first layer": lambda: vectors(
        from_function(
            lambda self, x: self.out(F.relu(self.first(x), inplace=True)), first=nn.Linear(3, 6), out=nn.Linear(6, 1)
        ),
        3,
    ),
    "in place, functionally, further on": lambda: vectors(
        from_function(
            lambda self, x: self.out(F.relu(self.second(torch.tanh(self.first(x))), inplace=True)),
            first=nn.Linear(3, 6),
            second=nn.Linear(6, 8),
            out=nn.Linear(8, 1),
        ),
        3,
    ),
    "gru": lambda: vectors(
        from_function(
            lambda self, x: self.out(self.rnn(x)[0][:, -1]), rnn=nn.GRU(3, 4, batch_first=True), out=nn.Linear(4, 1)
        ),
        5,
        3,
    ),
    "lstm": lambda: vectors(
        from_function(
            lambda self, x: self.out(self.rnn(x)[0][:, -1]), rnn=nn.LSTM(3, 4, batch_first=True), out=nn.Linear(4, 1)
        ),
        5,
        3,
    ),
    "attention layer with a key of its own": lambda: vectors(
        from_function(
            lambda self, x: self.out(self.mix(x, x, x)[0].mean(1)),
            mix=nn.MultiheadAttention(4, 2, batch_first=True, add_bias_kv=True),
            out=nn.Linear(4, 1),
        ),
        5,
        4,
    ),
    "embedding scaled by frequency": lambda: tokens(
        from_function(
            lambda self, x: self.out(self.words(x).mean(1)),
            words=nn.Embedding(6, 4, scale_grad_by_freq=True),
            out=nn.Linear(4, 3),
        )
    ),
}  # fmt: skip


LOSSES = {
    "one number for the batch": lambda outputs, targets: (outputs - targets).square().mean(),
    "ranked within the batch": lambda outputs, targets: (
        (outputs - targets).square().sum(1) * (1 + outputs.detach().sum(1).argsort())
    ),
    "normalised by the batch": lambda outputs, targets: (outputs - targets).square().sum(1) / outputs.shape[0],
}
