"""report.html: one file that needs no network, whatever the names in it are."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from reproductions import METHODS, all_runs, reproduced

from diff2_experiments.findings import summaries
from diff2_experiments.report_page import page, page_data, write_page

VOID = {"meta", "link", "br", "hr", "img", "input", "col"}


class Reader(HTMLParser):
    """Notes elements, attributes and texts, and whether every element is closed by its own end."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.scripts, self.texts = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append([dict(attributes), ""])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1][1] += data
        else:
            self.texts.append(data)

    def having(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def data(self):
        (text,) = [text for attributes, text in self.scripts if attributes.get("type") == "application/json"]
        return json.loads(text)


@pytest.fixture(scope="module")
def runs():
    return all_runs()


@pytest.fixture(scope="module")
def found(runs):
    return reproduced(runs=runs)


@pytest.fixture(scope="module")
def text(found, runs):
    return page(found, summaries(found), runs)


@pytest.fixture(scope="module")
def read(text):
    return Reader(text)


def test_the_page_is_one_document(text, read):
    assert text.startswith("<!doctype html>")
    assert "{{" not in text
    identifiers = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    anchors = {attributes["href"].removeprefix("#") for attributes in read.having("a")}
    assert anchors <= set(identifiers)


def test_the_page_asks_nothing_of_any_network(text, read):
    for tag, attributes in read.elements:
        assert "src" not in attributes
        href = attributes.get("href", "#")
        assert href.startswith("#") or (tag, href) == ("link", "data:,")
    assert set(re.findall(r"https?://[^\s\"'<>)]+", text)) <= {"http://www.w3.org/2000/svg"}  # a name, no address
    for word in ("@import", "url(", "fetch(", "XMLHttpRequest", "WebSocket", "sendBeacon", "import("):
        assert word not in text.replace("url(#", "")
    (policy,) = [meta["content"] for meta in read.having("meta") if meta.get("http-equiv")]
    assert policy.startswith("default-src 'none'")


def test_it_says_first_that_nothing_is_private(text):
    assert text.index("NOT PRIVATE") < text.index("<h2")
    assert "scaling of 8 columns by the data&#x27;s own mean and deviation" in text


def test_it_stays_small(text):
    assert len(text.encode()) < 1_000_000
    many = reproduced(task="classification")
    assert len(page(many, summaries(many)).encode()) < 1_000_000


def test_the_data_are_the_curves(found, read):
    data = read.data
    assert [metric["name"] for metric in data["metrics"]] == ["train_loss", "squared_gradient_norm", "test_loss"]
    assert [method["label"] for method in data["methods"]] == [label for _, label in METHODS]
    assert len(data["curves"]) == (3 * 4 + 1) * 5 * 3 < len(found.tuned) * 3  # GD once
    one = next(tuned for tuned in found.tuned if tuned.method == "diff2")
    (curve,) = [
        curve
        for curve in data["curves"]
        if (curve["method"], curve["accounting"], curve["epsilon"], curve["seed"], curve["metric"])
        == ("diff2", one.accounting, one.budget, one.seed, "train_loss")
    ]
    assert curve["values"] == pytest.approx(one.by_loss["train_loss"], rel=1e-4)
    assert curve["rounds"] == {"first": 20, "step": 20, "count": 100}
    assert {curve["epsilon"] for curve in data["curves"] if curve["method"] == "gd"} == {None}
    assert len(data["landscapes"]) == 1 + 3 * 4


def test_there_is_a_table_to_sort_for_every_condition(read):
    tables = [attributes for attributes in read.having("table") if attributes.get("class") == "sortable"]
    assert len(tables) == 4
    rows = [attributes["data-method"] for attributes in read.having("tr") if "data-method" in attributes]
    assert rows == [name for name, _ in METHODS] * 4
    assert "epsilon 3, paper accounting" in read.texts


def test_without_all_runs_what_tuning_tried_is_hidden(found):
    read = Reader(page(found, summaries(found)))
    (section,) = [attributes for attributes in read.having("section") if attributes["id"] == "tuning"]
    assert "hidden" in section
    assert read.data["landscapes"] == []


NASTY = "</script><script>alert(1)</script><!-- {{data}} & \"'"


def test_names_stay_names(tmp_path):
    runs = all_runs(seeds=1)
    methods = [(name, NASTY if name == "diff2" else label) for name, label in METHODS]
    found = reproduced(tmp_path, runs=runs, title=NASTY, methods=methods)
    path = write_page(found, summaries(found), runs)
    assert path == tmp_path / "report.html"
    text = path.read_text(encoding="utf-8")
    read = Reader(text)
    assert len(read.scripts) == 2  # data, and ours
    assert "<script>alert" not in text
    assert "<!--" not in text.split("<body>")[1]
    assert NASTY in [method["label"] for method in read.data["methods"]]
    assert NASTY in read.texts


def test_a_run_cut_short_keeps_its_rounds(found):
    short = {"rounds": [20, 40, 50], "train_loss": [0.5, None, 0.4], "test_loss": [0.5, None, 0.4], "survived": False}
    changed = [one._replace(by_loss={**one.by_loss, **short}) for one in found.tuned]
    cut = type(found)(**{**vars(found), "tuned": changed})
    curve = page_data(cut, summaries(cut))["curves"][0]
    assert curve["rounds"] == [20, 40, 50]
    assert curve["values"] == [0.5, None, 0.4]
    assert "diverged (5 of 5)" in page(cut, summaries(cut))


def test_a_browser_draws_the_curves(found, runs, tmp_path):
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs chromium")
    small = type(found)(**{**vars(found), "directory": tmp_path})
    bare = {"settings": {"clip_gradient": 3}}  # of a method without a rate search
    path = write_page(small, summaries(small), [run | bare if run["method"] == "dpgd" else run for run in runs])
    # No name is resolved, so that nothing calls out.
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
               "--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND"]  # fmt: skip
    command = [chromium, *options, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()]
    drawn = subprocess.run(command, capture_output=True, timeout=120, check=True).stdout.decode()
    assert drawn.count('<figure class="chart">') == 3
    assert drawn.count('class="line"') == 3 * len(METHODS)
    assert drawn.count('aria-pressed="true"') == len(METHODS)
    assert drawn.count('class="landscape"') == len(METHODS)
    assert "NaN" not in drawn
    assert re.search(r"C1 3: 5 of 5 seeds survived; \d+ runs", drawn)
    assert "learning rate null" not in drawn
