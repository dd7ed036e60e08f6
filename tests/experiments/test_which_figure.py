"""The table of which algorithm, when, grows: what a store has is new, what it lacks is kept."""

from __future__ import annotations

import csv

from diff2_experiments.store import RunStore
from diff2_experiments.which_algorithm import TUNING_SEED, Task, chosen
from diff2_experiments.which_figure import main, read


def stored(place, size, values):
    """Store runs of DP-GD on the quadratic: one that is tried, and one per value with a fresh seed."""
    for seed, value in [(TUNING_SEED, 1.0), *enumerate(values)]:
        task = Task("quadratic", "dpgd", "constant", size, 0.5, 1, seed)
        RunStore(place).add({"key": task.key, **task._asdict(), "train_loss": value, "squared_gradient_norm": value})


def test_rows_of_a_table_are_kept_unless_the_store_has_newer_ones(tmp_path):
    table, figure = tmp_path / "table.csv", tmp_path / "figure.png"
    stored(tmp_path / "old", 1e3, [1.0, 2.0])
    stored(tmp_path / "old", 1e4, [3.0, 4.0])
    stored(tmp_path / "new", 1e4, [5.0])
    main(tmp_path / "old", figure, table)
    assert len(read(table)) == 8  # two measures
    main(tmp_path / "new", figure, table)
    with table.open(newline="", encoding="utf-8") as file:
        rows = [(row["measure"], float(row["size"]), float(row["value"])) for row in csv.DictReader(file)]
    assert [row[1:] for row in rows if row[0] == "train_loss"] == [(1e3, 1.0), (1e3, 2.0), (1e4, 5.0)]
    assert len(read(table)) == 6


def test_a_run_that_diverged_is_not_chosen_for_its_gradient_of_zero():
    place = {"problem": "quadratic", "method": "bvr", "schedule": "cosine", "size": 1e3}
    runs = [
        {**place, "train_loss": None, "squared_gradient_norm": 0.0},
        {**place, "train_loss": 5.0, "squared_gradient_norm": 0.0},
        {**place, "train_loss": 1.0, "squared_gradient_norm": 0.5},
        {**place, "train_loss": 2.0, "squared_gradient_norm": 0.7},
    ]
    assert chosen(runs, "squared_gradient_norm") == [runs[2]]
    assert chosen(runs[:2], "train_loss") == []
