"""Exact metrics: what plain autograd gives, from whichever engine, and without a trace in the run."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import diff2
from diff2.gradients import Records
from diff2.gradients.columns import ColumnsEngine
from diff2.models.losses import cross_entropy
from helpers import start_of
from probes import plain_sum

SIZES = (40, 25, 100)
CLASSES = 3


def a_model(loss, *, plain=True):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, CLASSES if loss == "cross_entropy" else 1)]
    return nn.Sequential(*layers) if plain else nn.Sequential(nn.LayerNorm(4), *layers)


def some_records(loss, sizes=SIZES, seed=0):
    generator = torch.Generator().manual_seed(seed)
    clients = []
    for size in sizes:
        inputs = torch.randn(size, 4, generator=generator)
        if loss == "cross_entropy":
            clients.append((inputs, torch.randint(0, CLASSES, (size,), generator=generator)))
        else:
            clients.append((inputs, torch.randn(size, 1, generator=generator)))
    return clients


def run(loss, model, *, function=None, weighting="records", metrics_every=2, rounds=4, **options):
    algorithm = diff2.Diff2(
        rounds=rounds,
        restart_interval=3,
        clip_gradient=1.0,
        clip_smoothness=1.0,
        routine=diff2.GradientDescent(learning_rate=0.1),
    )
    (holdout,) = some_records(loss, (50,), seed=1)
    if metrics_every is not None:
        options["holdout"] = holdout
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", diff2.PrivacyLeakWarning)
        warnings.simplefilter("ignore", diff2.WeakDeltaWarning)
        warnings.simplefilter("ignore", diff2.GradientFallbackWarning)
        result = diff2.train(
            model,
            function or loss,
            some_records(loss),
            algorithm,
            diff2.Budget(epsilon=5.0, delta=1e-3),
            seed=1,
            weighting=weighting,
            metrics_every=metrics_every,
            **options,
        )
    return result, holdout


def losses_of(loss, outputs, targets):
    if loss == "cross_entropy":
        return F.cross_entropy(outputs, targets, reduction="none")
    return (outputs - targets).square().sum(1)


@pytest.mark.parametrize("weighting", ["records", "clients"])
@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
@pytest.mark.parametrize("plain", [True, False], ids=["columns", "ghost"])
def test_metrics_are_those_of_plain_autograd(loss, plain, weighting):
    result, (x, y) = run(loss, a_model(loss, plain=plain), weighting=weighting)
    assert result.engine == ("columns" if plain else "ghost")
    model, clients = result.model, some_records(loss)
    parts = [losses_of(loss, model(inputs), targets) for inputs, targets in clients]
    objective = (
        torch.stack([part.mean() for part in parts]).mean() if weighting == "clients" else torch.cat(parts).mean()
    )
    gradient = torch.autograd.grad(objective, list(model.parameters()))
    last = {name: column[-1] for name, column in result.history.items()}
    assert last["train_loss"] == pytest.approx(objective.item(), rel=1e-5)
    assert last["squared_gradient_norm"] == pytest.approx(sum(g.square().sum().item() for g in gradient), rel=1e-4)
    assert last["test_loss"] == pytest.approx(losses_of(loss, model(x), y).mean().item(), rel=1e-5)
    if loss == "cross_entropy":
        hits = [int((model(inputs).argmax(1) == targets).sum()) for inputs, targets in clients]
        assert last["train_accuracy"] == pytest.approx(sum(hits) / sum(SIZES), abs=1e-12)
        assert last["test_accuracy"] == pytest.approx(float((model(x).argmax(1) == y).double().mean()), abs=1e-12)
    else:
        assert not {"train_accuracy", "test_accuracy"} & set(result.history)


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_looking_at_the_metrics_changes_no_byte_of_the_run(loss):
    model = a_model(loss)
    looked, _ = run(loss, copy.deepcopy(model), metrics_every=1, rounds=7)
    blind, _ = run(loss, copy.deepcopy(model), metrics_every=None, rounds=7)
    assert torch.equal(looked.params, blind.params)


def test_a_loss_that_averages_its_batch_is_asked_once_a_record():
    def mean_error(outputs, targets):
        return (outputs - targets).square().mean()

    plain, _ = run("squared", a_model("squared"))
    averaged, _ = run("squared", a_model("squared"), function=mean_error)
    assert averaged.engine in ("vmap", "loop")
    for name in ("train_loss", "test_loss", "squared_gradient_norm"):
        assert averaged.history[name][-1] == pytest.approx(plain.history[name][-1], rel=1e-4)


@pytest.mark.parametrize("chunk_rows", [1, 7, 64, None])
def test_an_evaluation_does_not_depend_on_the_chunks(chunk_rows):
    model = a_model("cross_entropy")
    (records,) = some_records("cross_entropy", (130,))
    records = Records.of(*records)
    whole = ColumnsEngine(model, cross_entropy).evaluate(start_of(model), records)
    mine = ColumnsEngine(model, cross_entropy, chunk_rows=chunk_rows).evaluate(start_of(model), records)
    assert torch.equal(mine.hits, whole.hits)
    assert torch.allclose(mine.losses, whole.losses, rtol=1e-5)
    plain = plain_sum(ColumnsEngine(model, cross_entropy), start_of(model), records[:2])
    for gradient in (whole.gradient, plain):
        assert torch.allclose(mine.gradient, gradient, rtol=1e-4, atol=1e-5)


def test_of_equal_outputs_the_first_class_counts():
    """A model that says nothing has the accuracy of its first class, not of every class."""
    model = nn.Linear(4, CLASSES)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    inputs, targets = some_records("cross_entropy", (90,))[0]
    found = ColumnsEngine(model, cross_entropy).evaluate(start_of(model), Records.of(inputs, targets))
    assert torch.equal(found.hits, targets == 0)


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_merged_copies_count_as_often_as_they_occur(loss):
    """Answers and metrics of 165 records, each there three times, are those of the records one by one."""
    clients = [
        (inputs.repeat(3, 1), targets.repeat(*[3] + [1] * (targets.dim() - 1)))
        for inputs, targets in some_records(loss)
    ]
    algorithm = diff2.Diff2(6, 3, 1.0, 1.0, diff2.GradientDescent(0.1))
    found = []
    for merges in (False, True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            training = diff2.prepare(
                a_model(loss), loss, clients, algorithm, diff2.Budget(3.0, 1e-5), seed=0, metrics_every=2
            )
        if merges:
            training.cohort.merge_copies()
            assert training.cohort._whole[0].records.size == sum(SIZES)
        found.append(training.run(progress=False))
    plain, merged = found
    assert torch.allclose(merged.params, plain.params, rtol=1e-5)
    assert not torch.equal(plain.params, start_of(a_model(loss)))
    for name in ("train_loss", "squared_gradient_norm", *(["train_accuracy"] if loss == "cross_entropy" else [])):
        assert merged.history[name][1::2] == pytest.approx(plain.history[name][1::2], rel=1e-5)


def test_few_copies_are_not_merged():
    (client,) = some_records("squared", (40,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training = diff2.prepare(
            a_model("squared"), "squared", [client], diff2.DPGD(2, 1.0, diff2.GradientDescent(0.1)),
            diff2.Budget(3.0, 1e-5), seed=0,
        )  # fmt: skip
    training.cohort.merge_copies()
    assert training.cohort._whole[0].records is training.cohort.records
