"""Runs that are followed: MLflow and TensorBoard get released values, and no other value that depends on records."""

import logging
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import diff2
from diff2 import DPGD, Budget, GradientDescent, MLflowCallback, RunCallback, TensorBoardCallback

ROUNDS = 4
NUMBERS = {
    "clip",
    "sensitivity",
    "noise_std",
    "multiplier",
    "estimate_norm",
    "estimate_std",
    "step_norm",
    "noise_share",
}
TEXTS = {"algorithm", "rounds", "routine", "epsilon", "delta", "unit", "weighting", "adjacency", "accounting"}
TEXTS |= {"guarantee", "health", "engine"}


class Fake:
    """MLflow and a SummaryWriter in one: it keeps what it is given."""

    def __init__(self, fails=False):
        self.numbers, self.texts, self.closed, self.fails = {}, {}, 0, fails

    def log_metrics(self, values, step):
        for name, value in values.items():
            self.add_scalar(name, value, step)

    def add_scalar(self, name, value, step):
        if self.fails:
            raise ConnectionError("no server")
        self.numbers[name, step] = value

    def set_tags(self, values):
        self.texts.update(values)

    log_params = set_tags

    def add_text(self, name, text):
        self.texts[name] = text

    def active_run(self):
        return None

    def flush(self):
        self.closed += 1

    end_run = flush


def trained(callback, **options):
    x = torch.linspace(-1, 1, 60).reshape(-1, 1)
    torch.manual_seed(0)
    algorithm = DPGD(ROUNDS, 1.0, GradientDescent(0.1))
    budget = Budget(1.0, 1e-5)
    return diff2.train(
        nn.Linear(1, 1), "squared", (x, 3 * x), algorithm, budget, seed=0, callbacks=[callback], **options
    )


@pytest.fixture(params=["mlflow", "tensorboard"])
def made(request, monkeypatch):
    """A callback that writes to a fake."""

    def make(**options):
        fake = Fake(**options)
        if request.param == "tensorboard":
            return TensorBoardCallback(fake), fake
        monkeypatch.setitem(sys.modules, "mlflow", fake)
        return MLflowCallback(), fake

    return make


def test_what_is_logged_is_what_was_released(made):
    callback, fake = made()
    result = trained(callback)
    names = {name.removeprefix("diff2/") for name, _ in fake.numbers}
    assert names == NUMBERS | {"released_epsilon"}
    assert {name.removeprefix("diff2/") for name in fake.texts} == TEXTS
    for name in (NUMBERS | {"released_epsilon"}) - {"noise_share"}:
        assert [fake.numbers[f"diff2/{name}", r] for r in range(1, ROUNDS + 1)] == result.history[name].tolist()
    assert all(0 < fake.numbers["diff2/noise_share", r] <= 1 for r in range(1, ROUNDS + 1))
    assert fake.texts["diff2/guarantee"] == result.guarantee
    assert fake.texts["diff2/epsilon"] == "1.0"
    assert fake.closed == 1


def test_exact_metrics_only_of_a_run_that_warned_of_them_and_by_their_name(made):
    callback, fake = made()
    with pytest.warns(diff2.PrivacyLeakWarning, match="LEAK-METRICS"):
        result = trained(callback, metrics_every=2)
    exact = {key for key in fake.numbers if key[0].startswith("exact/")}
    assert exact == {(f"exact/{name}", r) for name in ("train_loss", "squared_gradient_norm") for r in (2, 4)}
    assert fake.numbers["exact/train_loss", 4] == result.history["train_loss"][-1]


def test_a_tracker_that_fails_is_said_once_and_the_run_goes_on(made, caplog):
    callback, fake = made(fails=True)
    with caplog.at_level(logging.WARNING, "diff2"):
        assert len(trained(callback).history["round"]) == ROUNDS
    assert [record.getMessage().partition(" has")[0] for record in caplog.records] == [type(callback).__name__]
    assert not fake.numbers


def test_a_run_of_ones_own_that_was_active_is_left_open(monkeypatch):
    fake = Fake()
    fake.active_run = lambda: SimpleNamespace()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    trained(MLflowCallback())
    assert fake.closed == 0


def test_a_long_run_has_a_curve_of_few_points(monkeypatch):
    monkeypatch.setattr("diff2.training.callbacks.POINTS", 2)
    fake = Fake()
    trained(TensorBoardCallback(fake))
    assert [step for name, step in fake.numbers if name == "diff2/released_epsilon"] == [4, 2]


def test_a_callback_of_ones_own_hears_of_beginning_rounds_and_end_once(tmp_path):
    class Mine(RunCallback):
        heard = ()

        def begin(self, plan):
            self.heard += (plan.budget.epsilon,)

        def __call__(self, state, info):
            self.heard += (info.round,)
            return info.round == 2

        def end(self, result):
            self.heard += (len(result.history["round"]),)

    mine = Mine()
    trained(mine, directory=tmp_path)
    assert mine.heard == (1.0, 1, 2, 2)
    trained(mine, directory=tmp_path, resume=True)  # it is complete: nothing happens, nothing is heard
    assert mine.heard == (1.0, 1, 2, 2)


@pytest.mark.parametrize(
    ("module", "make", "extra"),
    [
        ("mlflow", MLflowCallback, "mlflow"),
        ("torch.utils.tensorboard", lambda: TensorBoardCallback("x"), "tensorboard"),
    ],
)
def test_without_the_package_it_is_said_what_to_install(module, make, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"pip install 'diff2\[{extra}\]'"):
        make()


@pytest.mark.filterwarnings("ignore")  # theirs
def test_the_real_ones(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    trained(TensorBoardCallback(tmp_path / "board"))
    board = events.EventAccumulator(str(tmp_path / "board")).Reload()
    assert len(board.Scalars("diff2/estimate_norm")) == ROUNDS
    with mlflow.start_run() as run:
        result = trained(MLflowCallback())
    logged = mlflow.get_run(run.info.run_id).data
    assert logged.params["diff2/algorithm"] == "dpgd"
    assert logged.metrics["diff2/released_epsilon"] == result.history["released_epsilon"][-1]
    assert logged.tags["diff2/guarantee"] == result.guarantee
