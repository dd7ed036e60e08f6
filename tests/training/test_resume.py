"""Kill a run at any moment, resume it, and nobody can tell: same bytes, each release once."""

import shutil
import signal
import stat
import subprocess
import sys
import time
import warnings
from pathlib import Path

import killed_run
import pytest
import torch
from torch import nn

import diff2
from catalogue import CATALOGUE, PRIVATE, result_of, run
from diff2 import Budget, Diff2, GradientDescent
from diff2.gradients import build_engine
from diff2.privacy import Ledger, NoiseSource
from diff2.training import directory as directories
from diff2.training.directory import CHECKPOINT, LEDGER
from stubs import untimed

STEP = GradientDescent(learning_rate=0.1)
ROUNDS = 15
BUDGET = Budget(epsilon=1.0, delta=1e-5)


def algorithm(**changes):
    settings = {"rounds": ROUNDS, "restart_interval": 4, "clip_gradient": 1.0, "clip_smoothness": 2.0, "routine": STEP}
    return Diff2(**{**settings, **changes})


def data(size=60, inputs=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, inputs, generator=generator)
    return x, x.sum(1, keepdim=True)


def network(shift=0.0, *more):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), *more, nn.LayerNorm(5), nn.Linear(5, 1))
    with torch.no_grad():
        model[0].weight.add_(shift)
    return model


