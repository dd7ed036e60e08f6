"""The documentation site: generated pages hold everything there is, and every page is in the navigation."""

import doctest
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import diff2
from diff2 import errors
from diff2.privacy.accounting import gdp_epsilon, gdp_mu
from diff2.privacy.attacks import true_positives

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
    notebooks = {f"examples/{one.stem}.md" for one in (ROOT / "examples").glob("*.ipynb")}
    assert sorted(listed()) == sorted({*pages, *notebooks, *GENERATED, *api.api_pages()})


def test_every_public_name_has_a_place_in_the_api():
    text = "\n".join(api.api_pages().values())
    missing = [name for name in diff2.__all__ if f".{name}\n" not in text and not hasattr(errors, name)]
    assert missing == ["__version__"]


def test_a_function_is_not_taken_for_its_module():
    assert doctest.testmod(api).failed == 0
    assert "::: diff2.planning.plan.plan\n" in api.api_pages()["api/privacy.md"]


def test_every_command_and_option_is_on_the_page_of_commands():
    text = commands_page()
    for name, command in commands():
        assert f"## {name}\n" in text
        for option in command.params:
            assert all(f"`{one}" in text for one in option.opts if one.startswith("--"))


def test_every_error_and_every_algorithm_is_on_its_page():
    errors_text, keys = errors_page(), run_file_keys()
    assert all(f"## {name}\n" in errors_text for name in dir(errors) if name.endswith(("Error", "Warning")))
    assert all(f'`name = "{name}"`' in keys for name in [*diff2.ALGORITHMS, *diff2.ROUTINES])


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


@pytest.fixture(scope="module")
def site():
    pytest.importorskip("zensical", reason="the extra docs is not installed")
    from tools.docs.__main__ import SITE, main

    assert main() == 0  # no warning, no broken link, nothing from the network
    return SITE


@pytest.mark.slow
def test_the_site_builds_with_doctests_formulas_and_links_between_names(site):
    train = (site / "api" / "train.html").read_text(encoding="utf-8")
    assert "&gt;&gt;&gt; " in train
    assert re.search(r'<a [^>]*href="#diff2.prepare"', train)
    assert "<math " in (site / "api" / "algorithms.html").read_text(encoding="utf-8")
    assert (site / "llms.txt").read_text(encoding="utf-8").startswith("# diff2\n")


@pytest.mark.slow
def test_search_and_slider_work_from_a_folder_without_network(site):
    """Needs playwright, and Chromium: its own, or the program that DIFF2_CHROMIUM names."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    with playwright.sync_playwright() as found:
        try:
            program = os.environ.get("DIFF2_CHROMIUM")
            browser = found.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        except playwright.Error as error:
            pytest.skip(f"no Chromium that can be started: {str(error).splitlines()[0]}")
        view = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True).new_page()
        asked = []
        view.on("request", lambda request: asked.append(request.url))
        view.goto((site / "epsilon.html").as_uri())
        view.locator(".epsilon input").fill("0.48")  # the slider has the logarithm: epsilon 3.0
        assert view.locator(".epsilon dd").all_inner_texts() == ["5.4 %", "28.8 %"]
        view.keyboard.press("Control+k")
        view.keyboard.type("clipping")
        view.get_by_text(re.compile(r"^\d+ results$")).wait_for(timeout=10_000)
        assert all(url.startswith(("file:", "data:", "about:")) for url in asked)
        browser.close()


def test_the_table_of_epsilon_is_what_the_library_computes():
    text = (ROOT / "docs" / "epsilon.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) \| ([\d.]+) % \| ([\d.]+) % \| ([\d.]+) \|$", text, re.M)
    assert len(rows) == 7
    for row in rows:
        epsilon, mu, one, ten, five = map(float, row)
        exact = gdp_mu(epsilon, 1e-5)
        assert mu == round(exact, 3)
        profile = {("full", 1.0, 1 / exact): 1}
        assert [one, ten] == [round(100 * true_positives([profile], share), 1) for share in (0.01, 0.1)]
        assert five == round(gdp_epsilon(5 * exact, 1e-5), 2)


@pytest.mark.skipif(shutil.which("node") is None, reason="no node to run the page's script")
def test_the_slider_computes_what_the_library_does():
    cases = [(epsilon, delta) for epsilon in (0.01, 0.3, 1.0, 4.0, 20.0) for delta in (1e-4, 1e-8)]
    page = json.dumps(str(ROOT / "docs" / "js" / "epsilon.js"))
    computed = f"{json.dumps(cases)}.map(([x, d]) => [e.muOf(x, d), e.found(0.01, e.muOf(x, d))])"
    script = f"const e = require({page}); console.log(JSON.stringify({computed}))"
    printed = subprocess.run(["node", "-e", script], check=True, capture_output=True, text=True).stdout
    for (epsilon, delta), (mu, found) in zip(cases, json.loads(printed), strict=True):
        assert mu == pytest.approx(gdp_mu(epsilon, delta), rel=1e-3)
        profile = {("full", 1.0, 1 / gdp_mu(epsilon, delta)): 1}
        assert found == pytest.approx(true_positives([profile], 0.01), rel=2e-3)
