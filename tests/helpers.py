"""Builders that several tests share: a table of models, and the plainest possible clipped sums."""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from diff2.gradients import FlatModule, Records, Rule, Shapes, joined, register_rule
from diff2.gradients.choose import ENGINES
from diff2.gradients.network import Network
from diff2.models.losses import cross_entropy, squared
from diff2.questions import Question


class Case(NamedTuple):
    """A model with records it can be trained on."""

    model: nn.Module
    inputs: torch.Tensor
    targets: torch.Tensor
    loss: object = squared

    @property
    def records(self):
        return Records.of(self.inputs, self.targets)

    @property
    def shapes(self):
        return Shapes.of(self.inputs, self.targets)

    def part(self, rows):
        """Return the case with these records only."""
        return self._replace(inputs=self.inputs[rows], targets=self.targets[rows])

    def one_by_one(self):
        """Yield the records, each alone."""
        yield from self.records.chunks(1)

    def weighted(self, seed=1):
        """Return the records with weights between 0 and 1."""
        weights = torch.rand(self.inputs.shape[0], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return self.records._replace(weights=weights.to(start_of(self.model)))


class Attention(nn.Module):
    """One block of a transformer, with an embedding in front: everything that has a rule, in one model."""

    def __init__(self, width=6):
        super().__init__()
        self.words = nn.Embedding(9, width, padding_idx=0)
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=bias) for bias in (False, True, True))
        self.widen, self.narrow, self.head = nn.Linear(width, 11), nn.Linear(11, width), nn.Linear(width, 3)

    def forward(self, tokens):
        x = self.words(tokens)
        h = self.first_norm(x)
        weights = torch.softmax(self.query(h) @ self.key(h).transpose(1, 2), dim=2)
        x = x + weights @ self.value(h)
        x = x + self.narrow(nn.functional.gelu(self.widen(self.second_norm(x))))
        return self.head(x.mean(1))


class Attending(nn.Module):
    """PyTorch's attention: of a sequence to itself, and of its first half to the rest, records first or second."""

    def __init__(self, width=4, **options):
        super().__init__()
        self.first = options.get("batch_first", False)
        self.mix, self.join = nn.MultiheadAttention(width, 2, **options), nn.MultiheadAttention(width, 1, bias=False)
        self.other = nn.MultiheadAttention(width, 2, kdim=3, vdim=2)
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        x = x if self.first else x.transpose(0, 1)
        x = x + self.mix(x, x, x, need_weights=False)[0]
        x = x.transpose(0, 1) if self.first else x
        rest = x[2:]
        joined, weights = self.join(x[:2], rest, rest)
        other, _ = self.other(joined, x[:, :, 1:], value=x[:, :, :2])
        return self.head(torch.tanh(other).mean(0)) + weights[:, :, :2].mean(1)


class Encoder(nn.Module):
    """PyTorch's encoder, causal, with positions."""

    def __init__(self, width=4, length=5, first=True, **options):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 2, 6, dropout=0.0, batch_first=first, **options)
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.places, self.head = nn.Parameter(torch.randn(1, length, width)), nn.Linear(width, 2)
        self.first, self.mask = first, nn.Transformer.generate_square_subsequent_mask(length)

    def forward(self, x):
        x = x + self.places
        x = self.encoder(x if self.first else x.transpose(0, 1), mask=self.mask.to(x), is_causal=True)
        return self.head(x.mean(1 if self.first else 0))


class MeanOfWords(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.words, self.head = nn.Embedding(7, 4, **options), nn.Linear(4, 3)

    def forward(self, tokens):
        return self.head(torch.tanh(self.words(tokens)).mean(1))


class Bare(nn.Module):
    """Parameters used directly: class token, positions, scale, temperature, a matrix; and a norm written by hand."""

    def __init__(self, width=4, length=5):
        super().__init__()
        self.token, self.places = nn.Parameter(torch.randn(1, 1, width)), nn.Parameter(torch.randn(length + 1, width))
        self.scale, self.heat = nn.Parameter(torch.randn(width)), nn.Parameter(torch.tensor(0.7))
        self.mix = nn.Parameter(torch.randn(width, width))
        self.norm, self.head = WrittenNorm(width), nn.Linear(width, 2)

    def forward(self, x):
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.places
        x = self.norm(torch.tanh(x * self.scale) @ self.mix)
        return self.head(x[:, 0]) * self.heat


class WrittenNorm(nn.Module):
    """RMSNorm as people write it."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 2, width))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class Tied(nn.Module):
    """One table for the words that are read and for those that are told, and one matrix for two layers in between."""

    def __init__(self, width=4, words=7, **options):
        super().__init__()
        self.words, self.told = nn.Embedding(words, width, **options), nn.Linear(width, words)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.head = nn.Linear(words, 3)
        self.told.weight, self.second.weight, self.second.bias = self.words.weight, self.first.weight, self.first.bias

    def forward(self, tokens):
        x = torch.tanh(self.first(self.words(tokens)))
        return self.head(torch.tanh(self.told(torch.tanh(self.second(x)))).mean(1))


class TiedConv(nn.Module):
    """Two convolutions with one kernel."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Conv1d(4, 4, 3, groups=2, padding=1) for _ in range(2))
        self.second.weight, self.second.bias, self.head = self.first.weight, self.first.bias, nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))).mean(2))


