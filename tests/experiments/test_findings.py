"""What a reproduction found: statistics over seeds, p-values, tables and figures."""

import csv
import json
import math
from xml.etree import ElementTree

import numpy as np
import pytest
import scipy.stats
from reproductions import METHODS, all_runs, reproduced, stored_run

from diff2_experiments.findings import (
    METRICS,
    Condition,
    document,
    metrics_of,
    notes,
    p_value,
    rows_at,
    summaries,
    tuned_at,
)
from diff2_experiments.formatting import spread_text
from diff2_experiments.landscape import landscapes
from diff2_experiments.reproduced import Tuned
from diff2_experiments.reproduction_figures import band, draw_figures
from diff2_experiments.tabulation import DASH, table_cells, write_tables

PAPER_3 = Condition("paper", 3.0)
LOSS, GRADIENT, ACCURACY = METRICS[0], METRICS[1], METRICS[3]


@pytest.fixture(scope="module")
def found():
    return reproduced(task="classification")


@pytest.fixture(scope="module")
def rows(found):
    return summaries(found)


def row_of(rows, method, condition=PAPER_3):
    (row,) = [row for row in rows_at(rows, condition) if row["method"] == method]
    return row


def tuned(method, seed, best, *, metric=LOSS, budget=3.0, other=None):
    """Return the best runs of a seed, with these values over the rounds."""
    run = stored_run(
        method, "paper", budget, seed, {"learning_rate": 0.5}, task="classification", rounds=20 * len(best)
    )
    run[metric.name] = best
    return Tuned(method, method, "paper", budget, seed, run, {**run, **(other or {})}, 3, 1)


def test_there_is_a_row_for_every_accounting_epsilon_and_method(found, rows):
    assert [(row["accounting"], row["budget"], row["method"]) for row in rows] == [
        (accounting, epsilon, method)
        for accounting in ("paper", "exact")
        for epsilon in (3.0, 5.0)
        for method, _ in METHODS
    ]
    assert all(row["seeds"] == [0, 1, 2, 3, 4] for row in rows)
    assert [metric.name for metric in metrics_of(found)] == list(rows[0]["metrics"])


def test_a_method_without_privacy_is_the_same_everywhere_and_has_no_epsilon(rows):
    ours = [row for row in rows if row["method"] == "gd"]
    assert len(ours) == 4
    assert all(row["metrics"]["train_loss"]["best"] == ours[0]["metrics"]["train_loss"]["best"] for row in ours)
    assert {row["epsilon"] for row in ours} == {None}
    assert not any(row["private"] for row in ours)
    assert {row["epsilon"] for row in rows if row["private"] and row["budget"] == 3} == {3 * 0.78, 3 * 0.999999}


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_statistics_are_those_of_the_run_chosen_for_the_metric(found, rows, metric):
    runs = [getattr(one, metric.by) for one in tuned_at(found, PAPER_3, "diff2")]
    cell = row_of(rows, "diff2")["metrics"][metric.name]
    pick = min if metric.sign > 0 else max
    finals, bests = [run[metric.name][-1] for run in runs], [pick(run[metric.name]) for run in runs]
    assert cell["final"]["mean"] == pytest.approx(np.mean(finals), rel=1e-12)
    assert cell["final"]["sd"] == pytest.approx(np.std(finals, ddof=1), rel=1e-12)
    assert cell["best"]["mean"] == pytest.approx(np.mean(bests), rel=1e-12)
    assert cell["best"]["sd"] == pytest.approx(np.std(bests, ddof=1), rel=1e-12)


def test_the_gradient_norm_is_of_the_settings_chosen_by_it_and_all_else_of_those_chosen_by_the_loss():
    other = {"squared_gradient_norm": [1e-9], "train_loss": [9.0], "test_loss": [9.0], "train_accuracy": [0.1]}
    base = reproduced(runs=all_runs(seeds=1, methods=METHODS[1:2]), task="classification")
    changed = [one._replace(by_gradient={**one.by_gradient, **other, "rounds": [20]}) for one in base.tuned]
    row = summaries(type(base)(**{**vars(base), "tuned": changed}))[0]
    assert row["metrics"]["squared_gradient_norm"]["best"]["mean"] == 1e-9
    assert row["metrics"]["train_loss"]["best"]["mean"] < 1
    assert row["metrics"]["test_loss"]["best"]["mean"] < 1


