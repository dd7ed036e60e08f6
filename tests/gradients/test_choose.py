"""Which engine a model gets: from its declaration alone, and with the right gradients whichever it is."""

import inspect
import math
import subprocess
import sys
import warnings
from itertools import pairwise
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from written_models import FALLBACKS, LOSSES, from_function, tokens, vectors

import diff2
from diff2.errors import GradientFallbackWarning, InvalidArgument
from diff2.gradients import Masks, Shapes, build_engine, choose, probe
from diff2.gradients.choose import ENGINES
from diff2.models.losses import cross_entropy, squared
from helpers import WrittenNorm, clipped_sum, difference, gradient, gradient_rows, relative_error, start_of, step_from


def build(case, **options):
    return build_engine(case.model, case.loss, case.shapes, **options)


def seeded(build_model):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build_model()


def assert_right_sums(engine, case):
    params = start_of(case.model)
    previous = step_from(params, 1e-2)
    now, before = (gradient_rows(case, point) for point in (params, previous))
    records = case.weighted()
    for rows, compute in (
        (now, lambda radius: gradient(engine, params, records, radius)),
        (now - before, lambda radius: difference(engine, params, previous, records, radius)),
    ):
        for radius in (float(rows.norm(dim=1).median()), math.inf):
            assert relative_error(compute(radius), clipped_sum(rows, records.weights, radius)) < 1e-9


# From the declaration alone


def test_no_records_are_given_and_the_made_up_ones_are_always_the_same():
    assert not {"inputs", "targets", "records"} & set(inspect.signature(build_engine).parameters)
    case = vectors(nn.Linear(3, 2), 3, outputs=2)
    seen = []
    with mock.patch.object(choose, "try_model", side_effect=lambda *a: seen.append(choose_try(*a)) or seen[-1]):
        for scale in (1.0, 1e6):
            build(case._replace(inputs=scale * case.inputs, targets=scale * case.targets))
    one, other = (found.records for found in seen)
    assert all(map(torch.equal, one, other))


choose_try = choose.try_model


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_whole_inputs_are_within_every_embedding_and_not_all_alike(dtype):
    model = nn.ModuleList([nn.Embedding(7, 2), nn.Embedding(4, 2)]) if dtype != torch.bool else nn.Linear(3, 1)
    for shape in ((), (1,), (5,), (4, 2)):
        inputs = probe.made_up_inputs(Shapes(shape, (), dtype), model, 3)
        assert (inputs.dtype, inputs.shape) == (dtype, (3, *shape))
        assert 0 <= int(inputs.min()) <= int(inputs.max()) < (4 if dtype != torch.bool else 2)
        assert len(torch.unique(inputs, dim=0)) > 1


def test_targets_fit_the_loss():
    outputs = torch.zeros(3, 7)
    classes = probe.made_up_targets(Shapes((5,), (), targets_dtype=torch.int64), cross_entropy, outputs)
    assert classes.tolist() == [0, 1, 2]
    assert probe.made_up_targets(Shapes((5,), (), targets_dtype=torch.int64), squared, outputs).max() == 1
    assert probe.made_up_targets(Shapes((5,), (7,)), squared, outputs).shape == (3, 7)


def test_classes_are_within_the_outputs():
    assert (
        build_engine(nn.Linear(3, 2), cross_entropy, Shapes((3,), (), targets_dtype=torch.int64))[0].name == "columns"
    )


# Fully connected networks


COLUMNS = {
    "linear": lambda: nn.Linear(5, 1),
    "two linear layers": lambda: nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 1)),
    "sequences within": lambda: nn.Sequential(nn.Sequential(nn.Linear(5, 6), nn.SiLU()), nn.Linear(6, 1, bias=False)),
    "wide": lambda: nn.Sequential(nn.Linear(5, 70), nn.ReLU(), nn.Linear(70, 40), nn.GELU(), nn.Linear(40, 1)),
    "several outputs": lambda: nn.Sequential(
        nn.Linear(5, 4), nn.Sigmoid(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)
    ),
}
GHOST = {
    "an unknown function": lambda: nn.Sequential(nn.Linear(5, 4), nn.Hardtanh(), nn.Linear(4, 1)),
    "another softplus": lambda: nn.Sequential(nn.Linear(5, 4), nn.Softplus(beta=2), nn.Linear(4, 1)),
    "an early threshold": lambda: nn.Sequential(nn.Linear(5, 4), nn.Softplus(threshold=1), nn.Linear(4, 1)),
    "another gelu": lambda: nn.Sequential(nn.Linear(5, 4), nn.GELU(approximate="tanh"), nn.Linear(4, 1)),
    "a function at the end": lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1), nn.Sigmoid()),
    "two functions": lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Sigmoid(), nn.Linear(4, 1)),
}


