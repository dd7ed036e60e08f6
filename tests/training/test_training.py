"""The loop: state, callbacks, exact metrics, and bad input refused before anything is spent."""

import math
import warnings

import numpy as np
import pandas
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import diff2
from diff2 import DPGD, GD, Budget, Diff2, GradientDescent, InvalidArgument

STEP = GradientDescent(learning_rate=0.1)
BUDGET = Budget(epsilon=1.0, delta=1e-5)
ALGORITHM = Diff2(rounds=12, restart_interval=4, clip_gradient=1.0, clip_smoothness=2.0, routine=STEP)


def data(size=60, inputs=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, inputs, generator=generator)
    return x, x.sum(1, keepdim=True)


def train(clients=None, model=None, loss="squared", algorithm=ALGORITHM, budget=BUDGET, **options):
    model = nn.Linear(3, 1) if model is None else model
    return diff2.train(model, loss, data() if clients is None else clients, algorithm, budget, **options)


def test_steps_by_hand_equal_the_run():
    model = nn.Linear(3, 1)
    result = train(model=model, seed=2)
    run = diff2.prepare(model, "squared", data(), ALGORITHM, BUDGET, seed=2)
    state = run.init()
    for _ in range(ALGORITHM.rounds):
        state, info = run.step(state)
    assert info.round == state.round == 12
    assert torch.equal(state.params, result.params)


def test_results_do_not_depend_on_the_chunk_size():
    model = nn.Linear(3, 1).double()
    whole, chunked = (train(model=model, seed=2, chunk_rows=rows).params for rows in (None, 7))
    torch.testing.assert_close(whole, chunked, rtol=1e-11, atol=1e-13)


def test_a_callback_sees_every_round_and_can_end_the_run():
    seen = []

    def callback(state, info):
        seen.append((state.round, info.purpose))
        return state.round == 5

    result = train(callbacks=[callback], seed=0)
    assert [round for round, _ in seen] == [1, 2, 3, 4, 5]
    assert len(result.ledger) == len(result.history["round"]) == 5
    assert result.ledger.released_epsilon() < result.epsilon == result.plan.epsilon
    assert result.ledger.complete


def test_exact_metrics_are_loud():
    with pytest.warns(diff2.PrivacyLeakWarning, match="exact training metrics and exact held-out metrics"):
        result = train(metrics_every=4, holdout=data(30, seed=3), seed=0)
    assert np.isfinite(result.history["train_loss"]).sum() == 3
    assert "exact training metrics" in result.guarantee
    assert result.guarantee.startswith("NOT PRIVATE AS A WHOLE")


def test_strict_refuses_leaks():
    with pytest.raises(diff2.PrivacyLeakError, match="strict=True"):
        train(metrics_every=1, strict=True)
    with pytest.raises(diff2.PrivacyLeakError, match="own range"):
        train(leaks=["scaling by the data's own range"], strict=True)
    with pytest.raises(diff2.PrivacyLeakError, match="no noise"):
        train(budget=Budget(math.inf, 1e-5), strict=True)


def test_float64_on_request_and_device():
    result = train(dtype=torch.float64, device="cpu", seed=0)
    assert result.params.dtype == torch.float64
    assert result.model.weight.dtype == torch.float64


def test_arrays_and_tables_are_taken_as_they_are():
    x, y = data()
    model = nn.Linear(3, 1)
    results = [
        train(pair, model=model, seed=0).params
        for pair in ((x, y), (x.numpy(), y.numpy()), (x.double().numpy(), y), (pandas.DataFrame(x.numpy()), y))
    ]
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_a_single_pair_is_one_client():
    x, y = data()
    model = nn.Linear(3, 1)
    pairs = ((x, y), [(x, y)], [[x, y]])
    results = [train(clients, model=model, seed=0).params for clients in pairs]
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_two_clients_are_not_taken_for_one_pair():
    model = nn.Linear(3, 1)
    results = [train(clients, model=model, seed=0) for clients in ([data(), data(40)], (data(), data(40)))]
    assert results[0].plan.client_sizes == results[1].plan.client_sizes == (60, 40)