@pytest.mark.parametrize(("metric", "alternative"), [(LOSS, "less"), (GRADIENT, "less"), (ACCURACY, "greater")])
def test_p_value_is_of_the_one_sided_t_test_on_the_best_over_the_rounds(found, metric, alternative):
    ours, theirs = tuned_at(found, PAPER_3, "diff2"), tuned_at(found, PAPER_3, "dpgd")
    pick = min if alternative == "less" else max
    differences = [
        pick(getattr(one, metric.by)[metric.name]) - pick(getattr(two, metric.by)[metric.name])
        for one, two in zip(ours, theirs, strict=True)
    ]
    expected = scipy.stats.ttest_1samp(differences, 0, alternative=alternative).pvalue
    assert p_value(ours, theirs, metric) == pytest.approx(expected, rel=1e-9)
    assert abs(expected - scipy.stats.ttest_1samp(differences, 0).pvalue) > 1e-5  # the other test is another number


def test_there_is_no_p_value_where_there_is_no_test():
    base = [tuned("dpgd", seed, [0.5 + seed / 90]) for seed in range(3)]
    assert p_value([tuned("diff2", 0, [0.4])], base[:1], LOSS) is None  # one seed
    assert p_value([tuned("diff2", seed + 7, [0.4]) for seed in range(3)], base, LOSS) is None  # no seed in common
    assert p_value(base, base, LOSS) is None  # itself
    assert p_value([tuned("gd", seed, [0.4], budget=None) for seed in range(3)], base, LOSS) is None
    assert p_value([tuned("diff2", seed, [None]) for seed in range(3)], base, LOSS) is None  # diverged
    same = [tuned("diff2", seed, [0.25]) for seed in range(3)]
    assert p_value(same, [tuned("dpgd", seed, [0.5]) for seed in range(3)], LOSS) is None  # no spread at all
    assert p_value(same, [], LOSS) is None


def test_a_single_seed_shows_a_dash():
    single = reproduced(seeds=1)
    rows = summaries(single)
    cell = row_of(rows, "diff2")["metrics"]["train_loss"]
    assert cell["p_value"] is None
    assert cell["best"]["sd"] is None
    _, lines = table_cells(single, rows_at(rows, PAPER_3))
    assert DASH in lines[2]
    assert "±" not in "".join(lines[2])


def test_a_run_that_did_not_survive_has_no_final_value_but_a_best_one(tmp_path):
    base = reproduced(tmp_path, seeds=2, epsilons=(3.0,), accountings=("paper",))
    short = {"survived": False, "rounds": [20, 40, 60], "train_loss": [0.5, 0.4, 0.7], "test_loss": [0.5, 0.4, 0.7]}
    changed = [
        one._replace(by_loss={**one.by_loss, **short}) if (one.method, one.seed) == ("diff2", 1) else one
        for one in base.tuned
    ]
    found = type(base)(**{**vars(base), "tuned": changed})
    cell = row_of(summaries(found), "diff2")["metrics"]["train_loss"]
    assert cell["final"]["mean"] is None
    assert cell["final"]["diverged"] == 1
    assert spread_text(cell["final"]) == "diverged (1 of 2)"
    assert cell["best"]["mean"] is not None
    drawn = band(row_of(summaries(found), "diff2"), tuned_at(found, PAPER_3, "diff2"), LOSS)
    assert math.isfinite(drawn.mean[2])
    assert all(math.isnan(value) for value in drawn.mean[3:])
    assert all(path.stat().st_size for path in draw_figures(found, summaries(found), [".svg"]))


def test_published_values_stand_beside_ours(rows):
    loss = row_of(rows, "diff2")["metrics"]["train_loss"]
    assert (loss["published"], loss["published_p_value"]) == (0.0221, 0.09)
    assert row_of(rows, "dpgd")["metrics"]["train_loss"]["published"] == 0.0237
    assert row_of(rows, "dpgd")["metrics"]["train_loss"]["published_p_value"] is None
    assert row_of(rows, "diff2", Condition("paper", 5.0))["metrics"]["train_loss"]["published"] is None
    assert summaries(reproduced(published={}, seeds=1))[2]["metrics"]["train_loss"]["published"] is None


def test_usual_settings_are_those_of_most_seeds(rows):
    found = row_of(rows, "diff2")["usual"]["by_loss"]
    assert found["settings"] == {"clip_gradient": 3, "clip_smoothness": 3, "restart_interval": 6, "learning_rate": 0.5}


def test_the_notes_begin_with_what_is_not_private(found):
    first = notes(found)[0]
    assert first.startswith("NOT PRIVATE: ")
    for what in ("tuned on exact losses", "exact metrics", "seeded noise", "scaling of 8 columns"):
        assert what in first


