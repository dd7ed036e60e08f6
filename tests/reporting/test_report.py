"""The report: its facts are the ledger's, its page holds nothing else, and no text in it can break out of it."""

import html.parser
import json
import math
import re
import shutil
import sys
from statistics import NormalDist

import pytest

import diff2
from commands import RUN, change, diff2_here, write_folder
from diff2.privacy.accounting import gdp_epsilon
from diff2.reporting.card import card
from diff2.reporting.facts import facts
from diff2.reporting.page import page
from diff2.tables.draft import draft
from diff2.tables.kinds import Category, Number, Regression
from diff2.tables.schema import Schema
from diff2.training.model_file import stated_guarantee
from fitted import few_trees, schema, table
from ledgers import KINDS, lines_of
from stubs import rechained

SECRETS = ("seconds", "train_loss", "test_loss")
HOSTILE = '\u202e</td><script>alert("x")</script><img src=x onerror=alert(1)> | [a](javascript:b) `\n# y & "z\''


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("report"), RUN, north=60, south=45)


@pytest.fixture(scope="module")
def trained(folder):
    assert diff2_here("train", folder / "run.toml", "--out", folder / "run", "--quiet").exit_code == 0
    return folder / "run"


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    target = tmp_path_factory.mktemp("fits") / "model"
    with few_trees():
        model = diff2.fit(table(), schema("regression"), epsilon=4.0, directory=target)
    model.save(target)
    return target


def variant(folder, out, *changes, words=()):
    """Train a changed run file into a directory of its own."""
    other = folder / f"{out}-files"
    other.mkdir()
    write_folder(other, RUN, north=60, south=45)
    change(other, *changes)
    result = diff2_here("train", other / "run.toml", "--out", other / "run", "--quiet", *words)
    assert result.exit_code == 0, result.stderr
    return other / "run"


@pytest.mark.parametrize("kind", ["trained", "fitted"])
def test_the_facts_are_those_of_the_ledger(kind, request):
    run = request.getfixturevalue(kind)
    found, ledger = facts(run), diff2.Ledger.read(run / "ledger.jsonl")
    stated, delta = found["guarantee"], ledger.delta
    assert found["verdict"] == {
        "status": 0, "colour": "green", "words": "private as stated", "reason": "", "leaks": [],
    }  # fmt: skip
    assert stated["sentence"] == str(ledger.guarantee())
    assert stated["deltas"] == [delta, delta / 10, delta / 100]
    assert stated["groups"][0]["epsilon"] == [ledger.epsilon(at) for at in stated["deltas"]]
    mu = stated["mu"]
    assert gdp_epsilon(mu, delta) == pytest.approx(ledger.epsilon(), rel=1e-6)
    for row in stated["groups"]:
        assert row["epsilon"][1] == pytest.approx(gdp_epsilon(row["units"] * mu, delta / 10), rel=1e-6)
    normal = NormalDist()
    for one in stated["guesses"]:
        exact = normal.cdf(normal.inv_cdf(one["false_positives"]) + mu)
        assert exact <= one["true_positives"] <= exact * (1 + 1e-6)
    assert sum(row["count"] for row in found["releases"]["purposes"]) == len(ledger.releases)
    assert found["releases"]["path"][-1][1] == ledger.released_epsilon()
    assert [epsilon for _, epsilon in found["releases"]["path"]] == sorted(e for _, e in found["releases"]["path"])
    assert [check["done"] for check in found["checks"]].count(False) == 1
    assert json.loads(json.dumps(found)) == found


