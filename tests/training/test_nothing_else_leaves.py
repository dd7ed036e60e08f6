"""Nothing that ever saw records is returned, pickled or kept: a search for planted records in all that a run leaves."""

import gc
import io
import pickle
import types

import numpy as np
import pytest
import torch
from torch import nn

import diff2
from diff2 import Adam, Budget, Diff2, GradientDescent
from diff2.privacy import NoiseSource

MARKER = 1234.5678  # the first input of every record
STOPS = (type, types.ModuleType, types.BuiltinFunctionType)
pytestmark = pytest.mark.filterwarnings("ignore::diff2.GradientFallbackWarning")
ROUNDS = Diff2(rounds=4, restart_interval=2, clip_gradient=1.0, clip_smoothness=2.0, routine=GradientDescent(0.1))


class Keeper(nn.Module):
    """Keeps what it sees in every way a module can, without changing a buffer while it is tried."""

    def __init__(self, sly=True):
        super().__init__()
        self.sly = sly
        self.linear = nn.Linear(3, 1)
        self.linear.register_forward_pre_hook(Hook())
        self.seen = []
        self.hidden = None
        self.register_buffer("statistics", torch.zeros(3))
        self.frozen = nn.Linear(3, 1).requires_grad_(False)

    def forward(self, inputs):
        self.hidden = inputs
        self.seen.append(inputs)
        self.linear.last_input = inputs
        if self.sly and inputs.abs().max() > 1000:
            self.statistics, self.frozen.weight.data = inputs.detach()[0], inputs.detach()[:1]
        return self.linear(inputs)


class Hook:
    def __call__(self, module, inputs):
        self.inputs = inputs


def records(size=40):
    inputs = torch.randn(size, 3, generator=torch.Generator().manual_seed(0))
    inputs[:, 0] = MARKER
    return inputs, inputs.sum(1, keepdim=True)


def reachable(start):
    """Every object that can be reached, but not through classes, modules and the global names of functions."""
    seen, todo = {}, [start]
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, STOPS):
            continue
        seen[id(one)] = one
        if isinstance(one, types.FunctionType):
            todo += [cell.cell_contents for cell in one.__closure__ or ()] + list(one.__defaults__ or ())
        else:
            todo += gc.get_referents(one)
    return list(seen.values())


def holds_marker(one):
    if isinstance(one, torch.Tensor):
        whole = torch.empty(0, dtype=one.dtype).set_(one.detach().cpu().untyped_storage())  # also beside a view
        return one.dtype.is_floating_point and bool(((whole - MARKER).abs() < 1e-3).any())
    if isinstance(one, np.ndarray) and one.dtype.kind == "f":
        return bool((np.abs(one - MARKER) < 1e-3).any())
    return isinstance(one, float) and abs(one - MARKER) < 1e-3


def marked_bytes(data):
    return any(np.array(MARKER, dtype=kind).tobytes() in data for kind in ("<f4", "<f8")) or b"1234.56" in data


def train(*, algorithm=ROUNDS, sly=True, **options):
    settings = {"strict": True, **options}
    return diff2.train(Keeper(sly), "squared", [records(), records(30)], algorithm, Budget(1.0, 1e-5), **settings)


@pytest.mark.parametrize(("engine", "sly"), [("ghost", False), ("loop", False), ("loop", True)])
def test_nothing_reachable_from_a_result_has_seen_a_record(engine, sly):
    result = train(engine=engine, sly=sly)
    assert [one for one in reachable(result) if holds_marker(one)] == []
    assert not marked_bytes(pickle.dumps(result))


def test_a_result_of_exact_metrics_and_adam_holds_no_record():
    algorithm = Diff2(rounds=4, restart_interval=2, clip_gradient=1.0, clip_smoothness=2.0, routine=Adam(0.1))
    with pytest.warns(diff2.PrivacyLeakWarning):
        result = train(strict=False, algorithm=algorithm, metrics_every=2, holdout=records(20))
    assert [one for one in reachable(result) if holds_marker(one)] == []
    assert not marked_bytes(pickle.dumps(result))


def test_a_result_holds_neither_records_nor_key_nor_anything_that_does():
    found = reachable(train())
    kinds = (diff2.gradients.Engine, diff2.cohorts.LocalCohort, NoiseSource, diff2.privacy.Mechanism)
    assert [type(one) for one in found if isinstance(one, kinds)] == []


def test_files_of_a_run_hold_no_record_and_of_a_complete_run_no_key(tmp_path, monkeypatch):
    key = b"\x05" * 16 + b"\xa6" * 16
    monkeypatch.setattr(NoiseSource, "from_system", classmethod(lambda cls: cls(key, private=True)))
    result = train(directory=tmp_path)
    result.save(tmp_path)
    for path in tmp_path.iterdir():
        data = path.read_bytes()
        assert not marked_bytes(data), path
        assert [one for one in (key, key.hex().encode()) if one in data] == [], path
    file = io.BytesIO()
    torch.save(result.model.state_dict(), file)
    assert not marked_bytes(file.getvalue())
    assert key not in pickle.dumps(result)


def test_the_search_finds_planted_records():
    keeper = Keeper()
    keeper(records()[0])
    assert len([one for one in reachable([keeper]) if holds_marker(one)]) >= 3
    assert marked_bytes(pickle.dumps(keeper))
    assert holds_marker(torch.tensor([MARKER, 1.0])[1:])


def test_what_the_caller_put_into_the_model_is_returned_and_what_training_put_there_is_not():
    model = Keeper()
    model.linear.note = "mine"
    result = diff2.train(model, "squared", records(), ROUNDS, Budget(1.0, 1e-5), strict=True)
    assert result.model.hidden is None
    assert result.model.seen == []
    assert result.model.linear.note == "mine"
    assert model.hidden is None
    assert torch.equal(result.model.statistics, torch.zeros(3))
