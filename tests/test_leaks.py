"""Every leak that is asked for has a code, a page and a trigger; the three cannot fall apart."""

import ast
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import diff2
from commands import diff2_here, write_folder
from diff2.data.loading import load_clients
from diff2.data.settings import TableSettings
from diff2.privacy.leaks import CODES, code_of, leak
from diff2.tables.draft import draft
from diff2.tables.encode import check
from diff2.tables.kinds import Number, Regression
from diff2.tables.schema import Schema
from fitted import few_trees

ROOT = Path(__file__).parent.parent
TABLE = {"x": [0.0, 1.0] * 50, "y": [0.0, 2.0] * 50}
KNOWN = Schema({"x": Number(0, 1)}, "y", Regression(0, 2))


def page_of(code):
    return f"docs/leaks/{code.removeprefix('LEAK-').lower()}.md"


def trained(folder, algorithm=None, budget=None, **options):
    data = torch.randn(40, 2), torch.randn(40, 1)
    algorithm = algorithm or diff2.DPGD(2, 1.0, routine=diff2.GradientDescent(0.1))
    return diff2.train(torch.nn.Linear(2, 1), "squared", data, algorithm, budget or diff2.Budget(1.0, 1e-3), **options)


def loaded(folder, **options):
    write_folder(folder, "", north=60)
    settings = {"target": "visits", "task": "regression", "file": str(folder / "north.csv")}
    return load_clients(TableSettings(**{**settings, **options}))


def classified(folder):
    from diff2.sklearn import PrivateRegressor

    found = PrivateRegressor(epsilon=4.0, bounds=(0, 1), target_bounds=(0, 2), random_state=0)
    x = np.array(TABLE["x"]).reshape(-1, 1)
    with few_trees():
        return found.fit(x, TABLE["y"]).score(x, TABLE["y"])


def fitted_to_a_draft(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", diff2.PrivacyLeakWarning)
        drafted = draft(TABLE, "y", task="regression").schema
    with few_trees():
        diff2.fit(TABLE, drafted, epsilon=4.0, seed=0)


POISSON = diff2.DPSGD(2, 10, 1.0, routine=diff2.GradientDescent(0.1), sampling="poisson")
TRIGGERS = {
    "LEAK-SCALING": lambda folder: loaded(folder, scale="data"),
    "LEAK-CLASSES": lambda folder: loaded(folder, target="smoker", task="classification"),
    "LEAK-METRICS": lambda folder: trained(folder, metrics_every=1),
    "LEAK-SIZES": lambda folder: trained(folder, POISSON),
    "LEAK-SCHEMA": fitted_to_a_draft,
    "LEAK-NO-NOISE": lambda folder: trained(folder, budget=diff2.Budget(float("inf"), 1e-3)),
    "LEAK-DRAFT": lambda folder: draft(TABLE, "y"),
    "LEAK-CHECK": lambda folder: check(TABLE, KNOWN),
    "LEAK-SCORE": classified,
    "LEAK-DECLARED": lambda folder: trained(folder, leaks=["I looked at the records"]),
}
ELSEWHERE = {"LEAK-SEED"}  # no warning: the guarantee says it first, see below


def test_every_code_has_a_trigger():
    assert {*TRIGGERS, *ELSEWHERE} == set(CODES)


@pytest.mark.parametrize("code", TRIGGERS)
def test_what_leaks_warns_with_its_code(code, tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        TRIGGERS[code](tmp_path)
    texts = [str(one.message) for one in caught if issubclass(one.category, diff2.PrivacyLeakWarning)]
    assert any(text.startswith(f"{code}: ") for text in texts), texts
    assert all(re.match(r"LEAK-[A-Z-]+: ", text) for text in texts)


def test_a_seed_is_named_in_the_guarantee_and_by_verify(tmp_path):
    result = trained(tmp_path, seed=3, directory=tmp_path / "run")
    assert "(LEAK-SEED)" in result.guarantee
    assert "LEAK-SEED" in diff2_here("verify", tmp_path / "run").stdout


def test_every_code_has_a_page_of_three_answers_and_every_page_a_code():
    pages = {f"docs/leaks/{page.name}" for page in (ROOT / "docs" / "leaks").glob("*.md")} - {"docs/leaks/README.md"}
    assert pages == {page_of(code) for code in CODES}
    listed = (ROOT / "docs" / "leaks" / "README.md").read_text(encoding="utf-8")
    for code in CODES:
        text = (ROOT / page_of(code)).read_text(encoding="utf-8")
        assert text.startswith(f"# {code}: ")
        for answer in ("**When**", "**What leaks.**", "**How much it matters.**", "**The private way.**"):
            assert answer in text
        assert f"[{code}](" in listed


def test_no_leak_is_without_a_code():
    """Every call of ``leak`` has a code that is known, or takes it from the words that a ledger keeps."""
    calls = []
    for path in (ROOT / "src" / "diff2").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls += [
            node.args[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "leak"
        ]
    assert len(calls) >= 8
    for first in calls:
        known = isinstance(first, ast.Constant) and first.value in CODES
        assert known or ast.unparse(first).startswith("code_of("), ast.unparse(first)
    with pytest.raises(diff2.InvalidArgument, match="expected a code"):
        leak("LEAK-OTHER", "x", strict=False)


def test_words_of_a_ledger_lead_to_the_code():
    from diff2.cohorts.draws import EXACT_SIZES

    assert code_of(EXACT_SIZES) == "LEAK-SIZES"
    assert code_of("exact training metrics and exact held-out metrics") == "LEAK-METRICS"
    assert code_of("column 'age': its bounds are read off the data; replace them") == "LEAK-SCHEMA"
    assert code_of("something else") == "LEAK-DECLARED"
