"""``diff2 keygen`` and ``diff2 sign``: keys of their owner's alone, signatures that fit, and what they do not prove."""

import json
import os
import stat
from pathlib import Path

import pytest

import diff2
from commands import diff2_here, single_line
from diff2.privacy.signing import make_key
from fitted import few_trees, schema, table
from stubs import rechained


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a fit, which is not signed as it ends."""
    folder = tmp_path_factory.mktemp("signed") / "model"
    with few_trees():
        diff2.fit(table(), schema("regression"), epsilon=4.0, directory=folder).save(folder)
    return folder


@pytest.fixture
def copy(run, tmp_path):
    for file in run.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.fixture
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    return [make_key(folder / f"{name}.pem") for name in ("mine", "other")]


def test_a_key_is_its_owners_alone_and_never_overwritten(tmp_path):
    result = diff2_here("keygen", tmp_path / "key.pem", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert stat.S_IMODE(os.stat(found["private"]).st_mode) == 0o600
    assert found["public"].endswith("key.pub.pem")
    assert "PRIVATE" not in Path(found["public"]).read_text()
    before = Path(found["private"]).read_text()
    assert "never overwritten" in single_line(diff2_here("keygen", tmp_path / "key.pem").stderr)
    assert Path(found["private"]).read_text() == before


def test_a_run_is_signed_and_by_whom_is_checked(copy, keys):
    (mine, public), (other, stranger) = keys
    assert diff2_here("verify", copy, "--public", public).exit_code == 1  # not signed yet
    result = diff2_here("sign", copy, "--key", mine)
    assert result.exit_code == 0, result.stderr
    assert "does not prove that records were clipped" in " ".join(result.stdout.split())
    assert diff2_here("verify", copy, "--public", public).exit_code == 0
    assert diff2_here("verify", copy).exit_code == 0
    assert diff2_here("verify", copy, "--public", stranger).exit_code == 1
    assert "nothing was signed" in single_line(diff2_here("sign", copy, "--key", other).stderr)
    assert diff2_here("sign", copy, "--key", mine).exit_code == 0  # the same again
    assert json.loads(diff2_here("report", copy, "--json").stdout)["signed_by"] is not None


def test_a_signed_run_cannot_be_rewritten(copy, keys):
    (mine, public), (other, _) = keys
    diff2_here("sign", copy, "--key", mine)
    file = copy / "ledger.jsonl"
    text = file.read_text()
    file.write_text("\n".join(rechained(text.replace('"engine": "table"', '"engine": "tables"').splitlines())) + "\n")
    assert diff2_here("verify", copy).exit_code == 1
    file.write_text(text)
    forged = json.loads((copy / "ledger.sig").read_text())
    (copy / "ledger.sig").write_text(json.dumps(forged | {"signature": "00" * 64}))
    assert diff2_here("verify", copy).exit_code == 1
    (copy / "ledger.sig").write_text("nothing")
    assert "is not a signature" in single_line(diff2_here("verify", copy).stderr)
    (copy / "ledger.sig").unlink()
    diff2_here("sign", copy, "--key", other)  # somebody else may sign it, and is not taken for the first
    assert diff2_here("verify", copy, "--public", public).exit_code == 1


def test_what_goes_on_is_broken_or_open_to_others_is_not_signed(copy, keys):
    (mine, _), _ = keys
    lines = (copy / "ledger.jsonl").read_text().splitlines(keepends=True)
    (copy / "ledger.jsonl").write_text("".join(lines[:-1]))
    assert "not complete" in single_line(diff2_here("sign", copy, "--key", mine).stderr)
    (copy / "ledger.jsonl").write_text("".join(lines).replace('"gram"', '"game"'))
    assert diff2_here("sign", copy, "--key", mine).exit_code == 1
    (copy / "ledger.jsonl").write_text("".join(lines))
    os.chmod(mine, 0o644)
    assert "chmod 600" in single_line(diff2_here("sign", copy, "--key", mine).stderr)
    assert not (copy / "ledger.sig").exists()