def test_what_is_shown_of_columns_quality_and_files(trained, fitted):
    of_train, of_fit = facts(trained), facts(fitted)
    assert [one["name"] for one in of_train["columns"]] == ["age", "smoker", "visits"]
    assert of_train["columns"][0]["bounds"] == [0.0, 100.0]
    assert of_train["quality"] is None
    assert {file["name"]: file["class"] for file in of_train["files"]} == {
        "checkpoint.pt": "internal", "history.csv": "internal", "ledger.jsonl": "share", "model.safetensors": "share",
        "result.json": "internal",
    }  # fmt: skip
    assert {file["class"] for file in of_fit["files"]} == {"share"}
    assert all(len(file["sha256"]) == 64 for file in of_fit["files"])
    model = diff2.FittedModel.load(fitted)
    assert of_fit["quality"]["sentence"] == str(model.health.score)
    assert [one["kind"] for one in of_fit["columns"]] == [
        "number", "number", "category", "date", "flag", "category", "regression",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_has_a_report(kind, tmp_path, monkeypatch):
    """Random batches, groups, clients, trees, sites that add noise: all parts are there, with the ledger's epsilon."""
    monkeypatch.setattr("diff2.privacy.attacks._DELTAS", [1e-3, 1e-4])  # those of the ledgers
    monkeypatch.setattr("diff2.reporting.facts.GROUPS", (1, 2))
    (tmp_path / "ledger.jsonl").write_text("\n".join(lines_of(kind)) + "\n")
    found, ledger = facts(tmp_path), diff2.Ledger.read(tmp_path / "ledger.jsonl")
    stated = found["guarantee"]
    assert stated["groups"][0]["epsilon"][0] == ledger.epsilon()
    epsilons = [row["epsilon"][0] for row in stated["groups"]]
    assert epsilons == sorted(epsilons)
    drawn = kind == "select" or any(release.sampling != "full" for release in ledger.releases)
    assert (stated["mu"] is None) == drawn
    for guess in stated["guesses"]:
        bound = math.exp(ledger.epsilon()) * guess["false_positives"] + ledger.delta
        assert guess["false_positives"] <= guess["true_positives"] <= min(1.0, bound * (1 + 1e-3))
    assert read(page(found)).tags.count(("span", {"class": "place"})) == 9
    assert card(found).startswith("---\n")


class Words(html.parser.HTMLParser):
    """The text of a page that people see."""

    def __init__(self):
        super().__init__()
        self.words, self.tags, self.skip = [], [], 0

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.skip += tag in ("style", "title")

    def handle_endtag(self, tag):
        self.skip -= tag in ("style", "title")

    def handle_data(self, data):
        if not self.skip:
            self.words.append(data)


def read(text):
    parser = Words()
    parser.feed(text)
    return parser


def leaves(value):
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves(item)
    else:
        yield value


@pytest.mark.parametrize("kind", ["trained", "fitted"])
def test_the_page_holds_no_value_that_is_not_in_the_facts(kind, request):
    found = facts(request.getfixturevalue(kind))
    everything = list(leaves(found))
    numbers = [float(one) for one in everything if isinstance(one, int | float) and not isinstance(one, bool)]
    texts = " ".join(str(one) for one in everything)
    own = {str(place) for place in range(2, 11)} | {"0", "1", "256"}  # parts; the axis; SHA-256
    for words in read(page(found)).words:
        for token in re.findall(r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?", words):
            plain = token.replace(",", "").rstrip(".")
            value, decimals = float(plain), len(plain.partition("e")[0].partition(".")[2])
            unit = 10.0**-decimals
            known = any(abs(one - value) <= unit * (decimals > 0) or abs(100 * one - value) <= unit for one in numbers)
            close = any(math.isclose(one, value, rel_tol=1e-3) for one in numbers)
            assert plain in own or token in texts or known or close, (token, words)
    assert page(json.loads(json.dumps(found))) == page(found)


@pytest.mark.parametrize("kind", ["trained", "fitted"])
def test_the_page_needs_no_network_and_no_scripts(kind, request):
    text = page(facts(request.getfixturevalue(kind)))
    parsed = read(text)
    assert {tag for tag, _ in parsed.tags}.isdisjoint({"script", "img", "link", "iframe", "object", "a"})
    assert not any(name.startswith("on") for _, attributes in parsed.tags for name in attributes)
    assert "http" not in text.replace("http-equiv", "")
    assert "url(" not in text
    assert "default-src &#x27;none&#x27;" in text
    for number in range(2, 11):
        assert f'<span class="place">{number}</span>' in text


def test_exact_metrics_times_and_keys_are_not_in_the_report(folder):
    """A metric that leaks, a bound that was read off the data: named as leaks, and not shown."""
    metrics = variant(folder, "metrics", ("[privacy]", "[run]\nmetrics_every = 1\n[privacy]"))
    text, found = page(facts(metrics)), json.dumps(facts(metrics))
    assert facts(metrics)["verdict"]["colour"] == "amber"
    rows = [line.split(",") for line in (metrics / "history.csv").read_text().splitlines()]
    for name in (name for name in rows[0] if name in SECRETS or "loss" in name or "norm2" in name):
        for row in rows[1:]:
            assert row[rows[0].index(name)] not in text + found
    assert {file["class"] for file in facts(metrics)["files"]} == {"internal"}
    assert all(file["sha256"] is None for file in facts(metrics)["files"])
    scaled = variant(folder, "scaled", ("age = [0, 100]", "smoker = [0, 1]"), ("[model]", 'scale = "data"\n[model]'))
    age = next(one for one in facts(scaled)["columns"] if one["name"] == "age")
    assert (age["bounds"], age["source"]) == (None, "read off the data, a leak; not shown")


def test_bounds_of_a_fit_that_were_read_off_the_data_are_not_shown(tmp_path):
    with pytest.warns(diff2.PrivacyLeakWarning):
        drafted = draft({"age": [18, 97.25], "visits": [0.0, 7.5]}, "visits", task="regression").schema
    rows = {"age": [20.0, 97.25] * 100, "visits": [1.0, 7.5] * 100}
    with pytest.warns(diff2.PrivacyLeakWarning), few_trees():
        diff2.fit(rows, drafted, epsilon=4.0, directory=tmp_path / "fit").save(tmp_path / "fit")
    found = facts(tmp_path / "fit")
    assert found["verdict"]["status"] == 4
    assert {one["source"] for one in found["columns"]} == {"read off the data, a leak; not shown"}
    assert all(one["bounds"] is None for one in found["columns"])


@pytest.mark.parametrize(("words", "status"), [(["--seed", 3], 5)])
def test_a_run_that_is_not_private_is_red_and_shares_nothing(folder, words, status):
    run = variant(folder, "seeded", words=words)
    found = facts(run)
    assert (found["verdict"]["status"], found["verdict"]["colour"]) == (status, "red")
    assert '<header class="red">' in page(found)
    assert all(file["class"] != "share" for file in found["files"])
    assert "share" not in card(found).partition("## Privacy")[0]


def test_a_run_that_goes_on_says_so_and_its_checkpoint_is_secret(trained, tmp_path):
    for name in ("ledger.jsonl", "checkpoint.pt"):
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    lines = (trained / "ledger.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "ledger.jsonl").write_text("".join(lines[:4]))
    found = facts(tmp_path)
    assert "not complete" in found["verdict"]["reason"]
    assert {file["name"]: file["class"] for file in found["files"]}["checkpoint.pt"] == "secret"
    assert next(file for file in found["files"] if file["name"] == "checkpoint.pt")["sha256"] is None


def test_a_broken_run_is_red_and_nothing_of_it_is_stated(trained, tmp_path):
    lines = (trained / "ledger.jsonl").read_text().splitlines()
    lines[0] = lines[0].replace('"clip_gradient": 1.0', '"clip_gradient": 3.0')
    (tmp_path / "ledger.jsonl").write_text("\n".join(rechained(lines)))
    found = facts(tmp_path)
    assert (found["verdict"]["status"], found["verdict"]["words"]) == (1, "broken")
    assert set(found) == {"format", "run", "verdict"}
    assert str(tmp_path) not in json.dumps(found)
    assert "epsilon 1 at" not in page(found)
    result = diff2_here("report", tmp_path)
    assert result.exit_code == 1
    assert "broken" in result.stdout


def test_hostile_names_stay_text(tmp_path):
    """A column's name and a category from a file: in page and card they are words, and nothing else."""
    rows = {HOSTILE: [0.0, 1.0] * 100, "sex": ["f", HOSTILE] * 100, "y": [0.0, 1.0] * 100}
    known = Schema(
        {HOSTILE: Number(0, 1), "sex": Category(("f", HOSTILE))},
        "y",
        Regression(0, 1),
    )
    with few_trees():
        diff2.fit(rows, known, epsilon=4.0, directory=tmp_path / "fit").save(tmp_path / "fit")
    found = facts(tmp_path / "fit")
    text = page(found)
    parsed = read(text)
    assert {tag for tag, _ in parsed.tags}.isdisjoint({"script", "img", "a"})
    assert "</td><script>" in "".join(parsed.words)  # as words
    assert "\u202e" not in text
    assert "\\u202e" in text
    written = card(found)
    assert "<script" not in written
    assert "<img" not in written
    assert not re.search(r"(?<!\\)\[a\]", written)
    assert "\n# y" not in written
    assert written.count("\n---\n") == 1


def test_the_command_writes_page_card_and_document_without_pytorch(trained, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    result = diff2_here("report", trained, "--out", tmp_path / "page.html", "--card", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) == facts(trained)
    assert (tmp_path / "page.html").read_text() == page(facts(trained))
    assert (tmp_path / "model-card.md").read_text() == card(facts(trained))
    assert not (trained / "report.html").exists()
    result = diff2_here("report", trained)
    assert result.exit_code == 0
    assert (trained / "report.html").exists()
    assert "report.html" not in [file["name"] for file in facts(trained)["files"]]
    (trained / "report.html").unlink()


def test_the_card_has_the_metadata_that_hugging_face_reads(fitted):
    written = card(facts(fitted))
    lines = written.split("\n---\n")[0].removeprefix("---\n").splitlines()
    metadata = {key: json.loads(value) for key, _, value in (line.partition(": ") for line in lines)}
    assert metadata["library_name"] == "diff2"
    assert metadata["pipeline_tag"] == "tabular-regression"
    assert "differential-privacy" in metadata["tags"]
    assert metadata["differential_privacy"]["epsilon"] == facts(fitted)["guarantee"]["epsilon"]
    assert stated_guarantee(fitted / "model.safetensors") == facts(fitted)["guarantee"]["sentence"]


def test_no_page_is_written_about_a_run_that_does_not_exist(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = diff2_here("report", "none")
    assert (result.exit_code, "no ledger at" in result.stderr) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_a_fit_whose_metadata_state_another_guarantee_is_broken(fitted, tmp_path):
    copy = shutil.copytree(fitted, tmp_path / "copy")
    data = (copy / "model.safetensors").read_bytes()
    assert data.count(b"satisfy (4, ") == 1
    (copy / "model.safetensors").write_bytes(data.replace(b"satisfy (4, ", b"satisfy (1, "))
    assert facts(copy)["verdict"]["reason"].startswith("model.safetensors states another guarantee than its ledger")


def test_random_batches_have_no_mu_and_a_curve_all_the_same(folder):
    changes = [
        ('name = "diff2"', 'name = "dpsgd"'), ("restart_interval = 3\n", "batch_size = 10\n"),
        ("clip_smoothness = 2.0\n", ""),
    ]  # fmt: skip
    run = variant(folder, "batches", *changes)
    stated = facts(run)["guarantee"]
    assert stated["mu"] is None
    one, two = stated["groups"][:2]
    assert two["epsilon"][0] > 2 * one["epsilon"][0] > 0
    for guess in stated["guesses"]:
        assert guess["false_positives"] < guess["true_positives"] < math.exp(1) * guess["false_positives"] + 1e-3
