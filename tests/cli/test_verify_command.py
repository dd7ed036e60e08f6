"""``diff2 verify``: one line, the list of checks, and an exit status that a script can act on."""

import json
import sys

import pytest
import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, x25519
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import diff2
from commands import RUN, change, diff2_here, single_line, write_folder
from stubs import rechained


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path, RUN, north=60, south=45)


def train(folder, *words, out="run"):
    result = diff2_here("train", folder / "run.toml", "--out", folder / out, "--quiet", *words)
    assert result.exit_code == 0, result.stderr
    return folder / out


def verified(run, *words):
    result = diff2_here("verify", run, *words, "--json")
    return result.exit_code, json.loads(result.stdout) if result.stdout else result.stderr


def write_key(path, kind=ed25519.Ed25519PrivateKey):
    """Write a private key, and its public one beside it; return both paths."""
    key, pem = kind.generate(), serialization.Encoding.PEM
    secret = (pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(key.private_bytes(*secret))
    path.chmod(0o600)
    public = path.with_suffix(".pub")
    public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return path, public


def test_a_private_run_is_status_0_and_the_model_is_its_own(folder):
    run = train(folder)
    result = diff2_here("verify", run)
    assert result.exit_code == 0
    first, *checks = result.stdout.splitlines()
    assert first == "private as stated: epsilon 1 at delta 0.001, diff2, 6 of 6 planned releases"
    assert [line.split()[0] for line in checks] == ["checked"] * 8 + ["not"]
    assert "the model, against the hash in the closing line" in result.stdout
    assert "its author could have rewritten all of it" in result.stdout


@pytest.mark.parametrize(
    ("changes", "words", "status", "verdict"),
    [
        (
            [("age = [0, 100]", "smoker = [0, 1]"), ("[model]", 'scale = "data"\n[model]')],
            [],
            4,
            "apart from scaling of",
        ),
        ([], ["--seed", 3], 5, "NOT PRIVATE, its noise came from a seed"),
        ([("epsilon = 1.0", 'epsilon = "inf"')], [], 5, "NOT PRIVATE, no noise"),
    ],
)
def test_what_is_not_private_has_a_status_of_its_own(folder, changes, words, status, verdict):
    change(folder, *changes)
    code, document = verified(train(folder, *words))
    assert (code, document["status"]) == (status, status)
    assert verdict in document["verdict"]


def test_another_model_is_status_1(folder):
    run, other = train(folder), train(folder, out="other")
    (run / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    result = diff2_here("verify", run)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "the run returned a model with" in single_line(result.stderr)
    state = load_file(run / "model.safetensors")
    for changed in (dict(list(state.items())[:-1]), {name: value.double() for name, value in state.items()}):
        save_file(changed, run / "model.safetensors")
        assert verified(run)[0] == 1
    (run / "model.safetensors").write_bytes(b"nothing")
    assert verified(run)[0] == 1
    (run / "model.safetensors").unlink()
    code, document = verified(run)
    assert code == 0
    assert any("no model.safetensors" in what for what in document["not_checked"])


def test_ledger_and_model_are_verified_without_pytorch(folder, monkeypatch):
    run = train(folder)
    monkeypatch.setitem(sys.modules, "torch", None)
    code, document = verified(run)
    assert code == 0
    assert [what.split(":")[0] for what in document["not_checked"]] == ["the signature"]


def test_the_guarantee_is_in_the_metadata_of_the_model_and_is_the_ledgers(folder, monkeypatch):
    run = train(folder)
    file = run / "model.safetensors"
    sentence = verified(run)[1]["guarantee"]["sentence"]
    with safe_open(file, framework="np") as opened:
        assert opened.metadata() == {"format": "pt", "library": f"diff2 {diff2.__version__}", "guarantee": sentence}
    save_file(load_file(file), file, {"guarantee": sentence.replace("(1, 0.001)", "(0.1, 0.001)")})
    assert "states another guarantee than its ledger" in single_line(diff2_here("verify", run).stderr)
    monkeypatch.setattr("diff2.reporting.verdict.__version__", "9.0")
    code, document = verified(run)
    assert code == 0
    assert any("in other words" in what for what in document["not_checked"])


def test_an_edited_ledger_is_status_1_and_an_unfinished_one_is_said(folder):
    run = train(folder)
    file = run / "ledger.jsonl"
    lines = file.read_text().splitlines()
    file.write_text(
        "\n".join(rechained([lines[0].replace('"clip_gradient": 1.0', '"clip_gradient": 3.0'), *lines[1:]]))
    )
    assert verified(run)[0] == 1
    file.write_text("\n".join(lines[:4]) + "\n")
    result = diff2_here("verify", run)
    assert result.exit_code == 0
    assert "3 of 6 planned releases, not complete" in result.stdout


def test_an_algorithm_that_is_not_here_cannot_be_verified(folder):
    run = train(folder)
    file = run / "ledger.jsonl"
    text = (
        file.read_text()
        .replace('"name": "diff2"', '"name": "lazy"')
        .replace(': "diff2", "seeded"', ': "lazy", "seeded"')
    )
    file.write_text("\n".join(rechained(text.splitlines())) + "\n")
    (run / "model.safetensors").unlink()  # its metadata name diff2
    code, document = verified(run)
    assert (code, document["verdict"]) == (1, "not verified")
    assert sum("'lazy' is not installed" in what for what in document["not_checked"]) == 3


def test_a_signature_stops_whoever_rewrites_the_whole_ledger(folder):
    key, public = write_key(folder / "key.pem")
    _, stranger = write_key(folder / "other.pem")
    run = train(folder, "--sign-with", key)
    code, document = verified(run, "--public", public)
    assert code == 0
    assert "the signature, by the key that was given" in document["checked"]
    assert verified(run)[0] == 0
    assert verified(run, "--public", stranger)[0] == 1
    file = run / "ledger.jsonl"
    text = file.read_text()
    file.write_text("\n".join(rechained(text.replace('"engine": "', '"engine": "my ').splitlines())) + "\n")
    code, message = verified(run)  # nothing in it contradicts anything, and yet
    assert code == 1
    assert "chain is" in message
    unsigned = text.replace(diff2.Ledger.read(run / "ledger.jsonl").header["signed_by"], "00" * 32)
    file.write_text("\n".join(rechained(unsigned.splitlines())) + "\n")
    assert verified(run)[0] == 1
    file.write_text(text)
    signature = json.loads((run / "ledger.sig").read_text())
    for changed in (signature | {"signature": "00" * 64}, signature | {"signature": "x"}, signature | {"chain": "x"}):
        (run / "ledger.sig").write_text(json.dumps(changed))
        assert verified(run)[0] == 1
    (run / "ledger.sig").unlink()
    assert "no signature at" in verified(run)[1]
    diff2_here("train", folder / "run.toml", "--out", run, "--resume", "--sign-with", key)
    assert verified(run, "--public", public)[0] == 0


def test_a_run_that_nobody_signed_is_not_by_the_key_that_is_asked_for(folder):
    run, (_, public) = train(folder), write_key(folder / "key.pem")
    code, message = verified(run, "--public", public)
    assert code == 1
    assert "is not signed" in message


def test_the_key_of_the_run_file_is_beside_it_and_read_before_anything_is_spent(folder):
    change(folder, ("[privacy]", '[run]\nsign_with = "key.pem"\n[privacy]'))
    words = ("train", folder / "run.toml", "--out", folder / "run")
    assert "no key at" in single_line(diff2_here(*words).stderr)
    for content in (b"nothing", b""):
        (folder / "key.pem").write_bytes(content)
        assert "is not a PEM private key" in single_line(diff2_here(*words).stderr)
    write_key(folder / "key.pem", x25519.X25519PrivateKey)
    assert "not an Ed25519 key" in single_line(diff2_here(*words).stderr)
    assert not (folder / "run").exists()
    write_key(folder / "key.pem")
    assert any("the signature" in what for what in verified(train(folder))[1]["checked"])


def test_a_run_in_memory_has_nothing_to_sign(tmp_path):
    key, _ = write_key(tmp_path / "key.pem")
    data = torch.randn(40, 2), torch.randn(40, 1)
    algorithm = diff2.DPGD(2, 1.0, routine=diff2.GradientDescent(0.1))
    with pytest.raises(diff2.InvalidArgument, match="directory"):
        diff2.train(torch.nn.Linear(2, 1), "squared", data, algorithm, diff2.Budget(1.0, 1e-3), sign_with=key)


def test_the_header_says_what_columns_are_and_which_file_it_was(folder):
    header = diff2.Ledger.read(train(folder) / "ledger.jsonl").header
    assert header["columns"] == {
        "age": {"role": "input", "bounds": [0.0, 100.0], "source": "public bounds"},
        "smoker": {"role": "input", "bounds": None, "source": "used as it is"},
        "visits": {"role": "target", "bounds": [0.0, 10.0], "source": "public bounds"},
    }
    assert header["run_file"]["text"] == (folder / "run.toml").read_text()
    assert (header["version"], header["library"]) == (diff2.__version__, "diff2")
    change(folder, ("age = [0, 100]", "smoker = [0, 1]"), ("[model]", 'scale = "data"\n[model]'))
    columns = diff2.Ledger.read(train(folder, out="leaky") / "ledger.jsonl").header["columns"]
    assert columns["age"] == {"role": "input", "bounds": None, "source": "read off the data, a leak"}
    change(folder, ('scale = "data"', 'scale = "private"\nscale_bounds = { age = [0, 100] }'))
    columns = diff2.Ledger.read(train(folder, out="private") / "ledger.jsonl").header["columns"]
    assert columns["age"]["source"] == "public bounds, then a private release of mean and deviation"
