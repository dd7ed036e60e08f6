"""The Python examples of README and docs run as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = {page.name: re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S) for page in PAGES}


@pytest.mark.parametrize("page", [name for name, blocks in EXAMPLES.items() if blocks and name != "command-line.md"])
def test_the_examples_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    scope = {}
    for block in EXAMPLES[page]:
        exec(compile(block, page, "exec"), scope)


@pytest.mark.filterwarnings("ignore")  # theirs
def test_the_example_of_opacus_runs_with_opacus():
    pytest.importorskip("opacus")
    (block,) = re.findall(r"```py\n(.*?)```", (ROOT / "docs" / "python.md").read_text(encoding="utf-8"), re.S)
    scope = {}
    exec(compile(block, "opacus", "exec"), scope)
    assert scope["engine"].get_epsilon(delta=1e-6) <= 2.01


def test_the_readme_shows_the_sentence_its_example_prints(capsys):
    exec(EXAMPLES["README.md"][1], {})
    printed = " ".join(capsys.readouterr().out.split())
    quoted = " ".join(re.findall(r"^> (.*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M))
    assert printed == quoted


def test_the_readme_fits_a_table(capsys):
    exec(EXAMPLES["README.md"][0], {})
    assert "(1, 1e-05)-differential privacy" in " ".join(capsys.readouterr().out.split())


def test_the_tables_the_run_file_and_the_model_of_the_command_line_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_tables, use_model = EXAMPLES["command-line.md"]
    exec(make_tables, {})
    run_file = (ROOT / "docs" / "run-file.md").read_text(encoding="utf-8")
    (tmp_path / "run.toml").write_text(re.search(r"```toml\n(.*?)```", run_file, re.S)[1], encoding="utf-8")
    command = [sys.executable, "-m", "diff2", "train", "run.toml", "--out", "runs/first", "--quiet"]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    exec(use_model, {})