def train(directory, *, clients=None, rounds_before_crash=None, resume=False, seed=5, settings=None, **options):
    """Train; with ``rounds_before_crash``, die in the callback after so many rounds, without any tidying up."""

    def crash(state, info):
        if state.round == rounds_before_crash:
            raise KeyboardInterrupt

    return diff2.train(
        options.pop("model", None) or network(),
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


def crash(directory, after=8, **options):
    with pytest.raises(KeyboardInterrupt):
        train(directory, rounds_before_crash=after, **options)


def same_history(one, other):
    """Whether the same happened in every round, but for the time it took."""
    assert list(one.history) == list(other.history)
    return all(one.history[name].tolist() == other.history[name].tolist() for name in one.history if name != "seconds")


def same(one, other, folder, cut):
    """Whether two runs, one of them in pieces, left the same: model, history, ledger."""
    return (
        torch.equal(one.params, other.params)
        and same_history(one, other)
        and untimed(folder / LEDGER) == untimed(cut / LEDGER)
    )


@pytest.mark.parametrize("every_round", [True, False])
@pytest.mark.parametrize(
    "options",
    [{}, {"output": "uniform"}, {"dtype": torch.float64}, {"model": network(0.0, nn.Dropout(0.5))}],
    ids=["plain", "uniform", "float64", "dropout"],
)
def test_resume_is_byte_identical_and_releases_once(tmp_path, monkeypatch, every_round, options):
    monkeypatch.setattr("diff2.training.loop.CHECKPOINT_SECONDS", -1.0 if every_round else 1e9)
    whole = train(tmp_path / "whole", **options)
    for after in (1, ROUNDS - 1) if every_round else (4,):
        cut = tmp_path / f"cut {after}"
        crash(cut, after, **options)
        assert same(whole, train(cut, resume=True, **options), tmp_path / "whole", cut)


class Killed(BaseException):
    """The process dies: nothing catches it, nothing is tidied up."""


# Once each state that a checkpoint must hold: the others of the catalogue differ in numbers only.
RESUMED = [
    name for name in CATALOGUE if not name.startswith(("diff2, T", "diff2, u", "diff2, one", "bvr, K", "bvr, u"))
]


@pytest.mark.parametrize("name", [*RESUMED, "private: bvr", "private: srnsgd, 4 batches"])
def test_every_algorithm_resumes_byte_identically_wherever_it_was_killed(name, tmp_path, monkeypatch):
    """Killed again and again between two releases, in the middle of rounds too: the same bytes, each release once."""
    private, name = name.startswith("private"), name.removeprefix("private: ")
    if private:  # noise by digests of values, which the checkpoint must hold for an open tree
        monkeypatch.setattr(NoiseSource, "from_seed", lambda seed: NoiseSource(b"1" * 32, private=True))
    whole = run(name, budget=PRIVATE) if private else result_of(name)
    monkeypatch.setattr("diff2.training.loop.CHECKPOINT_SECONDS", -1.0)  # after every round
    every = len(whole.ledger) // 3 + 1
    lines, record = 0, Ledger.record

    def count(ledger, release):
        nonlocal lines
        before, line = len(ledger), record(ledger, release)
        lines += len(ledger) - before  # a line that was there already is not written again
        if len(ledger) > before and lines % every == 0:
            raise Killed
        return line

    monkeypatch.setattr(Ledger, "record", count)
    killed, result = 0, None
    while result is None:
        try:
            result = run(name, budget=PRIVATE, directory=tmp_path, resume=True)
        except Killed:
            killed += 1
    assert killed == len(whole.ledger) // every
    assert lines == len(whole.ledger)
    assert torch.equal(whole.params, result.params)
    assert same_history(whole, result)
    # The file says it all: nothing else is needed to know what was released and what it cost.
    ledger = Ledger.read(tmp_path / LEDGER)
    assert (ledger.releases, ledger.epsilon()) == (whole.ledger.releases, whole.epsilon)


def test_resume_without_a_seed_repeats_the_same_noise(tmp_path):
    crash(tmp_path / "one", seed=None)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    first, second = (train(tmp_path / name, seed=None, resume=True) for name in ("one", "two"))
    assert torch.equal(first.params, second.params)
    assert not first.guarantee.startswith("NOT PRIVATE")


def test_resuming_a_complete_run_gives_its_result_and_spends_nothing(tmp_path):
    whole = train(tmp_path)
    before = (tmp_path / LEDGER).read_bytes()
    again = train(tmp_path, resume=True)
    assert torch.equal(whole.params, again.params)
    assert again.epsilon == whole.epsilon
    assert (tmp_path / LEDGER).read_bytes() == before
    with pytest.raises(diff2.CheckpointError, match="resume"):  # and it is not overwritten
        train(tmp_path)


def test_resume_with_nothing_there_starts(tmp_path):
    assert len(train(tmp_path / "new", resume=True).history["round"]) == ROUNDS


@pytest.mark.parametrize("written", [None, b"", b'{"kind": "header", "fo'])
def test_killed_before_there_was_a_ledger(tmp_path, monkeypatch, written):
    """The checkpoint with the key comes first: without it the lines of a ledger could not be made again."""
    with monkeypatch.context() as patched:
        patched.setattr("diff2.planning.directory.Ledger", lambda *arguments: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            train(tmp_path / "cut")
    assert [path.name for path in (tmp_path / "cut").iterdir()] == [CHECKPOINT]
    if written is not None:
        (tmp_path / "cut" / LEDGER).write_bytes(written)
    resumed = train(tmp_path / "cut", resume=True)
    assert same(train(tmp_path / "whole"), resumed, tmp_path / "whole", tmp_path / "cut")


def test_the_key_is_private_while_the_run_lasts_and_gone_afterwards(tmp_path):
    crash(tmp_path, seed=None)
    path = tmp_path / CHECKPOINT
    key = directories.load(path).key
    assert len(key) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    train(tmp_path, seed=None, resume=True)
    assert directories.load(path).key == b""
    assert all(key.hex().encode() not in file.read_bytes() for file in tmp_path.iterdir())


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "crashed"
    crash(directory)
    return directory


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
    "another division": dict(clients=[data(30), data(30)]),
    "other columns": dict(clients=data(60, inputs=4), model=nn.Linear(4, 1)),
    "another model": dict(model=nn.Linear(3, 1)),
    "another start": dict(model=network(1.0)),
    "another weighting": dict(weighting="records"),
    "another accounting": dict(accounting="paper"),
    "another dtype": dict(dtype=torch.float64),
    "other chunks": dict(chunk_rows=7),
    "another output": dict(output="uniform"),
    "clients by themselves": dict(by_client=True),
    "groups of records": dict(groups=list(range(60))),
    "other records of the same shape": dict(clients=data(seed=9)),
}


def refused(crashed, directory, match, **changes):
    """Resuming is refused, and nothing is lost."""
    shutil.copytree(crashed, directory)
    with pytest.raises(diff2.CheckpointError, match=match):
        train(directory, resume=True, **changes)
    for path in crashed.iterdir():
        assert (directory / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("changes", OTHER.values(), ids=OTHER)
def test_resume_with_anything_changed_is_refused_and_nothing_is_lost(crashed, tmp_path, changes):
    refused(crashed, tmp_path / "run", r"another run|other records", **changes)


def test_resume_with_another_engine_is_refused(crashed, tmp_path, monkeypatch):
    """An engine changes the last bits, hence what the same noise would hide."""

    def other(*arguments, **options):
        engine, stochastic = build_engine(*arguments, **options)
        engine.name = "another"
        return engine, stochastic

    monkeypatch.setattr("diff2.training.build.build_engine", other)
    refused(crashed, tmp_path / "run", r"belongs to another run: engine was 'ghost' and is now 'another'")


@pytest.fixture
def more_threads():
    """Raises the number of threads that torch computes with."""
    before = torch.get_num_threads()
    yield lambda: torch.set_num_threads(before + 1)
    torch.set_num_threads(before)


def test_resume_with_other_threads_is_refused_where_they_change_bits(crashed, tmp_path, more_threads):
    """Products that threads share are rounded otherwise: a round that is computed again would be a second release."""
    more_threads()
    refused(crashed, tmp_path / "run", r"another run: threads was \d+ and is now \d+. Resume with the original")


@pytest.mark.parametrize("engine", ["compiled", "columns"])
def test_resume_with_other_threads_is_the_same_run_where_they_change_no_bit(tmp_path, more_threads, engine):
    if engine == "compiled":
        pytest.importorskip("numba")
    options = {"model": diff2.mlp(3, 1, hidden=[4], seed=1), "engine": engine}
    whole = train(tmp_path / "whole", **options)
    crash(tmp_path / "cut", **options)
    more_threads()
    assert same(whole, train(tmp_path / "cut", resume=True, **options), tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("what", ["parameters", "buffers"])
def test_resume_with_other_values_in_what_is_not_trained_is_refused(tmp_path, what):
    """They are no part of the start that is trained, but gradients depend on them: another mean, the same noise."""

    class Shifted(nn.Linear):
        def __init__(self, shift):
            super().__init__(3, 1)
            value = torch.full((3,), shift)
            if what == "buffers":
                self.register_buffer("shift", value)
            else:
                self.shift = nn.Parameter(value, requires_grad=False)
            with torch.no_grad():
                self.weight.zero_(), self.bias.zero_()

        def forward(self, inputs):
            return super().forward(inputs + self.shift)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", diff2.GradientFallbackWarning)
        crash(tmp_path, model=Shifted(0.0))
        with pytest.raises(diff2.CheckpointError, match="another run"):
            train(tmp_path, model=Shifted(1.0), resume=True)


def test_a_damaged_checkpoint_is_refused(crashed, tmp_path):
    shutil.copytree(crashed, tmp_path / "run")
    path = tmp_path / "run" / CHECKPOINT
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(diff2.CheckpointError, match="not a checkpoint"):
        train(tmp_path / "run", resume=True)
    path.unlink()
    with pytest.raises(diff2.CheckpointError, match="no checkpoint"):  # and a ledger without one
        train(tmp_path / "run", resume=True)


@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_kill_9_at_any_moment_and_resume(tmp_path, kills):
    """A real process, killed at odd moments, leaves the same bytes as one that ran through."""
    command = [sys.executable, killed_run.__file__, str(tmp_path / "cut")]
    ledger, killed = tmp_path / "cut" / LEDGER, 0
    for attempt in range(kills):
        process, size = subprocess.Popen(command), _size(ledger)
        while process.poll() is None and _size(ledger) <= size:  # until it releases something
            time.sleep(0.001)
        time.sleep(0.03 * attempt)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.wait()
    assert killed
    resumed, whole = (killed_run.main(tmp_path / name) for name in ("cut", "whole"))
    assert same(whole, resumed, tmp_path / "whole", tmp_path / "cut")


def _size(path: Path):
    return path.stat().st_size if path.exists() else 0