class Adapted(nn.Module):
    """A frozen layer with an adapter of low rank: two matrices of its own, or two layers."""

    def __init__(self, base, rank=2, layers=False):
        super().__init__()
        self.base, self.layers = base.requires_grad_(False), layers
        inputs, outputs = base.in_features, base.out_features
        if layers:
            self.down, self.up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)
            nn.init.zeros_(self.up.weight)
        else:
            self.down, self.up = nn.Parameter(torch.randn(inputs, rank)), nn.Parameter(torch.zeros(rank, outputs))

    def forward(self, x):
        return self.base(x) + (self.up(self.down(x)) if self.layers else x @ self.down @ self.up)


def adapted(layers):
    """A frozen model, with layers that have no rule, of which only adapters are trained."""
    model = nn.Sequential(
        nn.ConvTranspose1d(3, 3, 2), Adapted(nn.Linear(5, 6), layers=layers), nn.Tanh(),
        nn.BatchNorm1d(3).eval(), Adapted(nn.Linear(6, 2), layers=layers), Mean(),
    )  # fmt: skip
    for index in (0, 3):
        model[index].requires_grad_(False)
    return model


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


class Scale(nn.Module):
    """A layer of one's own: a factor and a shift per feature."""

    def __init__(self, width):
        super().__init__()
        self.factor, self.shift = nn.Parameter(torch.linspace(0.5, 2, width)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return x * self.factor + self.shift


class ScaleRule(Rule):
    """Its rule, as somebody else would write it."""

    def gradient(self, feature):
        return self._terms(feature.a * feature.g, feature.g)

    def difference(self, feature, previous):
        da, dg = feature.a - previous.a, feature.g - previous.g
        return self._terms(da * feature.g + previous.a * dg, dg)

    def _terms(self, factor, shift):
        values = {"factor": factor, "shift": shift}
        return joined(*(self.explicit(values[name], part) for name, part in self.parts.items()))


register_rule(Scale, ScaleRule)


def frozen(model, *names):
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    return model


def tied_rows():
    model = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5, bias=False), nn.Tanh(), nn.Linear(5, 2))
    model[2].weight = model[0].weight
    return model


def _conv1d(channels=4, **options):
    layer = nn.Conv1d(channels, 6, options.pop("kernel_size", 3), **options)
    return nn.Sequential(nn.Conv1d(2, channels, 1), nn.Tanh(), layer, nn.Tanh(), nn.Flatten(), nn.LazyLinear(2)), (
        2,
        11,
    )


def _conv2d(channels=4, **options):
    layer = nn.Conv2d(channels, 6, options.pop("kernel_size", 3), **options)
    return nn.Sequential(nn.Conv2d(2, channels, 1), nn.Tanh(), layer, nn.Tanh(), nn.Flatten(), nn.LazyLinear(2)), (
        2,
        6,
        7,
    )