def test_frozen_parameters_stay_and_the_rest_is_trained():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    result = train(model=model, seed=0)
    assert torch.equal(result.model[0].weight, model[0].weight)
    assert not result.model[0].weight.requires_grad
    assert not torch.equal(result.model[2].weight, model[2].weight)
    assert result.params.numel() == 5


def test_dropout_trains_and_a_seed_repeats_it():
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 1))
    first, second = (train(model=model, seed=4).params for _ in range(2))
    assert torch.equal(first, second)


def test_dropout_and_exact_metrics_leave_the_global_generator_alone():
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 1))
    before = torch.get_rng_state()
    with pytest.warns(diff2.PrivacyLeakWarning):
        result = train(model=model, seed=4, metrics_every=3, holdout=data(30, seed=3))
    assert torch.equal(before, torch.get_rng_state())
    x, y = data()
    model = result.model.eval()
    assert result.history["train_loss"][-1] == pytest.approx((model(x) - y).square().mean().item(), rel=1e-5)


def test_classification_learns():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3000, 2, generator=generator)
    y = (x[:, 0] > x[:, 1]).long()
    algorithm = Diff2(60, 10, clip_gradient=1.0, clip_smoothness=1.0, routine=GradientDescent(1.0))
    result = diff2.train(diff2.mlp(2, 2, seed=0), "cross_entropy", (x, y), algorithm, Budget(3.0, 1e-5), seed=0)
    assert (result.model(x).argmax(1) == y).float().mean() > 0.9


def test_a_loss_of_ones_own():
    model = nn.Linear(3, 1)
    own = train(model=model, loss=lambda outputs, targets: (outputs - targets).square().squeeze(1), seed=0)
    assert torch.equal(own.params, train(model=model, seed=0).params)


def with_nan(tensor):
    tensor = tensor.clone()
    tensor[-1, 0] = math.nan
    return tensor