@pytest.mark.parametrize("name", [*COLUMNS, *GHOST])
def test_a_sequence_of_linear_layers_and_known_functions_runs_as_columns(name):
    case = vectors(seeded((COLUMNS | GHOST)[name]), 5, count=30)
    engine, _ = build(case)
    assert engine.name == ("columns" if name in COLUMNS else "ghost")
    assert_right_sums(engine, case)


@pytest.mark.parametrize("outputs", [2, 7])
@pytest.mark.parametrize("hidden", [(), (6,), (40, 3)])
def test_classes_run_as_columns(outputs, hidden):
    layers = seeded(lambda: [nn.Linear(*pair) for pair in pairwise([5, *hidden, outputs])])
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())))[:-1]
    case = vectors(model, 5, count=30, loss=cross_entropy)
    case = case._replace(targets=torch.arange(30) % outputs)
    engine, _ = build(case)
    assert engine.name == "columns"
    assert_right_sums(engine, case)


CHANGED = {
    "a hook": lambda model: model[0].register_forward_hook(lambda module, inputs, output: 2 * output),
    "a hook before": lambda model: model[2].register_forward_pre_hook(lambda module, inputs: (2 * inputs[0],)),
    "a hook that the tried records do not show": lambda model: model[2].register_forward_hook(
        lambda module, inputs, output: output.clamp(max=1e3)
    ),
    "another forward": lambda model: setattr(model[1], "forward", lambda z: torch.tanh(z).clamp(max=1e3)),
}


@pytest.mark.filterwarnings("ignore::diff2.GradientFallbackWarning")
@pytest.mark.parametrize("name", CHANGED)
def test_a_layer_that_does_more_than_its_type_says_does_not_run_as_columns(name):
    case = vectors(seeded(lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))), 5)
    CHANGED[name](case.model)
    engine, _ = build(case)
    assert engine.name != "columns"
    assert_right_sums(engine, case)


# One hidden layer of softplus units, with and without a compiler


SMALL = Shapes((5,), (1,))
CLASSES = Shapes((5,), (), targets_dtype=torch.int64)


def small():
    return diff2.mlp(5, 1, seed=0)


NOT_COMPILED = {
    "two hidden layers": (
        lambda: nn.Sequential(*diff2.mlp(5, 4, seed=0), nn.Softplus(), nn.Linear(4, 1)),
        "Sequential",
    ),
    "no hidden layer": (lambda: nn.Linear(5, 1), "Sequential"),
    "another function": (lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)), "Sequential"),
    "no bias": (lambda: nn.Sequential(nn.Linear(5, 4, bias=False), nn.Softplus(), nn.Linear(4, 1)), "bias is missing"),
    "double precision": (lambda: small().double(), "float32"),
    "many units": (lambda: nn.Sequential(nn.Linear(5, 33), nn.Softplus(), nn.Linear(33, 1)), "at most"),
    "many outputs": (lambda: nn.Sequential(nn.Linear(5, 4), nn.Softplus(), nn.Linear(4, 41)), "at most"),
    "many features": (lambda: diff2.mlp(1100, 1, seed=0), "at most"),
    "a frozen layer": (
        lambda: nn.Sequential(nn.Linear(5, 4).requires_grad_(False), nn.Softplus(), nn.Linear(4, 1)),
        "frozen",
    ),
}


def test_the_network_of_the_paper_is_compiled():
    pytest.importorskip("numba")
    assert build_engine(small(), squared, SMALL)[0].name == "compiled"
    assert build_engine(diff2.mlp(5, 3, seed=0), cross_entropy, CLASSES)[0].name == "compiled"


@pytest.mark.parametrize("name", NOT_COMPILED)
def test_another_network_runs_as_columns_and_forcing_the_compiled_engine_is_refused(name):
    model, reason = NOT_COMPILED[name][0](), NOT_COMPILED[name][1]
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    dtype = linear[0].weight.dtype
    shapes = Shapes((linear[0].in_features,), (linear[-1].out_features,), dtype, dtype)
    assert build_engine(model, squared, shapes)[0].name == "columns"
    with pytest.raises(InvalidArgument, match=f"engine='compiled' does not support this model: .*{reason}"):
        build_engine(model, squared, shapes, engine="compiled")