MODELS = {
    "mlp": lambda: (nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4), nn.Softplus(), nn.Linear(4, 2)), (5,)),
    "mlp without biases": lambda: (
        nn.Sequential(nn.Linear(5, 7, bias=False), nn.Tanh(), nn.Linear(7, 2, bias=False)),
        (5,),
    ),
    "inplace relu": lambda: (nn.Sequential(nn.Linear(5, 9), nn.ReLU(inplace=True), nn.Linear(9, 2)), (5,)),
    "sequence, wide": lambda: (
        nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 25), nn.Tanh(), nn.Flatten(), nn.Linear(50, 2)),
        (2, 20),
    ),
    "sequence, long": lambda: (
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(18, 2)),
        (9, 3),
    ),
    "sequence, two axes": lambda: (
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5, bias=False), nn.Flatten(), nn.Linear(30, 2)),
        (2, 3, 3),
    ),
    "conv1d": _conv1d,
    "conv1d, stride and padding": lambda: _conv1d(stride=2, padding=2),
    "conv1d, dilation and groups": lambda: _conv1d(dilation=3, groups=2, bias=False),
    "conv1d, same with an even kernel": lambda: _conv1d(padding="same", kernel_size=4),
    "conv1d, circular": lambda: _conv1d(padding=2, padding_mode="circular"),
    "conv1d, few places": lambda: _conv1d(channels=40, stride=7, kernel_size=4),
    "conv2d": _conv2d,
    "conv2d, stride and padding": lambda: _conv2d(stride=(2, 1), padding=(1, 2)),
    "conv2d, dilation": lambda: _conv2d(dilation=(2, 1), kernel_size=(2, 3)),
    "conv2d, depthwise": lambda: _conv2d(channels=6, groups=6),
    "conv2d, same": lambda: _conv2d(padding="same", dilation=2),
    "conv2d, reflect": lambda: _conv2d(padding=1, padding_mode="reflect"),
    "conv2d, replicate": lambda: _conv2d(padding=(2, 1), padding_mode="replicate"),
    "conv2d, few places": lambda: _conv2d(channels=40, stride=4, bias=False),
    "group norm": lambda: (
        nn.Sequential(nn.Conv2d(2, 6, 3), nn.GroupNorm(3, 6), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2)),
        (2, 5, 5),
    ),
    "layer norm": lambda: (
        nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Tanh(), nn.LayerNorm(6, bias=False), nn.Linear(6, 2)),
        (5,),
    ),
    "layer norm over two axes": lambda: (
        nn.Sequential(nn.Linear(3, 4), nn.LayerNorm((5, 4)), nn.Flatten(), nn.Linear(20, 2)),
        (5, 3),
    ),
    "a registered layer": lambda: (nn.Sequential(nn.Linear(5, 6), nn.Tanh(), Scale(6), nn.Linear(6, 2)), (5,)),
    "a registered layer, positions": lambda: (
        nn.Sequential(Scale(5), nn.Tanh(), nn.Flatten(), nn.Linear(15, 2)),
        (3, 5),
    ),
    "rms norm": lambda: (
        nn.Sequential(
            nn.Linear(5, 6), nn.RMSNorm(6), nn.Tanh(), nn.RMSNorm((3, 6), eps=1e-3), nn.Flatten(), nn.Linear(18, 2)
        ),
        (3, 5),
    ),
    "bare parameters": lambda: (Bare(), (5, 4)),
    "bare parameters, rows": lambda: (nn.Sequential(nn.Linear(5, 4), WrittenNorm(4), nn.Linear(4, 2)), (5,)),
    "bare parameters, some frozen": lambda: (frozen(Bare(), "places", "mix", "head.weight"), (5, 4)),
    "frozen layer": lambda: (
        frozen(nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4), nn.Linear(4, 2)), "2.weight", "2.bias"),
        (5,),
    ),
    "frozen first layer": lambda: (
        frozen(nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)), "0.weight", "0.bias"),
        (5,),
    ),
    "biases only": lambda: (
        frozen(nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)), "0.weight", "2.weight"),
        (5,),
    ),
    "frozen bias": lambda: (
        frozen(nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 2)), "0.bias", "1.weight"),
        (5,),
    ),
    "embedding": lambda: (MeanOfWords(), 7),
    "embedding with padding": lambda: (MeanOfWords(padding_idx=2), 7),
    "transformer": lambda: (Attention(), 9),
    "adapters": lambda: (adapted(layers=False), (3, 4)),
    "adapters as layers": lambda: (adapted(layers=True), (3, 4)),
    "tied": lambda: (Tied(), 7),
    "tied, with padding": lambda: (Tied(padding_idx=1), 7),
    "tied rows": lambda: (tied_rows(), (5,)),
    "tied convolutions": lambda: (TiedConv(), (4, 6)),
    "attention": lambda: (Attending(batch_first=True), (5, 4)),
    "attention, records second": lambda: (Attending(bias=False), (5, 4)),
    "attention, partly frozen": lambda: (frozen(Attending(), "mix.in_proj_weight", "join.out_proj.weight"), (5, 4)),
    "encoder": lambda: (Encoder(norm_first=True), (5, 4)),
    "encoder, records second": lambda: (Encoder(first=False), (5, 4)),
    "encoder, eval": lambda: (Encoder(activation="gelu").eval(), (5, 4)),
}  # fmt: skip


