"""The report in a real browser: wide and narrow, light and dark, and on paper. Skipped where there is none.

It needs the package playwright, and Chromium: its own, or the program that DIFF2_CHROMIUM names. Pictures go to the
folder that DIFF2_SCREENSHOTS names, for somebody to look at.
"""

import os
import re
from pathlib import Path

import pytest

import diff2
from diff2.reporting.facts import facts
from diff2.reporting.page import page
from fitted import few_trees, schema, table

playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
SIZES = {"wide": (1100, 900), "narrow": (390, 844)}


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as found:
        program = os.environ.get("DIFF2_CHROMIUM")
        try:
            opened = found.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        except playwright.Error as error:
            pytest.skip(f"no Chromium that can be started: {str(error).splitlines()[0]}")
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    with few_trees():
        diff2.fit(table(), schema("regression"), epsilon=4.0, directory=folder / "model").save(folder / "model")
    (folder / "report.html").write_text(page(facts(folder / "model")), encoding="utf-8")
    return folder / "report.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_it_fits_the_screen_in_light_and_dark_without_scripts_or_network(browser, file, size, scheme):
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, java_script_enabled=False, offline=True
    )
    asked, complaints = [], []
    view = context.new_page()
    view.on("request", lambda request: asked.append(request.url))
    view.on("console", lambda message: complaints.append(message.text))
    view.goto(file.as_uri())
    assert asked == [file.as_uri()]
    assert complaints == []
    box = view.locator("main").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert view.locator("h1").inner_text() == "Private as stated"
    assert view.locator("section").count() == 9
    if "DIFF2_SCREENSHOTS" in os.environ:
        view.screenshot(path=Path(os.environ["DIFF2_SCREENSHOTS"]) / f"{size}-{scheme}.png", full_page=True)
    context.close()


def test_nothing_is_cut_off_and_dark_is_dark(browser, file):
    brightness = {}
    for scheme in ("light", "dark"):
        for width, height in SIZES.values():
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            view = context.new_page()
            view.goto(file.as_uri())
            assert view.evaluate("document.documentElement.scrollWidth") <= width
            colour = view.evaluate("getComputedStyle(document.body).backgroundColor")
            brightness[scheme] = sum(map(int, re.findall(r"\d+", colour)[:3]))
            context.close()
    assert brightness["dark"] < 150 < 600 < brightness["light"]


def crowded(found):
    """The same facts with more columns, runs and files than a page can show."""
    columns = [{**found["columns"][i % 7], "name": f"column number {i} of the table", "bounds": [i, 10**i]}
               for i in range(40)]  # fmt: skip
    runs = [{"run": f"models/model-{i}", "epsilon": 1.0, "state": "complete"} for i in range(30)]
    project = {"epsilon": 3.2, "delta": 1e-6, "limit": 5.0, "notes": ["Two fingerprints."], "runs": runs}
    files = [{**found["files"][i % 6], "name": f"file-{i}.json"} for i in range(20)]
    return {**found, "columns": columns, "project": project, "files": files}


@pytest.mark.parametrize("change", [lambda found: found, crowded], ids=["plain", "crowded"])
def test_it_prints_on_two_sheets(browser, file, tmp_path, change):
    (tmp_path / "page.html").write_text(page(change(facts(file.parent / "model"))), encoding="utf-8")
    context = browser.new_context()
    view = context.new_page()
    view.goto((tmp_path / "page.html").as_uri())
    data = view.pdf(prefer_css_page_size=True, print_background=True)
    context.close()
    assert len(re.findall(rb"/Type\s*/Page\b", data)) == 2