X, Y = data()
BAD_INPUT = {
    "no clients": (dict(clients=[]), "non-empty list"),
    "empty client": (dict(clients=[(X, Y), (X[:0], Y[:0])]), r"clients\[1\] holds no record"),
    "NaN in inputs": (dict(clients=[(X, Y), (with_nan(X), Y)]), "clients hold values that cannot be used"),
    "infinity in targets": (dict(clients=(X, Y / 0)), "clients hold values that cannot be used"),
    "mismatched lengths": (dict(clients=(X, Y[:-1])), "60 inputs and 59 targets"),
    "targets (n,) against outputs (n, 1)": (dict(clients=(X, Y[:, 0])), r"reshape\(-1, 1\)"),
    "targets (n, 2) against outputs (n, 1)": (dict(clients=(X, Y.repeat(1, 2))), "shape"),
    "targets of type text": (dict(clients=(X, np.array(["a"] * 60))), "array of numbers"),
    "clients with other columns": (dict(clients=[(X, Y), (X[:, :2], Y)]), "same columns"),
    "float classes": (dict(clients=(X, Y[:, 0]), loss="cross_entropy"), r"targets.long\(\)"),
    "classes as a column": (dict(clients=(X, Y.long()), loss="cross_entropy", model=nn.Linear(3, 2)), "class numbers"),
    "class out of range": (
        dict(clients=(X, torch.arange(60) % 3), loss="cross_entropy", model=nn.Linear(3, 2)),
        "clients hold values that cannot be used",
    ),
    "class out of range, later": (
        dict(clients=(X, (torch.arange(60) > 50) * 2), loss="cross_entropy", model=nn.Linear(3, 2)),
        "clients hold values that cannot be used",
    ),
    "unknown loss": (dict(loss="sqared"), "did you mean 'squared'"),
    "model is not a module": (dict(model=lambda x: x), "torch.nn.Module"),
    "nothing to train": (dict(model=nn.Linear(3, 1).requires_grad_(False)), "no trainable parameter"),
    "model for other inputs": (dict(model=nn.Linear(4, 1)), r"inputs of shape \(3, 3\)"),
    "model with the wrong output": (dict(model=nn.Linear(3, 2)), "shape of the model's outputs"),
    "model that sums over records": (dict(model=nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))), "shape"),
    "unknown output": (dict(output="best"), "output"),
    "unknown weighting": (dict(weighting="client"), "did you mean 'clients'"),
    "unknown accounting": (dict(accounting="rdp"), "accounting"),
    "half precision": (dict(dtype=torch.float16), "float32 or torch.float64"),
    "metrics_every 0": (dict(metrics_every=0), "metrics_every >= 1"),
    "holdout without metrics": (dict(holdout=(X, Y)), "metrics_every"),
    "negative seed": (dict(seed=-1), "seed >= 0"),
    "resume without directory": (dict(resume=True), "directory"),
    "budget as a number": (dict(budget=3.0), "diff2.Budget"),
    "infinite clip": (dict(algorithm=DPGD(5, math.inf, STEP)), "clip_gradient to be finite"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_refused_before_anything_is_spent(arguments, message, tmp_path):
    directory = tmp_path / "run"
    if not arguments.get("resume"):
        arguments = {**arguments, "directory": directory}
    with pytest.raises(InvalidArgument, match=message):
        train(**arguments)
    assert not directory.exists() or not any(directory.iterdir())


BAD_SETTINGS = {
    "epsilon 0": lambda: Budget(0.0, 1e-5),
    "epsilon negative": lambda: Budget(-1.0, 1e-5),
    "epsilon NaN": lambda: Budget(math.nan, 1e-5),
    "epsilon text": lambda: Budget("3", 1e-5),
    "delta 0": lambda: Budget(1.0, 0.0),
    "delta 1": lambda: Budget(1.0, 1.0),
    "delta NaN": lambda: Budget(1.0, math.nan),
    "T 0": lambda: Diff2(10, 0, 1.0, 1.0, STEP),
    "T fractional": lambda: Diff2(10, 2.5, 1.0, 1.0, STEP),
    "rounds 0": lambda: GD(0, STEP),
    "rounds True": lambda: GD(True, STEP),
    "clip negative": lambda: DPGD(10, -1.0, STEP),
    "clip 0": lambda: DPGD(10, 0.0, STEP),
    "clip_smoothness negative": lambda: Diff2(10, 2, 1.0, -1.0, STEP),
    "budget_split 1": lambda: Diff2(10, 2, 1.0, 1.0, STEP, budget_split=1.0),
    "learning_rate 0": lambda: GradientDescent(0.0),
    "learning_rate infinite": lambda: GradientDescent(math.inf),
    "no sizes": lambda: diff2.plan(ALGORITHM, BUDGET, []),
    "size 0": lambda: diff2.plan(ALGORITHM, BUDGET, [10, 0]),
}


@pytest.mark.parametrize("build", BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_bad_settings_are_refused_with_their_value(build):
    with pytest.raises(InvalidArgument, match=r"expected .*got"):
        build()


def test_gd_exceeds_every_finite_budget():
    with pytest.raises(diff2.BudgetExceeded, match="GD adds no noise"):
        train(algorithm=GD(5, STEP))


def test_a_weak_delta_is_warned_of():
    with pytest.warns(diff2.WeakDeltaWarning, match="1/60"):
        train(budget=Budget(1.0, 0.5), seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(budget=Budget(1.0, 1 / 61), seed=0)


def test_no_noise_is_loud():
    with pytest.warns(diff2.PrivacyLeakWarning, match="not private"):
        result = train(budget=Budget(math.inf, 1e-5))
    assert result.guarantee.startswith("NOT PRIVATE")
    assert result.epsilon == math.inf


def test_save_writes_model_result_and_history(tmp_path):
    result = train(seed=0, directory=tmp_path)
    result.save(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"model.safetensors", "result.json", "history.csv", "ledger.jsonl", "checkpoint.pt"}
    model = nn.Linear(3, 1)
    model.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(model.weight, result.model.weight)
    assert len(pandas.read_csv(tmp_path / "history.csv")) == 12
    assert diff2.Ledger.read(tmp_path / "ledger.jsonl").epsilon() == result.epsilon
