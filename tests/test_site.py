"""The documentation site: generated pages hold everything there is, and every page is in the navigation."""

import doctest
import re
from pathlib import Path

import pytest

import diff2
from diff2 import errors

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
api = pytest.importorskip("tools.docs.api", reason="run pytest from the root of the repository")
from tools.docs.check import problems  # noqa: E402
from tools.docs.commands import commands, commands_page  # noqa: E402
from tools.docs.errors import errors_page  # noqa: E402
from tools.docs.llms import llms_txt  # noqa: E402
from tools.docs.run_file import run_file_keys  # noqa: E402

ROOT = Path(__file__).parent.parent
GENERATED = {"index.md", "contributing.md", "changelog.md", "commands.md", "run-file-keys.md", "errors.md"}


def listed():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return re.findall(r"[\w/-]+\.md", text[text.index("\nnav:") :])


def test_every_page_stands_once_in_the_navigation():
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert sorted(listed()) == sorted({*pages, *GENERATED, *api.api_pages()})


def test_every_public_name_has_a_place_in_the_api():
    text = "\n".join(api.api_pages().values())
    missing = [name for name in diff2.__all__ if f"::: diff2.{name}\n" not in text and not hasattr(errors, name)]
    assert missing == ["__version__"]


def test_every_command_and_option_is_on_the_page_of_commands():
    text = commands_page()
    for name, command in commands():
        assert f"## {name}\n" in text
        for option in command.params:
            assert all(f"`{one}" in text for one in option.opts if one.startswith("--"))


def test_every_error_and_every_algorithm_is_on_its_page():
    assert all(f"## {name}\n" in errors_page() for name in dir(errors) if name.endswith(("Error", "Warning")))
    assert all(f'`name = "{name}"`' in run_file_keys() for name in [*diff2.ALGORITHMS, *diff2.ROUTINES])


def test_a_broken_link_and_a_script_from_elsewhere_are_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<h1 id="top"></h1><a href="b.html">b</a><a href="#top">up</a><a href="#no">no</a>'
    )
    (tmp_path / "c.html").write_text('<a href="a.html#top"></a><script src="https://example.org/x.js"></script>')
    found = problems(tmp_path)
    assert found == [
        "a.html: b.html leads to no file",
        "a.html: #no leads to no place on that page",
        "c.html: https://example.org/x.js would be fetched from the network",
    ]


def test_llms_txt_lists_the_pages_in_order(tmp_path):
    (tmp_path / "one.md").write_text("# One\n\nWhat [it](x.md) is. More.\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: n\nsite_description: d\nnav:\n  - Start:\n      - one.md\n")
    assert llms_txt(tmp_path, tmp_path / "mkdocs.yml") == "# n\n\n> d\n\n## Start\n\n- [One](one.html): What it is.\n"


def test_docstrings_become_markdown():
    pytest.importorskip("latex2mathml", reason="the extra docs is not installed")
    pytest.importorskip("griffe", reason="the extra docs is not installed")
    from tools.docs import docstrings

    assert doctest.testmod(docstrings).failed == 0


@pytest.mark.slow
def test_the_site_builds_without_a_warning():
    pytest.importorskip("zensical", reason="the extra docs is not installed")
    from tools.docs.__main__ import main

    assert main() == 0
