"""The page of a documentation is made from what finished reproductions have left."""

from __future__ import annotations

import re

import matplotlib.figure
import pytest
from reproductions import reproduced

from diff2.errors import InvalidArgument
from diff2_experiments.findings import summaries
from diff2_experiments.reproduction_figures import draw_figures
from diff2_experiments.reproduction_page import main, section
from diff2_experiments.seeds_figure import draw, draw_metric, read_rows
from diff2_experiments.tabulation import write_tables


def test_a_page_shows_every_seed_and_links_to_files_that_are_there(tmp_path):
    place = tmp_path / "stores" / "california_housing" / "found" / "california-paper"
    place.mkdir(parents=True)
    found = reproduced(place, seeds=3, epsilons=(3.0,), accountings=("paper",))
    rows = summaries(found)
    write_tables(found, rows)
    draw_figures(found, rows)
    main(tmp_path / "stores", ["california-paper"], tmp_path / "docs")
    page = (tmp_path / "docs" / "reproduction-tables.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\((reproduction/[^)]*)\)", page)
    assert {link.rpartition(".")[2] for link in links} == {"png", "csv"}
    assert all((tmp_path / "docs" / link).exists() for link in links)
    best = next(row for row in rows if row["method"] == "diff2")["metrics"]["train_loss"]["best"]["values"]
    assert ", ".join(f"{value:.4g}" for value in best) in page
    (line,) = [line for line in page.splitlines() if line.startswith("| california-paper | 3, paper | train loss |")]
    assert "(0.0179) | " in line  # published, beside ours
    assert "NOT PRIVATE" not in page.partition("\n## ")[2]  # said once, at the top
    assert not list((tmp_path / "docs").rglob("*.svg"))

    main(tmp_path / "elsewhere", ["california-paper"], tmp_path / "docs")  # a store that was thrown away
    assert (tmp_path / "docs" / "reproduction-tables.md").read_text(encoding="utf-8") == page


def test_a_stage_that_is_not_finished_is_named(tmp_path):
    with pytest.raises(InvalidArgument, match=r"neither .* holds a finished stage 'gas'"):
        section(tmp_path, "gas", tmp_path)


@pytest.mark.parametrize(("accounting", "triangles"), [("paper", 3), ("exact", 0)])
def test_a_figure_shows_every_seed_and_what_was_published_where_the_noise_is_the_same(tmp_path, accounting, triangles):
    place = tmp_path / "stores" / "california_housing" / "found" / "california"
    place.mkdir(parents=True)
    found = reproduced(place, seeds=3, epsilons=(3.0,), accountings=(accounting,))
    rows = summaries(found)
    write_tables(found, rows)
    draw_figures(found, rows)
    main(tmp_path / "stores", ["california"], tmp_path / "docs")
    axes = matplotlib.figure.Figure().subplots()
    lines = [row for row in read_rows(tmp_path / "docs", "california") if row["metric"] == "train_loss"]
    draw_metric(axes, lines)
    drawn = [list(line.get_ydata()) for line in axes.lines if line.get_marker() == "o"]
    assert drawn == [[float(value) for value in row["best_by_seed"].split()] for row in lines]
    assert [len(values) for values in drawn] == [3] * len(lines)
    assert sum(line.get_marker() == "<" for line in axes.lines) == triangles
    (tmp_path / "docs" / "images").mkdir()
    assert draw(tmp_path / "docs", ["california"], "seeds.png").exists()