def test_tables(tmp_path):
    found = reproduced(tmp_path, title="A | B")
    rows = summaries(found)
    table, settings, markdown = write_tables(found, rows)
    lines = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    assert len(lines) == len(rows) * 3
    (line,) = [
        line
        for line in lines
        if (line["accounting"], line["budget_epsilon"], line["method"], line["metric"])
        == ("paper", "3.0", "diff2", "train_loss")
    ]
    cell = row_of(rows, "diff2")["metrics"]["train_loss"]
    assert float(line["best_mean"]) == cell["best"]["mean"]
    assert float(line["p_value"]) == cell["p_value"]
    assert line["published"] == "0.0221"
    assert line["usual_settings"] == "clip_gradient=3, clip_smoothness=3, restart_interval=6, learning_rate=0.5"
    seeds = list(csv.DictReader(settings.read_text(encoding="utf-8").splitlines()))
    assert len(seeds) == len(rows) * 5 * 2
    assert {"clip_gradient", "learning_rate", "seed", "chosen_by"} <= set(seeds[0])
    text = markdown.read_text(encoding="utf-8")
    assert text.index("NOT PRIVATE") < text.index("| metric |")
    assert found.command in text
    assert "# A \\| B" in text
    for block in text.split("\n\n"):  # every line of a table has as many cells
        assert len({line.count("|") for line in block.splitlines() if line.startswith("| ")}) <= 1


def test_the_document_is_plain_json(found, rows):
    text = json.dumps(document(found, rows, [found.directory / "table.csv"]), allow_nan=False)
    assert json.loads(text)["private"] is False


def test_the_papers_figures(tmp_path):
    found = reproduced(tmp_path, task="classification", seeds=2, epsilons=(3.0,), accountings=("paper",))
    rows = summaries(found)
    picture, drawing = draw_figures(found, rows)
    assert picture.name == "figure-paper-epsilon-3.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < 150_000
    axes = [one for one in ElementTree.parse(drawing).iter() if one.get("id", "").startswith("axes_")]
    assert len(axes) == 5
    before = drawing.read_bytes()
    assert draw_figures(found, rows, [".svg"]) == [drawing]
    assert drawing.read_bytes() == before


def test_every_seed_is_drawn_and_the_published_value():
    seeds = [tuned("diff2", seed, [value]) for seed, value in enumerate((1.0, 1.0, 1.0, 1.0, 11.0))]
    drawn = band({"label": "x", "metrics": {"train_loss": {"published": 2.0}}}, seeds, LOSS)
    assert (drawn.mean, drawn.low, drawn.high, drawn.published) == ([3.0], [1.0], [11.0], 2.0)
    assert drawn.seeds == [[1.0]] * 4 + [[11.0]]


def test_landscapes_are_the_mean_over_the_seeds_at_every_point():
    runs = all_runs(seeds=2, epsilons=(3.0,), accountings=("paper",))
    found = reproduced(runs=runs)
    by_method = {one["method"]: one for one in landscapes(found, runs)}
    assert {name: len(one["points"]) for name, one in by_method.items()} == {
        "gd": 1, "dpgd": 3, "diff2": 36, "recursive_diff2": 12,
    }  # fmt: skip
    assert (by_method["gd"]["accounting"], by_method["gd"]["budget"]) == (None, None)
    one = by_method["diff2"]
    assert [axis["name"] for axis in one["axes"]] == ["clip_gradient", "clip_smoothness", "restart_interval"]
    (point,) = [point for point in one["points"] if point["at"] == [1, 3, 0]]
    wanted = {"clip_gradient": 3, "clip_smoothness": 30, "restart_interval": 6, "learning_rate": 0.5}
    losses = [min(run["train_loss"]) for run in runs if (run["method"], run["settings"]) == ("diff2", wanted)]
    assert len(losses) == 2
    assert point["train_loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    assert (point["survived"], point["seeds"], point["tried"], point["rates"]) == (2, 2, 4, [(0.5, 2)])


def test_a_point_without_a_rate_search_names_no_rates():
    runs = [run for run in all_runs(seeds=2, epsilons=(3.0,)) if run["settings"].pop("learning_rate") == 0.5]
    points = [point for one in landscapes(reproduced(runs=runs), runs) for point in one["points"]]
    assert {(point["survived"], point["seeds"], len(point["rates"])) for point in points} == {(2, 2, 0)}


def test_a_point_where_no_rate_survived_has_no_value():
    runs = [{**run, "survived": False} for run in all_runs(seeds=1, epsilons=(3.0,), accountings=("paper",))]
    found = reproduced(seeds=1)
    assert {point["train_loss"] for one in landscapes(found, runs) for point in one["points"]} == {None}
    assert landscapes(found, []) == []
