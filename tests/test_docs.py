"""The examples of README and docs run as they stand: Python and, where it takes long, shell in the slow tests.

A block is ``python`` (runs, in the order of its page), ``bash`` (runs in the slow tests, after the page's Python),
``console`` (the same, and prints what the page says), ``toml`` (is read; with a title it is written to that file first)
or ``text`` (is shown; where it holds commands, ``SHOWN`` says why they are not run). Every line that begins with
``diff2`` is understood by the command line, wherever it stands.
"""

import doctest
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

import numpy as np
import pandas as pd
import pytest
import torch
import typer.main

import diff2
from commands import diff2_here
from diff2.algorithms import ALGORITHMS
from diff2.cli.main import app
from diff2.tables.schema import Schema
from fitted import few_trees

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r'^( *)```(\w*)(?: title="([^"]+)")?\n(.*?)^\1```$', re.S | re.M)
SHOWN = {  # commands that no test runs as they stand
    "docs/comparison.md": "hours",
    "docs/data.md": "fetches tables from the network, and reads one",
    "docs/experiments.md": "minutes to hours; tests/experiments runs both commands on small files",
    "docs/install.md": "installs packages; tests/test_wheel.py does that",
    "docs/planner-check.md": "an hour",
    "docs/reproduction.md": "hours",
    "docs/reproduction-own-reading.md": "days",
    "docs/reproduction-tables.md": "days",
    "docs/scaling-law.md": "hours",
    "docs/silos.md": "several machines; tests/federation/flare plays all of them",
    "docs/silos-fit.md": "several machines; docs/start-hospitals.md runs the same on one",
    "docs/which-algorithm.md": "an hour",
}
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
    assert {block.language for block in PAGES[page]} <= {"python", "bash", "console", "toml", "text"}


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
        if block.language in ("bash", "console", "text")
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


def test_a_command_that_is_not_run_has_a_reason():
    commands = re.compile(r"^(\$ )?(time )?(diff2 |python -m |>>> )", re.M)
    assert {page for page in PAGES if any(map(commands.search, of("text", page)))} == set(SHOWN)


def tables_and_runs(page):
    """Write what the commands of a page begin with."""
    rng = np.random.default_rng(0)
    age = rng.integers(18, 95, 2000)
    people = pd.DataFrame({"person": np.arange(2000), "age": age, "visits": rng.poisson(age / 20)})
    known = Schema.from_arguments(["age"], bounds={"age": (0, 100)}, target="visits", max_count=50)
    if page == "docs/fit.md":
        people.to_csv("people.csv", index=False)
        people.head(3).to_csv("new.csv", index=False)
    elif page == "docs/fit-health.md":
        people.to_csv("held_out.csv", index=False)
        diff2.fit(people, known, epsilon=1.0).save("model")
    elif page in ("docs/report.md", "docs/budget.md"):
        for run in ["first", *(["two", "three", "four", "five", "six", "seven", "eight"] if "budget" in page else [])]:
            with few_trees():
                diff2.fit(people, known, epsilon=1.0, delta=1e-5, directory=f"runs/{run}").save(f"runs/{run}")
    elif page == "docs/command-line.md":
        exec(of("python", page)[0], {})
        Path("run.toml").write_text(of("toml", "docs/run-file.md")[0], encoding="utf-8")
    elif page == "docs/run-file.md":
        Path("typo.toml").write_text(of("toml", page)[0].replace("_interval", "_intervall"), encoding="utf-8")


def as_shown(printed, shown):
    """Whether a command printed what its page shows, but for seconds, drawn shares and what numba adds."""
    plain = [re.sub(r"[\d.]+ s\b|\d+%|\w+ gradients\n", "*", text) for text in (shown, re.sub(" +\n", "\n", printed))]
    return doctest.OutputChecker().check_output(*plain, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if of("bash", page) or of("console", page)])
def test_the_commands_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tables_and_runs(page)
    if page != "docs/command-line.md":
        run_python(page)
    write_files(page, tmp_path)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    (tmp_path / "diff2").write_text(f'#!/bin/sh\nexec {sys.executable} -m diff2 "$@"\n')
    (tmp_path / "diff2").chmod(0o755)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{tmp_path}{os.pathsep}{path}", "COLUMNS": "96"}
    for block in PAGES[page]:
        if block.language == "bash":
            subprocess.run(["sh", "-e", "-c", block.text], check=True, env=environment)
        elif block.language == "console":
            first, _, shown = block.text.partition("\n")
            found = subprocess.run(
                first.removeprefix("$ "), shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                encoding="utf-8", env=environment, check=False,
            )  # fmt: skip
            assert as_shown(found.stdout, shown), found.stdout


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