def make_case(name, *, count=12, dtype=torch.float64, seed=0):
    """Return a model of the table with ``count`` records; embeddings read sequences with repeated words."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model, shape = MODELS[name]()
        if isinstance(shape, int):
            inputs = torch.randint(0, shape, (count, 6), generator=generator)
        else:
            inputs = torch.randn(count, *shape, generator=generator, dtype=torch.float64).to(dtype)
        model(inputs.float() if inputs.dtype.is_floating_point else inputs)  # sizes of lazy layers
        model.to(dtype)
    if isinstance(shape, int):
        return Case(model, inputs, torch.randint(0, 3, (count,), generator=generator), cross_entropy)
    return Case(model, inputs, 2 * torch.randn(count, 2, generator=generator, dtype=torch.float64).to(dtype))


def paper_network(inputs=8, dtype=torch.float64, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(inputs, 10), nn.Softplus(), nn.Linear(10, 1)).to(dtype)


def paper_case(count=64, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 8, generator=generator, dtype=torch.float64).to(dtype)
    return Case(paper_network(dtype=dtype, seed=seed), inputs, torch.randn(count, 1, generator=generator).to(dtype))


def make_engine(name, model, loss, records, **options):
    """Return the engine of this name, whether or not it would be chosen."""
    example = [Records(*(part[:3] for part in records))] if name == "ghost" else []
    return ENGINES[name](model, loss, *example, **options)


def kinds_for(case):
    """Return the names of the engines that can run a case, the slow ones last."""
    flat = FlatModule(case.model)
    return [
        name
        for name, kind in ENGINES.items()
        if kind.unsuited(flat, case.loss) is None and (case.inputs.dim() == 2 or name not in ("columns", "compiled"))
    ]


def engines(case, **options):
    """Return every engine that can run a case."""
    return [make_engine(name, case.model, case.loss, case.records, **options) for name in kinds_for(case)]


def with_fast_engines(*names):
    """Parametrise over models of the table and the fast engines that can run them in double precision."""
    pairs = []
    for name in names:
        with torch.random.fork_rng():
            model, shape = (paper_network(), (8,)) if name == "paper" else MODELS[name]()
        plain = isinstance(shape, tuple) and len(shape) == 1 and Network.unsuited(model) is None
        pairs += [(name, kind) for kind in FAST if kind == "ghost" or plain]
    return pytest.mark.parametrize(("name", "kind"), pairs, ids=[f"{name}, {kind}" for name, kind in pairs])


FAST = ("ghost", "columns")


def gradient(engine, params, records, radius=math.inf, *, remember=False, **options):
    """Ask an engine for the sum of clipped gradients."""
    return engine.clipped_sum(Question.gradient(radius).at(1, params, remember=remember), records, **options)


def difference(engine, params, previous, records, radius=math.inf, **options):
    """Ask an engine for the sum of clipped differences."""
    return engine.clipped_sum(Question.difference(radius).at(2, params, previous), records, **options)


def start_of(model):
    return parameters_to_vector(trainable(model)).detach().clone()


def trainable(model):
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def step_from(params, distance, seed=0):
    """Return another point at this distance, in a random direction; as near as the precision allows."""
    step = torch.randn(params.numel(), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (params.double() + step * (distance / step.norm())).to(params.dtype)


def gradient_rows(case, params):
    """Return the gradient of every record by itself, with nothing but autograd: (records, parameters)."""
    model = copy.deepcopy(case.model)
    vector_to_parameters(params, trainable(model))
    rows = []
    for row in range(case.inputs.shape[0]):
        loss = case.loss(model(case.inputs[row : row + 1]), case.targets[row : row + 1]).sum()
        rows.append(parameters_to_vector(torch.autograd.grad(loss, trainable(model), materialize_grads=True)))
    return torch.stack(rows)


def clipped_sum(rows, weights, radius):
    """The definition: sum of w_i * min(1, C / |v_i|) * v_i, in double precision."""
    rows = rows.double()
    norms = rows.norm(dim=1)
    factors = torch.where(norms > radius, radius / norms, torch.ones_like(norms))
    return (weights.double() * factors) @ rows


def relative_error(value, expected):
    return float((value.double() - expected.double()).norm() / expected.double().norm())
