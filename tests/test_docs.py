"""The examples of README and docs run as they stand: Python and, where it takes long, shell in the slow tests.

A block is ``python`` (runs, in the order of its page), ``bash`` (runs in the slow tests, after the page's Python),
``toml`` (is read; with a title it is written to that file first) or ``text`` (is shown). Every line that begins with
``diff2`` is understood by the command line, wherever it stands.
"""

import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import typer.main

from commands import diff2_here
from diff2.algorithms import ALGORITHMS
from diff2.cli.main import app
from diff2.tables.schema import Schema

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r'^( *)```(\w*)(?: title="([^"]+)")?\n(.*?)^\1```$', re.S | re.M)
OPTIONAL = ("opacus",)  # packages that only some people have; without them their blocks are compiled


class Block(NamedTuple):
    language: str
    title: str
    text: str


def blocks(page):
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [Block(language, title, textwrap.dedent(text)) for _, language, title, text in found]


PAGES = {
    str(page.relative_to(ROOT)): blocks(page)
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
}


def of(language, page):
    return [block.text for block in PAGES[page] if block.language == language]


def run_python(page):
    torch.manual_seed(0)
    scope = {"__name__": page}
    for block in of("python", page):
        code = compile(block, page, "exec")
        others = [name for name in OPTIONAL if re.search(rf"^(import|from) {name}\b", block, re.M)]
        if all(map(find_spec, others)):
            with warnings.catch_warnings():
                if others:
                    warnings.simplefilter("ignore")  # what they warn of is not ours
                exec(code, scope)


def write_files(page, folder):
    for block in PAGES[page]:
        if block.title:
            (folder / block.title).write_text(block.text, encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page):
    text = re.sub(r"^( *)```\w*[^\n]*\n.*?^\1```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.S | re.M)
    assert "```" not in text
    assert {block.language for block in PAGES[page]} <= {"python", "bash", "toml", "text"}


@pytest.mark.parametrize("page", [page for page in PAGES if of("python", page) and page != "docs/command-line.md"])
def test_the_examples_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ALGORITHMS, "_known", dict(ALGORITHMS._known))  # a page may register one
    run_python(page)


@pytest.mark.parametrize("page", [page for page in PAGES if of("toml", page)])
def test_toml_can_be_read(page, tmp_path):
    write_files(page, tmp_path)
    for block in PAGES[page]:
        if block.language == "toml":
            assert tomllib.loads(block.text)
        if block.title.endswith("schema.toml"):
            Schema.read(tmp_path / block.title)


COMMANDS = sorted(
    {
        (page, line.strip().removeprefix("$ "))
        for page, found in PAGES.items()
        for block in found
        if block.language in ("bash", "text")
        for line in block.text.splitlines()
        if re.match(r"\s*(\$ )?diff2 \w", line)
    }
)


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_command_is_understood(page, line):
    words = shlex.split(
        re.split(r"\s[#>|]\s|\s&&\s|\s{2,}#", line.replace("|", "").partition(" # ")[0])[0], comments=True
    )
    words = [word for word in words if word != "..." and not word.startswith("[")]
    command, rest = typer.main.get_command(app), words[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        command, rest = command.commands[rest[0]], rest[1:]
    assert not hasattr(command, "commands"), f"diff2 has no command {rest[0]!r}"
    known = {name for option in command.params for name in [*option.opts, *option.secondary_opts]} | {"--help"}
    assert {word.rstrip("]").partition("=")[0] for word in rest if word.startswith("--")} <= known


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if of("bash", page)])
def test_the_commands_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_python(page)
    write_files(page, tmp_path)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    (tmp_path / "diff2").write_text(f'#!/bin/sh\nexec {sys.executable} -m diff2 "$@"\n')
    (tmp_path / "diff2").chmod(0o755)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{tmp_path}{os.pathsep}{path}"}
    for block in of("bash", page):
        subprocess.run(["sh", "-e", "-c", block], check=True, env=environment)


def test_the_readme_shows_the_sentence_its_example_prints(capsys):
    exec(of("python", "README.md")[1], {})
    printed = " ".join(capsys.readouterr().out.split())
    quoted = " ".join(re.findall(r"^> (.*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M))
    assert printed == quoted


def test_the_readme_fits_a_table(capsys):
    exec(of("python", "README.md")[0], {})
    assert "(1, 1e-05)-differential privacy" in " ".join(capsys.readouterr().out.split())


def test_the_tables_the_run_file_and_the_model_of_the_command_line_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_tables, use_model = of("python", "docs/command-line.md")
    exec(make_tables, {})
    (tmp_path / "run.toml").write_text(of("toml", "docs/run-file.md")[0], encoding="utf-8")
    assert diff2_here("train", "run.toml", "--out", "runs/first", "--quiet").exit_code == 0
    exec(use_model, {})
