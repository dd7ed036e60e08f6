"""Kill a run at any moment, resume it, and nobody can tell: same bytes, each release once."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from torch import nn

import diff2
from catalogue import CATALOGUE, PRIVATE, run
from diff2 import Budget, Diff2, GradientDescent
from diff2.privacy import Ledger
from diff2.training import directory as checkpoints
from diff2.training.loop import checkpoint_path, ledger_path

STEP = GradientDescent(learning_rate=0.1)
ROUNDS = 25
BUDGET = Budget(epsilon=1.0, delta=1e-5)


def algorithm(**changes):
    settings = {"rounds": ROUNDS, "restart_interval": 4, "clip_gradient": 1.0, "clip_smoothness": 2.0, "routine": STEP}
    return Diff2(**{**settings, **changes})


def data(size=60, inputs=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, inputs, generator=generator)
    return x, x.sum(1, keepdim=True)


def train(directory, *, clients=None, rounds_before_crash=None, resume=False, seed=5, settings=None, **options):
    """Train; with ``rounds_before_crash``, die in the callback after so many rounds, without any tidying up."""

    def crash(state, info):
        if state.round == rounds_before_crash:
            raise KeyboardInterrupt

    torch.manual_seed(0)
    model = options.pop("model", None) or nn.Sequential(nn.Linear(3, 5), nn.Softplus(), nn.Linear(5, 1))
    return diff2.train(
        model,
        "squared",
        data() if clients is None else clients,
        settings or algorithm(),
        options.pop("budget", BUDGET),
        seed=seed,
        directory=directory,
        resume=resume,
        callbacks=[crash] if rounds_before_crash else [],
        **options,
    )


@pytest.mark.parametrize("crash_after", [1, 4, ROUNDS - 1])
@pytest.mark.parametrize("every_round", [True, False])
@pytest.mark.parametrize("options", [{}, {"output": "uniform"}, {"dtype": torch.float64}], ids=str)
def test_resume_is_byte_identical_and_releases_once(tmp_path, monkeypatch, crash_after, every_round, options):
    monkeypatch.setattr("diff2.training.loop.CHECKPOINT_SECONDS", -1.0 if every_round else 1e9)
    whole = train(tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "cut", rounds_before_crash=crash_after, **options)
    resumed = train(tmp_path / "cut", resume=True, **options)
    assert torch.equal(whole.params, resumed.params)
    assert whole.history.drop(columns="seconds").equals(resumed.history.drop(columns="seconds"))
    assert ledger_path(tmp_path / "whole").read_bytes() == ledger_path(tmp_path / "cut").read_bytes()


class Killed(BaseException):
    """The process dies: nothing catches it, nothing is tidied up."""


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_algorithm_resumes_byte_identically_wherever_it_was_killed(name, tmp_path, monkeypatch):
    """Killed again and again between two releases, in the middle of rounds too: the same bytes, each release once."""
    whole = run(name, budget=PRIVATE, directory=tmp_path / "whole")
    monkeypatch.setattr("diff2.training.loop.CHECKPOINT_SECONDS", -1.0)  # after every round
    every = len(whole.ledger) // 4 + 1
    lines, record = 0, Ledger.record

    def count(ledger, entry):
        nonlocal lines
        before = len(ledger)
        record(ledger, entry)
        lines += len(ledger) - before  # a line that was there already is not written again
        if len(ledger) > before and lines % every == 0:
            raise Killed

    monkeypatch.setattr(Ledger, "record", count)
    killed, result = 0, None
    while result is None:
        try:
            result = run(name, budget=PRIVATE, directory=tmp_path / "cut", resume=True)
        except Killed:
            killed += 1
    assert killed == len(whole.ledger) // every
    assert lines == len(whole.ledger)
    assert torch.equal(whole.params, result.params)
    assert whole.history.drop(columns="seconds").equals(result.history.drop(columns="seconds"))
    assert ledger_path(tmp_path / "whole").read_bytes() == ledger_path(tmp_path / "cut").read_bytes()
    # The file says it all: nothing else is needed to know what was released and what it cost.
    assert Ledger.read(ledger_path(tmp_path / "cut")).entries == whole.ledger.entries
    assert Ledger.read(ledger_path(tmp_path / "cut")).epsilon() == whole.epsilon


def test_resume_without_a_seed_repeats_the_same_noise(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "one", seed=None, rounds_before_crash=10)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    first, second = (train(tmp_path / name, seed=None, resume=True) for name in ("one", "two"))
    assert torch.equal(first.params, second.params)
    assert not first.guarantee.startswith("NOT PRIVATE")


def test_dropout_resumes_with_the_same_masks(tmp_path):
    model = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5), nn.Linear(5, 1))
    whole = train(tmp_path / "whole", model=model)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "cut", rounds_before_crash=7, model=model)
    assert torch.equal(whole.params, train(tmp_path / "cut", resume=True, model=model).params)


def test_resuming_a_complete_run_gives_its_result_and_spends_nothing(tmp_path):
    whole = train(tmp_path)
    before = ledger_path(tmp_path).read_bytes()
    again = train(tmp_path, resume=True)
    assert torch.equal(whole.params, again.params)
    assert again.epsilon == whole.epsilon
    assert ledger_path(tmp_path).read_bytes() == before


def test_resume_with_nothing_there_starts(tmp_path):
    assert len(train(tmp_path / "new", resume=True).history) == ROUNDS


def test_the_key_is_private_while_the_run_lasts_and_gone_afterwards(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, seed=None, rounds_before_crash=5)
    path = checkpoint_path(tmp_path)
    key = checkpoints.load(path).key
    assert len(key) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    train(tmp_path, seed=None, resume=True)
    assert checkpoints.load(path).key == b""
    assert all(key.hex().encode() not in file.read_bytes() for file in tmp_path.iterdir())


OTHER = {
    "another budget": dict(budget=Budget(2.0, 1e-5)),
    "another delta": dict(budget=Budget(1.0, 1e-6)),
    "another clip": dict(settings=algorithm(clip_gradient=1.5)),
    "another interval": dict(settings=algorithm(restart_interval=5)),
    "more rounds": dict(settings=algorithm(rounds=ROUNDS + 1)),
    "another rate": dict(settings=algorithm(routine=GradientDescent(0.2))),
    "another algorithm": dict(settings=diff2.DPGD(ROUNDS, 1.0, STEP)),
    "another seed": dict(seed=6),
    "no seed": dict(seed=None),
    "another size": dict(clients=data(61)),
    "another split": dict(clients=[data(30), data(30)]),
    "other columns": dict(clients=data(60, inputs=4), model=nn.Linear(4, 1)),
    "another model": dict(model=nn.Linear(3, 1)),
    "another start": dict(model=nn.Sequential(nn.Linear(3, 5), nn.Softplus(), nn.Linear(5, 1)).requires_grad_(True)),
    "another weighting": dict(weighting="records"),
    "another accounting": dict(accounting="paper"),
    "another dtype": dict(dtype=torch.float64),
    "another output": dict(output="uniform"),
    "other records of the same shape": dict(clients=data(seed=9)),
}


@pytest.mark.parametrize("changes", OTHER.values(), ids=OTHER)
def test_resume_with_anything_changed_is_refused_and_nothing_is_lost(tmp_path, changes):
    if changes.get("model") is not None and len(list(changes["model"].parameters())) == 4:
        with torch.no_grad():
            changes["model"][0].weight.add_(1.0)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, rounds_before_crash=8)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(diff2.CheckpointError, match=r"another run|other records"):
        train(tmp_path, resume=True, **changes)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert len(train(tmp_path, resume=True).history) == ROUNDS


def test_a_run_directory_is_not_overwritten(tmp_path):
    train(tmp_path)
    with pytest.raises(diff2.CheckpointError, match="resume"):
        train(tmp_path)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, rounds_before_crash=8)
    path = checkpoint_path(tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(diff2.CheckpointError, match="not a checkpoint"):
        train(tmp_path, resume=True)


def test_a_ledger_without_its_checkpoint_is_refused(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, rounds_before_crash=8)
    checkpoint_path(tmp_path).unlink()
    with pytest.raises(diff2.CheckpointError, match="no checkpoint"):
        train(tmp_path, resume=True)


SCRIPT = textwrap.dedent(
    """
    import sys, torch, diff2, diff2.training.loop
    diff2.training.loop.CHECKPOINT_SECONDS = 0.02
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 3, generator=generator)
    algorithm = diff2.Diff2(400, 20, 1.0, 2.0, routine=diff2.GradientDescent(0.1))
    result = diff2.train(diff2.mlp(3, 1, seed=0), "squared", (x, x.sum(1, keepdim=True)), algorithm,
                         diff2.Budget(1.0, 1e-5), seed=1, directory=sys.argv[1], resume=True)
    result.save(sys.argv[1])
    """
)


def test_kill_9_at_any_moment_and_resume(tmp_path):
    """A real process, killed again and again at odd moments, leaves the same bytes as one that ran through."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    subprocess.run([*command, str(whole)], check=True, env=environment)
    killed = 0
    for wait in (0.0, 0.11, 0.25):
        process = subprocess.Popen([*command, str(cut)], env=environment)
        ledger, size = ledger_path(cut), _size(ledger_path(cut))
        while process.poll() is None and _size(ledger) <= size:  # until it releases something
            time.sleep(0.002)
        time.sleep(wait)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.wait()
    subprocess.run([*command, str(cut)], check=True, env=environment)
    assert killed >= 2
    assert ledger_path(whole).read_bytes() == ledger_path(cut).read_bytes()
    first, second = (torch.load(folder / "model.pt", weights_only=True) for folder in (whole, cut))
    assert all(torch.equal(first[name], second[name]) for name in first)


def _size(path):
    return path.stat().st_size if path.exists() else 0