def test_a_loss_of_ones_own_runs_as_columns():
    assert build_engine(small(), lambda outputs, targets: (outputs - targets).abs().sum(1), SMALL)[0].name == "columns"


def test_without_the_compiler_the_columns_engine_does_it_silently_and_a_forced_one_says_what_to_install():
    code = """
import sys, warnings
sys.modules["numba"] = None
import torch, diff2
from diff2.gradients import Shapes, build_engine
from diff2.models.losses import squared
warnings.simplefilter("error")
model = diff2.mlp(5, 1, seed=0)
print(build_engine(model, squared, Shapes((5,), (1,)))[0].name)
try:
    build_engine(model, squared, Shapes((5,), (1,)), engine="compiled")
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    name, message = done.stdout.splitlines()
    assert name == "columns"
    assert "pip install 'diff2[fast]'" in message
    assert not done.stderr


@pytest.mark.parametrize("what", [{"side_effect": OSError("disk full")}, {}], ids=["cannot be run", "does nothing"])
def test_a_kernel_that_does_not_work_is_not_used(what):
    kernels = pytest.importorskip("diff2.gradients.kernels")
    with mock.patch.object(kernels, "add_differences", **what):
        assert build_engine(small(), squared, SMALL)[0].name == "columns"


# Forced, and the same everywhere


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_can_be_forced(name):
    if name == "compiled":
        pytest.importorskip("numba")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build_engine(small(), squared, SMALL, engine=name)[0].name == name


def test_the_portable_choice_does_not_depend_on_what_is_installed():
    assert build_engine(small(), squared, SMALL, engine="portable")[0].name == "columns"
    with pytest.warns(GradientFallbackWarning):
        assert build(FALLBACKS["gru"](), engine="portable")[0].name in ("vmap", "loop")


@pytest.mark.parametrize(
    ("engine", "options", "message"),
    [
        ("columns", {"grouped": True}, "records are groups"),
        ("ghost", {}, "there is no rule for layer 'rnn' .GRU.; diff2.gradients.register_rule adds one"),
        ("fused", {}, "expected engine to be one of"),
    ],
)
def test_an_engine_that_cannot_serve_is_refused_with_the_reason(engine, options, message):
    with pytest.raises(InvalidArgument, match=message):
        build(FALLBACKS["gru"](), engine=engine, **options)


# Random numbers


@pytest.mark.parametrize("p", [0.5, 0.1, 1e-3, 1e-6])
def test_dropout_is_noticed_however_rare(p):
    engine, stochastic = build(vectors(nn.Sequential(nn.Linear(3, 10), nn.Dropout(p), nn.Tanh(), nn.Linear(10, 1)), 3))
    assert (engine.name, stochastic) == ("ghost", True)


def test_dropout_in_eval_mode_is_no_randomness():
    engine, stochastic = build(vectors(nn.Sequential(nn.Linear(3, 10), nn.Dropout(0.5), nn.Linear(10, 1)).eval(), 3))
    assert (engine.name, stochastic) == ("ghost", False)


def test_dropout_beside_bare_parameters_keeps_the_fast_engine():
    case = vectors(nn.Sequential(WrittenNorm(3), nn.Linear(3, 10), nn.Dropout(0.5), nn.Linear(10, 1)), 3)
    engine, stochastic = build(case)
    assert (engine.name, stochastic) == ("ghost", True)
    params = start_of(case.model)
    slow = ENGINES["loop"](case.model, case.loss)
    for one in case.one_by_one():  # then both draw the same masks
        found, expected = (gradient(kind, params, one, 0.1, masks=Masks(b"1")) for kind in (engine, slow))
        assert relative_error(found, expected) < 1e-9


@pytest.mark.filterwarnings("ignore::diff2.GradientFallbackWarning")
def test_functional_dropout_has_the_same_mask_at_both_iterates():
    model = from_function(
        lambda self, x: self.out(F.dropout(self.first(x), 0.5)), first=nn.Linear(3, 10), out=nn.Linear(10, 1)
    )
    case = vectors(model, 3)
    engine, stochastic = build(case)
    assert stochastic
    params = start_of(case.model)
    assert not difference(engine, params, params.clone(), case.records, 1.0, masks=Masks(b"1")).any()


# Accepted, with a slower engine


@pytest.mark.parametrize("name", FALLBACKS)
def test_a_model_without_a_rule_gets_a_slower_engine_and_right_gradients(name):
    case = FALLBACKS[name]()
    with pytest.warns(GradientFallbackWarning, match="slower") as caught:
        engine, stochastic = build(case)
    assert len(caught) == 1
    assert engine.name in ("vmap", "loop")
    assert not stochastic
    assert_right_sums(engine, case)


def test_pretrained_batch_normalisation_is_allowed_in_eval_mode():
    case = vectors(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4).eval(), nn.Tanh(), nn.Linear(4, 1)), 3)
    with pytest.warns(GradientFallbackWarning, match="BatchNorm1d"):
        engine, _ = build(case)
    assert_right_sums(engine, case)


def test_instance_normalisation_without_statistics_is_accepted():
    model = nn.Sequential(nn.Conv1d(1, 2, 3), nn.InstanceNorm1d(2, affine=True), nn.Flatten(), nn.Linear(6, 1))
    case = vectors(model, 1, 5)
    with pytest.warns(GradientFallbackWarning):
        engine, _ = build(case)
    assert_right_sums(engine, case)


def test_a_model_whose_records_cannot_be_told_apart_computes_each_alone():
    model = from_function(
        lambda self, x: self.out(self.words(x).mean(1)), words=nn.Embedding(1, 4), out=nn.Linear(4, 3)
    )
    case = tokens(model, words=1)
    with pytest.warns(GradientFallbackWarning, match="cannot be seen whether the model mixes records"):
        engine, _ = build(case)
    assert_right_sums(engine, case)


def test_an_operation_in_place_that_the_tried_records_do_not_show_gives_right_gradients():
    case = FALLBACKS["in place, functionally, further on"]()
    with torch.no_grad():
        case.model.second.bias.fill_(40.0)  # ReLU changes nothing on the tried records, but here
        case.inputs[3:] *= 1e4
        case.model.second.weight *= 60
        assert (case.model.second(torch.tanh(case.model.first(case.inputs))) < 0).any()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GradientFallbackWarning)
        engine, _ = build(case)
    assert_right_sums(engine, case)


def test_a_layer_called_with_a_named_argument_gets_a_slower_engine():
    case = vectors(from_function(lambda self, x: self.out(input=torch.tanh(x)), out=nn.Linear(3, 1)), 3)
    with pytest.warns(GradientFallbackWarning, match="cannot run it"):
        engine, _ = build(case)
    assert_right_sums(engine, case)


def test_layers_called_in_another_order_than_defined_keep_the_fast_engine():
    model = from_function(
        lambda self, x: self.out(torch.tanh(self.second(torch.tanh(self.first(x))))),
        out=nn.Linear(4, 1),
        second=nn.Linear(5, 4),
        first=nn.Linear(3, 5),
    )
    case = vectors(model, 3)
    engine, _ = build(case)
    assert engine.name == "ghost"
    assert_right_sums(engine, case)


def test_an_unused_layer_has_a_zero_gradient():
    case = vectors(from_function(lambda self, x: self.out(x), unused=nn.Linear(4, 4), out=nn.Linear(3, 1)), 3)
    with pytest.warns(GradientFallbackWarning):
        engine, _ = build(case)
    value = gradient(engine, start_of(case.model), case.records)
    assert value[:20].abs().sum() == 0
    assert value[20:].abs().sum() > 0


# Losses


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_mixes_records_is_called_once_per_record(name):
    case = vectors(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)), 3, loss=LOSSES[name])
    with pytest.warns(GradientFallbackWarning, match="once per record") as caught:
        engine, _ = build(case)
    assert len(caught) == 1
    assert engine.name in ("vmap", "loop")
    assert_right_sums(engine, case)


def test_a_loss_of_ones_own_that_gives_one_number_per_record_is_fast():
    def absolute(outputs, targets):
        return F.smooth_l1_loss(outputs, targets, reduction="none").sum(1)

    case = vectors(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)), 3, loss=absolute)
    engine, _ = build(case)
    assert engine.name == "columns"
    assert_right_sums(engine, case)
