"""``diff2 doctor``, shell completion, colours and lines of progress: what is around the commands."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch
from test_verify_command import RUN

import diff2
from commands import diff2_here, write_folder
from diff2 import _progress
from diff2._progress import progress_bar


def test_the_doctor_says_what_is_here(tmp_path):
    result = diff2_here("doctor", tmp_path, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["versions"]["diff2"] == diff2.__version__
    assert found["randomness"]["works"] is True
    assert found["files"]["writable"] is True
    assert found["packages"]["torch"]["installed"] is True
    assert found["problems"] == []
    shown = diff2_here("doctor", tmp_path).stdout
    for word in ("versions", "randomness", "packages", "none"):
        assert word in shown


def test_the_doctor_works_without_pytorch_and_names_what_is_missing(tmp_path, monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("torch", "onnx") else real(name))
    monkeypatch.setitem(sys.modules, "torch", None)
    found = json.loads(diff2_here("doctor", tmp_path, "--json").stdout)
    assert found["packages"]["onnx"] == {
        "installed": False, "version": None, "for": "FittedModel.to_onnx", "install": "pip install 'diff2[onnx]'",
    }  # fmt: skip
    assert "CUDA" not in found["machine"]


def test_the_doctor_finds_a_folder_that_cannot_be_written(tmp_path):
    result = diff2_here("doctor", tmp_path / "none", "--json")
    assert result.exit_code == 1
    assert "is not a folder" in json.loads(result.stdout)["problems"][0]


def test_the_shell_can_complete():
    names = diff2_here("--help", terminal_width="200").stdout
    assert "--install-completion" in names
    script = subprocess.run(
        [sys.executable, "-m", "diff2"],
        env={**os.environ, "_DIFF2_COMPLETE": "complete_bash", "COMP_WORDS": "diff2 ver", "COMP_CWORD": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert script.stdout.split() == ["verify"] or "verify" in script.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo terminals are of POSIX")
@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_are_for_terminals_and_for_those_who_want_them(tmp_path, variables, coloured):
    import pty

    write_folder(tmp_path, RUN, north=60, south=45)
    command = [sys.executable, "-m", "diff2", "plan", str(tmp_path / "run.toml"), "--sizes", "60,45"]
    environment = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    environment |= {"TERM": "xterm-256color", **variables}
    plain = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert "\x1b" not in plain.stdout + plain.stderr
    ours, theirs = pty.openpty()
    subprocess.run(command, stdout=theirs, stderr=theirs, env=environment, check=True)
    os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(ours, 65536):
            seen += chunk
    except OSError:  # the end, on Linux
        pass
    os.close(ours)
    assert bool(re.search(rb"\x1b\[[0-9;]*3[0-9]", seen)) == coloured


def test_a_log_gets_a_line_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(_progress, "BETWEEN_LINES", 0.0)
    with progress_bar(400, show="lines", label="diff2") as report:
        report(120, note=lambda: "epsilon 0.5 so far")
        report(1200, 4000)
    assert capsys.readouterr().err == (
        "diff2: 120 of 400 rounds, epsilon 0.5 so far\ndiff2: 1,200 of 4,000 rounds\n"
    )  # fmt: skip
    monkeypatch.setattr(_progress, "BETWEEN_LINES", 3600.0)
    with progress_bar(2, show="lines") as report:
        report(1, note=lambda: pytest.fail("priced for nobody"))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("device", ["cuda", "cuda:3", "cudaa", "meta2"])
def test_a_device_that_is_not_here_is_one_of_our_errors(device):
    if device.startswith("cuda") and torch.cuda.is_available():
        pytest.skip("there is such a device")
    data = torch.randn(40, 2), torch.randn(40, 1)
    algorithm = diff2.DPGD(2, 1.0, routine=diff2.GradientDescent(0.1))
    with pytest.raises(diff2.InvalidArgument, match="leave device out"):
        diff2.train(torch.nn.Linear(2, 1), "squared", data, algorithm, diff2.Budget(1.0, 1e-3), device=device)
